"""Which routes send an alert, in which group, and what holds it back. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any

from attrs import define

from aggregator.alerts.alert import DEFAULT_KINDS, POD_KINDS, Alert, common
from aggregator.alerts.batch import AlertHold, longer_hold
from aggregator.alerts.composition import BatchWait
from aggregator.alerts.message import Message
from aggregator.alerts.next_step import Advisor, no_advice
from aggregator.alerts.receivers import slack, teams
from aggregator.alerts.receivers.alertmanager import LASTS, AlertmanagerReceiver
from aggregator.alerts.receivers.apprise import AppriseReceiver
from aggregator.alerts.receivers.base import Receiver
from aggregator.alerts.receivers.chat import ChatReceiver
from aggregator.alerts.receivers.email import EmailReceiver
from aggregator.alerts.receivers.pagerduty import PagerDutyReceiver
from aggregator.alerts.receivers.webhook import WebhookReceiver
from aggregator.alerts.settings import (
    GROUP_KEYS,
    AlertSettings,
    Matchers,
    ReceiverConfig,
    RouteConfig,
    SilenceConfig,
)
from aggregator.events import EventKind

#: Receivers for people: a message takes a person's time, so alerts wait for others.
_FOR_PEOPLE = frozenset({"apprise", "email", "pagerduty", "slack", "teams"})
#: Seconds. Agents of one dead rack are found silent within one heartbeat.
_PEOPLE_WAIT = BatchWait(linger=15.0, grouped=15.0, interval=60.0)
MACHINE_WAIT = BatchWait()
#: Seconds between two readings of alerts that last, for an Alertmanager that has restarted.
RESEND_EVERY = 300.0
assert RESEND_EVERY < LASTS
EVERY = Matchers()
#: Characters of a group's key as it is; a longer one is a digest.
_MOST_GROUP = 1_000
_OBSERVED = "; mode observe: nothing was done"


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The facts of a node. ``exempt_until`` is wall clock seconds, 0: not exempt; ``mode`` caps
    what is done to it.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""
    rack: str = ""
    rules: tuple[str, ...] = ()
    exempt_until: float = 0.0
    mode: str = ""


NO_CONTEXT = NodeContext()
Contexts = Callable[[str], NodeContext]
#: The owner of a namespace, or "".
Owners = Callable[[str], str]


def no_owner(_namespace: str) -> str:
    """Where namespaces are not known, or do not exist."""
    return ""


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """A route with its receiver. ``name`` is for people and metrics, ``key`` identifies it in the
    outbox.

    ``timeout`` in seconds is for one attempt. ``resend``: seconds after which alerts that last are
    sent again, 0: never. ``page`` and ``documentation_url`` as of `Message`.
    """

    name: str
    key: str
    receiver: Receiver = field(repr=False)
    receiver_name: str = ""
    kind: str = "webhook"
    matchers: Matchers = EVERY
    group_by: tuple[str, ...] = ()
    wait: BatchWait = MACHINE_WAIT
    resolved: bool = False
    timeout: float = 10.0
    resend: float = 0.0
    page: str = ""
    documentation_url: str = ""

    def message(self, ident: str, attempt: int, alerts: Sequence[Alert]) -> Message:
        """The message of a delivery."""
        places = self.page, self.documentation_url
        return Message(ident, attempt, tuple(alerts), self.name, *places)

    @property
    def title(self) -> str:
        """How messages for people name it."""
        return f"route {self.name} ({self.kind} {self.receiver_name})"


def targets_of(settings: AlertSettings) -> list[RouteTarget]:
    """Every route with its receiver."""
    receivers = {receiver.name: receiver for receiver in settings.receivers}
    return [_target(settings, route, receivers[route.receiver]) for route in settings.routes]


def _target(settings: AlertSettings, route: RouteConfig, receiver: ReceiverConfig) -> RouteTarget:
    (kind,) = receiver.kinds
    of_people = ("rack",) if kind in _FOR_PEOPLE else ()
    group_by = ("owner",) if route.owners else of_people
    return RouteTarget(
        name=route.name,
        key=blake2b(route.name.encode(), digest_size=6).hexdigest(),
        receiver=_RECEIVERS[kind](getattr(receiver, kind), receiver),
        receiver_name=receiver.name,
        kind=kind,
        matchers=route,
        group_by=group_by if route.group_by is None else route.group_by,
        wait=_wait(receiver, route.group_wait, route.group_interval),
        resolved=(kind != "webhook") if route.resolved is None else route.resolved,
        timeout=receiver.timeout,
        resend=RESEND_EVERY if kind == "alertmanager" else 0.0,
        page=settings.page,
        documentation_url=settings.documentation_url,
    )


def _wait(receiver: ReceiverConfig, wait: float | None, interval: float | None) -> BatchWait:
    base = _PEOPLE_WAIT if receiver.kinds[0] in _FOR_PEOPLE else MACHINE_WAIT
    if receiver.kinds[0] == "alertmanager":
        base = replace(base, grouped=base.linger)  # it groups by itself
    if wait is not None:
        base = replace(base, linger=wait, grouped=wait)
    return base if interval is None else replace(base, interval=interval)


#: The receiver of a kind's options.
_RECEIVERS: Mapping[str, Callable[[Any, ReceiverConfig], Receiver]] = {
    "alertmanager": lambda options, _: AlertmanagerReceiver(options),
    "apprise": lambda options, config: AppriseReceiver(options, config.name),
    "email": lambda options, config: EmailReceiver(options, config.timeout),
    "pagerduty": lambda options, _: PagerDutyReceiver(options),
    "slack": lambda options, _: ChatReceiver(options, slack.render, slack.escape),
    "teams": lambda options, _: ChatReceiver(options, teams.render),
    "webhook": lambda options, _: WebhookReceiver(options.url, options.secret_file, options.http),
}


# -- one alert -------------------------------------------------------------------------------------


@define(eq=False, repr=False, slots=False)
class Router:
    """Decides for one alert at a time. ``context`` knows the nodes, ``owners`` the namespaces."""

    _targets: Sequence[RouteTarget]
    _settings: AlertSettings
    _context: Contexts
    _owners: Owners = no_owner
    _advise: Advisor = no_advice

    def __attrs_post_init__(self) -> None:
        self._named = _named_labels(self._settings)
        self._kinds = {kind for one in self._targets for kind in _kinds(one.matchers)}

    def wants(self, kind: EventKind) -> bool:
        """Whether any route sends alerts of this kind."""
        return kind in self._kinds

    def labelled(self, alert: Alert) -> Alert:
        """The alert with the labels that routes, groups and messages use, the next step, and in
        mode observe the sentence that nothing was done.
        """
        nodes = alert.nodes or _names(alert.details.get("nodes", ""))
        contexts = [self._context(node) for node in nodes]
        labels = common(self._labels(context) for context in contexts)
        namespace, slash, _ = alert.details.get("pod", "").partition("/")
        if slash and (owner := self._owners(namespace)):
            labels["owner"] = owner
        observed = alert.kind == EventKind.INCIDENT_OPENED and all(
            context.mode == "observe" for context in contexts
        )
        summary = f"{alert.summary}{_OBSERVED}" if observed and contexts else alert.summary
        return replace(
            alert, labels=labels or alert.labels, summary=summary, advice=self._advise(alert)
        )

    def targets(self, alert: Alert) -> list[RouteTarget]:
        """The routes that send it: of several to one receiver, the first."""
        found: list[RouteTarget] = []
        for target in self._targets:
            if matches(target.matchers, alert) and not any(
                one.receiver_name == target.receiver_name for one in found
            ):
                found.append(target)
        return found

    def silence(self, alert: Alert, now: float) -> float:
        """Until when a silence holds the alert; 0: no silence does."""
        ends = (
            one.until
            for one in self._settings.silences
            if one.until > now and _is_silenced(one, alert)
        )
        return max(ends, default=0.0)

    def hold(self, alert: Alert, now: float) -> AlertHold | None:
        """The silence or the exemption that holds the alert, the longer one."""
        return longer_hold(self.silence(alert, now), self.exempt_until(alert, now))

    def exempt_until(self, alert: Alert, now: float) -> float:
        """Until when its node is exempt; 0: it is not, or this alert must be reported."""
        if not alert.node or alert.kind == EventKind.REQUESTED:
            return 0.0
        return self.node_exempt_until(alert.node, now)

    def node_exempt_until(self, node: str, now: float) -> float:
        until = self._context(node).exempt_until
        return until if until > now else 0.0

    def _labels(self, context: NodeContext) -> dict[str, str]:
        own = {"pool": context.pool, "rack": context.rack, "rules": ",".join(context.rules)}
        named = {key: context.labels[key] for key in self._named if key in context.labels}
        return {key: value for key, value in (own | named).items() if value}


def matches(matchers: Matchers, alert: Alert) -> bool:
    """Whether the alert, as `Router.labelled` has made it, matches every key that is given.

    By its own labels: of an alert of an earlier process the nodes may not be known yet.
    """
    if alert.kind not in _kinds(matchers):
        return False
    if matchers.severity and alert.severity not in matchers.severity:
        return False
    if matchers.nodes and not _fits(alert.nodes, matchers.nodes):
        return False
    labels = alert.labels
    if matchers.owners and not _is_owned(labels.get("owner", ""), matchers.owners):
        return False
    if matchers.pools and not _fits((labels.get("pool", ""),), matchers.pools):
        return False
    rules = [rule for rule in labels.get("rules", "").split(",") if rule]
    if matchers.rules and not _fits(rules, matchers.rules):
        return False
    wanted = matchers.labels.items()
    return all(fnmatchcase(labels.get(key, ""), pattern) for key, pattern in wanted)


def _is_silenced(silence: SilenceConfig, alert: Alert) -> bool:
    every = silence if silence.kinds is not None else replace(silence, kinds=tuple(EventKind))
    return matches(every, alert)


def group_of(target: RouteTarget, alert: Alert) -> str:
    """The group of the alert on the route, as a key."""
    own = {
        "kind": alert.kind,
        "severity": alert.severity,
        "node": alert.node,
        "incident": alert.incident,
    }
    values = (own.get(key, alert.labels.get(key, "")) for key in target.group_by)
    text = "\x1f".join(values)
    # An owner is a tenant's text. PostgreSQL takes no NUL, and no long text into an index.
    if text.isascii() and "\0" not in text and len(text) <= _MOST_GROUP:
        return text
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _is_owned(owner: str, patterns: Sequence[str]) -> bool:
    """Pods without an owner belong to the pattern "" alone, or "*" would be every alert."""
    return _fits((owner,), patterns) if owner else "" in patterns


def _fits(values: Iterable[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(value, pattern) for value in values for pattern in patterns)


def _kinds(matchers: Matchers) -> Collection[str]:
    if matchers.kinds is not None:
        return matchers.kinds
    return POD_KINDS if matchers.owners else DEFAULT_KINDS


def _named_labels(settings: AlertSettings) -> tuple[str, ...]:
    named: set[str] = set()
    for route in settings.routes:
        named |= set(route.labels) | {one for one in route.group_by or () if one not in GROUP_KEYS}
    for silence in settings.silences:
        named |= set(silence.labels)
    return tuple(sorted(named))


def _names(text: str) -> tuple[str, ...]:
    """The nodes that a detail names, such as "a, b"."""
    return tuple(name for part in text.split(",") if (name := part.strip()))
