"""Which transitions are alerts, how grave they are, and which of them repeat an earlier one.
Pure.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from aggregator.events import EventKind, Transition
from aggregator.policy.shipped_yaml import read_shipped_file
from aggregator.runtime.text import counted, truncate

_KINDS: Mapping[str, Mapping[str, Any]] = read_shipped_file("aggregator.alerts", "kinds.yaml")


def _kinds_with(key: str) -> dict[EventKind, Any]:
    """The kinds that have the key in kinds.yaml, with its value."""
    return {EventKind(name): of[key] for name, of in _KINDS.items() if key in of}


SEVERITY: Mapping[EventKind, str] = _kinds_with("severity")
LASTING = frozenset(_kinds_with("lasts"))
#: Kinds about one incident, which its end ends; that of a quarantine is its release. A restart
#: derives them again, so they are sent once until then.
OF_INCIDENT = frozenset({EventKind.INCIDENT_OPENED, EventKind.HELD})
DEFAULT_KINDS = frozenset(SEVERITY)
#: Kinds about one pod or job: those of a route to its owner when the configuration names none.
POD_KINDS = frozenset({EventKind.JOB_STOPPED, EventKind.BLOCKED, EventKind.FORCED})

#: Kinds that come from a thousand nodes at once where one thing has failed: sent as one alert.
GROUPED = frozenset({EventKind.AGENT_SILENT, EventKind.AGENT_BACK})

#: Holds that need no alert of their own: the fleet's alert reports them, or they last for seconds.
_REPORTED_OTHERWISE = frozenset({"limits.cooldown", "limits.fabric_hold", "record"})

MAX_TEXT = 4_000
MAX_DETAILS = 32
_NAMED = 10


#: Seconds that the alert of an incident waits until its node is admitted, held or left alone. A
#: common cause is found within 2 s of its last fault; its one alert replaces those of its nodes.
DECIDED_WITHIN = 5.0


class AlertState(enum.StrEnum):
    """Whether an alert lasts (firing), has ended (resolved), or reports a moment (notice)."""

    FIRING = "firing"
    RESOLVED = "resolved"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an alert. ``at`` is wall clock seconds; ``summary`` is the ending transition's.

    ``delivery`` is the delivery that announced the alert; ``open`` how many alerts of that delivery
    last on.
    """

    at: float
    summary: str
    delivery: str = ""
    open: int = 0


@dataclass(frozen=True, slots=True)
class Alert:
    """One neutral alert; each receiver renders it. ``at`` is wall clock seconds; ``nodes`` all the
    nodes that it is about.

    ``key`` is the same for an alert and its end. ``labels`` are its pool, rack, rules and the node
    labels that the configuration names. ``advice`` is the next step of a person, in sentences.
    """

    id: str
    kind: str
    severity: str
    at: float
    node: str
    nodes: tuple[str, ...]
    summary: str
    incident: str
    details: Mapping[str, str]
    key: str = ""
    state: AlertState = AlertState.NOTICE
    labels: Mapping[str, str] = field(default_factory=dict)
    ending: Ending | None = None
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """The alert in the format of docs/alerts.md."""
        shown = asdict(self) | {"at": rfc3339(self.at), "nodes": list(self.nodes)}
        ending = shown.pop("ending")
        if ending is not None:
            shown["resolved"] = ending | {"at": rfc3339(ending["at"])}
        return shown


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
    elsewhere = transition.details.get("limit", "") in _REPORTED_OTHERWISE
    if kind in (EventKind.INCIDENT_OPENED, EventKind.HELD) and (
        elsewhere or "cause" in transition.details
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
    # The release that follows at once is no end of this failure: a person gives the node back.
    lasts = kind in LASTING and transition.details.get("hook") != "post_release"
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
        key=dedup_key(transition),
        state=AlertState.FIRING if lasts else AlertState.NOTICE,
    )


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """The decision about a node's incident. ``covered``: a common cause explains it, so
    that the alert of the cause reports it.
    """

    node: str
    covered: bool


_DECISIONS = frozenset({EventKind.ADMITTED, EventKind.HELD, EventKind.SUPPRESSED})


def decision_of(transition: Transition) -> NodeDecision | None:
    """The decision that the transition reports, or None."""
    if transition.kind not in _DECISIONS:
        return None
    return NodeDecision(transition.node, "cause" in transition.details)


def ended(alert: Alert, by: "Resolution") -> Alert:
    """The end of the alert, by this transition."""
    return replace(
        alert,
        id=_digest(alert.id, "resolved"),
        state=AlertState.RESOLVED,
        ending=Ending(by.at, by.summary),
    )


_SUBJECT: Mapping[EventKind, str] = _kinds_with("subject")


def dedup_key(transition: Transition) -> str:
    """The subject of the transition: two of one key are the same alert, unless the first has
    ended.
    """
    kind = transition.kind
    about = [kind.value, transition.node, transition.incident]
    subject = _SUBJECT.get(kind)
    if subject is not None:
        text = transition.details.get(subject, "")
        about.append(transition.summary if subject == "summary" else text)
    return _digest(*about)


