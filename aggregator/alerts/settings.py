"""The configuration's section ``alerts``: receivers, routes, silences."""

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from aggregator.alerts.http_channel import HttpOptions
from aggregator.alerts.receivers.alertmanager import AlertmanagerOptions
from aggregator.alerts.receivers.apprise import AppriseOptions
from aggregator.alerts.receivers.email import EmailOptions
from aggregator.alerts.receivers.pagerduty import PagerDutyOptions
from aggregator.alerts.receivers.slack import SlackOptions
from aggregator.alerts.receivers.teams import TeamsOptions
from aggregator.alerts.receivers.webhook import WebhookOptions
from aggregator.alerts.templates import MessageTemplate, TemplateError, TemplateOptions
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import Duration, LabelKey, PageUrl, shaped, show
from aggregator.events import EventKind

#: The kinds of receivers, each a key of a receiver's section.
KINDS = ("alertmanager", "apprise", "email", "pagerduty", "slack", "teams", "webhook")
#: The keys by which alerts can be grouped, besides the keys of node labels.
GROUP_KEYS = ("rack", "pool", "kind", "severity", "node", "incident", "rules", "owner")

#: The label or annotation of a namespace that names who owns its pods.
OWNER_LABEL = "sickbay.dev/owner"

Key = tuple[str | int, ...]


def moment(value: object) -> float:
    """Wall clock seconds of "2026-12-01T08:00:00Z"; YAML may have made a time of it."""
    found = value
    if isinstance(value, str):
        try:
            found = dt.datetime.fromisoformat(value)
        except ValueError:
            found = None
    if not isinstance(found, dt.datetime) or found.tzinfo is None:
        what = value.isoformat() if isinstance(value, dt.date) else show(value)
        raise PydanticCustomError(
            "value",
            "{what} is no time with a zone; expected {expected}",
            {"what": what, "expected": 'such as "2026-12-01T08:00:00Z"'},
        )
    return found.timestamp()


EventName = Annotated[EventKind, Field(strict=False)]
EventNames = Annotated[tuple[EventName, ...], Field(strict=False, min_length=1)]
Name = Annotated[
    str, shaped(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name: small letters, digits and '-'")
]
Moment = Annotated[float, BeforeValidator(moment)]
Patterns = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False, min_length=1)
]
Severity = Literal["critical", "warning", "info"]
GroupKeys = Annotated[tuple[Annotated[LabelKey, Field(min_length=1)], ...], Field(strict=False)]
LabelPatterns = Annotated[Mapping[LabelKey, str], Field(strict=False, min_length=1)]


