"""Which transitions are alerts, how grave they are, and which say what was said before. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from aggregator.quarantine.ledger import Kind, Transition
from aggregator.shortened import shortened

#: What is an alert when the configuration names no kinds, and how grave it is.
SEVERITY = {
    Kind.INCIDENT_OPENED: "warning",
    Kind.HELD: "warning",
    Kind.CORDONED: "warning",
    Kind.DRAINED: "info",
    Kind.BLOCKED: "warning",
    Kind.FORCED: "warning",
    Kind.OVERDUE: "critical",
    Kind.HOOK_FAILED: "critical",
    Kind.OVERRULED: "info",
    Kind.RELEASED: "info",
    Kind.RELEASE_HELD: "warning",
    Kind.WISHED: "info",
    Kind.LEMON: "warning",
    Kind.AGENT_SILENT: "warning",
    Kind.SILENT_FAILING: "critical",
    Kind.AGENT_CONFLICT: "critical",
    Kind.EVIDENCE_LOST: "warning",
    Kind.STOPPED: "warning",
    Kind.RESUMED: "info",
    Kind.COMMON_CAUSE: "critical",
    Kind.COMMON_CAUSE_OVER: "info",
    Kind.COOLDOWN: "warning",
    Kind.REPLICAS_APART: "warning",
    Kind.REPLICAS_TOGETHER: "info",
    Kind.NETWORK_BLAMED: "critical",
    Kind.NETWORK_CLEARED: "info",
    Kind.NODE_LOST: "warning",
}
DEFAULT_KINDS = frozenset(SEVERITY)

#: What comes for a thousand nodes at once where one thing has failed: told together, as one alert.
GROUPED = frozenset({Kind.AGENT_SILENT, Kind.AGENT_BACK})

MAX_TEXT = 4_000
MAX_DETAILS = 32
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing that a webhook is told. ``at`` is wall clock seconds; ``nodes`` all it is about."""

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
        """As docs/alerts.md has it."""
        return {**asdict(self), "at": rfc3339(self.at), "nodes": list(self.nodes)}


def rfc3339(at: float) -> str:
    """Wall clock seconds as people and receivers read them, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def alert_of(transition: Transition) -> Alert | None:
    """The alert that the transition is; None for an incident that is only watched.

    Nor for what a common cause explains, or its cooldown holds: the fleet's alert has told of it.
    """
    kind = transition.kind
    action = transition.details.get("action", "")
    told = transition.details.get("limit", "") in ("limits.cooldown", "shards")
    if kind in (Kind.INCIDENT_OPENED, Kind.HELD) and (told or "cause" in transition.details):
        return None
    if kind in (Kind.NETWORK_BLAMED, Kind.NETWORK_CLEARED) and "cause" in transition.details:
        return None
    severity = SEVERITY.get(kind, "info")
    if kind in (Kind.INCIDENT_OPENED, Kind.INCIDENT_CHANGED, Kind.INCIDENT_CLOSED):
        if action == "observe":
            return None
        if kind is Kind.INCIDENT_OPENED and action == "drain":
            severity = "critical"
    return Alert(
        id=_digest(topic_of(transition), repr(transition.at)),
        kind=kind.value,
        severity=severity,
        at=transition.at,
        node=transition.node,
        nodes=(transition.node,) if transition.node else (),
        summary=_text(transition.summary),
        incident=transition.incident,
        details={_text(k): _text(v) for k, v in list(transition.details.items())[:MAX_DETAILS]},
    )


def topic_of(transition: Transition) -> str:
    """What it is about: two of one topic say the same, unless something in between ended it."""
    kind = transition.kind
    about = [kind.value, transition.node, transition.incident]
    if kind in (Kind.BLOCKED, Kind.FORCED):
        about.append(transition.details.get("pod", ""))
    elif kind is Kind.HELD:
        about.append(transition.details.get("limit", ""))
    elif kind in (Kind.HOOK, Kind.HOOK_FAILED):
        about.append(transition.details.get("hook", ""))
    elif kind in (
        Kind.WISHED,
        Kind.RELEASE_HELD,
        Kind.INCIDENT_CHANGED,
        Kind.EVIDENCE_LOST,
        Kind.AGENT_CONFLICT,
        Kind.EVICTED,
    ):
        about.append(transition.summary)
    return _digest(*about)


@dataclass(frozen=True, slots=True)
class Ends:
    """Topics that a transition ends: of its node (and incident, where given), of these kinds."""

    node: str
    kinds: frozenset[Kind]
    incident: str = ""


_UNDONE = frozenset(kind for kind in Kind if kind.value.startswith(("quarantine.", "pod.")))


#: What comes and goes: each ends what was said of its opposite.
_OVER = {
    Kind.AGENT_BACK: frozenset({Kind.AGENT_SILENT, Kind.SILENT_FAILING}),
    Kind.AGENT_SILENT: frozenset({Kind.AGENT_BACK}),
    Kind.RESUMED: frozenset({Kind.STOPPED}),
    Kind.STOPPED: frozenset({Kind.RESUMED}),
    Kind.COMMON_CAUSE: frozenset({Kind.COMMON_CAUSE_OVER}),
    Kind.COMMON_CAUSE_OVER: frozenset({Kind.COMMON_CAUSE}),
    Kind.COOLDOWN: frozenset({Kind.COOLDOWN_OVER}),
    Kind.COOLDOWN_OVER: frozenset({Kind.COOLDOWN}),
    Kind.REPLICAS_APART: frozenset({Kind.REPLICAS_TOGETHER}),
    Kind.REPLICAS_TOGETHER: frozenset({Kind.REPLICAS_APART}),
    Kind.NETWORK_BLAMED: frozenset({Kind.NETWORK_CLEARED}),
    Kind.NETWORK_CLEARED: frozenset({Kind.NETWORK_BLAMED}),
    Kind.NODE_LOST: frozenset({Kind.NODE_FOUND}),
    Kind.NODE_FOUND: frozenset({Kind.NODE_LOST}),
}
#: Of these there may be several at a time, told apart by their incident.
_BY_CAUSE = frozenset(
    {Kind.COMMON_CAUSE, Kind.COMMON_CAUSE_OVER, Kind.NETWORK_BLAMED, Kind.NETWORK_CLEARED}
)


def ends(transition: Transition) -> Ends | None:
    """What may be said anew after this; None where it ends nothing."""
    node = transition.node
    match transition.kind:
        case Kind.INCIDENT_CLOSED:
            return Ends(node, frozenset(Kind), transition.incident)
        case Kind.ADMITTED:
            return Ends(node, frozenset({Kind.HELD, Kind.WOULD_ACT, Kind.RELEASED, Kind.OVERRULED}))
        case Kind.RELEASED | Kind.OVERRULED:
            return Ends(node, _UNDONE - {Kind.RELEASED, Kind.OVERRULED})
    over = _OVER.get(transition.kind)
    if over is None:
        return None
    which = transition.incident if transition.kind in _BY_CAUSE else ""
    return Ends(node, over, which)


def together(alerts: Sequence[Alert]) -> list[Alert]:
    """The same alerts with those of a grouped kind made one each. Order by the first of each."""
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
    what = "silent" if first.kind == Kind.AGENT_SILENT else "back"
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
    return shortened(text, MAX_TEXT).encode("utf-8", "replace").decode("utf-8")