@dataclass(frozen=True, slots=True)
class Resolution:
    """Topics that a transition ends: of its node (and incident, where given), of these kinds.

    Alerts of ``kinds`` may be sent again; those of ``resolved`` have ended (None: the same kinds).
    ``at`` and ``summary`` are the transition's.
    """

    node: str
    kinds: frozenset[EventKind]
    incident: str = ""
    resolved: frozenset[EventKind] | None = None
    at: float = 0.0
    summary: str = ""

    def ends(self, alert: Alert) -> bool:
        """Whether the alert, which lasts, has ended."""
        kinds = self.kinds if self.resolved is None else self.resolved
        return (
            alert.node == self.node
            and alert.kind in kinds
            and self.incident in ("", alert.incident)
        )


_UNDONE = frozenset(
    kind for kind in EventKind if kind.value.startswith(("quarantine.", "work.", "job.", "repair."))
)


_OPPOSITES = {over: EventKind(begun) for over, begun in _kinds_with("opposite").items()}
#: The kinds that each kind ends: those that come and go end the alert of their opposite.
_OVER = {
    **{over: frozenset({begun}) for over, begun in _OPPOSITES.items()},
    **{begun: frozenset({over}) for over, begun in _OPPOSITES.items()},
    **{kind: frozenset(map(EventKind, ends)) for kind, ends in _kinds_with("ends").items()},
}
_BY_CAUSE = frozenset(_kinds_with("by_incident"))


_ENDED_BY_ADMISSION = frozenset(
    {EventKind.HELD, EventKind.SUPPRESSED, EventKind.RELEASED, EventKind.OVERRULED}
)


def resolves(transition: Transition) -> Resolution | None:
    """The alerts that may be sent again after this transition, or None where it ends no alert."""
    node, at, summary = transition.node, transition.at, _text(transition.summary)
    match transition.kind:
        case EventKind.INCIDENT_CLOSED:
            every = frozenset(EventKind)
            return Resolution(node, every, transition.incident, OF_INCIDENT, at, summary)
        case EventKind.ADMITTED:
            return Resolution(node, _ENDED_BY_ADMISSION, at=at, summary=summary)
        case EventKind.RELEASED | EventKind.OVERRULED:
            kinds = _UNDONE - {EventKind.RELEASED, EventKind.OVERRULED}
            return Resolution(node, kinds, at=at, summary=summary)
        case EventKind.REPAIR_ORDERED if "reason" in transition.details:
            return None  # the test of a node in no quarantine, whose hold lasts
    over = _OVER.get(transition.kind)
    if over is None:
        return None
    which = transition.incident if transition.kind in _BY_CAUSE else ""
    return Resolution(node, over, which, at=at, summary=summary)


def group(alerts: Sequence[Alert]) -> list[Alert]:
    """The same alerts, with those of a grouped kind and one state merged into one each, ordered by
    the first of each.
    """
    grouped: dict[tuple[str, str], list[Alert]] = {}
    for alert in alerts:
        if alert.kind in GROUPED:
            grouped.setdefault((alert.kind, alert.state), []).append(alert)
    shown: list[Alert] = []
    for alert in alerts:
        members = grouped.get((alert.kind, alert.state))
        if members is None or len(members) == 1:
            shown.append(alert)
        elif alert is members[0]:
            shown.append(_as_one(members))
    return shown


def _as_one(members: Sequence[Alert]) -> Alert:
    first = members[0]
    nodes = tuple(dict.fromkeys(node for member in members for node in member.nodes))
    what = "silent" if first.kind == EventKind.AGENT_SILENT else "back"
    if first.state is AlertState.RESOLVED:  # back, or of a node that was taken away
        what += " no more"
    return replace(
        first,
        id=_digest(*(member.id for member in members)),
        node="",
        nodes=nodes,
        summary=f"{counted(len(nodes), 'agent is', 'agents are')} {what}: {named(nodes)}",
        incident="",
        details={},
        advice="",
        key=_digest(*(member.key for member in members)),
        labels=common(member.labels for member in members),
    )


def named(nodes: Sequence[str], most: int = _NAMED) -> str:
    """The first of the nodes by name."""
    return ", ".join(nodes[:most]) + (", ..." if len(nodes) > most else "")


def common(all_labels: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The labels that all have with the same value."""
    found: dict[str, str] | None = None
    for labels in all_labels:
        items = labels.items()
        found = dict(items) if found is None else dict(found.items() & items)
    return found or {}


def _digest(*parts: str) -> str:
    text = "\x1f".join(parts).encode("utf-8", "replace")
    return blake2b(text, digest_size=16).hexdigest()


def _text(text: str) -> str:
    return truncate(text, MAX_TEXT).encode("utf-8", "replace").decode("utf-8")
