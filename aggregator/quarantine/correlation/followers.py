"""NVLink evidence that followed what happened on another node of the fabric.

`RackOrigins` keeps the evidence of each fabric, and names the origin of a cause that is a fabric's.
The origin's node passes the hold of the cause where its code is explicit and alone. All other nodes
are followers: they stay held until their evidence of the event is cleared, also when the cause is
over. Where the origin is unknown and more than two nodes were in the event, all are followers.

`EvictionMemory` attributes faults to an eviction from another node: a process that is killed with
open NVLink channels leaves errors on its peers (ai2cm/ace#1398, #1438). So evidence that begins
within the pod's grace and a minute after its eviction, by sickbay or by others, is shown with the
eviction, and quarantines no peer. The node of the eviction is evaluated by its own rules.

A restart forgets the evictions, and which nodes were followers of a cause that is over.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.pod_ends import PodEnd
from aggregator.events import EventKind, EventSink, Transition
from aggregator.health.model import Fault, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.check_traits import NVLINK as NVLINK_CHECKS
from aggregator.policy.evaluate import Evidence
from aggregator.policy.rack_origin import (
    PRECURSOR,
    Confidence,
    FabricSign,
    Origin,
    find_origin,
    unknown,
)
from aggregator.policy.rules import Policy
from aggregator.quarantine.decide.common_cause import (
    LEAST_IN_CLIQUE,
    CommonCause,
    Group,
    fabric_cause,
)
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.symptoms import (
    actionable_evidence,
    is_nvlink_code,
    may_be_of_fabric,
)
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry

#: The origin is named, and the cause reported, when it has been open for this long (seconds): lines
#: of one event come within a second or two, each agent's on its own stream.
SETTLES = 10.0
#: A follower's evidence may have begun this long after the cause was over (seconds): checks run
#: each minute.
_TRAILS = 90.0
#: Signs of one node that count: agents choose the components.
_MOST_SIGNS = 256


@define(eq=False, repr=False)
class _Event:
    """An open cause that is a fabric's."""

    cause: CommonCause
    origin: Origin
    since: float
    reported: bool = False
    nodes: set[str] = field(factory=set)


@dataclass(frozen=True, slots=True)
class _Follower:
    origin: Origin
    ended: float


