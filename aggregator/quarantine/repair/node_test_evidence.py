"""The evidence that a node has failed its test, in the aggregator's own name."""

from collections.abc import Callable, Container

from attrs import define

from aggregator.health.model import Component
from aggregator.quarantine.decide.node_tests import failure_evidence, has_failed, is_own_evidence
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.repair.node_test_state import NodeTestContext, WatchedNode
from aggregator.quarantine.state.node import NodeState


@define(eq=False, slots=False, kw_only=True)
class NodeTestEvidence:
    """Compares a node's last test with the open evidence against the node."""

    _shared: NodeTestContext
    #: Gives a node evidence in our own name.
    _emit: Callable[[str, Component], object]

    def give(self, name: str, watched: WatchedNode | None) -> None:
        """Emit evidence that the node has failed its test, or that this is over; rules decide on
        it.

        Only while the node's agent reports: of a silent one the boot is not known.
        """
        node_state = self._shared.registry.known(name)
        if node_state is None or not node_state.agent.is_fresh or not self._shared.may_act():
            return
        if self._shared.ends:  # what is known of the node stays
            return
        in_force = _has_own_evidence(node_state)
        quarantine = node_state.quarantine
        status = quarantine.status if quarantine is not None else None
        test, tainted = (watched.test, watched.tainted) if watched is not None else (None, False)
        if not has_failed(test, boot_of(node_state), status, tainted=tainted):
            test = None
        if in_force is (test is None):
            self._emit(name, failure_evidence(test, self._shared.clocks.now()))

    async def end_all_but(self, names: Container[str]) -> None:
        """Emit for each other node that a failed test is over, perhaps one of an earlier
        process.
        """
        async for node_state in self._shared.registry.by_slices():
            if node_state.node not in names:
                self.give(node_state.node, None)


def _has_own_evidence(node_state: NodeState) -> bool:
    """Whether a failed test is open evidence against the node, perhaps from before this process."""
    quarantine = node_state.quarantine
    items = quarantine.spec.evidence if quarantine is not None else ()
    return any(
        is_own_evidence(item.code)
        for incident in node_state.decision.incidents.values()
        for item in incident.in_force
    ) or any(is_own_evidence(item.code) and not item.cleared for item in items)
