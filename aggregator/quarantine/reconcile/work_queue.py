"""The queue of nodes that may need a step or another evaluation, and its one worker.

Event handlers change a node's state and add the node. The worker (`worker.Reconciler`) alone plans
and acts. It starts in the same turn of the event loop, and a node that is added while it is worked
on is worked on once more.
"""

from collections.abc import Callable
from typing import Protocol

from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.state.node import NodeState


class Worker(Protocol):
    """Both return at once."""

    def start(self, node_state: NodeState) -> None:
        """Reconcile the node, unless a task does so already."""

    def evaluate(self, node_state: NodeState) -> None:
        """Evaluate the node's evidence anew."""


class WorkQueue:
    """``view``: the cluster view is complete. Without it no step is begun; nor is one without the
    Lease.
    """

    def __init__(
        self, *, record_writer: AdmissionRecordWriter, may_act: Callable[[], bool]
    ) -> None:
        self._record_writer = record_writer
        self._may_act = may_act
        self._worker: Worker | None = None
        self.view = False

    def deliver_to(self, worker: Worker) -> None:
        """The worker takes the nodes from now on; earlier ones wait for `resume`."""
        self._worker = worker

    def add(self, node_state: NodeState) -> None:
        """Reconcile the node now, or once more when its task is at work already.

        A step that is not allowed now, as the Lease was not renewed in time, waits for `resume`.
        """
        node_state.work.again.set()
        if self._worker is not None and self.may_act():
            self._worker.start(node_state)

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

    def evaluate(self, node_state: NodeState) -> None:
        """Have the node's evidence evaluated anew; a step follows where one is needed."""
        if self._worker is not None:
            self._worker.evaluate(node_state)

    def may_act(self) -> bool:
        """Whether a step may begin."""
        return self.view and self._may_act()

    def has_work(self, node_state: NodeState) -> bool:
        """Whether the node may need a step."""
        return (
            node_state.decision.wanted is not None
            or node_state.node_summary.quarantine is not None
            or node_state.decision.hold is not None
            or node_state.cluster.operator_requests.force is not None
            or node_state.work.needs_read
            or bool(
                node_state.quarantine_view.orphan
                or node_state.cluster.ended_overrides
                or node_state.work.waiters
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
