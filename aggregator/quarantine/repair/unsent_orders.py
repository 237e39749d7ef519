"""Orders that this process has certainly not sent."""

from aggregator.cluster.port import RepairAttempt, RepairState
from aggregator.quarantine.state.node import NodeState


class UnsentOrders:
    """One of each node at most."""

    def __init__(self) -> None:
        #: The operation of each node that this process began and has certainly not ordered.
        self._operations: dict[str, str] = {}

    def note_begun(self, node_state: NodeState, attempt: RepairAttempt) -> None:
        """The attempt is durable, and its order has not been sent."""
        self._operations[node_state.node] = attempt.operation

    def has(self, node_state: NodeState, attempt: RepairAttempt) -> bool:
        """Whether nobody can have sent the order."""
        ours = self._operations.get(node_state.node) == attempt.operation
        return ours and attempt.state is RepairState.ORDERING

    def take(self, node_state: NodeState, attempt: RepairAttempt) -> bool:
        """Forget that the order was not sent. Returns whether that was known."""
        if self._operations.get(node_state.node) != attempt.operation:
            return False
        del self._operations[node_state.node]
        return True
