"""Searches for causes on the controller's side: hands the evidence to `CommonCauses`, and reports
findings.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.port import Action
from aggregator.events import ChangeNotice, EventKind, EventSink, Transition
from aggregator.health.model import CheckOff
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.policy.rack_origin import Origin
from aggregator.policy.rules import Policy
from aggregator.quarantine.correlation.followers import RackOrigins
from aggregator.quarantine.decide.admission import Limits, OpenCause
from aggregator.quarantine.decide.admission_record import FLEET, Record
from aggregator.quarantine.decide.common_cause import (
    VERSIONS,
    CommonCause,
    CommonCauses,
    CommonLimits,
    Group,
    fabric_cause,
)
from aggregator.quarantine.decide.held import Held, held_by
from aggregator.quarantine.decide.symptoms import (
    FABRIC,
    FABRIC_BY_LABEL,
    NVLINK,
    TRAIT,
    acting_checks,
    actionable_evidence,
    domains,
    gpus_with_nvlink_evidence,
    may_be_of_fabric,
    symptoms_of,
    target_of,
    what_of,
)
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.rfc3339 import span, time_of_day

#: For this long after its driver, kernel or agent has changed (seconds) a node counts as upgraded.
UPGRADED = 1800.0

#: The agent's names of its machine's traits, which are also the versions' names here.
_TRAITS = ("driver", "kernel")


@lru_cache(maxsize=64)
def _running(checks: tuple[CheckOff, ...]) -> frozenset[str]:
    """The checks that run. Nodes of one kind have the same ones, and share the answer."""
    return frozenset(check.name for check in checks if not check.off_because)


@lru_cache(maxsize=4096)
def _alike(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """One tuple for all nodes of the same groups, for example of a rack."""
    return groups


@define(eq=False, repr=False, slots=False, kw_only=True)
class CommonCauseTracker:
    """``limits`` are those of common causes, ``admission`` those of admission."""

    _limits: CommonLimits
    _admission: Limits
    _policy: Policy
    _registry: NodeRegistry = field(alias="node_registry")
    _event_sink: EventSink
    _clocks: Clocks

    def __attrs_post_init__(self) -> None:
        self._acting = acting_checks(self._policy)
        self._common = CommonCauses(self._limits, self._registry)
        #: The causes that are open, by id.
        self._open = self._common.open
        labels = (*self._limits.domain_labels, self._limits.clique_label)
        self._labels = tuple(dict.fromkeys(labels))
        self._cooldown_reported = ChangeNotice()
        #: Each node's versions; and when they last changed, where they did (monotonic).
        self._versions: dict[str, tuple[Group, ...]] = {}
        self._changed: dict[str, float] = {}
        #: Nodes whose evidence may be their fabric's: that evidence, and when it was first seen to
        #: be all of it (monotonic).
        self._fabric_evidence: dict[str, tuple[frozenset[tuple[str, str]], float]] = {}
        self._origins = RackOrigins(self._policy, self._admission.window, self._clocks)

    def receive_symptoms(self, node_state: NodeState) -> None:
        """Count the node as it is now. Cheap for a healthy node."""
        node, health = node_state.node, node_state.agent.health
        if health is None:
            self._common.gone(node)
            return
        if not health.has_snapshot:
            return  # its last report holds
        groups = self._groups(node_state, health)
        fabrics = self._fabric_groups(groups)
        self._note_versions(node, groups)
        self._note_fabric_evidence(node_state, in_fabric=bool(fabrics))
        self._origins.note(node_state, fabrics)
        self._common.set_symptoms(
            node,
            symptoms_of(health, node_state.decision.incidents, self._policy, self._acting),
            groups,
            _running(health.checks),
        )

    def forget_node(self, node_state: NodeState) -> None:
        self._common.gone(node_state.node)
        self._versions.pop(node_state.node, None)
        self._changed.pop(node_state.node, None)
        self._fabric_evidence.pop(node_state.node, None)
        self._origins.forget(node_state.node)

    def _note_versions(self, node: str, groups: tuple[Group, ...]) -> None:
        versions = _alike(tuple(group for group in groups if group[0] in VERSIONS))
        if self._versions.get(node, versions) != versions:
            self._changed[node] = self._clocks.now()
        self._versions[node] = versions

    def unsettled(self, node_state: NodeState) -> str:
        """Why it is too soon to distinguish the node's own fault from its new version's; empty: it
        isn't.

        A version's fault shows on other nodes that got it in the same wave, a moment later.
        """
        changed, now = self._changed.get(node_state.node), self._clocks.now()
        if changed is None or now - changed >= UPGRADED:
            return ""
        ages = (now - item.since for item in self._evidence_against(node_state))
        open_for = max(ages, default=0.0)
        if open_for >= self._admission.after_upgrade:
            return ""
        versions = self._versions[node_state.node]
        now_runs = ", ".join(f"{name} {version}" for name, version in versions)
        return (
            f"its version has just changed (now {now_runs}); the evidence against it must have "
            f"lasted for {span(self._admission.after_upgrade)}, in which others with this version "
            "may show the same"
        )

    def _note_fabric_evidence(self, node_state: NodeState, *, in_fabric: bool) -> None:
        """Remember since when all evidence against the node may be its fabric's."""
        node = node_state.node
        known = self._fabric_evidence.get(node)
        incidents = node_state.decision.incidents
        if known is None and not incidents:
            return  # nearly every node at nearly every message
        found = list(self._evidence_against(node_state)) if in_fabric else []
        if not found or not may_be_of_fabric(node_state.agent.health, found, self._policy):
            self._fabric_evidence.pop(node, None)
            return
        keys = frozenset(item.key for item in found)
        if known is None or not keys <= known[0]:
            self._fabric_evidence[node] = (keys, self._clocks.now())

    def _fabric_groups(self, groups: tuple[Group, ...]) -> list[Group]:
        labels = (FABRIC, FABRIC_BY_LABEL, self._limits.clique_label)
        return [group for group in groups if group[0] in labels]

    def fabrics_of(self, node: str) -> frozenset[str]:
        """The NVLink fabrics of a node: the ids of the causes that they would be."""
        groups = self._common.known(node)[1]
        return frozenset(fabric_cause(group) for group in self._fabric_groups(groups))

    def fabric_hold_ends(self, node_state: NodeState) -> float | None:
        """Until when the node's NVLink evidence waits for that of other nodes (monotonic).

        It is None where the wait is over: other nodes of the fabric have shown theirs, or have not.
        """
        known = self._fabric_evidence.get(node_state.node)
        if known is None:
            return None
        ends = known[1] + self._limits.fabric_hold
        if self._clocks.now() >= ends:
            return None
        open_now = self._open.keys()
        evidence = self._evidence_against(node_state)
        if open_now and all(found & open_now for found in self._suspects_of(node_state, evidence)):
            return None  # the cause is known already, and holds the node
        return ends

    def fabric_hold(self, node_state: NodeState) -> Held | None:
        """The hold on a node whose NVLink evidence waits for that of others, or followed another
        node's.
        """
        if self.fabric_hold_ends(node_state) is None:
            return self._origins.hold(node_state, self._evidence_against(node_state))
        length = span(self._limits.fabric_hold)
        text = (
            f"its evidence is NVLink's, or the driver's verdict alone: for {length} other nodes of "
            "the fabric may show the same, and then the fabric is the cause"
        )
        return held_by(self._limits, "fabric_hold", text)

    def _evidence_against(
        self, node_state: NodeState, incidents: Iterable[Incident] | None = None
    ) -> Iterable[Evidence]:
        """That of these incidents; of all, where none are given."""
        overruled = frozenset(word.key for word in node_state.cluster.overruled)
        return actionable_evidence(incidents or node_state.decision.incidents.values(), overruled)

    def _groups(self, node_state: NodeState, health: NodeHealth) -> tuple[Group, ...]:
        # As last read or listed: a Node that was made anew is in no list yet.
        labels, traits = node_state.cluster.labels or {}, health.traits
        found = [(label, labels[label]) for label in self._labels if labels.get(label)]
        found += [(name, traits[name]) for name in _TRAITS if traits.get(name)]
        if health.agent_version:
            found.append(("agent", health.agent_version))
        # The NVLink fabrics by the clique label; without one, those that the agent has named.
        clique = labels.get(self._limits.clique_label)
        fabric, named = (FABRIC_BY_LABEL, clique) if clique else (FABRIC, traits.get(TRAIT, ""))
        return _alike((*found, *((fabric, one) for one in domains(named))))

    def suspects(self, node_state: NodeState) -> tuple[frozenset[str], ...]:
        """The causes that may explain each piece of evidence that calls for a quarantine.

        A rack event holds all of its nodes except its explicit origin.
        """
        return self._held_by(node_state, self._evidence_against(node_state))

    def drain_suspects(self, node_state: NodeState) -> tuple[frozenset[str], ...]:
        """The same, only for the evidence that calls for a drain."""
        evidence = self._evidence_against(node_state)
        return self._held_by(node_state, (item for item in evidence if item.action == Action.DRAIN))

    def _held_by(
        self, node_state: NodeState, evidence: Iterable[Evidence]
    ) -> tuple[frozenset[str], ...]:
        passes = self._origins.passes(node_state.node)
        return tuple(found - passes for found in self._suspects_of(node_state, evidence))

    def _suspects_of(
        self, node_state: NodeState, evidence: Iterable[Evidence]
    ) -> tuple[frozenset[str], ...]:
        """A verdict without a known cause may be explained by the node's fabric too: the line with
        its cause may be lost, or on its way.
        """
        incidents, found = node_state.decision.incidents, []
        gpus = gpus_with_nvlink_evidence(node_state.agent.health, incidents, self._policy)
        in_fabric = bool(self._fabric_groups(self._common.known(node_state.node)[1]))
        for item in evidence:
            suspects = self._common.suspects(
                node_state.node, what_of(item, self._policy, gpus), target_of(item)
            )
            if in_fabric and may_be_of_fabric(node_state.agent.health, [item], self._policy):
                suspects |= self._common.suspects(node_state.node, NVLINK, "")
            found.append(suspects)
        return tuple(found)

    def explains(self, node_state: NodeState, incident: Incident) -> str:
        """The id of an open cause, where open causes explain all of this incident of the node."""
        if not self._open:
            return ""
        found = self._suspects_of(node_state, self._evidence_against(node_state, [incident]))
        hits = [suspects & self._open.keys() for suspects in found]
        return min(hits[0]) if hits and all(hits) else ""

    def causes(self) -> Mapping[str, OpenCause]:
        """The causes that are open now, for admission: counted anew where symptoms have changed."""
        self.find_causes()
        named = self._registry.fleet.causes
        return {
            ident: named.get(ident, cause).for_admission() for ident, cause in self._open.items()
        }

    def find_causes(self) -> None:
        """Count anew, and report causes that have opened or are over."""
        opened, ended = self._common.find_causes(self._clocks.now())
        if not (self._open or ended):
            self._registry.fleet.causes = {}
            return  # as nearly always: no fabric has an event either
        self._registry.fleet.causes = self._origins.update(self._open.values())
        reports = [(cause, None) for cause in opened if not cause.fabric]
        for cause, origin in (*reports, *self._origins.due()):
            text = f"common cause: {cause.reason}"
            self._note(EventKind.COMMON_CAUSE, cause, text, origin)
        for cause in map(self._origins.end, ended):
            text = f"no common cause any more: {cause.reason}"
            self._note(EventKind.COMMON_CAUSE_OVER, cause, text)

    async def count_silence(self) -> None:
        """Count the silent agents of the fleet; `find_causes` uses the last count."""
        self._common.silence(*await self._registry.silence())

    def go_round(self, record: Record) -> None:
        """Changes by time alone: the end of causes and of the fleet's cooldown."""
        self.find_causes()
        now = self._clocks.trusted_wall()
        window, cooldown = self._admission.window, self._admission.cooldown
        counted = record.pruned(now, window=window, cooldown=cooldown)
        self._registry.fleet.admitted_lately = len(counted.admissions)
        found = counted.cooldowns.get(FLEET)
        until = f"until {time_of_day(found.at + cooldown)}: {found.because}" if found else ""
        if self._cooldown_reported.is_due("it is cooling down" if until else ""):
            kind = EventKind.COOLDOWN if until else EventKind.COOLDOWN_OVER
            text = f"no new quarantine is admitted {until}" if until else "admission goes on"
            self._event_sink.record_event(Transition(self._clocks.wall(), kind, "", text))
        self._registry.fleet.cooling = until

    def _note(
        self, kind: EventKind, cause: CommonCause, text: str, origin: Origin | None = None
    ) -> None:
        details = {
            "cause": cause.id,
            "scope": cause.scope,
            "limit": cause.limit,
            "value": cause.value,
            "count": str(cause.nodes),
            "of": str(cause.total),
            "nodes": ", ".join(cause.sample),
        }
        if origin is not None:
            details |= {
                "origin": origin.node,
                "origin_gpu": origin.gpu,
                "origin_reason": origin.reason,
                "origin_confidence": origin.confidence,
            }
        at = self._clocks.wall()
        self._event_sink.record_event(Transition(at, kind, "", text, cause.id, details))