class RackOrigins:
    """``window``: signs that began within that number of seconds of each other are of one event."""

    def __init__(self, policy: Policy, window: float, clocks: Clocks) -> None:
        self._policy = policy
        self._window = window
        self._now = clocks.now
        self._signs: dict[str, dict[tuple[str, str], FabricSign]] = {}
        #: Of each node with signs, the ids of the causes that its fabrics would be.
        self._ids: dict[str, frozenset[str]] = {}
        self._events: dict[str, _Event] = {}
        self._followers: dict[str, _Follower] = {}
        #: Ids of causes whose signs have changed since the origin was looked for.
        self._changed: set[str] = set()

    def note(self, node_state: NodeState, fabrics: Collection[Group]) -> None:
        """Take the node's NVLink evidence as it is now. Cheap for a node without any."""
        node, health = node_state.node, node_state.agent.health
        known = self._signs.get(node)
        if health is None or not (known or health.faults or node_state.decision.incidents):
            return
        if not (fabrics or known or node in self._ids or node in self._followers):
            return
        found = dict(_signs(node, health, self._policy, self._window)) if fabrics else {}
        if not any(not one.is_warning for one in found.values()):
            self._followers.pop(node, None)  # it is clean
        ids = frozenset(fabric_cause(group) for group in fabrics)
        if known and ids & self._events.keys():
            found = known | found  # a reset of the origin ends its evidence, and not its role
        if not found:
            self.forget(node)
            return
        self._place(node, ids)
        if found != known:
            self._signs[node] = dict(list(found.items())[:_MOST_SIGNS])
            self._changed |= ids

    def forget(self, node: str) -> None:
        self._place(node, frozenset())
        self._signs.pop(node, None)
        self._ids.pop(node, None)
        self._followers.pop(node, None)

    def _place(self, node: str, ids: frozenset[str]) -> None:
        self._changed |= self._ids.get(node, frozenset()) ^ ids
        self._ids[node] = ids

    def update(self, causes: Iterable[CommonCause]) -> Mapping[str, CommonCause]:
        """The open causes, with the origin in the reason of those that are a fabric's."""
        shown = {}
        for cause in causes:
            shown[cause.id] = self._named(cause) if cause.fabric else cause
        self._changed.clear()
        return shown

    def _named(self, cause: CommonCause) -> CommonCause:
        now, event = self._now(), self._events.get(cause.id)
        if event is not None and event.cause == cause and cause.id not in self._changed:
            return replace(cause, reason=f"{cause.reason}; {event.origin.text}")
        origin, nodes = self._find(cause)
        if event is None:
            old = now - cause.since > 2 * SETTLES  # another replica has reported it
            event = self._events[cause.id] = _Event(cause, origin, now, reported=old)
        if (event.origin.node, event.origin.confidence) != (origin.node, origin.confidence):
            event.since = now
        event.cause, event.origin = cause, origin
        event.nodes |= nodes
        return replace(cause, reason=f"{cause.reason}; {origin.text}")

    def _find(self, cause: CommonCause) -> tuple[Origin, set[str]]:
        members = [node for node, ids in self._ids.items() if cause.id in ids]
        signs = [one for node in members for one in self._signs.get(node, {}).values()]
        times = [one.at for one in signs if not one.is_warning]
        if not times:
            return unknown("its evidence is over"), set()
        middle = median(times)
        signs = [one for one in signs if one.is_warning or abs(one.at - middle) <= self._window]
        nodes = {one.node for one in signs if not one.is_warning}
        if len(nodes) < cause.nodes and cause.faded is None:
            return unknown("not all nodes of the fabric have reported here"), nodes
        return find_origin(signs), nodes

    def due(self) -> list[tuple[CommonCause, Origin]]:
        """The fabrics' causes to report now: their origin has settled. Each is given once."""
        now, found = self._now(), []
        for event in self._events.values():
            if not event.reported and now - event.cause.since >= SETTLES:
                event.reported = True
                reason = f"{event.cause.reason}; {event.origin.text}"
                found.append((replace(event.cause, reason=reason), event.origin))
        return found

    def end(self, cause: CommonCause) -> CommonCause:
        """The cause is over: its followers stay held until they are clean."""
        event = self._events.pop(cause.id, None)
        if event is None:
            return cause
        if event.origin.node or len(event.nodes) > LEAST_IN_CLIQUE:
            for node in event.nodes - {event.origin.node}:
                self._followers[node] = _Follower(event.origin, self._now())
        return replace(cause, reason=f"{cause.reason}; {event.origin.text}")

    def passes(self, node: str) -> frozenset[str]:
        """The open causes whose hold the node passes: it is their explicit origin."""
        now = self._now()
        return frozenset(
            ident
            for ident in self._ids.get(node, ())
            if (event := self._events.get(ident)) is not None
            and event.origin.node == node
            and event.origin.confidence is Confidence.EXPLICIT
            and now - event.since >= SETTLES
        )

    def hold(self, node_state: NodeState, evidence: Iterable[Evidence]) -> Held | None:
        """The hold on a follower whose cause is over, while its evidence of that is open."""
        known, health = self._followers.get(node_state.node), node_state.agent.health
        if known is None:
            return None
        found = list(evidence)
        began = [_last(item, health) for item in found]
        if not found or max(began) > known.ended + _TRAILS:
            return None
        if not may_be_of_fabric(health, found, self._policy):
            return None
        return Held(
            "fabric-follower",
            known.origin.node or Confidence.UNKNOWN,
            f"its NVLink evidence followed an event of its fabric that is over, "
            f"{known.origin.text}; reset its GPUs, which clears the evidence",
        )


def _last(item: Evidence, health: NodeHealth | None) -> float:
    fault = health.faults.get(item.key) if health is not None else None
    return fault.last_at if fault is not None else item.since


def _signs(
    node: str, health: NodeHealth, policy: Policy, window: float
) -> Iterable[tuple[tuple[str, str], FabricSign]]:
    for fault in health.faults.values():
        if not fault.historical and is_nvlink_code(fault.code, policy):
            row = policy.catalogue.decode(fault, health.traits)
            word = fault.details.get("severity", "")
            sign = FabricSign(node, fault.component, fault.code, _began(fault, window), row, word)
            yield fault.key, sign
    for one in health.components.that_are(Status.FAILED):
        code = f"{one.check}:{one.reason}"
        if one.check in NVLINK_CHECKS or code == PRECURSOR:
            gpu = one.component.removeprefix("nvlink-recoveries ")
            yield (code, gpu), FabricSign(node, gpu, code, one.since, level=True)


def _began(fault: Fault, window: float) -> float:
    """The first of the fault's latest lines: a latched fault may be days old."""
    return min(at for at in (*fault.occurrences, fault.last_at) if fault.last_at - at <= window)


#: Faults come this long after the pod's grace at most (seconds).
AFTER_GRACE = 60.0
#: The longest grace that counts (seconds).
_LONGEST_GRACE = 3600.0
#: Evictions of one fabric that are remembered, the latest ones.
_MOST_EVICTIONS = 64
_LEFT = frozenset({EventKind.MOVED, EventKind.FORCED})


