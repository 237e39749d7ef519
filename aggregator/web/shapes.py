"""What the page shows and the API answers: one set of shapes for both.

docs/api.md and the OpenAPI document are made from these. Times are wall clock, in UTC; null is
"never" or "not yet". Text that a node or a pod's owner chose is passed on as it came: whoever
shows it escapes it.
"""

import datetime as dt
from typing import Annotated

import msgspec

from aggregator.quarantine.fleet import Standing

#: What another replica sends without a zone is refused: it could be compared with none of ours.
Time = Annotated[dt.datetime, msgspec.Meta(tz=True)]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all: immutable, named fields, none left out in JSON.

    They travel between replicas too (parts.py). So a field that is added gets a default: a replica
    of the version before doesn't send it.
    """


class LimitUse(Shape, frozen=True, kw_only=True):
    """A limit of admission and how full it is. ``most`` and ``used`` are null where uncounted."""

    name: str
    value: str
    used: int | None
    most: int | None
    full: bool
    text: str


class Evidence(Shape, frozen=True, kw_only=True):
    """What an incident or a quarantine rests on.

    ``cleared_by`` is what would end it (reboot, gpu_reset, expiry, operator; empty: its check is
    well again); ``over`` is the sign that has ended it; ``lost``: the agent knows of it no more
    although nothing has cleared it, so it stays in force.
    """

    code: str
    component: str
    rule: str
    action: str
    message: str
    since: Time | None
    cleared_by: str
    over: str
    lost: bool


class Incident(Shape, frozen=True, kw_only=True):
    """One cause on one node. ``doing`` is what is being done about it, ``advice`` what to do."""

    id: str
    node: str
    kind: str
    action: str
    summary: str
    since: Time
    recovering_since: Time | None
    closes_at: Time | None
    evidence: list[Evidence]
    doing: str
    advice: str


class Blocker(Shape, frozen=True, kw_only=True):
    """A pod that can't be evicted now, why, and since when."""

    pod: str
    reason: str
    since: Time | None


class Quarantine(Shape, frozen=True, kw_only=True):
    """What is done about a node. ``phase`` is Admitted, Cordoned, Draining, Drained, Releasing or
    Invalid; ``phase_since`` is when it got there. ``release_held``: its cause is over, and this
    speaks against its release; empty while nothing does. ``deadline_at`` is when its drain should
    have ended, ``overdue_at`` when it was said that it has not; ``pre_evict`` is what has come of
    the site's own step before the evictions.
    """

    node: str
    action: str
    kind: str
    phase: str
    phase_since: Time | None
    reason: str
    requester: str
    incident: str
    message: str
    created_at: Time | None
    admitted_at: Time | None
    cordoned_at: Time | None
    drain_started_at: Time | None
    drained_at: Time | None
    deadline_at: Time | None
    overdue_at: Time | None
    pre_evict: str
    pods_remaining: int | None
    blockers: list[Blocker]
    released_because: str
    release_held: str
    overruled: bool
    in_record: bool
    agent: str
    last_error: str
    evidence: list[Evidence]
    advice: str


class Hold(Shape, frozen=True, kw_only=True):
    """Why a node that policy wants in quarantine is not: a limit by name, the mode, or a person
    who has exempted it.
    """

    node: str
    limit: str
    value: str
    reason: str
    since: Time | None
    advice: str


class CommonCause(Shape, frozen=True, kw_only=True):
    """What many nodes share: nobody is quarantined for it. ``scope`` is check, target, place,
    version or agents; ``nodes`` of ``total`` who could show it do, ``sample`` names some.
    """

    id: str
    scope: str
    limit: str
    value: str
    reason: str
    nodes: int
    total: int
    sample: list[str]
    since: Time
    advice: str


