"""Remembers the state of the fleet, every five minutes, and once what history knows of the day
before.

A snapshot of 10,000 nodes costs some tens of milliseconds, so this costs nothing that is noticed.
"""

import asyncio
import math
from collections.abc import Callable, Iterable

from aggregator.events import Transition
from aggregator.web.fleet_trend import LENGTH, STEP, FleetTrend, point_of, points_before
from aggregator.web.queries import FleetQueries
from aggregator.web.snapshot_cache import FleetSnapshot

#: Transitions that are read at once, and how many times, to compute the past: a fleet has some
#: hundreds a day.
_PART, _PARTS = 1_000, 5
#: Seconds until the first point: after a start the agents connect one by one, and a node without
#: its agent is unknown.
SETTLE = 60.0
#: Seconds between two readings of a fleet that is not known yet.
_AGAIN = 5.0


class TrendRecorder:
    """Fills the trend of ``queries``."""

    def __init__(self, queries: FleetQueries) -> None:
        self._queries = queries
        self._wall: Callable[[], float] = lambda: queries.snapshots.moment().wall

    @property
    def _trend(self) -> FleetTrend:
        return self._queries.trend

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
        self._trend.add(point_of(snapshot.found, self._wall()))
        if is_first:
            await self._fill(snapshot)
        return True

    async def _fill(self, snapshot: FleetSnapshot) -> None:
        """The points before the first one, from the history."""
        now = self._wall()
        transitions, since = await self._past(now - LENGTH)
        if transitions and not self._trend.trouble:  # an empty one is new, and no quiet day
            self._trend.prepend(points_before(snapshot.found, transitions, now, since))

    async def _past(self, since: float) -> tuple[list[Transition], float]:
        """The newest transitions from then on, and from when on they are all that there are. Read
        in parts.
        """
        found: dict[tuple[float, str, str, str], Transition] = {}
        until = math.inf
        for _ in range(_PARTS):
            past = await self._queries.past(since=since, limit=_PART, until=until)
            self._trend.trouble = past.trouble
            before = len(found)
            for one in past.transitions:
                found[one.at, one.kind.value, one.node, one.summary] = one
            if past.trouble or len(past.transitions) < _PART or len(found) == before:
                return list(found.values()), await self._begin(since, found.values())
            until = past.transitions[-1].at  # that one is repeated
        return list(found.values()), until

    async def _begin(self, since: float, known: Iterable[Transition]) -> float:
        """``since``, or the oldest transition if the history does not go back that far: it does not
        know the state of the fleet before.
        """
        earlier = await self._queries.past(since=0.0, limit=1, until=since)
        return since if earlier.transitions else min((one.at for one in known), default=since)
