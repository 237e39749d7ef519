"""Changes of a node by time alone: enqueues it in each round, and held nodes in turn."""

from aggregator.cluster.port import Phase
from aggregator.quarantine.decide.operator_requests import NONE, describe
from aggregator.quarantine.decide.uncordon import Uncordoned
from aggregator.quarantine.reconcile.poller import waits_for_its_node
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.repair.runner import RepairRunner
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry

#: The number of nodes held by a common cause in one round, in turn; as many of the others.
HELD_A_ROUND = 500
_IN_SUSPENSE = (Phase.ADMITTED, Phase.CORDONED, Phase.DRAINING, Phase.RELEASING)


class NodeRounds:
    def __init__(self, *, registry: NodeRegistry, queue: WorkQueue, repairs: RepairRunner) -> None:
        self._registry = registry
        self._queue = queue
        self._repairs = repairs
        self._turns = {True: 0, False: 0}

    def check(self, node_state: NodeState, wall: float) -> None:
        """Enqueue the node where time may have changed its next step."""
        requests, known = node_state.cluster.operator_requests, node_state.decision.requests
        if requests is not NONE and requests != NONE and known != describe(requests, wall):
            self._queue.evaluate(node_state)  # an exemption has ended
        if self._waits(node_state):
            self._attend_again(node_state)
        self._queue.resume(node_state)
        if node_state.quarantine_view.age_trail():
            self._queue.add_for_read(node_state)

    def _waits(self, node_state: NodeState) -> bool:
        """Whether its quarantine waits for something that time or its node may bring."""
        view = node_state.quarantine_view
        if view.missing or view.uncordoned is not Uncordoned.NO:
            return True
        if view.quarantine is None:  # a controller that has died may have left an entry
            return node_state.work.in_record
        status = view.quarantine.status
        if status.phase in _IN_SUSPENSE or status.node_absent_since > 0:
            return True
        return bool(node_state.release_held) or self._repairs.waits(node_state)

    def requeue_held(self) -> None:
        """Enqueue some held nodes, in separate lines for those with and without a shared cause.

        A node that is held for a moment (its version has just changed) must not queue behind all
        those that a driver's roll-out holds.
        """
        lines: dict[bool, list[NodeState]] = {True: [], False: []}
        for node_state in self._registry.held():
            if node_state.decision.hold is not None:
                lines[bool(node_state.decision.hold.cause)].append(node_state)
        for shared, held in lines.items():
            for node_state in self._in_turn(held, shared=shared):
                self._attend_again(node_state)

    def _in_turn(self, held: list[NodeState], *, shared: bool) -> list[NodeState]:
        """Some of those that are held: the next of their line in each round.

        Each costs half a millisecond. In a storm of thousands the agents' reports must still be
        processed.
        """
        if len(held) <= HELD_A_ROUND:
            return held
        start = self._turns[shared] % len(held)
        self._turns[shared] = start + HELD_A_ROUND
        return (held + held)[start : start + HELD_A_ROUND]

    def _attend_again(self, node_state: NodeState) -> None:
        """Enqueue it, unless only a read of its node can help: `NodePoller` paces those."""
        if not waits_for_its_node(node_state):
            self._queue.add(node_state)
