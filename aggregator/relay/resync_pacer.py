"""Permits agents to send whole snapshots, over all gateways together, as fast as they are taken.

A new controller needs the snapshot of each node, and decoding and evaluating one takes 0.7 ms. All
at once they would keep the event loop from all other work: from the Lease, and from the gateways,
which would take a controller that does not answer for one that is out of reach.

The lists of the cluster come first. Without them nothing is acted on, and next to the snapshots
they take many times as long.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

#: Snapshots that were permitted and have not come: half a second's work. From the permission to the
#: snapshot it takes 0.4 s with 10,000 agents, in which the controller must not be idle. Fewer while
#: its event loop is late by this number of seconds: gateways wait for its answers.
AHEAD, AHEAD_BUSY, LATE = 500, 200, 0.1
#: A permitted snapshot that does not come makes room for another after about this number of
#: seconds: its agent may be gone.
MISSED_AFTER = 5.0
#: How often some are permitted (seconds).
EVERY = 0.05
#: The lists delay the snapshots for this long at most (seconds): an API server that does not answer
#: keeps no evidence from the page.
LISTS_WITHIN = 10.0


class WaitingAgents(Protocol):
    """The agents of one gateway that wait."""

    @property
    def waiting(self) -> int: ...

    def permit(self, count: int) -> None:
        """``count`` of them may begin."""


class ResyncPacer:
    """Shares the room among those that wait, whatever their number. ``received``: how many
    snapshots have come so far. ``listed``: whether the cluster's state is known.
    """

    def __init__(
        self, received: Callable[[], int], *, listed: Callable[[], bool] = lambda: True
    ) -> None:
        self._received = received
        self._listed = listed
        self._counted = received()
        self._missing = 0.0
        self._busy = True
        self._gateways: list[WaitingAgents] = []
        self._changed = asyncio.Event()

    def join(self, gateway: WaitingAgents) -> None:
        self._gateways.append(gateway)
        self._changed.set()

    def leave(self, gateway: WaitingAgents) -> None:
        self._gateways.remove(gateway)

    def wake(self) -> None:
        """The number that waits has grown."""
        self._changed.set()

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LISTS_WITHIN
        while not self._listed() and loop.time() < until:  # noqa: ASYNC110 - its caller knows
            await asyncio.sleep(EVERY)
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self.permit_some():
                due = loop.time() + EVERY
                await asyncio.sleep(EVERY)
                self._busy = loop.time() >= due + LATE

    def permit_some(self) -> bool:
        """Permit as many as there is room for. Returns whether any waited."""
        left = self._room()
        waiting = sorted((g for g in self._gateways if g.waiting), key=lambda g: g.waiting)
        for place, gateway in enumerate(waiting):
            count = min(gateway.waiting, left // (len(waiting) - place))
            left -= count
            self._missing += count
            if count:
                gateway.permit(count)
        return bool(waiting)

    def _room(self) -> int:
        received = self._received()
        came, self._counted = received - self._counted, received
        missed = self._missing * EVERY / MISSED_AFTER
        self._missing = max(0.0, self._missing - came - missed)
        ahead = AHEAD_BUSY if self._busy else AHEAD
        return max(0, round(ahead - self._missing))  # more are missing once the loop gets late