@dataclass(frozen=True, slots=True)
class Eviction:
    """Pods that left a node, one of them by name, from ``at`` on (monotonic).

    Faults of the fabric that begin until ``until`` follow them. ``how`` is a phrase that the node's
    name follows.
    """

    node: str
    pod: str
    at: float
    until: float
    how: str


@define(eq=False, repr=False, slots=False)
class EvictionMemory:
    """An event sink in front of ``sink``, which receives the evictions.

    ``fabrics_of`` gives the NVLink fabrics of a node.
    """

    _sink: EventSink
    _policy: Policy = field(kw_only=True)
    _fabrics_of: Callable[[str], frozenset[str]] = field(kw_only=True)
    _registry: NodeRegistry = field(kw_only=True)
    _clocks: Clocks = field(kw_only=True)
    _evictions: dict[str, list[Eviction]] = field(factory=dict, init=False)

    def record_event(self, transition: Transition) -> None:
        """Remember evictions, and add the eviction to the incidents that followed one."""
        if transition.kind in _LEFT:
            at = self._clocks.now()
            until = at + min(_seconds(transition.details), _LONGEST_GRACE) + AFTER_GRACE
            pod = transition.details.get("pod", "")
            self._note(Eviction(transition.node, pod, at, until, "moved from"))
        elif transition.kind is EventKind.INCIDENT_OPENED:
            transition = self._with_eviction(transition)
        self._sink.record_event(transition)

    def note_pod_end(self, end: PodEnd) -> None:
        """A pod that anyone has stopped has ended."""
        now, grace = self._clocks.now(), min(end.grace, _LONGEST_GRACE)
        ago = self._clocks.trusted_wall() - end.began
        at = now - min(max(ago, 0.0), grace + AFTER_GRACE)
        self._note(Eviction(end.node, end.pod, at, min(now, at + grace) + AFTER_GRACE, end.how))

    def _note(self, eviction: Eviction) -> None:
        for fabric in self._fabrics_of(eviction.node):
            evictions = self._evictions.setdefault(fabric, [])
            for number, one in enumerate(evictions):
                apart = eviction.at > one.until or eviction.until < one.at
                if one.node == eviction.node and not apart:  # further pods of one drain
                    at, until = min(one.at, eviction.at), max(one.until, eviction.until)
                    evictions[number] = replace(one, at=at, until=until)
                    break
            else:
                evictions.append(eviction)
                del evictions[:-_MOST_EVICTIONS]

    def hold(self, node_state: NodeState) -> Held | None:
        """The hold on a node whose evidence followed evictions from others as a whole, or None."""
        overruled = frozenset(word.key for word in node_state.cluster.overruled)
        evidence = actionable_evidence(node_state.decision.incidents.values(), overruled)
        text = self._explain(node_state, evidence)
        if not text:
            return None
        reason = f"{text}; reset its GPUs, which clears the evidence"
        return Held("eviction", "fabric", reason)

    def _explain(self, node_state: NodeState, evidence: Iterable[Evidence]) -> str:
        """The eviction that all of this evidence followed, in words; empty if none is."""
        if not self._evictions:
            return ""
        found, health = list(evidence), node_state.agent.health
        if not may_be_of_fabric(health, found, self._policy):
            return ""
        fabrics = self._fabrics_of(node_state.node)
        known = (one for fabric in fabrics for one in self._evictions.get(fabric, ()))
        evictions = [one for one in known if one.node != node_state.node]
        first: tuple[float, Eviction] | None = None
        for item in found:
            fault = health.faults.get(item.key) if health is not None else None
            began, last = (fault.first_at, fault.last_at) if fault else (item.since, item.since)
            before = [one for one in evictions if one.at <= began and last <= one.until]
            if not before:
                return ""
            first = min(first or (began, before[-1]), (began, before[-1]), key=lambda one: one[0])
        if first is None:
            return ""
        began, eviction = first
        return (
            f"its NVLink evidence began {began - eviction.at:.0f} s after {eviction.pod} was "
            f"{eviction.how} {eviction.node} of its fabric"
        )

    def _with_eviction(self, transition: Transition) -> Transition:
        node_state = self._registry.known(transition.node)
        incidents = node_state.decision.incidents if node_state is not None else {}
        incident = incidents.get(transition.incident)
        if node_state is None or incident is None:
            return transition
        text = self._explain(node_state, actionable_evidence([incident], frozenset()))
        if not text:
            return transition
        return replace(
            transition,
            summary=f"{transition.summary}; {text}",
            details={**transition.details, "eviction": text},
        )


def _seconds(details: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(details.get("grace", "")))
    except ValueError:
        return 0.0
