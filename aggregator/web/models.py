"""The content of the page and of the API's answers: one set of models for both.

docs/api.md and the OpenAPI document are made from these. Times are wall clock, in UTC; null is
"never" or "not yet". Text that a node or a pod's owner chose is passed on as it came: the code that
shows it escapes it.
"""

import datetime as dt
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec

from aggregator.quarantine.state.fleet import QuarantineSummary
from aggregator.web.timefmt import wall_time

#: A time without a zone from another replica is refused, because it could be compared with none of
#: ours.
Time = Annotated[dt.datetime, msgspec.Meta(tz=True)]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all: immutable, named fields, all present in JSON."""


ShapeT = TypeVar("ShapeT", bound=Shape)


@cache
def _times(kind: type[Shape]) -> frozenset[str]:
    """The fields that are times."""
    hints = get_type_hints(kind).items()
    return frozenset(name for name, hint in hints if dt.datetime in (hint, *get_args(hint)))


def shape_of(kind: type[ShapeT], source: object, /, **others: Any) -> ShapeT:
    """The model with what the source has by the names of its fields, and with ``others``.

    A number for a time is wall clock seconds, 0 for null.
    """
    times = _times(kind)
    for name in kind.__struct_fields__:
        if name not in others and hasattr(source, name):
            value = getattr(source, name)
            others[name] = wall_time(value) if name in times else value
    return kind(**others)


class LimitUse(Shape, frozen=True, kw_only=True):
    """A limit of admission and how full it is. ``most`` and ``used`` are null where uncounted."""

    name: str
    value: str
    used: int | None
    most: int | None
    full: bool
    text: str


def limit_use(name: str, value: str, used: int | None, most: int | None, text: str) -> LimitUse:
    full = used is not None and most is not None and used >= most
    return LimitUse(name=name, value=value, used=used, most=most, full=full, text=text)


class Evidence(Shape, frozen=True, kw_only=True):
    """A piece of evidence of an incident or a quarantine.

    ``cleared_by`` is the sign that would end it (reboot, gpu_reset, expiry, operator; empty: its
    check is healthy again); ``over`` is the sign that has ended it; ``lost``: the agent no longer
    knows of it although no sign has cleared it, so it stays in force. ``device`` is a GPU's index
    and PCI address; empty where the component is no GPU, or the agent has not reported it.
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
    device: str = ""


class Incident(Shape, frozen=True, kw_only=True):
    """One cause on one node. ``doing`` is sickbay's present action, ``advice`` the next step for
    people.
    """

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


class AttemptedRepair(Shape, frozen=True, kw_only=True):
    """One attempt at a repair of a node, or a test of it. ``state`` is Ordering, Ordered,
    Succeeded, Failed, Unknown, Cancelled, or of a test Inconclusive; ``request`` the id of the
    person's request that it answers, empty where the ladder requested it. Its proof must come until
    ``deadline_at``. ``profile`` is that of a test.
    """

    operation: str
    repair: str
    state: str
    request: str
    began_at: Time | None
    deadline_at: Time | None
    ended_at: Time | None
    message: str
    profile: str = ""


class Repair(Shape, frozen=True, kw_only=True):
    """The repairs of a node in quarantine. ``mode`` is repair.mode: off, observe or repair.
    ``ladder``: the repairs that the rules of its evidence name, mildest first; of these only those
    among ``repairers``, the kinds with a repairer, are ordered. ``attempts``: the oldest first.
    ``waits``: why the next repair does not begin now, empty if it is due. ``exhausted``: why none
    begins by itself any more, since ``exhausted_at``; empty: one may. ``requested``: a person's
    request that is not answered yet, as far as the replica that answers knows; empty without one.
    """

    mode: str
    ladder: list[str]
    repairers: list[str]
    attempts: list[AttemptedRepair]
    waits: str
    exhausted: str
    exhausted_at: Time | None
    requested: str = ""