class NodeRow(Shape, frozen=True, kw_only=True):
    """One node in a list. ``agent`` is attached, silent or never; ``why`` is one line.

    ``wishes``: what people ask of it in its annotations, and ``exempt`` that it is left alone.
    ``replica`` is the one that told, empty where there is one alone. That replica does not answer
    now if ``last_known`` is not null: all of this was so then, and ``agent`` may be unknown.
    """

    node: str
    standing: Standing
    agent: str
    last_heard: Time | None
    why: str
    exempt: bool
    wishes: list[str]
    replica: str = ""
    last_known: Time | None = None


class Component(Shape, frozen=True, kw_only=True):
    """Level evidence: a part of the node as a check last saw it."""

    check: str
    component: str
    status: str
    reason: str
    message: str
    since: Time


class Fault(Shape, frozen=True, kw_only=True):
    """A latched fault. ``historical``: of an earlier boot. ``missing``: the agent no longer tells
    of it and nothing cleared it; it stays in force.
    """

    code: str
    check: str
    component: str
    message: str
    boot_id: str
    first_at: Time
    last_at: Time
    count: int
    cleared_by: str
    historical: bool
    missing: bool
    details: dict[str, str]


class Check(Shape, frozen=True, kw_only=True):
    """A check of the node's agent; ``off_because`` is empty where it runs. Interval in seconds."""

    name: str
    interval: float
    off_because: str


class Lost(Shape, frozen=True, kw_only=True):
    """Evidence that the agent knows it has lost."""

    source: str
    records: int
    message: str


class Overruled(Shape, frozen=True, kw_only=True):
    """Evidence that a person has overruled: it quarantines the node no more until it is over.

    ``cleared_by`` is what ends a fault (reboot, gpu_reset, expiry, operator); empty for what a
    check sees, which is over when the check is well.
    """

    code: str
    component: str
    cleared_by: str


class Event(Shape, frozen=True, kw_only=True):
    """Something that happened. ``node`` is empty for the fleet as a whole."""

    at: Time
    kind: str
    node: str
    summary: str
    incident: str
    details: dict[str, str]


class Replica(Shape, frozen=True, kw_only=True):
    """One replica of the aggregator, as the one that you asked sees it (``here``: that one itself).

    ``nodes`` are those that it owns. ``trouble`` is empty while it answers; else why its nodes are
    shown as last known, at ``last_answer`` (null while it answers, or if it never did).
    ``not_ready`` is what its /readyz complains of.
    """

    name: str
    here: bool
    leads: bool
    nodes: int
    attached: int
    version: str
    policy: str
    trouble: str
    last_answer: Time | None
    not_ready: list[str]


class Node(Shape, frozen=True, kw_only=True):
    """One node's story. ``replica`` and ``last_known`` as in a list of nodes."""

    node: str
    uid: str
    standing: Standing
    why: str
    agent: str
    last_heard: Time | None
    agent_version: str
    boot_id: str
    conflict: str
    foreign: str
    last_error: str
    labels: dict[str, str]
    traits: dict[str, str]
    incidents: list[Incident]
    quarantine: Quarantine | None
    hold: Hold | None
    would: str
    exempt: bool
    wishes: list[str]
    overruled: list[Overruled]
    components: list[Component]
    faults: list[Fault]
    checks: list[Check]
    lost: list[Lost]
    timeline: list[Event]
    timeline_trouble: str
    replica: str = ""
    last_known: Time | None = None


