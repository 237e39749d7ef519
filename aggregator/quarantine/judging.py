"""Judges a node anew when something about it has changed, and tells what came of it."""

import asyncio
from collections.abc import Callable, Mapping

from aggregator.policy.incident import Incident
from aggregator.policy.rules import Policy
from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.case import MARKED, Case
from aggregator.quarantine.cluster import Action, Phase, Quarantine
from aggregator.quarantine.ledger import Kind, Ledger, Transition
from aggregator.quarantine.suspecting import Suspecting


class Judging:
    """``see_to`` is called for a node that there may be something to do for."""

    def __init__(
        self,
        *,
        policy: Policy,
        mode: Action,
        acts: Acts,
        ledger: Ledger,
        clocks: Clocks,
        suspecting: Suspecting,
        see_to: Callable[[Case], None],
        silent_action: str = "observe",
    ) -> None:
        """``silent_action``: what a silent agent calls for, if failing and its kubelet is ready."""
        self._policy = policy
        self._mode = mode
        self._acts = acts
        self._ledger = ledger
        self._clocks = clocks
        self._suspecting = suspecting
        self._see_to = see_to
        self._silent_action = silent_action

    def judge(self, case: Case) -> None:
        """Fold what is known of the node into its incidents; look again when time asks for it."""
        before = case.patient.incidents
        now = self._clocks.now()
        wall = self._clocks.earliest()
        for said in case.hear_wishes(wall):
            self._acts.note(case, Kind.WISHED, said)
        mode = min(self._mode, case.wishes.cap(wall), key=lambda action: action.strength)
        closed, again = case.rejudge(self._policy, mode, now, silent_action=self._silent_action)
        self._suspecting.hear(case)
        self._tell_incidents(case, before, closed)
        self._tell_would(case)
        if case.timer is not None:
            case.timer.cancel()
            case.timer = None
        if again is not None:
            loop = asyncio.get_running_loop()
            case.timer = loop.call_later(max(0.0, again - now) + 0.001, self.judge, case)
        self._see_to(case)

    def _tell_incidents(
        self, case: Case, before: Mapping[str, Incident], closed: list[Incident]
    ) -> None:
        for ident, incident in case.patient.incidents.items():
            known = before.get(ident)
            if known is None:
                self._note_incident(case, Kind.INCIDENT_OPENED, incident, incident.summary)
            elif known.summary != incident.summary or known.action != incident.action:
                self._note_incident(case, Kind.INCIDENT_CHANGED, incident, incident.summary)
        for incident in closed:
            text = f"{incident.summary}: well again"
            self._note_incident(case, Kind.INCIDENT_CLOSED, incident, text)

    def _note_incident(self, case: Case, kind: Kind, incident: Incident, text: str) -> None:
        cause = self._suspecting.explains(case, incident) if kind is Kind.INCIDENT_OPENED else ""
        self._ledger.note(
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

    def _tell_would(self, case: Case) -> None:
        wanted = case.wanted
        would = ""
        if (
            wanted is not None
            and wanted.spec.action is not wanted.uncapped
            and not _is_done(case.patient.quarantine, wanted.uncapped)
        ):
            would = f"{wanted.uncapped}: {wanted.spec.reason}"
        spared = case.patient.spared = case.wishes.why_capped(self._clocks.earliest())
        why = spared or f"mode {self._mode}"
        if would and would != case.patient.would:
            text = f"{why} keeps us from this: {would}"
            self._acts.note(case, Kind.WOULD_ACT, text)
        case.patient.would = would
        if wanted is None or Action.OBSERVE in (wanted.spec.action, wanted.in_force):
            case.patient.hold = None


def _is_done(quarantine: Quarantine | None, action: Action) -> bool:
    """Whether the action was carried out, when the mode still gave leave."""
    if quarantine is None:
        return False
    phase = quarantine.status.phase
    return phase is Phase.DRAINED or (action is Action.CORDON and phase in MARKED)
