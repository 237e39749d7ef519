"""Admission's answers to the nodes that the mode keeps from being quarantined.

It uses the same function as a real proposal, against the present record, and admits no node.
"""

from collections.abc import Iterable, Mapping

from attrs import define

from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.decide.admission import Held, Proposal
from aggregator.quarantine.state.registry import NodePools, NodeRegistry


@define(eq=False, slots=False, kw_only=True)
class ModePreview:
    """Common causes may explain only nodes whose state is known here."""

    _record_writer: AdmissionRecordWriter
    _registry: NodeRegistry
    _pools: NodePools
    _causes: CommonCauseTracker

    def holds(self, wanted: Iterable[tuple[str, str]]) -> Mapping[str, Held]:
        """By node, the hold of each that would be held; ``wanted`` are nodes and actions, in the
        order in which they would be requested. The others would be admitted.
        """
        return self._record_writer.preview(
            [self._proposal(node, action) for node, action in wanted]
        )

    def _proposal(self, node: str, action: str) -> Proposal:
        node_state = self._registry.known(node)
        pools = self._registry.pool_of(node), self._pools.name_of(node)
        if node_state is None or node_state.agent.health is None:
            return Proposal(node, "", pools[0], action, policy_pool=pools[1])
        return Proposal(
            node,
            "",
            pools[0],
            action,
            self._causes.suspects(node_state),
            self._causes.unsettled(node_state),
            pools[1],
        )
