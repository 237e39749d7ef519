"""NVLink faults that follow an eviction from another node of the fabric are attributed to it.

A process that is killed with open NVLink channels leaves errors on its peers (ai2cm/ace#1398,
#1438). So evidence that begins within the pod's grace and a minute after its eviction, by sickbay
or by others, is shown with the eviction, and quarantines no peer. The node of the eviction is
evaluated by its own rules. A restart forgets the evictions.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.pod_ends import PodEnd
from aggregator.events import EventKind, EventSink, Transition
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.policy.rules import Policy
from aggregator.quarantine.decide.admission import Held
from aggregator.quarantine.decide.symptoms import actionable_evidence, may_be_of_fabric
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry

#: Faults come this long after the pod's grace at most (seconds).
AFTER_GRACE = 60.0
#: The longest grace that counts (seconds).
_MOST_GRACE = 3600.0
#: Evictions of one fabric that are remembered, the latest ones.
_MOST = 64
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


@define(eq=False, slots=False)
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
            until = at + min(_seconds(transition.details), _MOST_GRACE) + AFTER_GRACE
            pod = transition.details.get("pod", "")
            self._note(Eviction(transition.node, pod, at, until, "moved from"))
        elif transition.kind is EventKind.INCIDENT_OPENED:
            transition = self._with_eviction(transition)
        self._sink.record_event(transition)

    def note_pod_end(self, end: PodEnd) -> None:
        """A pod that anyone has stopped has ended."""
        now, grace = self._clocks.now(), min(end.grace, _MOST_GRACE)
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
                del evictions[:-_MOST]

    def explains(self, node_state: NodeState, incident: Incident) -> str:
        """The eviction that all evidence of the incident followed, in words; empty if none is."""
        return self._explain(node_state, actionable_evidence([incident], frozenset()))

    def hold(self, node_state: NodeState) -> Held | None:
        """The hold on a node all of whose evidence followed evictions from others, or None."""
        if not self._evictions:
            return None
        overruled = frozenset(word.key for word in node_state.cluster.overruled)
        evidence = actionable_evidence(node_state.decision.incidents.values(), overruled)
        text = self._explain(node_state, evidence)
        if not text:
            return None
        reason = f"{text}; reset its GPUs, which clears the evidence"
        return Held("eviction", "fabric", reason)

    def _explain(self, node_state: NodeState, evidence: Iterable[Evidence]) -> str:
        if not self._evictions:
            return ""
        found, health = list(evidence), node_state.agent.health
        if not may_be_of_fabric(health, found, self._policy):
            return ""
        fabrics = self._fabrics_of(node_state.node)
        evictions = [
            one
            for fabric in fabrics
            for one in self._evictions.get(fabric, ())
            if one.node != node_state.node
        ]
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
        if node_state is None or not self._evictions:
            return transition
        incident = node_state.decision.incidents.get(transition.incident)
        text = self.explains(node_state, incident) if incident is not None else ""
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