class NewNode(Shape, frozen=True, kw_only=True):
    """A node with the startup taint ``taint`` (``tainted``), or that was tested in no quarantine.
    ``test``: its last test, null before the first. ``reason``: idle, if that was a periodic one of
    an idle node; by-hand, if a person requested it on a node in service. ``waits``: why no test
    begins now, empty if one is due or under way. ``needs_person``: no test begins by itself any
    more, and the taint stays. ``requested``: the id of a person's request that no test answers yet.
    ``removes_taint``: a pass removes the taint; else another controller does, by the condition
    SickbayTestPassed, and ``passed`` means that it has not done so yet.
    """

    taint: str
    tainted: bool
    test: AttemptedRepair | None
    waits: str = ""
    needs_person: bool = False
    reason: str = ""
    requested: str = ""
    removes_taint: bool = True
    passed: bool = False


class OperationRequests(Shape, frozen=True, kw_only=True):
    """A person's requests for the node. ``refused``: the kinds of repair, and test, that can't be
    requested now, each with the reason and the next step. ``profiles``: those that a test can have,
    null where they are not known; ``profile``: that of a test whose request names none, empty
    where the request must name one.
    """

    refused: dict[str, str]
    profiles: list[str] | None
    profile: str


class OngoingRepair(Shape, frozen=True, kw_only=True):
    """A repair under way in the fleet; fields as in AttemptedRepair."""

    node: str
    repair: str
    state: str
    began_at: Time | None
    deadline_at: Time | None


class Quarantine(Shape, frozen=True, kw_only=True):
    """The quarantine of a node. ``phase`` is Admitted, Cordoned, Draining, Drained, Releasing or
    Invalid; ``phase_since`` is when it got there. ``release_held``: its cause is over, and this is
    the reason against its release; empty without one. ``unmarked``: which of our marks the node
    lacks, since ``unmarked_since``; empty while it has all. ``override``: the action that a person
    has set instead of the decided one; empty without one. ``node_absent_since``: its Node is gone
    since then, so it counts for no limit. ``uncordoned``: the last uncordon of the node that did
    not release it, and the reaction to it. ``deadline_at`` is when its drain should have ended,
    ``overdue_at`` when it was reported overdue; ``pods_total`` is the most pods that were left in
    its drain since the replica that answers knows of it, null before a drain; ``pre_evict`` is the
    result of the site's own step before the evictions. ``repair`` is null where repairs are off and
    none ever was. ``uid`` is the object's. ``cluster`` is the kind of its cluster: kubernetes,
    slurm or local; the pods of a slurm cluster are its jobs.
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
    override: str = ""
    node_absent_since: Time | None = None
    uncordoned: str = ""
    unmarked: str = ""
    unmarked_since: Time | None = None
    overruled: bool
    in_record: bool
    agent: str
    last_error: str
    evidence: list[Evidence]
    advice: str
    pods_total: int | None = None
    repair: Repair | None = None
    uid: str = ""
    cluster: str = "kubernetes"


class Hold(Shape, frozen=True, kw_only=True):
    """Why a node that policy wants in quarantine is not: a limit by name, the mode, or a person
    who has exempted it. ``documentation``, here and below, is the path of a section in the tree of
    this version, such as docs/holds.md#stop.
    """

    node: str
    limit: str
    value: str
    reason: str
    since: Time | None
    advice: str
    documentation: str = ""


class CommonCause(Shape, frozen=True, kw_only=True):
    """A cause that many nodes share: no node is quarantined for it. ``scope`` is check, target,
    place, version or agents; ``nodes`` of ``total`` that could show it do, ``sample`` names some.
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
    documentation: str = ""


class NodeRow(Shape, frozen=True, kw_only=True):
    """One node in a list. ``agent`` is attached, silent or never; ``why`` is one line.

    ``requests``: people's requests in its annotations, and ``exempt`` whether it is left alone.
    ``labels``: those by which nodes are grouped (`limits.pool_label`, `limits.domain_labels`,
    `limits.clique_label`). ``untested``: a new node that still has its startup taint.
    """

    node: str
    state: QuarantineSummary
    agent: str
    last_seen: Time | None
    why: str
    exempt: bool
    requests: list[str]
    labels: dict[str, str] = {}
    untested: bool = False


