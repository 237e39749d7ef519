"""The queue of nodes that may need a step or another evaluation, and its one worker.

Event handlers change a node's state and add the node. The worker (`worker.Reconciler`) alone plans
and acts. It starts in the same turn of the event loop, and a node that is added while it is worked
on is worked on once more.
"""

from typing import Protocol

from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.state.node import NodeState
from aggregator.replicas.membership.view import Ownership


class Worker(Protocol):
    """Both return at once."""

    def start(self, case: NodeState) -> None:
        """Reconcile the node, unless a task does so already."""

    def evaluate(self, case: NodeState) -> None:
        """Evaluate the node's evidence anew."""


class WorkQueue:
    """``view``: the cluster view is complete. Without it no step is begun; nor is one for another
    replica's node.
    """

    def __init__(self, *, record_writer: AdmissionRecordWriter, shards: Ownership) -> None:
        self._record_writer = record_writer
        self._shards = shards
        self._worker: Worker | None = None
        self.view = False

    def deliver_to(self, worker: Worker) -> None:
        """The worker takes the nodes from now on; earlier ones wait for `resume`."""
        self._worker = worker

    def add(self, case: NodeState) -> None:
        """Reconcile the node now, or once more when its task is at work already.

        A step that is not allowed now, as the node is another replica's or our membership is not
        certain, waits for `resume`.
        """
        case.work.again.set()
        if self._worker is not None and self.may_act(case):
            self._worker.start(case)

    def add_if_pending(self, case: NodeState) -> None:
        """Add the node where it may need a step."""
        if self.has_work(case):
            self.add(case)

    def add_for_read(self, case: NodeState) -> None:
        """Read the node in full, and reconcile it."""
        case.work.request_read()
        self.add(case)

    def resume(self, case: NodeState) -> None:
        """Reconcile the node where a step has waited until we may act."""
        if case.work.is_queued and self.has_work(case):
            self.add(case)

    def evaluate(self, case: NodeState) -> None:
        """Have the node's evidence evaluated anew; a step follows where one is needed."""
        if self._worker is not None:
            self._worker.evaluate(case)

    def may_act(self, case: NodeState) -> bool:
        """Whether a step on the node may begin."""
        return self.view and self._shards.may_act(case.node)

    def has_work(self, case: NodeState) -> bool:
        """Whether the node may need a step."""
        return (
            case.decision.wanted is not None
            or case.node_summary.quarantine is not None
            or case.decision.hold is not None
            or case.cluster.wishes.force is not None
            or case.work.suspect
            or bool(
                case.quarantine_view.orphan
                or case.cluster.over
                or case.work.waiters
                or case.quarantine_view.to_adopt
            )
            or self.in_record(case)
        )

    def in_record(self, case: NodeState) -> bool:
        """Whether the record, as last seen, has an entry of the node."""
        found = case.node in self._record_writer.record.entries
        case.work.set_in_record(in_record=found)
        return found
