"""The chart of a node's timeline: evidence, decisions and actions in three lanes. Pure.

A fault leads to a taint within a second, and the drain takes hours. So the distance between two
events grows with the logarithm of the time between them, and long gaps have their length in words.
The chart ends with the last event: it is the same until something happens.
"""

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aggregator.events import EventKind as Kind
from aggregator.web import models
from aggregator.web.timefmt import span

#: Events in the chart at most, the newest.
MOST = 60
WIDTH, HEIGHT = 720.0, 150.0
_LEFT, _RIGHT = 76.0, 16.0
_LANES = ("evidence", "decision", "action")
_HEIGHTS = {"evidence": 28.0, "decision": 64.0, "action": 100.0}
#: Seconds: shorter gaps are drawn alike.
_SHORTEST = 0.2
#: Units: marks of one lane that are closer are one mark with a count.
_APART = 13.0
#: Units that the length of a gap needs beneath the lanes.
_ROOM = 48.0
_SIZE = 5.5

_DECISIONS = frozenset(
    {
        Kind.HELD,
        Kind.SUPPRESSED,
        Kind.ADMITTED,
        Kind.OVERRULED,
        Kind.OVERRIDDEN,
        Kind.RELEASE_HELD,
        Kind.REQUESTED,
    }
)
_EVIDENCE = ("incident.", "evidence.", "agent.", "network.", "history.", "node.lemon")
#: Kinds after which things are better: a circle, whatever the lane.
_GOOD = frozenset(
    {
        Kind.INCIDENT_CLOSED,
        Kind.AGENT_BACK,
        Kind.RELEASED,
        Kind.MARKS_RESTORED,
        Kind.NODE_BACK,
        Kind.NODE_FOUND,
        Kind.NETWORK_CLEARED,
    }
)
#: The kinds that begin a bar and those that end it, by lane.
_BARS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "evidence": (frozenset({Kind.INCIDENT_OPENED}), frozenset({Kind.INCIDENT_CLOSED})),
    "decision": (frozenset({Kind.HELD}), frozenset({Kind.ADMITTED, Kind.INCIDENT_CLOSED})),
    "action": (frozenset({Kind.CORDONED, Kind.ADOPTED}), frozenset({Kind.RELEASED})),
}


@dataclass(frozen=True, slots=True)
class Mark:
    """One event, or several close to each other. ``path`` is the shape's outline."""

    lane: str
    x: float
    y: float
    path: str
    good: bool
    count: int
    title: str


@dataclass(frozen=True, slots=True)
class Bar:
    """How long an incident was open, a node held, or in quarantine."""

    lane: str
    x: float
    y: float
    width: float


@dataclass(frozen=True, slots=True)
class TimelineChart:
    """All in units of the view box. ``gaps`` are places and lengths of time in words."""

    marks: tuple[Mark, ...]
    bars: tuple[Bar, ...]
    gaps: tuple[tuple[float, str], ...]
    lanes: tuple[tuple[str, float], ...]
    first: dt.datetime
    last: dt.datetime
    events: int
    width: float = WIDTH
    left: float = _LEFT
    height: float = HEIGHT

    @property
    def right(self) -> float:
        return self.width - _RIGHT


def lane_of(kind: str) -> str:
    """The lane of an event: evidence, decision or action."""
    if kind in _DECISIONS:
        return "decision"
    return "evidence" if kind.startswith(_EVIDENCE) else "action"


def timeline_chart(timeline: Sequence[models.Event], width: float = WIDTH) -> TimelineChart | None:
    """The chart of the newest events of a timeline, which is newest first; None without events."""
    events = sorted(timeline[:MOST], key=lambda one: one.at)
    if not events:
        return None
    right = width - _RIGHT
    places = _places([one.at for one in events], right - _LEFT)
    return TimelineChart(
        marks=tuple(_marks(events, places)),
        bars=tuple(bar for lane in _LANES for bar in _bars(lane, events, places, right)),
        gaps=tuple(_gaps(events, places)),
        lanes=tuple((lane, _HEIGHTS[lane]) for lane in _LANES),
        first=events[0].at,
        last=events[-1].at,
        events=len(events),
        width=width,
    )