class Component(Shape, frozen=True, kw_only=True):
    """Level evidence: a part of the node as a check last saw it. ``device`` as in Evidence."""

    check: str
    component: str
    status: str
    reason: str
    message: str
    since: Time
    device: str = ""


class Fault(Shape, frozen=True, kw_only=True):
    """A latched fault. ``historical``: of an earlier boot. ``missing``: the agent no longer reports
    it and no sign cleared it; it stays in force. ``device`` as in Evidence.
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
    device: str = ""


class OutlierPoint(Shape, frozen=True, kw_only=True):
    """A point of an outlier's chart, in its unit: the part's value, the median and MAD of all."""

    at: Time
    value: float
    median: float
    mad: float


class Outlier(Shape, frozen=True, kw_only=True):
    """A part whose measurement deviates for long from those of the same parts of its pool.

    ``value`` is null while there is none (no load, no agent). ``low``: values below the median
    deviate, else those above; by more than ``limit``. ``values`` of ``nodes`` nodes are compared.
    ``device`` as in Evidence.
    """

    measure: str
    what: str
    component: str
    model: str
    pool: str
    unit: str
    low: bool
    value: float | None
    median: float
    mad: float
    limit: float
    values: int
    nodes: int
    since: Time
    points: list[OutlierPoint]
    device: str = ""


class Check(Shape, frozen=True, kw_only=True):
    """A check of the node's agent; ``off_because`` is empty where it runs. Interval in seconds."""

    name: str
    interval: float
    off_because: str


class Lost(Shape, frozen=True, kw_only=True):
    """Evidence that the agent reports as lost."""

    source: str
    records: int
    message: str


class Overruled(Shape, frozen=True, kw_only=True):
    """Evidence that a person has overruled: it does not quarantine the node until it is over.

    ``cleared_by`` is the sign that ends a fault (reboot, gpu_reset, expiry, operator); empty for a
    check's evidence, which is over when the check is healthy. ``device`` as in Evidence.
    """

    code: str
    component: str
    cleared_by: str
    device: str = ""


class Event(Shape, frozen=True, kw_only=True):
    """A transition. ``node`` is empty for the fleet as a whole."""

    at: Time
    kind: str
    node: str
    summary: str
    incident: str
    details: dict[str, str]


class Replica(Shape, frozen=True, kw_only=True):
    """One replica of the aggregator. The ``controller`` serves this answer; all others are gateways
    that forward their agents' messages to it.
    """

    name: str
    controller: bool
    version: str


class Node(Shape, frozen=True, kw_only=True):
    """One node's details.

    ``read_at``: when the cluster's Node was last read or listed; its marks, its cordon and people's
    requests are as of then. Null: not yet.

    ``mode`` caps what is done to the node, and is that of its ``pool``; the pool is empty where
    there are none, or the node's labels are not known. ``new_node``: the test that it needs, or
    had, in no quarantine; null where there was none. ``operations``: what people may request.

    ``unreadable``: the annotations of the Node that can't be understood, each in a sentence with
    its effect and the command that ends that.
    """

    node: str
    uid: str
    state: QuarantineSummary
    why: str
    agent: str
    last_seen: Time | None
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
    requests: list[str] = []
    overruled: list[Overruled]
    components: list[Component]
    faults: list[Fault]
    checks: list[Check]
    lost: list[Lost]
    timeline: list[Event]
    timeline_trouble: str
    new_node: NewNode | None = None
    operations: OperationRequests | None = None
    read_at: Time | None = None
    outliers: list[Outlier] = []
    mode: str = ""
    pool: str = ""
    unreadable: list[str] = []