@dataclass(frozen=True, slots=True)
class ReceiverConfig(SectionDataclass):
    """One receiver: its name and exactly one kind. ``timeout`` in seconds is for one attempt."""

    name: Name
    """Small letters, digits and ``-``."""
    alertmanager: AlertmanagerOptions | None = None
    apprise: AppriseOptions | None = None
    email: EmailOptions | None = None
    pagerduty: PagerDutyOptions | None = None
    slack: SlackOptions | None = None
    teams: TeamsOptions | None = None
    webhook: WebhookOptions | None = None
    timeout: Annotated[Duration, Field(gt=0, le=300)] = 10.0
    """An attempt that takes longer has failed, and is tried again."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that are given: one, where the section is right."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)


@dataclass(frozen=True, slots=True)
class Matchers(SectionDataclass):
    """Which alerts: those that match every key that is given. Texts are patterns with "*".

    ``kinds`` absent: those that are alerts by default, and with ``owners`` those about pods.
    """

    kinds: EventNames | None = None
    """Which transitions, such as ``incident.opened``. A route has by default those that are sent by
    default (docs/reference/events.md), with ``owners`` ``job.stopped``, ``work.blocked`` and
    ``work.forced``; a silence has every kind.
    """
    severity: Annotated[tuple[Severity, ...], Field(strict=False, min_length=1)] = ()
    """``critical``, ``warning``, ``info``; by default all."""
    pools: Patterns = ()
    """The pool: ``limits.pool_label`` (docs/limits.md), without it that of ``pools``
    (docs/policy.md#pools).
    """
    nodes: Patterns = ()
    """The node's name."""
    rules: Patterns = ()
    """A rule of the node's open incidents."""
    labels: LabelPatterns = field(default_factory=dict)
    """Labels of the node: ``{topology.kubernetes.io/rack: "r1*"}``."""
    owners: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = ()
    """The owner of the pod (docs/alerts.md#owners-of-affected-jobs) that the alert is about."""


@dataclass(frozen=True, slots=True)
class RouteConfig(Matchers):
    """Alerts that go to a receiver. Durations are seconds; None: the receiver's own default.

    ``resolved``: the end of alerts is sent, too.
    """

    name: Name = ""
    """For people and metrics. Alerts that wait belong to the name: a renamed route drops them, with
    a log line.
    """
    receiver: Name = ""
    """The name of a receiver."""
    group_by: GroupKeys | None = None
    """``rack``, ``pool``, ``kind``, ``severity``, ``node``, ``incident``, ``rules``, ``owner``, or
    the key of a node label. ``rack`` is the first of ``limits.domain_labels`` (docs/limits.md) that
    the node has. Default: ``[rack]`` for people (Slack, PagerDuty, Teams, e-mail, Apprise);
    ``[owner]`` with ``owners``.
    """
    group_wait: Duration | None = None
    """This long an alert waits for others of its group. Default: ``"15s"`` for people, ``"500ms"``
    for machines.
    """
    group_interval: Duration | None = None
    """At least this long between two messages of one group. Default: ``"1m"`` for people, ``"0s"``
    for machines.
    """
    resolved: bool | None = None
    """Whether the end of alerts is sent. Default: ``true``; ``false`` for a webhook."""


@dataclass(frozen=True, slots=True)
class SilenceConfig(Matchers):
    """Alerts that are held back until a moment (wall clock seconds)."""

    until: Moment = 0.0
    """The end: a time with its zone."""
    reason: str = ""
    """For the next person on call."""


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """All that alerts are sent by."""

    receivers: tuple[ReceiverConfig, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    silences: tuple[SilenceConfig, ...] = ()
    page: PageUrl = ""
    documentation_url: str = ""

    @property
    def wants_owners(self) -> bool:
        """Whether an alert's namespace and its owner matter to any route or silence."""
        every = (*self.routes, *self.silences)
        return any(one.owners or "owner" in (getattr(one, "group_by", None) or ()) for one in every)


def cross_field_errors(settings: AlertSettings, *, kubernetes: bool) -> Iterator[tuple[Key, str]]:
    """Values that are valid alone and not together: the key below ``alerts``, and the problem."""
    if settings.wants_owners and not kubernetes:
        expected = "pods have owners on Kubernetes alone; expected no owners, or nodes"
        for number, route in enumerate(settings.routes):
            if route.owners:
                yield ("routes", number, "owners"), expected
        for number, silence in enumerate(settings.silences):
            if silence.owners:
                yield ("silences", number, "owners"), expected
    names: set[str] = set()
    for number, receiver in enumerate(settings.receivers):
        key: Key = ("receivers", number)
        if receiver.name in names:
            yield (*key, "name"), f'"{receiver.name}" is given twice; expected another name'
        names.add(receiver.name)
        if len(receiver.kinds) != 1:
            given = " and ".join(receiver.kinds) or "no kind"
            yield key, f"{given}; expected exactly one of {', '.join(KINDS)}"
        yield from _receiver_errors(key, receiver)
    yield from _route_errors(settings, names)
    for number, silence in enumerate(settings.silences):
        key = ("silences", number)
        if not silence.until:
            yield (*key, "until"), "missing; expected the time at which it ends"
        if not silence.reason.strip():
            yield (*key, "reason"), "missing; expected why, for the next person on call"


def _route_errors(settings: AlertSettings, names: set[str]) -> Iterator[tuple[Key, str]]:
    routes: set[str] = set()
    for number, route in enumerate(settings.routes):
        key: Key = ("routes", number)
        for name in ("name", "receiver"):
            if not getattr(route, name):
                yield (*key, name), "missing; expected this key with a value"
        if route.name and route.name in routes:
            yield (*key, "name"), f'"{route.name}" is given twice; expected another name'
        routes.add(route.name)
        if route.receiver and route.receiver not in names:
            yield (*key, "receiver"), _unknown(route.receiver, names)
        for place, group in enumerate(route.group_by or ()):
            if "/" not in group and "." not in group and group not in GROUP_KEYS:
                expected = f"one of {', '.join(GROUP_KEYS)}, or a node label's key"
                yield (*key, "group_by", place), f'"{group}"; expected {expected}'


def _unknown(name: str, names: set[str]) -> str:
    known = ", ".join(sorted(names)) or "alerts.receivers has none"
    return f'no receiver is named "{name}"; expected one of: {known}'


def _receiver_errors(key: Key, receiver: ReceiverConfig) -> Iterator[tuple[Key, str]]:
    for kind in receiver.kinds:
        options = getattr(receiver, kind)
        here = (*key, kind)
        http = getattr(options, "http", None)
        if isinstance(http, HttpOptions):
            yield from _http_errors((*here, "http"), http)
        template = getattr(options, "template", None)
        if isinstance(template, TemplateOptions):
            yield from _template_errors((*here, "template"), template)
    mail = receiver.email
    if mail is not None:
        yield from _email_errors((*key, "email"), mail)


def _http_errors(key: Key, http: HttpOptions) -> Iterator[tuple[Key, str]]:
    yield from _halves(key, http, "cert_file", "key_file")
    for name, value in http.headers.items():
        if not name.isascii() or not name or any(char in name for char in " :\r\n\t"):
            yield (*key, "headers"), f"{show(name)} is no header's name; expected a word"
        elif any(char in value for char in "\r\n\0"):
            yield (*key, "headers", name), "its value has a line break; expected one line"
        elif name.lower() in ("authorization", "content-length", "host", "content-type"):
            hint = " (bearer_token_file sets it)" if name.lower() == "authorization" else ""
            yield (*key, "headers", name), f"this header is set by sickbay{hint}; expected another"


def _halves(key: Key, options: object, *pair: str) -> Iterator[tuple[Key, str]]:
    """The key of a pair that is missing while the other one is given."""
    missing = [name for name in pair if not getattr(options, name)]
    if len(missing) == 1:
        yield (*key, *missing), f"missing; expected both {' and '.join(pair)}, or neither"


def _email_errors(key: Key, mail: EmailOptions) -> Iterator[tuple[Key, str]]:
    if mail.smarthost.startswith("unix:") or mail.smarthost.endswith(":0"):
        yield (*key, "smarthost"), '"HOST:PORT" is needed; expected such as "mail.example.com:587"'
    yield from _halves(key, mail, "username", "password_file")
    if mail.username and mail.tls == "none":
        text = "a password in plain text; expected tls: starttls or tls: tls"
        yield (*key, "tls"), text
    yield from _halves(key, mail, "cert_file", "key_file")


def _template_errors(key: Key, options: TemplateOptions) -> Iterator[tuple[Key, str]]:
    for name in ("title", "text"):
        text = getattr(options, name)
        if not text:
            continue
        try:
            MessageTemplate(TemplateOptions(**{name: text})).check()
        except TemplateError as error:
            expected = "a Jinja2 template of the variables in docs/alerts.md"
            yield (*key, name), f"{error}; expected {expected}"
