"""Whether the agent of a node in no quarantine may begin its test, by the cluster as it is now."""

from attrs import define

from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.new_nodes import next_test
from aggregator.quarantine.decide.node_tests import NodeTestStep
from aggregator.quarantine.decide.repair_permission import NO_ORDER
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_state import NodeTestContext
from aggregator.quarantine.repair.node_test_watch import NodeTestWatch
from aggregator.quarantine.repair.protocol import PermissionRequest


@define(eq=False, slots=False, kw_only=True)
class NodeTestPermission:
    """Reads and changes nothing."""

    _shared: NodeTestContext
    _checks: NodeTestChecks
    _watch: NodeTestWatch

    async def refusal(self, name: str, request: PermissionRequest) -> str:
        """Why the agent must not begin its test; empty: it may. Raises ClusterError."""
        watched = self._watch.nodes.get(name)
        known = watched.test if watched is not None else None
        if known is None or (known.operation, TEST) != (request.operation, request.repair):
            return NO_ORDER  # an agent's invention costs no read
        node = await self._shared.cluster.read_node(name)
        test = await self._checks.store.read(known)
        if node is None or node.uid != request.quarantine:
            return "the cluster's Node is another one, or none"
        if test is None or not test.is_busy or test.operation != request.operation:
            return NO_ORDER
        facts = self._checks.facts(node, test)
        now = self._shared.record_writer.times.time_of(test.operation, test.began_at)
        step = next_test(test, facts, self._shared.rules, pause=0.0, now=now)
        if step.do in (NodeTestStep.STOP, NodeTestStep.END):
            return step.because
        why = await self._checks.pods_in_the_way(node)
        why = why or await self._checks.store.why_ended_now(test)  # after each other wait
        if why:
            return why
        await self._checks.order_guard(name, test)()
        return ""
