"""Which transitions are alerts, how grave they are, and which of them repeat an earlier one.
Pure.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from aggregator.events import EventKind, Transition
from aggregator.runtime.text import truncate

#: Kinds that are alerts when the configuration names none, and how grave each is.
SEVERITY = {
    EventKind.INCIDENT_OPENED: "warning",
    EventKind.HELD: "warning",
    EventKind.CORDONED: "warning",
    EventKind.MARKS_MISSING: "warning",
    EventKind.MARKS_RESTORED: "info",
    EventKind.ADOPTED: "warning",
    EventKind.NODE_ABSENT: "warning",
    EventKind.NODE_BACK: "info",
    EventKind.DRAINED: "info",
    EventKind.BLOCKED: "warning",
    EventKind.FORCED: "warning",
    EventKind.OVERDUE: "critical",
    EventKind.HOOK_FAILED: "critical",
    EventKind.OVERRULED: "info",
    EventKind.RELEASED: "info",
    EventKind.RELEASE_HELD: "warning",
    EventKind.UNCORDONED: "warning",
    EventKind.OVERRIDDEN: "info",
    EventKind.REQUESTED: "info",
    EventKind.LEMON: "warning",
    EventKind.AGENT_SILENT: "warning",
    EventKind.SILENT_FAILING: "critical",
    EventKind.AGENT_CONFLICT: "critical",
    EventKind.EVIDENCE_LOST: "warning",
    EventKind.STOPPED: "warning",
    EventKind.RESUMED: "info",
    EventKind.COMMON_CAUSE: "critical",
    EventKind.COMMON_CAUSE_OVER: "info",
    EventKind.COOLDOWN: "warning",
    EventKind.RECORD_LOST: "critical",
    EventKind.RECORD_WHOLE: "info",
    EventKind.REPLICAS_APART: "warning",
    EventKind.REPLICAS_TOGETHER: "info",
    EventKind.NETWORK_BLAMED: "critical",
    EventKind.NETWORK_CLEARED: "info",
    EventKind.NODE_LOST: "warning",
}
DEFAULT_KINDS = frozenset(SEVERITY)

#: Kinds that come from a thousand nodes at once where one thing has failed: sent as one alert.
GROUPED = frozenset({EventKind.AGENT_SILENT, EventKind.AGENT_BACK})

#: Holds that need no alert of their own: the fleet's alert reports them, or they last for seconds.
_TOLD_OTHERWISE = frozenset({"limits.cooldown", "limits.fabric_hold", "record", "shards"})

MAX_TEXT = 4_000
MAX_DETAILS = 32
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Alert:
    """One message to a webhook. ``at`` is wall clock seconds; ``nodes`` all the nodes that it is
    about.
    """

    id: str
    kind: str
    severity: str
    at: float
    node: str
    nodes: tuple[str, ...]
    summary: str
    incident: str
    details: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """The alert in the format of docs/alerts.md."""
        return {**asdict(self), "at": rfc3339(self.at), "nodes": list(self.nodes)}


def rfc3339(at: float) -> str:
    """Wall clock seconds as people and receivers read them, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def alert_of(transition: Transition) -> Alert | None:
    """The alert that the transition is, or None for an incident that is only watched.

    Also None for an incident that a common cause explains or its cooldown holds: the fleet's alert
    reports it already.
    """
    kind = transition.kind
    action = transition.details.get("action", "")
    told = transition.details.get("limit", "") in _TOLD_OTHERWISE
    if kind in (EventKind.INCIDENT_OPENED, EventKind.HELD) and (
        told or "cause" in transition.details
    ):
        return None
    if (
        kind in (EventKind.NETWORK_BLAMED, EventKind.NETWORK_CLEARED)
        and "cause" in transition.details
    ):
        return None
    severity = SEVERITY.get(kind, "info")
    if kind in (EventKind.INCIDENT_OPENED, EventKind.INCIDENT_CHANGED, EventKind.INCIDENT_CLOSED):
        if action == "observe":
            return None
        if kind is EventKind.INCIDENT_OPENED and action == "drain":
            severity = "critical"
    return Alert(
        id=_digest(dedup_key(transition), repr(transition.at)),
        kind=kind.value,
        severity=severity,
        at=transition.at,
        node=transition.node,
        nodes=(transition.node,) if transition.node else (),
        summary=_text(transition.summary),
        incident=transition.incident,
        details={_text(k): _text(v) for k, v in list(transition.details.items())[:MAX_DETAILS]},
    )


def dedup_key(transition: Transition) -> str:
    """The subject of the transition: two of one key are the same alert, unless the first has
    ended.
    """
    kind = transition.kind
    about = [kind.value, transition.node, transition.incident]
    if kind in (EventKind.BLOCKED, EventKind.FORCED):
        about.append(transition.details.get("pod", ""))
    elif kind is EventKind.HELD:
        about.append(transition.details.get("limit", ""))
    elif kind is EventKind.EVIDENCE_LOST:
        about.append(transition.details.get("source", ""))  # the agent chooses the words
    elif kind in (EventKind.HOOK, EventKind.HOOK_FAILED):
        about.append(transition.details.get("hook", ""))
    elif kind in (
        EventKind.REQUESTED,
        EventKind.RELEASE_HELD,
        EventKind.UNCORDONED,
        EventKind.OVERRIDDEN,
        EventKind.INCIDENT_CHANGED,
        EventKind.AGENT_CONFLICT,
        EventKind.EVICTED,
    ):
        about.append(transition.summary)
    return _digest(*about)


