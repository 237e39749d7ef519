"""The queue of nodes that may need a step or another evaluation, and its one worker.

Event handlers change a node's state and add the node. In the next turn of the event loop the queue
has it evaluated (`evaluate.NodeEvaluator`), and the worker (`worker.NodeWorker`) plans and acts:
all changes of a node until then cause one evaluation. A node that is added while it is worked on is
worked on once more; its evaluation does not wait for the step in progress.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Protocol

from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.state.node import NodeState

#: At most this long (seconds) what follows a node's marks waits for other nodes' marks: in a burst
#: it would take the time of nodes on which jobs are still placed.
MARKS_FIRST = 2.0


class Evaluator(Protocol):
    """`NodeEvaluator`, as the queue uses it."""

    def evaluate_node(self, node_state: NodeState) -> None:
        """Evaluate the node's state, and add to the queue what follows from it."""


class Worker(Protocol):
    """`NodeWorker`, as the queue uses it."""

    def start(self, node_state: NodeState) -> None:
        """Reconcile the node, unless a task does so already. Returns at once."""


class WorkQueue:
    """``view``: the cluster view is complete. Without it no step is begun; nor is one without the
    Lease.
    """

    def __init__(self, record_writer: AdmissionRecordWriter) -> None:
        self._record_writer = record_writer
        #: Whether this process is the controller at the moment of the call.
        self.holds_lease = record_writer.switch.may_act
        self._receivers: tuple[Evaluator, Worker] | None = None
        self._due: dict[str, NodeState] = {}
        #: How many nodes are on their way to their marks; the future ends when none is.
        self._marking = 0
        self._marked: asyncio.Future[None] | None = None
        self.view = False

    def deliver_to(self, evaluator: Evaluator, worker: Worker) -> None:
        """They receive the nodes from now on; earlier ones wait for `resume`."""
        self._receivers = evaluator, worker

    def add(self, node_state: NodeState) -> None:
        """Reconcile the node, or once more when its task is at work already.

        A step that is not allowed now, as the Lease was not renewed in time, waits for `resume`.
        """
        node_state.work.queue()
        self._put(node_state)

    def evaluate(self, node_state: NodeState, arrived: float | None = None) -> None:
        """Evaluate the node anew; a step follows where one is needed.

        ``arrived``: when the delta that changed its state arrived (monotonic).
        """
        node_state.work.request_evaluation(arrived)
        self._put(node_state)

    def evaluate_due(self, node_state: NodeState) -> None:
        """Evaluate the node now, where that was requested: a step is about to be planned."""
        if self._receivers is not None and node_state.work.evaluation_due:
            self._receivers[0].evaluate_node(node_state)

    def begin(self, node_state: NodeState) -> None:
        """Have the worker receive the node now, if it was added."""
        if self._due.get(node_state.node) is node_state:
            del self._due[node_state.node]
            self._begin(node_state)

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """While a node is on its way to its marks."""
        self._marking += 1
        try:
            yield
        finally:
            self._marking -= 1
            if not self._marking and self._marked is not None:
                self._marked.set_result(None)
                self._marked = None

    @property
    def is_marking(self) -> bool:
        """Whether any node is on its way to its marks."""
        return self._marking > 0

    async def until_marked(self) -> None:
        """Return once no node is on its way to its marks, after `MARKS_FIRST` at the latest."""
        if self._marking:
            self._marked = self._marked or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._marked], timeout=MARKS_FIRST)

    def forget_node(self, node_state: NodeState) -> None:
        """The node is gone, and no step is left for it."""
        if self._due.get(node_state.node) is node_state:
            del self._due[node_state.node]

    def _put(self, node_state: NodeState) -> None:
        if self._receivers is None:
            return
        if not self._due:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._due[node_state.node] = node_state

    def _deliver(self) -> None:
        # All of this turn: a common cause counts the nodes that were evaluated.
        due, self._due = self._due, {}
        for node_state in due.values():
            self._begin(node_state)

    def _begin(self, node_state: NodeState) -> None:
        """Evaluate the node where that is due, and have its task begin where a step may be."""
        assert self._receivers is not None
        work, (evaluator, worker) = node_state.work, self._receivers
        if work.evaluation_due:
            evaluator.evaluate_node(node_state)
            if self._needs_step(node_state):
                work.queue()
            elif work.waiters and not work.is_queued and not work.is_running:
                self._acknowledge(node_state)
        if work.is_queued and self.may_act():
            worker.start(node_state)

    def _acknowledge(self, node_state: NodeState) -> None:
        """Its evidence needs no step. Without the Lease the next controller has to know that."""
        if self.may_act():
            node_state.work.acknowledge()
        else:
            node_state.work.queue()

    def add_if_pending(self, node_state: NodeState) -> None:
        """Add the node where it may need a step."""
        if self.has_work(node_state):
            self.add(node_state)

    def add_for_read(self, node_state: NodeState) -> None:
        """Read the node in full, and reconcile it."""
        node_state.work.request_read()
        self.add(node_state)

    def resume(self, node_state: NodeState) -> None:
        """Reconcile the node where a step has waited until we may act."""
        if node_state.work.is_queued and self.has_work(node_state):
            self.add(node_state)

    def may_act(self) -> bool:
        """Whether a step may begin."""
        return self.view and self.holds_lease()

    def has_work(self, node_state: NodeState) -> bool:
        """Whether the node may need a step, or evidence of it waits for its acknowledgement."""
        return bool(node_state.work.waiters) or self._needs_step(node_state)

    def _needs_step(self, node_state: NodeState) -> bool:
        return (
            node_state.decision.wanted is not None
            or node_state.quarantine is not None
            or node_state.decision.hold is not None
            or node_state.cluster.operator_requests.force is not None
            or node_state.work.needs_read
            or bool(
                node_state.quarantine_view.orphan
                or node_state.cluster.ended_overrides
                or node_state.quarantine_view.to_adopt
            )
            or self.in_record(node_state)
        )

    def in_record(self, node_state: NodeState) -> bool:
        """Whether the record, as last seen, has an entry of the node."""
        found = node_state.node in self._record_writer.record.entries
        node_state.work.set_in_record(in_record=found)
        return found

    def is_entered_by_hand(self, node_state: NodeState) -> bool:
        """Whether the node's entry, as last seen, is of a person's quarantine."""
        entry = self._record_writer.record.entries.get(node_state.node)
        return entry is not None and not entry.incident
