"""Evaluates a node anew after a change, and reports the result."""

import asyncio
from collections.abc import Mapping

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.port import STRENGTH, Action, Phase, Quarantine
from aggregator.events import EventKind
from aggregator.policy.evaluate import Incident
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.node_actions import NodeReports
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.quarantine.state.registry import NodePools


@define(eq=False, slots=False, kw_only=True)
class NodeEvaluator:
    """``silent_action``: the action on a silent agent, if failing and its kubelet is ready."""

    _policy: Policy
    _pools: NodePools
    _reports: NodeReports
    _clocks: Clocks
    _cause_tracker: CommonCauseTracker
    _queue: WorkQueue
    _silent_action: str = "observe"

    def evaluate_node(self, node_state: NodeState) -> None:
        """Fold the node's state into its incidents; evaluate again when time requires it.

        The queue alone calls it. All others request an evaluation from the queue.
        """
        arrived, before = node_state.work.begin_evaluation(), node_state.decision.incidents
        now = self._clocks.now()
        wall = self._clocks.earliest()
        for message in node_state.show_requests(wall):
            self._reports.emit_event(node_state, EventKind.REQUESTED, message)
        mode = min(
            self._pools.mode_of(node_state.node),
            node_state.cluster.operator_requests.cap(wall),
            key=STRENGTH,
        )
        policy = self._pools.policy_of(node_state.node, self._policy)
        closed, again = node_state.evaluate(policy, mode, now, silent_action=self._silent_action)
        if any(one.action != "observe" for one in closed) and not node_state.acting:
            node_state.note_recovery()
        wanted = node_state.decision.wanted
        self._reports.stages.note_decision(
            node_state.node,
            self._clocks.now(),
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
            node_state.work.request_read()  # the next list may be three minutes away
        node_state.work.add_evaluation_cost(self._clocks.now() - now)

    def _waits_for_labels(self, node_state: NodeState) -> bool:
        """Whether its mode is not known yet: it has just joined, or this process has just begun."""
        return not (self._pools.knows(node_state.node) or node_state.cluster.node_gone)

    def _emit_incidents(
        self, node_state: NodeState, before: Mapping[str, Incident], closed: list[Incident]
    ) -> None:
        for ident, incident in node_state.decision.incidents.items():
            known = before.get(ident)
            if known is None or ident in node_state.decision.unreported:
                self._report_opened(node_state, incident)
            elif known.summary != incident.summary or known.action != incident.action:
                self._note_incident(
                    node_state, EventKind.INCIDENT_CHANGED, incident, incident.summary
                )
        for incident in closed:
            if node_state.decision.take_deferred(incident.id):
                self._note_incident(
                    node_state, EventKind.INCIDENT_OPENED, incident, incident.summary
                )
            text = f"{incident.summary}: well again"
            self._note_incident(node_state, EventKind.INCIDENT_CLOSED, incident, text)

    def _report_opened(self, node_state: NodeState, incident: Incident) -> None:
        """Report it now, or once it is known whether the node's fabric is its cause."""
        waits = self._cause_tracker.fabric_hold_ends(node_state) is not None
        if waits and incident.action != "observe":
            node_state.decision.defer_report(incident.id)
            return
        if node_state.decision.take_deferred(incident.id):
            self._cause_tracker.find_causes()
        self._note_incident(node_state, EventKind.INCIDENT_OPENED, incident, incident.summary)

    def _note_incident(
        self, node_state: NodeState, kind: EventKind, incident: Incident, text: str
    ) -> None:
        cause = (
            self._cause_tracker.explains(node_state, incident)
            if kind is EventKind.INCIDENT_OPENED
            else ""
        )
        details = {
            "kind": incident.kind,
            "action": incident.action,
            **({"cause": cause} if cause else {}),
            "evidence": "; ".join(
                f"{item.code} {item.component} ({item.rule})".replace("  ", " ")
                for item in incident.evidence[:8]
            ),
        }
        self._reports.emit_event(node_state, kind, text, details, incident=incident.id)

    def _emit_preview(self, node_state: NodeState, wall: float) -> None:
        wanted = node_state.decision.wanted
        would = ""
        if (
            wanted is not None
            and wanted.spec.action is not wanted.uncapped
            and not _is_done(node_state.quarantine, wanted.uncapped)
            and not self._waits_for_labels(node_state)
        ):
            would = f"{wanted.uncapped}: {wanted.spec.reason}"
        spared = node_state.cluster.operator_requests.why_capped(wall)
        if would and would != node_state.decision.would:
            why = spared or self._pools.describe_mode(node_state.node)
            text = f"{why} keeps us from this: {would}"
            self._reports.emit_event(node_state, EventKind.SUPPRESSED, text)
        node_state.decision.set_prevented(would, spared)
        present = node_state.quarantine
        if present is not None and present.unread:
            return  # its hold is about the object, whatever is wanted
        if wanted is None or Action.OBSERVE in (wanted.spec.action, wanted.in_force):
            node_state.set_hold(None)


def _is_done(quarantine: Quarantine | None, action: Action) -> bool:
    """Whether the action was carried out, when the mode still allowed it."""
    if quarantine is None:
        return False
    phase = quarantine.status.phase
    return phase is Phase.DRAINED or (action is Action.CORDON and phase in MARKED)
