"""Takes one snapshot of the fleet for all requests, and reports when it has changed.

A snapshot of 10,000 nodes costs tens of milliseconds. So one snapshot serves all requests until it
is too old. Taking it yields to the event loop in between, and happens so seldom that it stays below
a twentieth of the processor. Without watchers no snapshot is taken.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from aggregator.clock import Clocks
from aggregator.quarantine.state.fleet import FleetState
from aggregator.runtime.text import natural
from aggregator.web import models
from aggregator.web.fleet_view import FleetViewBuilder, FleetViewFindings
from aggregator.web.node_view import ViewMoment

#: Ticks come at most this often, and snapshots too (seconds).
TICK = 0.25
_SHARE = 20.0
_CHUNK = 250
#: The wall clock may be set. Below this (seconds) it counts as the same, so that the dates of
#: unchanged values don't change.
_STEP = 0.5


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The findings and their time. ``revision`` grows with each snapshot that differs."""

    found: FleetViewFindings
    moment: ViewMoment
    revision: int


class SnapshotCache:
    """Keeps the latest snapshot."""

    def __init__(
        self,
        fleet: FleetState,
        clocks: Clocks,
        replicas: Callable[[], Sequence[models.Replica]] = tuple,
        lease_lost: Callable[[], str] = str,
    ) -> None:
        """``replicas``: those of the aggregator, none where it is alone. ``lease_lost``: why this
        replica may not act although it is the controller; empty: it may.
        """
        self._fleet = fleet
        self._clocks = clocks
        self.now = clocks.now
        self._replicas = replicas
        self._lease_lost = lease_lost
        self._snapshot: FleetSnapshot | None = None
        self._old_at = float("-inf")
        self._lock = asyncio.Lock()
        self._names: list[str] = []
        self._offset = clocks.wall() - clocks.now()

    def moment(self) -> ViewMoment:
        """Now, on both clocks."""
        now, wall = self._clocks.now(), self._clocks.wall()
        if abs(wall - now - self._offset) > _STEP:
            self._offset = wall - now
        return ViewMoment(now, now + self._offset)

    async def current_snapshot(self) -> FleetSnapshot:
        """A snapshot that is a quarter of a second old at most, or somewhat more for a large
        fleet.
        """
        async with self._lock:
            if self._snapshot is None or self._clocks.now() >= self._old_at:
                self._snapshot = await self._take(self._snapshot)
            return self._snapshot

    async def _take(self, before: FleetSnapshot | None) -> FleetSnapshot:
        moment, began = self.moment(), self._clocks.now()
        names, builder = self._ordered(), FleetViewBuilder(self._fleet, moment)
        known = self._fleet.node_summaries

        def add(name: str) -> None:
            node_summary = known.get(name)
            if node_summary is not None:
                builder.add(node_summary)

        spent = self._clocks.now() - began
        spent += await visit_in_chunks(names, add, self._clocks.now)
        began = self._clocks.now()
        found = replace(
            builder.conclude(names), replicas=tuple(self._replicas()), lease_lost=self._lease_lost()
        )
        changed = before is None or before.found != found
        revision = (before.revision if before else 0) + changed
        spent += self._clocks.now() - began
        self._old_at = self._clocks.now() + rest(spent)
        return FleetSnapshot(found, moment, revision)

    def _ordered(self) -> list[str]:
        """The nodes as people read them; sorted again when one came or went."""
        names = self._fleet.node_summaries.keys()
        if names != set(self._names):
            self._names = sorted(names, key=natural)
        return self._names


async def visit_in_chunks(
    names: Iterable[str], visit: Callable[[str], None], now: Callable[[], float]
) -> float:
    """Visit each name, yielding to other tasks in between; returns the seconds that the visits
    took.
    """
    spent, began = 0.0, now()
    for number, name in enumerate(names, 1):
        visit(name)
        if number % _CHUNK == 0:
            spent += now() - began
            await asyncio.sleep(0)
            began = now()
    return spent + now() - began


def rest(spent: float) -> float:
    """How long (seconds) the result of ``spent`` seconds' work serves before it is renewed."""
    return max(TICK, _SHARE * spent)
