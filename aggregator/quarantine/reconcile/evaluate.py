"""Evaluates a node anew after a change, and reports the result."""

import asyncio
from collections.abc import Mapping

from aggregator.clock import Clocks
from aggregator.cluster.port import Action, Phase, Quarantine
from aggregator.events import EventKind, EventSink, Transition
from aggregator.policy.incident import Incident
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.cordon import NodeActions
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED


class NodeEvaluator:
    def __init__(
        self,
        *,
        policy: Policy,
        mode: Action,
        acts: NodeActions,
        event_sink: EventSink,
        clocks: Clocks,
        cause_tracker: CommonCauseTracker,
        queue: WorkQueue,
        silent_action: str = "observe",
    ) -> None:
        """``silent_action``: the action on a silent agent, if failing and its kubelet is ready."""
        self._policy = policy
        self._mode = mode
        self._acts = acts
        self._event_sink = event_sink
        self._clocks = clocks
        self._cause_tracker = cause_tracker
        self._queue = queue
        self._silent_action = silent_action

    def evaluate_node(self, case: NodeState) -> None:
        """Fold the node's state into its incidents; evaluate again when time requires it."""
        before = case.decision.incidents
        now = self._clocks.now()
        wall = self._clocks.earliest()
        for said in case.hear_wishes(wall):
            self._acts.emit_event(case, EventKind.REQUESTED, said)
        mode = min(self._mode, case.cluster.wishes.cap(wall), key=lambda action: action.strength)
        closed, again = case.rejudge(self._policy, mode, now, silent_action=self._silent_action)
        self._cause_tracker.receive_symptoms(case)
        self._tell_incidents(case, before, closed)
        self._tell_would(case)
        fabric_hold_ends = self._cause_tracker.fabric_hold_ends(case)
        if fabric_hold_ends is not None:
            again = min(again or fabric_hold_ends, fabric_hold_ends)
        timer = None
        if again is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(max(0.0, again - now) + 0.001, self.evaluate_node, case)
        case.decision.set_timer(timer)
        self._queue.add_if_pending(case)

    def _tell_incidents(
        self, case: NodeState, before: Mapping[str, Incident], closed: list[Incident]
    ) -> None:
        for ident, incident in case.decision.incidents.items():
            known = before.get(ident)
            if known is None or ident in case.decision.unreported:
                self._report_opened(case, incident)
            elif known.summary != incident.summary or known.action != incident.action:
                self._note_incident(case, EventKind.INCIDENT_CHANGED, incident, incident.summary)
        for incident in closed:
            if case.decision.take_deferred(incident.id):
                self._note_incident(case, EventKind.INCIDENT_OPENED, incident, incident.summary)
            text = f"{incident.summary}: well again"
            self._note_incident(case, EventKind.INCIDENT_CLOSED, incident, text)

    def _report_opened(self, case: NodeState, incident: Incident) -> None:
        """Report it now, or once it is known whether the node's fabric is its cause."""
        waits = self._cause_tracker.fabric_hold_ends(case) is not None
        if waits and incident.action != "observe":
            case.decision.defer_report(incident.id)
            return
        if case.decision.take_deferred(incident.id):
            self._cause_tracker.find_causes()
        self._note_incident(case, EventKind.INCIDENT_OPENED, incident, incident.summary)

    def _note_incident(
        self, case: NodeState, kind: EventKind, incident: Incident, text: str
    ) -> None:
        cause = (
            self._cause_tracker.explains(case, incident)
            if kind is EventKind.INCIDENT_OPENED
            else ""
        )
        self._event_sink.record_event(
            Transition(
                at=self._clocks.wall(),
                kind=kind,
                node=case.node,
                summary=f"{case.node}: {text}",
                incident=incident.id,
                details={
                    "kind": incident.kind,
                    "action": incident.action,
                    **({"cause": cause} if cause else {}),
                    "evidence": "; ".join(
                        f"{item.code} {item.component} ({item.rule})".replace("  ", " ")
                        for item in incident.evidence[:8]
                    ),
                },
            )
        )

    def _tell_would(self, case: NodeState) -> None:
        wanted = case.decision.wanted
        would = ""
        if (
            wanted is not None
            and wanted.spec.action is not wanted.uncapped
            and not _is_done(case.node_summary.quarantine, wanted.uncapped)
        ):
            would = f"{wanted.uncapped}: {wanted.spec.reason}"
        spared = case.cluster.wishes.why_capped(self._clocks.earliest())
        why = spared or f"mode {self._mode}"
        if would and would != case.decision.would:
            text = f"{why} keeps us from this: {would}"
            self._acts.emit_event(case, EventKind.SUPPRESSED, text)
        case.decision.set_prevented(would, spared)
        if wanted is None or Action.OBSERVE in (wanted.spec.action, wanted.in_force):
            case.decision.set_hold(None)


def _is_done(quarantine: Quarantine | None, action: Action) -> bool:
    """Whether the action was carried out, when the mode still allowed it."""
    if quarantine is None:
        return False
    phase = quarantine.status.phase
    return phase is Phase.DRAINED or (action is Action.CORDON and phase in MARKED)
