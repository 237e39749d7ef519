"""What a node is proposed for admission with, and its desired state as far as limits let it be."""

from collections.abc import Callable
from dataclasses import replace

from aggregator.quarantine.actions.holds import NodeHolds
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.evictions import EvictionMemory
from aggregator.quarantine.decide.admission import Held, Proposal
from aggregator.quarantine.decide.intent import OURS, DesiredState, is_overridden
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.node_pools import NodePools


class Proposals:
    def __init__(
        self,
        *,
        holds: NodeHolds,
        record_writer: AdmissionRecordWriter,
        causes: CommonCauseTracker,
        evictions: EvictionMemory,
        pools: NodePools,
        pool_of: Callable[[str], str],
    ) -> None:
        self._holds = holds
        self._record_writer = record_writer
        self._causes = causes
        self._evictions = evictions
        self._pools = pools
        self._pool_of = pool_of

    def wanted_now(self, node_state: NodeState) -> DesiredState | None:
        """The node's desired state. A shared cause turns no standing cordon into a drain."""
        wanted, quarantine = node_state.decision.wanted, node_state.node_summary.quarantine
        if quarantine is None or quarantine.unread or quarantine.spec.requester != OURS:
            return wanted
        if (
            wanted is None
            or is_overridden(quarantine.spec)  # a person has decided on the action
            or wanted.spec.action.strength <= quarantine.spec.action.strength
        ):
            self._holds.unhold(node_state)
            return wanted
        proposal = replace(
            self.propose(node_state, wanted),
            suspects=self._causes.drain_suspects(node_state),
        )
        held = self._record_writer.escalation_hold(proposal) or self.fabric_hold(node_state)
        if held is None:
            self._holds.unhold(node_state)
            return wanted
        self._holds.hold(node_state, held, wanted)
        return replace(wanted, spec=replace(wanted.spec, action=quarantine.spec.action))

    def propose(self, node_state: NodeState, wanted: DesiredState) -> Proposal:
        spec = wanted.spec
        return Proposal(
            node_state.node,
            spec.incident,
            self._pool_of(node_state.node),
            spec.action.value,
            self._causes.suspects(node_state),
            self._causes.unsettled(node_state),
            self._pools.name_of(node_state.node),
        )

    def fabric_hold(self, node_state: NodeState) -> Held | None:
        """What holds it while the fabric may be the cause of its fault."""
        return self._evictions.hold(node_state) or self._causes.fabric_hold(node_state)
