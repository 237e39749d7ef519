"""The queue of nodes that may need a step or another evaluation, and its one worker.

Event handlers change a node's state and add the node. In the next turn of the event loop the queue
has it evaluated (`NodeEvaluator`), and the worker (`worker.NodeWorker`) plans and acts:
all changes of a node until then cause one evaluation. A node that is added while it is worked on is
worked on once more; its evaluation does not wait for the step in progress.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Protocol

from attrs import define

from aggregator.cluster.port import Action, Phase, Quarantine
from aggregator.events import EventKind
from aggregator.policy.evaluate import Incident
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.node_actions import NodeReports
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import NONE
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.quarantine.state.registry import NodePools

log = logging.getLogger("sickbay.quarantine")

#: At most this long (seconds) what follows a node's marks waits for other nodes' marks: in a burst
#: it would take the time of nodes on which jobs are still placed.
MARKS_FIRST = 2.0


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
        self._receivers: tuple[NodeEvaluator, Worker] | None = None
        self._due: dict[str, NodeState] = {}
        #: How many nodes are on their way to their marks.
        self._marking = 0
        #: What waits until none is, and until when at the latest, in this order.
        self._behind_marks: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._latest: asyncio.TimerHandle | None = None
        self.view = False

    def deliver_to(self, evaluator: "NodeEvaluator", worker: Worker) -> None:
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
            try:
                self._receivers[0].evaluate_node(node_state)
            except Exception:
                node_state.work.request_evaluation()  # no evidence is acknowledged before that
                raise

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
            if not self._marking:
                self._end_waits(float("inf"))

    @property
    def is_marking(self) -> bool:
        """Whether any node is on its way to its marks."""
        return self._marking > 0

    def until_marked(self) -> "asyncio.Future[None]":
        """Ends once no node is on its way to its marks, after `MARKS_FIRST` at the latest.

        A future of the caller's, without a task and a timer of its own: in a burst each node waits.
        """
        loop = asyncio.get_running_loop()
        waits, due = loop.create_future(), loop.time() + MARKS_FIRST
        if not self._marking:
            waits.set_result(None)
            return waits
        self._behind_marks.append((due, waits))
        if self._latest is None:
            self._latest = loop.call_at(due, self._end_late_waits)
        return waits

    def _end_late_waits(self) -> None:
        loop = asyncio.get_running_loop()
        self._latest = None
        self._end_waits(loop.time())
        if self._behind_marks:
            self._latest = loop.call_at(self._behind_marks[0][0], self._end_late_waits)

    def _end_waits(self, due: float) -> None:
        while self._behind_marks and self._behind_marks[0][0] <= due:
            _, waits = self._behind_marks.popleft()
            if not waits.done():
                waits.set_result(None)
        if self._latest is not None and not self._behind_marks:
            self._latest.cancel()
            self._latest = None

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
        work, (_, worker) = node_state.work, self._receivers
        if work.evaluation_due:
            try:
                self.evaluate_due(node_state)
            except Exception:
                log.exception(
                    "evaluation of a node raised an unexpected error",
                    extra={"event": "evaluation.error", "node": node_state.node},
                )
                work.queue()  # the other nodes of this turn are evaluated all the same
            if self._needs_step(node_state):
                work.queue()
            elif work.waiters and not work.is_queued:
                self._acknowledge(node_state)
        if work.is_queued and self.may_act():
            worker.start(node_state)

    def _acknowledge(self, node_state: NodeState) -> None:
        """Its evidence needs no step. Without the Lease the next controller has to know that. The
        task of a node that has one does it.
        """
        if self.may_act() and not node_state.work.is_running:
            node_state.work.acknowledge()
        else:
            node_state.work.queue()

    def add_if_pending(self, node_state: NodeState) -> None:
        """Add the node where it may need a step."""
        if self.has_work(node_state):
            self.add(node_state)

    def add_for_read(self, node_state: NodeState) -> None:
        """Read the node in full, and reconcile it."""
        node_state.work.needs_read = True
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
        decision, view, cluster = (
            node_state.decision,
            node_state.quarantine_view,
            node_state.cluster,
        )
        if decision.wanted is not None or decision.hold is not None or view.quarantine is not None:
            return True
        if view.orphan or view.to_adopt or cluster.ended_overrides or node_state.work.needs_read:
            return True
        return cluster.operator_requests.force is not None or self.in_record(node_state)

    def in_record(self, node_state: NodeState) -> bool:
        """Whether the record, as last seen, has an entry of the node."""
        found = node_state.node in self._record_writer.record.entries
        node_state.work.in_record = found
        return found

    def is_entered_by_hand(self, node_state: NodeState) -> bool:
        """Whether the node's entry, as last seen, is of a person's quarantine."""
        entry = self._record_writer.record.entries.get(node_state.node)
        return entry is not None and not entry.incident


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeEvaluator:
    """``silent_action``: the action on a silent agent, if failing and its kubelet is ready."""

    _policy: Policy
    _pools: NodePools
    _reports: NodeReports
    _cause_tracker: CommonCauseTracker
    _queue: WorkQueue
    _silent_action: str = "observe"

    def evaluate_node(self, node_state: NodeState) -> None:
        """Fold the node's state into its incidents; evaluate again when time requires it.

        The queue alone calls it. All others request an evaluation from the queue.
        """
        arrived, before = node_state.work.begin_evaluation(), node_state.decision.incidents
        now = self._reports.clocks.now()
        wall = self._reports.clocks.earliest()
        for message in node_state.show_requests(wall):
            self._reports.emit_event(node_state, EventKind.REQUESTED, message)
        mode = self._pools.most_of(node_state, wall)
        policy = self._pools.policy_of(node_state.node, self._policy)
        closed, again = node_state.evaluate(policy, mode, now, silent_action=self._silent_action)
        if any(one.action != "observe" for one in closed) and not node_state.acting:
            node_state.note_recovery()
        wanted = node_state.decision.wanted
        self._reports.stages.note_decision(
            node_state.node,
            self._reports.clocks.now(),
            acts=wanted is not None and wanted.in_force is not Action.OBSERVE,
            arrived=arrived,
        )
        self._cause_tracker.receive_symptoms(node_state)
        self._emit_incidents(node_state, before, closed)
        self._emit_preview(node_state, wall)
        fabric_hold_ends = self._cause_tracker.fabric_hold_ends(node_state)
        if fabric_hold_ends is not None:
            again = min(again or fabric_hold_ends, fabric_hold_ends)
        timer = None
        if again is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(max(0.0, again - now) + 0.001, self._queue.evaluate, node_state)
        node_state.decision.set_timer(timer)
        if self._waits_for_labels(node_state) and node_state.decision.wanted is not None:
            node_state.work.needs_read = True  # the next list may be three minutes away
        node_state.work.evaluation_cost += self._reports.clocks.now() - now

    def _waits_for_labels(self, node_state: NodeState) -> bool:
        """Whether its mode is not known yet: it has just joined, or this process has just begun."""
        return not (self._pools.knows(node_state.node) or node_state.cluster.node_gone)

    def _emit_incidents(
        self, node_state: NodeState, before: Mapping[str, Incident], closed: list[Incident]
    ) -> None:
        for ident, incident in node_state.decision.incidents.items():
            known = before.get(ident)
            watched = known is not None and known.action == "observe" != incident.action
            if known is None or watched or ident in node_state.decision.unreported:
                self._report_opened(node_state, incident)
            elif known.summary != incident.summary or known.action != incident.action:
                self._note_incident(node_state, EventKind.INCIDENT_CHANGED, incident)
        for incident in closed:
            if node_state.decision.take_deferred(incident.id):
                self._note_incident(node_state, EventKind.INCIDENT_OPENED, incident)
            self._note_incident(node_state, EventKind.INCIDENT_CLOSED, incident, ": well again")

    def _report_opened(self, node_state: NodeState, incident: Incident) -> None:
        """Report it now, or once it is known whether the node's fabric is its cause."""
        waits = self._cause_tracker.fabric_hold_ends(node_state) is not None
        if waits and incident.action != "observe":
            node_state.decision.unreported |= {incident.id}
            return
        if node_state.decision.take_deferred(incident.id):
            self._cause_tracker.find_causes()
        self._note_incident(node_state, EventKind.INCIDENT_OPENED, incident)

    def _note_incident(
        self, node_state: NodeState, kind: EventKind, incident: Incident, more: str = ""
    ) -> None:
        opened = kind is EventKind.INCIDENT_OPENED
        cause = self._cause_tracker.explains(node_state, incident) if opened else ""
        details = {
            "kind": incident.kind,
            "action": incident.action,
            **({"cause": cause} if cause else {}),
            "evidence": "; ".join(
                f"{item.code} {item.component} ({item.rule})".replace("  ", " ")
                for item in incident.evidence[:8]
            ),
        }
        text = f"{incident.summary}{more}"
        self._reports.emit_event(node_state, kind, text, details, incident=incident.id)

    def _emit_preview(self, node_state: NodeState, wall: float) -> None:
        wanted = node_state.decision.wanted
        would = ""
        if wanted is not None and wanted.spec.action is not wanted.uncapped:
            done = _is_done(node_state.quarantine, wanted.uncapped)
            if not done and not self._waits_for_labels(node_state):
                would = f"{wanted.uncapped}: {wanted.spec.reason}"
        requests = node_state.cluster.operator_requests
        spared = "" if requests is NONE else requests.why_capped(wall)
        if would and would != node_state.decision.would:
            why = spared or self._pools.describe_mode(node_state.node)
            text = f"{why} keeps us from this: {would}"
            self._reports.emit_event(node_state, EventKind.SUPPRESSED, text)
        node_state.decision.set_prevented(would, spared)
        present = node_state.quarantine
        if present is not None and (present.unread or present.spec.requester != OURS):
            return  # its hold is about the object, whatever is wanted
        if wanted is None or Action.OBSERVE in (wanted.spec.action, wanted.in_force):
            node_state.set_hold(None)


def _is_done(quarantine: Quarantine | None, action: Action) -> bool:
    """Whether the action was carried out, when the mode still allowed it."""
    if quarantine is None:
        return False
    phase = quarantine.status.phase
    return phase is Phase.DRAINED or (action is Action.CORDON and phase in MARKED)