@dataclass(frozen=True, slots=True)
class Resolution:
    """Topics that a transition ends: of its node (and incident, where given), of these kinds."""

    node: str
    kinds: frozenset[EventKind]
    incident: str = ""


_UNDONE = frozenset(kind for kind in EventKind if kind.value.startswith(("quarantine.", "pod.")))


#: Kinds that come and go: each ends the alert of its opposite.
_OVER = {
    EventKind.AGENT_BACK: frozenset({EventKind.AGENT_SILENT, EventKind.SILENT_FAILING}),
    EventKind.AGENT_SILENT: frozenset({EventKind.AGENT_BACK}),
    EventKind.RESUMED: frozenset({EventKind.STOPPED}),
    EventKind.STOPPED: frozenset({EventKind.RESUMED}),
    EventKind.COMMON_CAUSE: frozenset({EventKind.COMMON_CAUSE_OVER}),
    EventKind.COMMON_CAUSE_OVER: frozenset({EventKind.COMMON_CAUSE}),
    EventKind.COOLDOWN: frozenset({EventKind.COOLDOWN_OVER}),
    EventKind.COOLDOWN_OVER: frozenset({EventKind.COOLDOWN}),
    EventKind.RECORD_LOST: frozenset({EventKind.RECORD_WHOLE}),
    EventKind.RECORD_WHOLE: frozenset({EventKind.RECORD_LOST}),
    EventKind.REPLICAS_APART: frozenset({EventKind.REPLICAS_TOGETHER}),
    EventKind.REPLICAS_TOGETHER: frozenset({EventKind.REPLICAS_APART}),
    EventKind.NETWORK_BLAMED: frozenset({EventKind.NETWORK_CLEARED}),
    EventKind.NETWORK_CLEARED: frozenset({EventKind.NETWORK_BLAMED}),
    EventKind.NODE_LOST: frozenset({EventKind.NODE_FOUND}),
    EventKind.NODE_FOUND: frozenset({EventKind.NODE_LOST}),
}
#: Several of these kinds may be open at a time, told apart by their incident.
_BY_CAUSE = frozenset(
    {
        EventKind.COMMON_CAUSE,
        EventKind.COMMON_CAUSE_OVER,
        EventKind.NETWORK_BLAMED,
        EventKind.NETWORK_CLEARED,
    }
)


def resolves(transition: Transition) -> Resolution | None:
    """The alerts that may be sent again after this transition, or None where it ends no alert."""
    node = transition.node
    match transition.kind:
        case EventKind.INCIDENT_CLOSED:
            return Resolution(node, frozenset(EventKind), transition.incident)
        case EventKind.ADMITTED:
            return Resolution(
                node,
                frozenset(
                    {EventKind.HELD, EventKind.SUPPRESSED, EventKind.RELEASED, EventKind.OVERRULED}
                ),
            )
        case EventKind.RELEASED | EventKind.OVERRULED:
            return Resolution(node, _UNDONE - {EventKind.RELEASED, EventKind.OVERRULED})
    over = _OVER.get(transition.kind)
    if over is None:
        return None
    which = transition.incident if transition.kind in _BY_CAUSE else ""
    return Resolution(node, over, which)


def group(alerts: Sequence[Alert]) -> list[Alert]:
    """The same alerts, with those of a grouped kind merged into one each, ordered by the first of
    each.
    """
    grouped: dict[str, list[Alert]] = {}
    for alert in alerts:
        if alert.kind in GROUPED:
            grouped.setdefault(alert.kind, []).append(alert)
    told: list[Alert] = []
    for alert in alerts:
        members = grouped.get(alert.kind)
        if members is None or len(members) == 1:
            told.append(alert)
        elif alert is members[0]:
            told.append(_as_one(members))
    return told


def _as_one(members: Sequence[Alert]) -> Alert:
    first = members[0]
    nodes = tuple(dict.fromkeys(node for member in members for node in member.nodes))
    named = ", ".join(nodes[:_NAMED]) + (", ..." if len(nodes) > _NAMED else "")
    what = "silent" if first.kind == EventKind.AGENT_SILENT else "back"
    return Alert(
        id=_digest(*(member.id for member in members)),
        kind=first.kind,
        severity=first.severity,
        at=first.at,
        node="",
        nodes=nodes,
        summary=f"{len(nodes)} agents are {what}: {named}",
        incident="",
        details={},
    )


def _digest(*parts: str) -> str:
    text = "\x1f".join(parts).encode("utf-8", "replace")
    return blake2b(text, digest_size=16).hexdigest()


def _text(text: str) -> str:
    return truncate(text, MAX_TEXT).encode("utf-8", "replace").decode("utf-8")
