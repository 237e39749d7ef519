"""How many nodes were well, held, in quarantine and drained over the last day. Pure.

A replica remembers a point every five minutes, and the history keeps it for the next replica.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from aggregator.cluster.port import Phase
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web.fleet_view import UNWELL, FleetViewFindings

#: Seconds between two points, and how far back they go.
STEP, LENGTH = 300.0, 86400.0
#: The counts of a point, by the names of its fields.
COUNTED = ("nodes", "held", "quarantined", "drained", "other")
_MOST_POINTS = int(LENGTH / STEP) + 1
#: Points that a clock which was set back may add before others make room: an hour of them.
_RESERVE = 12


@dataclass(frozen=True, slots=True)
class TrendSample:
    """Nodes at a time (wall clock seconds). ``drained`` are among ``quarantined``; ``other`` have a
    warning, are silent or unknown. The rest of ``nodes`` is well.
    """

    at: float
    nodes: int
    held: int
    quarantined: int
    drained: int
    other: int

    @property
    def well(self) -> int:
        return self.nodes - self.held - self.quarantined - self.other


class FleetTrend:
    """The points of the last day, oldest first; at most one for each five minutes."""

    def __init__(self) -> None:
        self._points: list[TrendSample] = []
        #: The time of the first point that this replica has seen itself; before it: from history.
        self.own_since: float | None = None
        #: Why the time before is missing; empty: it is not, or there was none.
        self.trouble = ""

    def add(self, point: TrendSample) -> bool:
        """The present counts. Returns False for a second point of the same five minutes, which is
        ignored. A clock that is set back leaves later points, of which the latest make room when
        there are too many.
        """
        place = bisect_left(self._points, point.at, key=lambda one: one.at)
        neighbours = self._points[max(0, place - 1) : place + 1]
        if any(slot(one.at) == slot(point.at) for one in neighbours):
            return False
        if self.own_since is None:
            self.own_since = point.at
        self._points.insert(place, point)
        ahead = self._points[-1].at - point.at
        if not ahead:
            del self._points[:-_MOST_POINTS]
        elif len(self._points) > _MOST_POINTS + _RESERVE:
            del self._points[-1 if ahead > point.at - self._points[0].at else 0]
        return True

    def prepend(self, points: Iterable[TrendSample]) -> None:
        """Points of the history, oldest first: those that are older than all others."""
        first = slot(self._points[0].at) if self._points else math.inf
        older = {slot(one.at): one for one in points if slot(one.at) < first}
        self._points = [*older.values(), *self._points][-_MOST_POINTS:]

    def points(self, now: float) -> list[TrendSample]:
        """Those of the day before ``now``, oldest first."""
        return [one for one in self._points if now - LENGTH <= one.at <= now + STEP]


def slot(at: float) -> int:
    """The five minutes that a time is in."""
    return int(at // STEP)


def point_of(found: FleetViewFindings, at: float) -> TrendSample:
    """The counts of a snapshot."""
    counts = found.counts
    quarantined = counts[QuarantineSummary.QUARANTINED]
    return TrendSample(
        at=at,
        nodes=len(found.states),
        held=counts[QuarantineSummary.HELD],
        quarantined=quarantined,
        drained=min(quarantined, sum(one.phase == Phase.DRAINED for one in found.quarantines)),
        other=sum(counts[state] for state in UNWELL),
    )
