"""The step that a person on call takes next, for an alert: the page's own advice, and the command
that explains the node.
"""

import shlex
from collections.abc import Callable

from aggregator import advice
from aggregator.alerts.alert import Alert
from aggregator.events import EventKind
from aggregator.quarantine.state.fleet import FleetState, NodeSummary
from aggregator.runtime.cli_flags import reading_flags
from aggregator.runtime.text import visible

#: Kinds about the fleet whose next step is that of a hold.
_HOLDS = {
    EventKind.STOPPED: "stop",
    EventKind.COOLDOWN: "limits.cooldown",
    EventKind.RECORD_LOST: "record",
}
#: Kinds that report an end, or the work of a person: no step follows.
_DONE = frozenset({EventKind.RELEASED, EventKind.OVERRULED, EventKind.OVERRIDDEN})
#: Characters.
_LONGEST = 1_000
_OF_QUARANTINE = ("quarantine.", "work.", "repair.")

Advisor = Callable[[Alert], str]


def no_advice(_alert: Alert) -> str:
    """Where the fleet is not known."""
    return ""


class FleetAdvice:
    """Advice by the fleet's state in memory, as of now."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet

    def __call__(self, alert: Alert) -> str:
        """Sentences; empty where no step is known."""
        if not alert.node:
            return self._for_fleet(alert)
        command = f"sickbay explain {shlex.quote(alert.node)}{reading_flags(self._fleet.how)}"
        step = self._for_node(alert)
        stop = "." if step and not step.endswith(".") else ""
        text = f"{step}{stop} Causes and next steps: {command}"
        return visible(text.strip(), _LONGEST)

    def _for_fleet(self, alert: Alert) -> str:
        if alert.kind == EventKind.COMMON_CAUSE:
            return advice.for_cause(alert.details.get("scope", "check"))
        if alert.kind == EventKind.NETWORK_BLAMED:
            return advice.for_cause("network")
        for kind, hold in _HOLDS.items():
            if alert.kind == kind:
                return advice.lift(hold, self._fleet.how, self._fleet.words)
        return ""

    def _for_node(self, alert: Alert) -> str:
        found = self._fleet.node_summaries.get(alert.node)
        if found is None or alert.kind in _DONE:
            return ""
        mode, how = self._fleet.mode_of(found), self._fleet.how
        if alert.kind == EventKind.INCIDENT_OPENED:
            return _for_incident(found, alert.incident, mode, how)
        if alert.kind == EventKind.HELD and found.decision.hold is not None:
            return advice.for_hold(found, found.decision.hold, mode, how, self._fleet.words)
        if alert.kind.startswith(_OF_QUARANTINE) and found.quarantine is not None:
            spec = found.quarantine.spec
            clears = [item.cleared_by for item in spec.evidence if not item.cleared]
            return advice.for_quarantine(found, found.quarantine, clears, how, self._fleet.words)
        return ""


def _for_incident(found: NodeSummary, ident: str, mode: str, how: str) -> str:
    incident = found.decision.incidents.get(ident)
    if incident is None:
        return ""
    clears = [item.cleared_by or "" for item in incident.in_force]
    return advice.for_incident(found, clears, incident.action, mode, how)
