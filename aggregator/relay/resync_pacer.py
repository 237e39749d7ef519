"""Permits so many agents a second to send whole snapshots, over all gateways together.

A new controller needs the snapshot of each node, and decoding and evaluating one takes 0.7 ms. All
at once they would keep the event loop from all other work, even from the renewal of the Lease.

The lists of the cluster come first. Without them nothing is acted on, and next to the snapshots
they take many times as long.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

#: Snapshots a second, and how often some of them are permitted (seconds).
RATE = 1_000
EVERY = 0.05
#: The lists delay the snapshots for so long at most (seconds): an API server that does not answer
#: keeps no evidence from the page.
LISTS_WITHIN = 10.0


class WaitingAgents(Protocol):
    """The agents of one gateway that wait."""

    @property
    def waiting(self) -> int: ...

    def permit(self, count: int) -> None:
        """So many of them may begin."""
        ...


class ResyncPacer:
    """Shares the rate among those that wait, whatever their number. ``listed``: whether the
    cluster's state is known.
    """

    def __init__(self, rate: float = RATE, *, listed: Callable[[], bool] = lambda: True) -> None:
        self._listed = listed
        self._at_once = max(1, int(rate * EVERY))
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
        while not self._listed() and loop.time() < until:  # noqa: ASYNC110 - by its caller's word
            await asyncio.sleep(EVERY)
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self.permit_some():  # noqa: ASYNC110 - the pause is the pace
                await asyncio.sleep(EVERY)

    def permit_some(self) -> bool:
        """Permit as many as `EVERY` allows. Returns whether any waited."""
        left = self._at_once
        waiting = sorted((g for g in self._gateways if g.waiting), key=lambda g: g.waiting)
        for place, gateway in enumerate(waiting):
            count = min(gateway.waiting, max(1, left // (len(waiting) - place)))
            left -= count
            gateway.permit(count)
        return bool(waiting)