def _places(times: Sequence[dt.datetime], room: float) -> list[float]:
    """Where each event is: the distances are logarithms of the times between."""
    steps = [0.0]
    for before, after in pairwise(times):
        steps.append(math.log1p((after - before).total_seconds() / _SHORTEST))
    total = sum(steps)
    places, at = list[float](), 0.0
    for step in steps:
        at += step
        places.append(round(_LEFT + (at / total * room if total else room / 2), 1))
    return places


def _marks(events: Sequence[models.Event], places: Sequence[float]) -> Iterable[Mark]:
    for lane in _LANES:
        cluster: list[tuple[models.Event, float]] = []
        for event, x in zip(events, places, strict=True):
            if lane_of(event.kind) != lane:
                continue
            if cluster and x - cluster[0][1] >= _APART:
                yield _mark(lane, cluster)
                cluster = []
            cluster.append((event, x))
        if cluster:
            yield _mark(lane, cluster)


def _mark(lane: str, cluster: Sequence[tuple[models.Event, float]]) -> Mark:
    x, y = cluster[0][1], _HEIGHTS[lane]
    good = all(event.kind in _GOOD for event, _ in cluster)
    lines = [f"{event.at:%H:%M:%S} {event.kind}: {event.summary}" for event, _ in cluster[:5]]
    if len(cluster) > len(lines):
        lines.append(f"and {len(cluster) - len(lines)} more")
    return Mark(lane, x, y, _outline(lane, x, y, good=good), good, len(cluster), "\n".join(lines))


def _outline(lane: str, x: float, y: float, *, good: bool) -> str:
    """A circle for what is better again, a triangle for evidence, a diamond for a decision, and a
    square for an action.
    """
    s = _SIZE
    if good:
        return f"M{x - s:g},{y:g}a{s},{s} 0 1,0 {2 * s},0a{s},{s} 0 1,0 {-2 * s},0z"
    if lane == "evidence":
        return f"M{x:g},{y - s:g}l{s},{2 * s}h{-2 * s}z"
    if lane == "decision":
        return f"M{x:g},{y - s - 1:g}l{s + 1},{s + 1}l{-s - 1},{s + 1}l{-s - 1},{-s - 1}z"
    return f"M{x - s:g},{y - s:g}h{2 * s}v{2 * s}h{-2 * s}z"


def _bars(
    lane: str, events: Sequence[models.Event], places: Sequence[float], right: float
) -> Iterable[Bar]:
    """From the first event that begins one to the one that ends it, or to the edge."""
    begins, ends = _BARS[lane]
    began: float | None = None
    open_ids: set[str] = set()
    for event, x in zip(events, places, strict=True):
        if event.kind in begins:
            open_ids.add(event.incident)
            began = x if began is None else began
        elif event.kind in ends:
            open_ids.discard(event.incident)
            if lane == "evidence" and open_ids:
                continue  # another incident is open still
            start = _LEFT if began is None else began
            if began is not None or (lane == "action" and event.kind == Kind.RELEASED):
                yield Bar(lane, start, _HEIGHTS[lane], round(x - start, 1))
            began = None
    if began is not None:
        yield Bar(lane, began, _HEIGHTS[lane], round(right - began, 1))


def _gaps(events: Sequence[models.Event], places: Sequence[float]) -> Iterable[tuple[float, str]]:
    for index in range(1, len(events)):
        if places[index] - places[index - 1] >= _ROOM:
            seconds = (events[index].at - events[index - 1].at).total_seconds()
            yield round((places[index] + places[index - 1]) / 2, 1), _length(seconds)


def _length(seconds: float) -> str:
    """With a decimal from an hour on: a gap of 1 h 59 min is no hour."""
    if seconds < 3600:
        return span(seconds)
    days = seconds / 86400
    return f"{seconds / 3600:.2g} h" if days < 2 else f"{days:.3g} d"