class Pool(Shape, frozen=True, kw_only=True):
    """A pool of the configuration, or "default" for the nodes that none selects.

    ``selector`` is as `kubectl get nodes -l` takes it; ``counts`` has every state; ``cooling``:
    until when no node of it is admitted, and why, or empty.
    """

    name: str
    selector: str
    mode: str
    nodes: int
    counts: dict[QuarantineSummary, int]
    cooling: str
    limits: list[LimitUse]


class LimitEffect(Shape, frozen=True, kw_only=True):
    """A limit that would hold ``nodes``; value, reason and documentation as in Hold."""

    limit: str
    value: str
    reason: str
    nodes: int
    documentation: str


class ModeEffect(Shape, frozen=True, kw_only=True):
    """What mode drain would do now with the nodes that the mode holds: how many would be
    ``drained`` or ``cordoned`` (``nodes`` names them, the first 100), and how many ``held`` by
    ``limits``.
    """

    drained: int
    cordoned: int
    held: int
    nodes: list[str]
    limits: list[LimitEffect]


class Fleet(Shape, frozen=True, kw_only=True):
    """The whole at a glance. ``counts`` has every state. ``revision`` grows with each change.

    ``stop``, ``view_lost``, ``waiting_for_quorum`` and ``cooling`` (no new action is admitted) are
    empty, or give the reason; ``causes`` are the common causes that are open;
    ``not_ready`` lists the complaints of /readyz. ``record_entries`` nodes are in the admission
    record.

    ``pools`` are those of the configuration, empty where it has none; ``mode`` is that of the nodes
    in none. ``replicas`` are those of the aggregator, empty where there is only one; ``lease_lost``
    is empty, or states why the controller may not act now.
    ``history_trouble`` states why, and since when, this replica can't write its history;
    ``alert_trouble`` why its alerts are not delivered, by route; ``clock_doubt`` why it does not
    trust its wall clock, so that actions that can't be undone wait. ``with_drain``: the effect of
    mode drain now; null unless the mode is observe, or keeps a node from its quarantine.
    ``repairs``: those under way, the oldest first; their limits are among ``limits``.
    ``untested`` counts the new nodes that still have their startup taint. Of the nodes with a hold
    (``held``), ``drains_held`` are in quarantine already, and their drain waits.
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
    counts: dict[QuarantineSummary, int]
    incidents: int
    quarantines: int
    held: int
    silent: int
    exempt: int
    release_held: int
    never_seen: int
    record_entries: int
    limits: list[LimitUse]
    headline: str
    pools: list[Pool] = []
    replicas: list[Replica] = []
    lease_lost: str = ""
    history_trouble: str = ""
    alert_trouble: str = ""
    alerts_given_up: int = 0
    clock_doubt: str = ""
    with_drain: ModeEffect | None = None
    repairs: list[OngoingRepair] = []
    untested: int = 0
    drains_held: int = 0


class ReplicaList(Shape, frozen=True, kw_only=True):
    """The replicas of the aggregator by name. ``lease_lost`` as in Fleet."""

    items: list[Replica]
    total: int
    lease_lost: str


class NodePage(Shape, frozen=True, kw_only=True):
    """Nodes in the requested order. ``next`` is the ``after`` of the next page, empty at the
    end.
    """

    items: list[NodeRow]
    total: int
    next: str


class NodeGroup(Shape, frozen=True, kw_only=True):
    """The nodes with one value of a label. ``has_label`` is false for those without it: a label
    may have an empty ``value``, as those of roles do.
    """

    value: str
    has_label: bool
    nodes: int
    counts: dict[QuarantineSummary, int]


class NodeGroupList(Shape, frozen=True, kw_only=True):
    """Nodes by the value of the label ``key``. ``nodes`` of them are in ``total`` groups."""

    key: str
    items: list[NodeGroup]
    total: int
    nodes: int


class TrendPoint(Shape, frozen=True, kw_only=True):
    """Nodes at one time. ``drained`` are among ``quarantined``; ``other`` have a warning, are
    silent or unknown.
    """

    at: Time
    nodes: int
    well: int
    other: int
    held: int
    quarantined: int
    drained: int


class Trend(Shape, frozen=True, kw_only=True):
    """The last day, oldest first. Points before ``own_since`` are computed from the history; the
    replica that answers has seen the later ones itself. ``trouble``: why the history's are missing.
    """

    points: list[TrendPoint]
    own_since: Time | None
    trouble: str


class QuarantineList(Shape, frozen=True, kw_only=True):
    """Every quarantine, those that need a person first. ``view_lost`` as in Fleet: they are old.
    ``marked_only``: nodes with our marks and without a known
    Quarantine.
    """

    items: list[Quarantine]
    total: int
    view_lost: str = ""
    marked_only: list[str] = []


class Lemon(Shape, frozen=True, kw_only=True):
    """A node that comes back again and again. Counted over four weeks; ``strikes`` are why."""

    node: str
    quarantines: int
    codes: list[str]
    days: int
    returns: int
    last: Time
    strikes: list[str]


class AlertRoute(Shape, frozen=True, kw_only=True):
    """A route of alerts. ``dead`` deliveries are kept; ``delivered``, ``failed_attempts`` and
    ``given_up`` are counted since this replica's start.
    """

    name: str
    kind: str
    receiver: str
    waiting: int
    delivered: int
    failed_attempts: int
    given_up: int
    dead: int
    problem: str


class DeadLetter(Shape, frozen=True, kw_only=True):
    """A delivery that was given up, with the summaries of some of its ``alerts``."""

    route: str
    id: str
    at: dt.datetime
    because: str
    alerts: int
    summaries: list[str]


class AlertList(Shape, frozen=True, kw_only=True):
    """The routes of alerts of the replica that answers, and its newest dead letters."""

    items: list[AlertRoute]
    total: int
    dead_letters: list[DeadLetter]


class LemonList(Shape, frozen=True, kw_only=True):
    """Every lemon, the worst first. ``trouble`` states why the search for them fails now."""

    items: list[Lemon]
    total: int
    trouble: str


class IncidentPage(Shape, frozen=True, kw_only=True):
    """Open incidents, the strongest first. ``total`` counts those beyond ``items`` too."""

    items: list[Incident]
    total: int


class EventPage(Shape, frozen=True, kw_only=True):
    """Transitions, newest first. ``trouble``: why some of them may be missing; else empty."""

    items: list[Event]
    trouble: str


class MapBlock(Shape, frozen=True, kw_only=True):
    """A block of the map: the value of its label, empty for nodes without it, and its nodes."""

    value: str
    nodes: int


class Map(Shape, frozen=True, kw_only=True):
    """Every node in one letter, for drawing: ``states[i]`` is that of ``names[i]``.

    o ok, u unknown, s silent, w warning, h held, q quarantined. ``names`` come block by block,
    ``blocks`` by the values of the label ``label``; without a label one block has all.
    """

    revision: int
    names: list[str]
    states: str
    label: str = ""
    blocks: list[MapBlock] = []


class Tick(Shape, frozen=True, kw_only=True):
    """Event "fleet" of the stream: the fleet has changed; request again the data that you show."""

    at: Time
    revision: int
    counts: dict[QuarantineSummary, int]
    headline: str


class Hello(Shape, frozen=True, kw_only=True):
    """Event "hello": the stream is up. ``resumed``: every transition since your last is sent."""

    at: Time
    version: str
    resumed: bool


class Beat(Shape, frozen=True, kw_only=True):
    """Event "beat": no change; the stream is alive. Every 10 s."""

    at: Time


class Missed(Shape, frozen=True, kw_only=True):
    """Event "missed": you read too slowly, and this number of transitions was not sent. Request the
    data again.
    """

    transitions: int


class Problem(Shape, frozen=True, kw_only=True):
    """Why a request was not answered, and the next step."""

    error: str
    hint: str
