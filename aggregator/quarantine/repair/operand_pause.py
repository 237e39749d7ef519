"""Stops the GPU operator's pods on a node for a GPU reset, and starts them again after it."""

from attrs import define

from aggregator.cluster.port import ClusterError, GuardRefused, NodeChange, RepairAttempt
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.gpu_operands import operand_pods, pause_change, resume_change
from aggregator.quarantine.state.node import NodeState
from aggregator.runtime.recent import Recent

#: The operands' pods have this long to go (seconds). The order is sent then all the same: the agent
#: refuses it if a process still has a GPU open.
_GO_WITHIN = 120.0
_MOST_NAMED = 3


@define(eq=False, repr=False, slots=False)
class OperandPause:
    """The attempt on the Quarantine is durable before the first label changes. So the process which
    finds the attempt resumes the operands at its end.
    """

    _acts: NodeActions

    def __attrs_post_init__(self) -> None:
        #: Since when this process waits for the pods (monotonic seconds), by operation.
        self._since: Recent[str, float] = Recent()

    async def stop(self, node_state: NodeState, attempt: RepairAttempt) -> str:
        """Stop the operands. Returns the pods that are waited for; empty: the order may go.

        Raises ClusterError, and GuardRefused while the stop switch is set.
        """
        node = await self._acts.cluster.read_node(node_state.node)
        if node is None or node.uid != attempt.node_uid:
            return "the node is another one"
        change = pause_change(node)
        if change:
            guard = self._acts.guard(node_state)
            node = await self._acts.cluster.patch_node(node, NodeChange(labels=change), guard=guard)
        node_state.take_node(node)
        now = self._acts.clocks.now()
        since = self._since.setdefault(attempt.operation, now)
        left = operand_pods(await self._acts.cluster.pods_on(node_state.node))
        if not left or now - since > _GO_WITHIN:
            return ""
        return f"pods of the GPU operator hold GPUs: {', '.join(left[:_MOST_NAMED])}"

    async def resume(self, node_state: NodeState, attempt: RepairAttempt) -> str:
        """Start those that we stopped. Returns why that can't be done now; empty: they run.

        Raises GuardRefused where this replica has lost its place: the next one starts them.
        """
        try:
            node = await self._acts.cluster.read_node(node_state.node)
            change = resume_change(node) if node is not None else {}
            if node is not None and change:
                labels, place = NodeChange(labels=change), self._acts.place
                node = await self._acts.cluster.patch_node(node, labels, guard=place)
            node_state.take_node(node)
        except GuardRefused:
            raise  # an attempt that ends late would leave them stopped for ever
        except ClusterError as error:
            return str(error) or type(error).__name__
        self._since.pop(attempt.operation, None)
        return ""
