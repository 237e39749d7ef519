"""One delivery as a receiver renders it, and its content in words. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from aggregator.alerts.alert import Alert, AlertState, common, group, named
from aggregator.documentation import address, of_alert
from aggregator.health.node import hide_gpus
from aggregator.rfc3339 import read_time
from aggregator.runtime.text import visible

SEVERITIES = ("critical", "warning", "info")
#: Alerts of one kind that are written out; more are counted.
_WRITTEN_OUT = 3
#: Causes of one kind that have a line of their own.
_CAUSES = 3
#: So that the nodes have room next to it.
_LONGEST_CAUSE = 120
#: Characters of the advice of one alert.
_LONGEST_ADVICE = 1_000
#: Kubernetes' own bound of a node's name.
_LONGEST_NAME = 253


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """One delivery: its id never changes. ``size`` is how many alerts were recorded for it."""

    route: str
    id: str
    alerts: str  # a JSON array
    size: int
    attempts: int
    first_at: float
    next_at: float
    group: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """``id`` is the same for every ``attempt``. ``page`` is the status page's URL, or empty;
    ``documentation_url`` the address of the documentation, or empty.
    """

    id: str
    attempt: int
    alerts: tuple[Alert, ...]
    route: str = ""
    page: str = ""
    documentation_url: str = ""

    @property
    def state(self) -> AlertState:
        """Firing while any alert is; resolved where all have ended."""
        states = {alert.state for alert in self.alerts}
        for state in (AlertState.FIRING, AlertState.NOTICE):
            if state in states:
                return state
        return AlertState.RESOLVED

    @property
    def severity(self) -> str:
        """The worst of the alerts."""
        found = {alert.severity for alert in self.alerts}
        return next((one for one in SEVERITIES if one in found), "info")

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node for alert in self.alerts for node in alert.nodes))

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that all alerts share."""
        return common(alert.labels for alert in self.alerts)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a message: an alert, or several of one kind."""

    state: AlertState
    severity: str
    kind: str
    text: str

    @property
    def marked(self) -> str:
        """The text after its severity, or after the mark of an end."""
        over = self.state is AlertState.RESOLVED
        return f"{'resolved' if over else self.severity}: {self.text}"


def alerts_of(text: str) -> tuple[Alert, ...]:
    """The alerts of a delivery's JSON. Raises ValueError, KeyError and TypeError."""
    return tuple(_alert(one) for one in json.loads(text))


def headline(message: Message, most: int) -> str:
    """The message in one line of at most ``most`` characters."""
    alerts = message.alerts
    mark = "RESOLVED" if message.state is AlertState.RESOLVED else message.severity.upper()
    lines = list(digest(message, most=most))
    if len(lines) == 1:
        text = lines[0].text
    else:
        where = ", ".join(f"{key} {value}" for key, value in _place(message.labels))
        nodes = len(message.nodes)
        about = f" about {nodes} node{'s' if nodes != 1 else ''}" if nodes else ""
        text = f"{len(alerts)} alerts{about}{f' ({where})' if where else ''}: {lines[0].text}"
    return visible(f"[{mark}] {text}", most)


def digest(message: Message, *, most: int) -> Sequence[Line]:
    """The alerts in lines of at most ``most`` characters, the worst first, those that ended last.

    More than a few of one kind are one line for each cause that most of them share, and one line
    for all others.
    """
    kinds: dict[tuple[AlertState, str, str], list[Alert]] = {}
    for alert in group(message.alerts):
        kinds.setdefault((alert.state, alert.severity, alert.kind), []).append(alert)
    order = (AlertState.FIRING, AlertState.NOTICE, AlertState.RESOLVED)
    lines = []
    for state, severity, kind in sorted(
        kinds, key=lambda one: (order.index(one[0]), _rank(one[1]))
    ):
        alerts = kinds[state, severity, kind]
        if len(alerts) <= _WRITTEN_OUT:
            texts = [summary_of(alert) for alert in alerts]
        else:
            texts = _by_cause(kind, alerts)
        lines += [Line(state, severity, kind, visible(text, most)) for text in texts]
    return lines


