"""Remembers the state of the fleet, every five minutes, here and in the history.

A snapshot of 10,000 nodes costs some tens of milliseconds, so this costs nothing that is noticed.
"""

import asyncio
from collections.abc import Callable

from aggregator.web.fleet_trend import COUNTED, LENGTH, STEP, TrendSample, point_of
from aggregator.web.queries import PATIENCE, FleetQueries, read_history

#: Seconds until the first point: after a start the agents connect one by one, and a node without
#: its agent is unknown.
SETTLE = 60.0
#: Seconds between two readings of a fleet that is not known yet.
_AGAIN = 5.0


class TrendRecorder:
    """Fills the trend of ``queries``."""

    def __init__(self, queries: FleetQueries) -> None:
        self._queries = queries
        self._trend = queries.trend
        self._wall: Callable[[], float] = lambda: queries.snapshots.moment().wall

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.sleep(SETTLE)
        while True:
            await self.record()
            known = self._trend.own_since is not None
            await asyncio.sleep(STEP - self._wall() % STEP if known else _AGAIN)

    async def record(self) -> bool:
        """One point. Returns whether there was one: not while the cluster can't be seen or most
        agents have not reported, because what is known then is old, or empty.
        """
        fleet = self._queries.fleet
        if not fleet.node_summaries or fleet.view_lost or fleet.waiting_for_quorum:
            return False
        snapshot = await self._queries.current_snapshot()
        is_first = self._trend.own_since is None
        point = point_of(snapshot.found, self._wall())
        if self._trend.add(point):
            self._queries.history.record_counts({name: getattr(point, name) for name in COUNTED})
        if is_first:
            await self._fill(point.at)
        return True

    async def _fill(self, now: float) -> None:
        """The points before the first one, from the history."""
        points, self._trend.trouble = await read_history(self._points(now - LENGTH), PATIENCE)
        self._trend.prepend(points)

    async def _points(self, since: float) -> list[TrendSample]:
        kept = await self._queries.history.counts(since)
        return [
            TrendSample(at=at, **{name: int(body.get(name, 0)) for name in COUNTED})
            for at, body in kept
        ]
