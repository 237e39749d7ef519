"""How many nodes were well, held, in quarantine and drained over the last day. Pure.

A replica remembers a point every five minutes. What was before its start is computed once from the
history: the present states are followed backwards through the transitions.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aggregator.cluster.port import Phase
from aggregator.events import EventKind, Transition
from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web.fleet_view import FleetViewFindings

#: Seconds between two points, and how far back they go.
STEP, LENGTH = 300.0, 86400.0
_MOST_POINTS = int(LENGTH / STEP) + 1
#: Points that a clock which was set back may add before others make room: an hour of them.
_RESERVE = 12
_HOLDS = frozenset({EventKind.HELD, EventKind.SUPPRESSED})
_HOLD_ENDS = frozenset({EventKind.ADMITTED, EventKind.INCIDENT_CLOSED})


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

    def add(self, point: TrendSample) -> None:
        """The present counts. A second point of the same five minutes is ignored. A clock that is
        set back leaves later points, of which the latest make room when there are too many.
        """
        place = bisect_left(self._points, point.at, key=lambda one: one.at)
        if any(
            slot(one.at) == slot(point.at) for one in self._points[max(0, place - 1) : place + 1]
        ):
            return
        if self.own_since is None:
            self.own_since = point.at
        self._points.insert(place, point)
        ahead = self._points[-1].at - point.at
        if not ahead:
            del self._points[:-_MOST_POINTS]
        elif len(self._points) > _MOST_POINTS + _RESERVE:
            del self._points[-1 if ahead > point.at - self._points[0].at else 0]

    def prepend(self, points: Iterable[TrendSample]) -> None:
        """Points of the history, which are older than all others."""
        first = self._points[0].at if self._points else float("inf")
        older = [one for one in points if one.at < first]
        self._points = [*older, *self._points][-_MOST_POINTS:]

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
        drained=min(
            quarantined, sum(one.phase == Phase.DRAINED.value for one in found.quarantines)
        ),
        other=sum(
            counts[one]
            for one in (
                QuarantineSummary.WARNING,
                QuarantineSummary.SILENT,
                QuarantineSummary.UNKNOWN,
            )
        ),
    )


@dataclass(slots=True)
class _NodeState:
    """A node at one time. ``unexplained``: no transition explains why it is not well now."""

    quarantined: bool = False
    drained: bool = False
    held: bool = False
    is_silent: bool = False
    unexplained: bool = False
    incidents: set[str] = field(default_factory=set)

    def category(self) -> str:
        if self.quarantined:
            return "drained" if self.drained else "quarantined"
        if self.held:
            return "held"
        return "other" if self.is_silent or self.incidents or self.unexplained else "well"


def points_before(
    found: FleetViewFindings, transitions: Sequence[Transition], now: float, since: float
) -> list[TrendSample]:
    """The points from ``since`` to ``now``, oldest first, by the transitions of that time.

    The nodes are those of now: one that is gone since is not counted.
    """
    states = _present(found)
    counts = Counter(state.category() for state in states.values())
    counts["well"] += len(found.states) - len(states)
    known = [one for one in transitions if one.node in found.states]
    events = sorted([*known, *_begun(found, known)], key=lambda one: one.at)
    before = _ended_states(events)
    points: list[TrendSample] = []
    at = slot(now) * STEP
    remaining = len(events)
    while at >= since:
        while remaining and events[remaining - 1].at > at:
            remaining -= 1
            _undo(events[remaining], before.get(remaining, ""), states, counts)
        points.append(_point(at, len(found.states), counts))
        at -= STEP
    return points[::-1]


def _present(found: FleetViewFindings) -> dict[str, _NodeState]:
    """The nodes that are not well now."""
    states = {
        name: _NodeState(
            quarantined=state is QuarantineSummary.QUARANTINED,
            held=state is QuarantineSummary.HELD,
            is_silent=state is QuarantineSummary.SILENT,
        )
        for name, state in found.states.items()
        if state is not QuarantineSummary.OK
    }
    for incident in found.incidents:
        states.setdefault(incident.node, _NodeState()).incidents.add(incident.id)
    for quarantine in found.quarantines:
        if quarantine.node in states:
            states[quarantine.node].drained = quarantine.phase == Phase.DRAINED.value
    for state in states.values():
        state.unexplained = state.category() == "well"
    return states


def _begun(found: FleetViewFindings, known: Iterable[Transition]) -> list[Transition]:
    """The begin of what is in force now, by its own time, where no known transition has it."""
    seen = {(one.node, one.kind) for one in known}
    begun = [
        (time, kind, one.node, one.incident)
        for one in found.quarantines
        for time, kind in (
            (one.admitted_at, EventKind.ADMITTED),
            (one.drained_at, EventKind.DRAINED),
        )
    ]
    begun += [(one.since, EventKind.HELD, one.node, "") for one in found.holds]
    begun += [(one.since, EventKind.INCIDENT_OPENED, one.node, one.id) for one in found.incidents]
    return [
        Transition(time.timestamp(), kind, node, "", incident)
        for time, kind, node, incident in begun
        if time is not None and (node, kind) not in seen and node in found.states
    ]


def _ended_states(events: Sequence[Transition]) -> Mapping[int, str]:
    """The state that a transition ended, by its number: "drained" or "quarantined" for a release,
    "held" for the end of a hold. Forwards, because only earlier transitions show it.
    """
    ended: dict[int, str] = {}
    quarantines: dict[str, str] = {}
    held: set[str] = set()
    for number, one in enumerate(events):
        if one.kind in _HOLDS:
            held.add(one.node)
        elif one.kind in _HOLD_ENDS and one.node in held:
            ended[number] = "held"
            held.discard(one.node)
        if one.kind is EventKind.ADMITTED:
            quarantines[one.node] = "quarantined"
        elif one.kind is EventKind.DRAINED:
            quarantines[one.node] = "drained"
        elif one.kind is EventKind.RELEASED:
            # Admitted and drained before the first transition that is known.
            ended[number] = quarantines.pop(one.node, "drained")
    return ended


def _undo(one: Transition, ended: str, states: dict[str, _NodeState], counts: Counter[str]) -> None:
    """The node's state before the transition."""
    state = states.get(one.node)
    if state is None:
        state = states[one.node] = _NodeState()
    counts[state.category()] -= 1
    match one.kind:
        case EventKind.ADMITTED:
            state.quarantined = state.drained = False
            state.held = ended == "held"
        case EventKind.DRAINED:
            state.drained = False
        case EventKind.RELEASED:
            state.quarantined, state.drained = True, ended == "drained"
        case EventKind.HELD | EventKind.SUPPRESSED:
            state.held = False
        case EventKind.INCIDENT_OPENED:
            state.incidents.discard(one.incident)
        case EventKind.INCIDENT_CLOSED:
            state.incidents.add(one.incident)
            state.held = state.held or ended == "held"
        case EventKind.AGENT_SILENT:
            state.is_silent = False
        case EventKind.AGENT_BACK:
            state.is_silent = True
        case _:
            pass
    counts[state.category()] += 1


def _point(at: float, nodes: int, counts: Mapping[str, int]) -> TrendSample:
    return TrendSample(
        at=at,
        nodes=nodes,
        held=counts["held"],
        quarantined=counts["quarantined"] + counts["drained"],
        drained=counts["drained"],
        other=counts["other"],
    )