def _by_cause(kind: str, alerts: Sequence[Alert]) -> list[str]:
    causes: dict[str, list[Alert]] = {}
    for alert in alerts:
        causes.setdefault(_cause(alert), []).append(alert)
    shared = [cause for cause, same in causes.items() if len(same) > 1]
    shown = sorted(shared, key=lambda cause: -len(causes[cause]))[:_CAUSES]
    rest = [alert for cause, same in causes.items() if cause not in shown for alert in same]
    texts = [f"{len(causes[cause])} {kind}: {cause}: {_names(causes[cause])}" for cause in shown]
    if len(rest) == 1:
        texts.append(summary_of(rest[0]))
    elif rest:
        texts.append(f"{len(rest)} {kind}{' of other causes' * bool(shown)}: {_names(rest)}")
    return texts


def _cause(alert: Alert) -> str:
    """The sentence without what differs from node to node: the node's name and a GPU's."""
    text = summary_of(alert)
    if alert.node:
        text = text.replace(f"{alert.node}: ", "")
    return visible(hide_gpus(text), _LONGEST_CAUSE)


def _names(alerts: Sequence[Alert]) -> str:
    return named(tuple(dict.fromkeys(node for alert in alerts for node in alert.nodes)))


def summary_of(alert: Alert) -> str:
    """The sentence that describes the alert, or its end."""
    if alert.ending is None:
        return alert.summary
    return f"{alert.ending.summary} (ends {alert.kind}: {alert.summary})"


def summaries_of(alerts: str, most: int) -> tuple[str, ...]:
    """Some summaries of a JSON array of alerts, as lines."""
    try:
        return tuple(visible(str(one["summary"]), 200) for one in json.loads(alerts)[:most])
    except (ValueError, KeyError, TypeError):
        return ()


def next_steps(message: Message, most: int = 3) -> Sequence[str]:
    """The advice of the alerts that have not ended, the worst first, as lines. Advice that differs
    by the node's name alone comes once, with NODE for the names.
    """
    shared: dict[str, list[Alert]] = {}
    for alert in sorted(message.alerts, key=lambda one: _rank(one.severity)):
        if alert.advice and alert.ending is None:
            text = alert.advice.replace(alert.node, "NODE") if alert.node else alert.advice
            shared.setdefault(text, []).append(alert)
    return [
        visible(text if len({one.node for one in same}) > 1 else same[0].advice, _LONGEST_ADVICE)
        for text, same in list(shared.items())[:most]
    ]


def link(message: Message) -> str:
    """The page of the node, or of the fleet; empty where no page is configured."""
    if not message.page:
        return ""
    if len(message.nodes) == 1 and len(message.nodes[0]) <= _LONGEST_NAME:
        name = quote(message.nodes[0], safe="", errors="replace")
        return f"{message.page.rstrip('/')}/nodes/{name}"
    return f"{message.page.rstrip('/')}/"


def section(message: Message, alert: Alert) -> str:
    """The alert's section of the documentation: its URL, or its path where no address is known."""
    return address(message.documentation_url, of_alert(alert.kind, alert.details.get("limit", "")))


def links(message: Message, most: int = 3) -> Sequence[str]:
    """The URLs of `sections`. None where no address is configured: chats and mailboxes make a wrong
    link of the name of a file.
    """
    return sections(message, most) if message.documentation_url else ()


def sections(message: Message, most: int = 3) -> Sequence[str]:
    """The sections of the alerts that have not ended, the worst first, each once."""
    begun = [one for one in message.alerts if one.ending is None] or message.alerts
    ordered = sorted(begun, key=lambda alert: _rank(alert.severity))
    return list(dict.fromkeys(section(message, alert) for alert in ordered))[:most]


def _place(labels: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(key, labels[key]) for key in ("rack", "pool") if labels.get(key)]


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def _alert(data: Mapping[str, Any]) -> Alert:
    over = data.get("resolved")
    ending = None if over is None else {**over, "at": read_time(over["at"])}
    found = {**data, "at": read_time(data["at"]), "ending": ending}
    return msgspec.convert(found, Alert)