class Fleet(Shape, frozen=True, kw_only=True):
    """The whole at a glance. ``counts`` has every standing. ``revision`` grows with each change.

    ``stop``, ``view_lost``, ``waiting_for_quorum`` and ``cooling`` (nothing new is admitted) are
    empty, or say why; ``in_company``: the view is lost because this replica, which was told of no
    others, waits until none is at work; ``causes`` are the common causes that are open;
    ``not_ready`` lists what /readyz complains of. ``record_entries`` nodes stand in the admission
    record.

    ``replicas`` are those of the aggregator, none where there is one alone; ``last_known`` counts
    the nodes of those that don't answer; ``frozen`` (nobody knows who is there, so nobody acts),
    ``differing`` (replicas run another version, policy, mode or limits) and ``incomplete`` (the
    one that leads has not been told of all nodes, so little is admitted) are empty, or say why.
    ``history_trouble`` says why, and since when, this replica can't write its history;
    ``alert_trouble`` why its alerts don't get out, by webhook;
    ``clock_doubt`` why it does not believe its wall clock, so that what can't be taken back waits.
    """

    at: Time
    version: str
    revision: int
    mode: str
    stop: str
    view_lost: str
    waiting_for_quorum: str
    cooling: str
    causes: list[CommonCause]
    not_ready: list[str]
    nodes: int
    attached: int
    counts: dict[Standing, int]
    incidents: int
    quarantines: int
    held: int
    silent: int
    exempt: int
    release_held: int
    never_heard: int
    record_entries: int
    limits: list[LimitUse]
    headline: str
    replicas: list[Replica] = []
    frozen: str = ""
    differing: str = ""
    incomplete: str = ""
    last_known: int = 0
    history_trouble: str = ""
    alert_trouble: str = ""
    clock_doubt: str = ""
    in_company: bool = False


class ReplicaList(Shape, frozen=True, kw_only=True):
    """The replicas of the aggregator by name. ``frozen`` and ``differing`` as in Fleet."""

    items: list[Replica]
    total: int
    frozen: str
    differing: str


class NodePage(Shape, frozen=True, kw_only=True):
    """Nodes by name. ``next`` is the ``after`` of the next page, empty at the end."""

    items: list[NodeRow]
    total: int
    next: str


class QuarantineList(Shape, frozen=True, kw_only=True):
    """Every quarantine, those that need a person first. ``view_lost`` as in Fleet: they are old.
    ``in_company`` as there, too.
    """

    items: list[Quarantine]
    total: int
    view_lost: str = ""
    in_company: bool = False


class Lemon(Shape, frozen=True, kw_only=True):
    """A node that comes back again and again. Counted over four weeks; ``strikes`` are why."""

    node: str
    quarantines: int
    codes: list[str]
    days: int
    returns: int
    last: Time
    strikes: list[str]


class LemonList(Shape, frozen=True, kw_only=True):
    """Every lemon, the worst first. ``trouble`` says why they can't be looked for now."""

    items: list[Lemon]
    total: int
    trouble: str


class IncidentPage(Shape, frozen=True, kw_only=True):
    """Open incidents, the strongest first. ``total`` counts those beyond ``items`` too."""

    items: list[Incident]
    total: int


class EventPage(Shape, frozen=True, kw_only=True):
    """What happened, newest first. ``trouble``: why some of it may be missing; else empty."""

    items: list[Event]
    trouble: str


class Map(Shape, frozen=True, kw_only=True):
    """Every node in one letter, for drawing: ``standings[i]`` is that of ``names[i]``.

    o ok, u unknown, s silent, w warning, h held, q quarantined.
    """

    revision: int
    names: list[str]
    standings: str


class Tick(Shape, frozen=True, kw_only=True):
    """Event "fleet" of the stream: something has changed; ask for what you show."""

    at: Time
    revision: int
    counts: dict[Standing, int]
    headline: str


class Hello(Shape, frozen=True, kw_only=True):
    """Event "hello": the stream is up. ``resumed``: every transition since your last is sent."""

    at: Time
    version: str
    resumed: bool


class Beat(Shape, frozen=True, kw_only=True):
    """Event "beat": nothing has happened; the stream is alive. Every 10 s."""

    at: Time


class Missed(Shape, frozen=True, kw_only=True):
    """Event "missed": you read too slowly, and so many transitions were not sent. Ask anew."""

    transitions: int


class Problem(Shape, frozen=True, kw_only=True):
    """Why a request was not answered, and what to do instead."""

    error: str
    hint: str
