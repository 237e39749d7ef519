"""The cluster as the actor needs it: Kubernetes, or the local one, behind one protocol.

Every write that acts carries the version that it was decided on, so that a late writer fails with
`Conflict`. This module decides nothing; its types are the cluster's facts.
"""

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from aggregator.cluster.condition_record import WrittenCondition
from aggregator.cluster.words import ClusterWords
from aggregator.policy.node_condition import ReportedConditions


class ClusterError(Exception):
    """A request that failed. ``retry_after`` is in seconds when the cluster named it."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Unreachable(ClusterError):
    """The cluster did not answer, or answered that it can't now (5xx, 429). Try again later."""


class Conflict(ClusterError):
    """Another write came before (409), or another object has the name (422): read, decide again."""


class NotFound(ClusterError):
    """The object is gone (404)."""


class Refused(ClusterError):
    """The cluster will not do this however often it is requested (401, 403, 400, 405, other
    422).
    """


class AdmissionRefused(Refused):
    """A webhook or an admission policy of the cluster refused what the rights would allow."""


class ClusterTooOld(ClusterError):
    """The cluster's version lacks what sickbay needs. Another try would find the same."""


class AdmissionFailed(Unreachable):
    """A webhook did not answer, so that nothing was stored. Any other 5xx may have stored it."""


def is_refusal(error: ClusterError) -> bool:
    """Whether this request has certainly stored nothing. One before it may have."""
    return isinstance(error, Refused | AdmissionFailed)


class GuardRefused(ClusterError):
    """A guard found that the act is no longer wanted. The request was not sent: decide again."""


class GuardUnreadable(Unreachable):
    """A guard could not read what it checks. The request was not sent."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The checks of one act: every method that acts awaits them after its last wait, immediately
    before the first byte leaves or a program begins, and again before each repetition.

    ``check`` raises `GuardRefused` or `GuardUnreadable` to send nothing. ``lost`` is read while
    a program runs: the reason to end it, or empty.
    """

    check: Callable[[], Awaitable[None]]
    lost: Callable[[], str] = str

    async def __call__(self) -> None:
        await self.check()


async def _allow() -> None:
    """Raises nothing."""


#: For what begins no act of ours on a node: reads, reports, what takes an order or leftovers back,
#: writes that a version fences, and the commands of a person, who answers for them.
UNGUARDED = Guard(_allow)

#: The same for a write that reads the Node itself: it gets that Node's annotations, or None, if the
#: write makes no condition unhealthy.
NodeGuard = Callable[[Mapping[str, str] | None], Awaitable[None]]


class Action(enum.StrEnum):
    """The actions on an incident, weakest first."""

    OBSERVE = "observe"
    CORDON = "cordon"
    DRAIN = "drain"

    def __init__(self, _value: str) -> None:
        self.strength = len(type(self).__members__)


#: The key by which `min` and `max` compare actions.
STRENGTH = attrgetter("strength")


class Phase(enum.StrEnum):
    """How far a quarantine has come. Each change is a compare-and-set on the object."""

    ADMITTED = "Admitted"  # intent is durable; the node is not touched yet
    CORDONED = "Cordoned"  # taint and unschedulable are on the node
    DRAINING = "Draining"  # evictions under way
    DRAINED = "Drained"  # no pod is left to evict
    RELEASING = "Releasing"  # being undone
    INVALID = "Invalid"  # a hand-made object that is not valid; the message states why


@dataclass(frozen=True, slots=True)
class EvidenceItem:
    """One reason of a quarantine, as durable as the quarantine.

    ``code`` is a fault code ("xid:79") or "CHECK:REASON" for level evidence. ``cleared`` is set
    when the positive sign came; it survives the aggregator's memory.
    """

    code: str
    component: str
    boot_id: str
    cleared_by: str
    rule: str
    incident: str
    message: str = ""
    cleared: str = ""


@dataclass(frozen=True, slots=True)
class QuarantineSpec:
    """Intent. ``requester`` is "sickbay", or any text of its maker for one made by hand.

    ``kind`` is the taint's value: gpu, disk, network, node or manual. ``intent_action`` is the
    action that the aggregator decided on, written together with ``action``: where the two differ, a
    person has changed ``action``. It is None where made by hand, or by a version that did not write
    it.
    """

    action: Action
    kind: str
    reason: str
    requester: str = ""
    incident: str = ""
    boot_id: str = ""
    policy_hash: str = ""
    evidence: tuple[EvidenceItem, ...] = ()
    intent_action: Action | None = None
    #: The generation of the admission record by which it was admitted; 0: by none.
    record_generation: int = 0
    #: The owner, where several aggregators with records of their own act in one cluster; empty:
    #: every aggregator's.
    installation: str = ""
    #: The UID of the Node that it was decided on; empty in the cases of ``intent_action``.
    node_uid: str = ""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A pod that can't be evicted now, why, and since when (wall clock seconds)."""

    pod: str
    reason: str
    since: float


class HookState(enum.StrEnum):
    """How far a site's own step before the first eviction has come."""

    RUNNING = "Running"  # begun; it may have run already, and is called again
    DONE = "Done"
    GIVEN_UP = "GivenUp"  # not done in its time, and the configuration lets it continue


@dataclass(frozen=True, slots=True)
class HookStatus:
    """The hook's result. ``started_at`` is when it was first called; ``message`` its last output.

    ``ended_at`` in state Running is when its timeout was reported.
    """

    state: HookState
    started_at: float
    ended_at: float = 0.0
    message: str = ""

    def __str__(self) -> str:
        return f"{self.state.value}: {self.message}".rstrip(": ")


class NoticeState(enum.StrEnum):
    """How far the notice to a workload has come."""

    SENT = "Sent"  # no pod of it is evicted before its answer, or the deadline
    READY = "Ready"  # it has answered
    OVER = "Over"  # no answer by the deadline, or nobody could be notified


@dataclass(frozen=True, slots=True)
class EvictionNotice:
    """The notice to one workload before its pods are evicted from the node.

    ``workload`` names a gang, or a pod of none. ``ident`` is the notice's own id, to which an
    answer refers. Times are wall clock seconds. ``eviction_request``: one may exist for it.
    """

    workload: str
    ident: str
    state: NoticeState
    sent_at: float = 0.0
    deadline_at: float = 0.0
    message: str = ""
    eviction_request: bool = False


@dataclass(frozen=True, slots=True)
class GpuScopeStatus:
    """Which pods a drain with ``scope: gpu`` evicts and spares, by uid, for the next controller.

    ``gpus``: the faulty ones. ``read_at``: when the agent reported it (wall clock seconds).
    """

    gpus: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    read_at: float = 0.0


@dataclass(frozen=True, slots=True)
class EvictedWorkload:
    """A gang of which pods are evicted from the node, as of ``at`` (wall clock seconds)."""

    workload: str
    at: float


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """The changes of our marks on the node: an undo reverses exactly this.

    ``cordoned``: the node was schedulable before. ``value`` is that of our label, and of our taint
    unless ``own_taint`` names another, as "KEY=VALUE:EFFECT". ``off_balancers``: that label is
    ours. ``taint`` is the value of a taint of the same key and effect that another had set before,
    ``label`` and ``codes`` those of our label and annotation. Each is None where there was none.
    """

    cordoned: bool
    value: str = ""
    off_balancers: bool = False
    taint: str | None = None
    label: str | None = None
    codes: str | None = None
    own_taint: str = ""


class RepairState(enum.StrEnum):
    """How far one attempt at a repair has come: the phase of its Operation. Each change is a
    compare-and-set on that object.
    """

    PENDING = "Pending"  # about to begin: certainly nothing was ordered, and it is no attempt yet
    ORDERING = "Ordering"  # durable before the order is sent: it may have been sent, or not
    ORDERED = "Ordered"  # the order was taken, and its proof is waited for
    SUCCEEDED = "Succeeded"  # proved: another boot, the agent's result, an object's condition
    FAILED = "Failed"  # not done, or no proof of it by the deadline
    UNKNOWN = "Unknown"  # the order may have been taken or not: a person decides
    CANCELLED = "Cancelled"  # by a person
    INCONCLUSIVE = "Inconclusive"  # of a test: no verdict about the node; of a repair: not begun


#: An attempt in these states may still act on the node.
BUSY = (RepairState.ORDERING, RepairState.ORDERED)


@dataclass(frozen=True, slots=True)
class RepairAttempt:
    """One attempt at a repair: an Operation of the node. ``operation`` is its id everywhere, made
    of the quarantine's uid.

    ``boot_id`` and ``node_uid`` are the node's when it began, for the proof. ``domains`` are its
    failure domains then, for the limits, as "LABEL=VALUE". ``request`` is the name of the object
    with which a person requested it, empty where the ladder did. ``profile`` is that of a test.
    ``ends_as``: how it ends once what its order left is removed, after which no object reports it.
    ``deleted``: a person has deleted its object, which cancels it. Times are wall clock seconds.
    """

    operation: str
    repair: str
    state: RepairState
    boot_id: str = ""
    node_uid: str = ""
    request: str = ""
    began_at: float = 0.0
    deadline_at: float = 0.0
    ended_at: float = 0.0
    message: str = ""
    domains: tuple[str, ...] = ()
    profile: str = ""
    ends_as: RepairState | None = None
    deleted: bool = False

    @property
    def name(self) -> str:
        """The name of its object."""
        return self.request or self.operation


@dataclass(frozen=True, slots=True)
class OperationSpec:
    """The act, and its cause. It never changes.

    ``quarantine``: the UID of the Quarantine that it is for; empty in a person's request: the one
    that is in force then, and for a test also none. ``profile`` is that of a test. ``requester``
    and ``reason`` are for people. ``installation``: whose test of a node in no quarantine it is, as
    that of a Quarantine.
    """

    node: str
    kind: str
    quarantine: str = ""
    profile: str = ""
    requester: str = ""
    reason: str = ""
    installation: str = ""


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """A person's Operation that has not begun. ``name``: of the object; ``what``: the kind.

    ``uid``: another object may have the name later.
    """

    name: str
    what: str
    profile: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class ObjectCondition:
    """A condition by Kubernetes' convention, of a Quarantine or an Operation; the types are in
    `quarantine_conditions` and `operation_conditions`.

    ``status`` is "True" or "False". ``last_transition_time``: wall clock seconds, when it became
    so. ``observed_generation`` is the generation of the spec that it is about.
    """

    type: str
    status: str
    reason: str
    message: str
    observed_generation: int = 0
    last_transition_time: float = 0.0

    def changed_at(self, before: Iterable["ObjectCondition"], now: float) -> float:
        """The time of its present status: ``now``, unless it had that ``before`` too."""
        for one in before:
            if (one.type, one.status) == (self.type, self.status):
                return one.last_transition_time
        return now


@dataclass(frozen=True)  # without slots: `NodeTest` has a second base, and Python allows one with
class NodeTestStatus:
    """The part of a test of a node in no quarantine: what is known of the node by it, and by those
    before it.

    ``reason`` is "idle" for a node in service, and empty for a new one. ``boot_after``: the boot in
    which the node was at the end, where that is another one than the test's. ``inconclusive``: the
    tests without a verdict before this one, in its boot and since a person's last request.
    ``quarantined``: the node was in quarantine after it. ``verdict_at``: the end of the last test
    with a verdict before it; ``failed`` and ``failed_boot``: an earlier failure still in force,
    in words, and its boot. ``passed``: the test in a quarantine since that the node has passed at
    ``passed_at``, in words. Times are wall clock seconds.
    """

    reason: str = ""
    boot_after: str = ""
    inconclusive: int = 0
    quarantined: bool = False
    verdict_at: float = 0.0
    failed: str = ""
    failed_boot: str = ""
    passed: str = ""
    passed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """Progress. Times are wall clock seconds (0: not yet).

    ``operation``: its id at repairers, agents and in the record, where that is not the object's
    name: of a person's request. ``quarantine``: the UID of the Quarantine whose ``number``-th
    attempt it is. ``boot_id`` and ``node_uid`` are the node's when it began, and ``domains`` its
    failure domains then, as "LABEL=VALUE". ``profile``: of a test whose request names none.
    ``ends_as``: the phase in which it ends once what its order left in the cluster is removed,
    after which no object reports it; and of a new node's test once the taint is. ``node_test``: of
    a test of a node in no quarantine, whose ``number`` counts those of the Node.
    ``installation``: which one tests the node by a person's request.
    """

    phase: RepairState = RepairState.PENDING
    message: str = ""
    operation: str = ""
    quarantine: str = ""
    installation: str = ""
    number: int = 0
    boot_id: str = ""
    node_uid: str = ""
    domains: tuple[str, ...] = ()
    profile: str = ""
    began_at: float = 0.0
    deadline_at: float = 0.0
    ended_at: float = 0.0
    ends_as: RepairState | None = None
    node_test: NodeTestStatus | None = None
    conditions: tuple[ObjectCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """``version`` is what a write names. ``deleting``: a person has deleted it. ``held``: our
    finalizer keeps it, which a person's request has from its beginning on.
    """

    name: str
    uid: str
    version: str
    spec: OperationSpec
    status: OperationStatus = field(default_factory=OperationStatus)
    created_at: float = 0.0
    deleting: bool = False
    held: bool = True

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status.phase in (RepairState.PENDING, *BUSY)

    def is_of(self, installation: str) -> bool:
        """Whether it is not another installation's, which alone goes on with it."""
        whose = self.status.installation or self.spec.installation
        return not whose or installation in ("", whose)


@dataclass(frozen=True, slots=True)
class RepairStatus:
    """``attempts`` are the node's operations for this quarantine, the oldest first, and
    ``requests`` those of people that may be its next; no write of the status changes these.
    ``held``: why the next one does not begin now.

    ``exhausted``: why no further one begins by itself, since ``exhausted_at``; empty: one may.
    ``test_waits_since``: since when the test before the release can't begin; 0: it does not wait.
    ``evidence_at``: when evidence was last seen in force after a test had begun, so that no earlier
    verdict counts. ``began_at``: when the newest operation was about to begin; its write is the one
    that a release written meanwhile makes fail, so that it differs each time.
    """

    attempts: tuple[RepairAttempt, ...] = ()
    requests: tuple[OperationRequest, ...] = ()
    held: str = ""
    exhausted: str = ""
    exhausted_at: float = 0.0
    test_waits_since: float = 0.0
    evidence_at: float = 0.0
    began_at: float = 0.0


@dataclass(frozen=True, slots=True)
class MarksStatus:
    """Which of our marks the node lacks although the quarantine is in force: names of `lost_marks`.

    ``since`` is when they were found missing, ``restored`` how often they were set again, and
    ``restored_at`` when last. Times are wall clock seconds (0: not).
    """

    missing: tuple[str, ...] = ()
    since: float = 0.0
    restored: int = 0
    restored_at: float = 0.0


#: The beginning of `QuarantineStatus.uncordoned` for a node that is schedulable, and stays so for
#: now. Here, because the command `sickbay` reads it, and imports no rule.
STILL_SCHEDULABLE = "schedulable: "


@dataclass(frozen=True, slots=True)
class QuarantineStatus:
    """Progress. Times are wall clock seconds since the epoch (0: not yet).

    ``deadline_at`` is when a drain should have ended, and ``overdue_at`` when it was reported that
    it has not.
    """

    phase: Phase = Phase.ADMITTED
    message: str = ""
    node_uid: str = ""
    admitted_at: float = 0.0
    cordoned_at: float = 0.0
    drain_started_at: float = 0.0
    drained_at: float = 0.0
    deadline_at: float = 0.0
    overdue_at: float = 0.0
    pre_evict: HookStatus | None = None
    #: The notices to workloads before their eviction.
    notices: tuple[EvictionNotice, ...] = ()
    #: The gangs and jobs of which pods were evicted from the node, for `limits.per_workload`.
    evicted_workloads: tuple[EvictedWorkload, ...] = ()
    #: What the drain spares by the agent's report, or None while nothing.
    gpu_scope: GpuScopeStatus | None = None
    released_because: str = ""
    overruled: bool = False
    #: Why the node is not released although its cause is over; empty while nothing holds that.
    release_held: str = ""
    #: States, for people, that a person has set another action than was decided; else empty.
    override: str = ""
    #: Since when the Node has been absent from consistent reads (seconds); 0: it is there.
    node_absent_since: float = 0.0
    #: The last uncordon that was no release, for people: its author, and the response to it.
    uncordoned: str = ""
    #: When that was, and how many there were with less than a day between them.
    uncordoned_at: float = 0.0
    recordons: int = 0
    #: Evictions wait until then, as a person may have meant that uncordon.
    evictions_held_until: float = 0.0
    pods_remaining: int | None = None
    #: When the pods were read that this number counts.
    pods_read_at: float = 0.0
    blockers: tuple[Blocker, ...] = ()
    #: The changes of our marks on the node with ``node_uid``, or None if not marked, or not known.
    applied: AppliedChanges | None = None
    marks: MarksStatus = MarksStatus()
    repair: RepairStatus = RepairStatus()
    #: The generation of the spec that this status is about, and what follows from both for others.
    observed_generation: int = 0
    conditions: tuple[ObjectCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A Quarantine as read. ``version`` and ``uid`` fence every write."""

    node: str
    uid: str
    version: str
    spec: QuarantineSpec
    status: QuarantineStatus
    created_at: float = 0.0
    deleting: bool = False
    has_finalizer: bool = True
    #: The error in an object that could not be understood (made by hand); for its status.
    problem: str = ""
    #: The installation that it belongs to, where that is another one: it is left alone.
    foreign: str = ""
    #: Counts the changes of the spec; 0 where the cluster does not count them.
    generation: int = 0
    #: Why part of its status can't be read: a later version may have written it. Empty: all can.
    unread: str = ""
    #: The names of those fields of `QuarantineStatus`; in ``status`` they are empty.
    unread_fields: frozenset[str] = frozenset()

    @property
    def phase_since(self) -> float:
        """When it got to its phase, wall clock seconds; 0: that is not known."""
        reached = {
            Phase.ADMITTED: self.status.admitted_at or self.created_at,
            Phase.CORDONED: self.status.cordoned_at,
            Phase.DRAINING: self.status.drain_started_at,
            Phase.DRAINED: self.status.drained_at,
        }
        return reached.get(self.status.phase, 0.0)


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str
    time_added: str = ""


@dataclass(frozen=True, slots=True)
class NodeMeta:
    """A node as the metadata list shows it. ``annotations``: those under ``sickbay.dev/``.

    ``annotated``: whether it has any annotation, of whatever key.
    """

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    annotated: bool = True


@dataclass(frozen=True, slots=True)
class Unread:
    """The node was not read: the server checks its contents in the patch, instead of its version.

    ``absent``: keys of annotations that it must not have, other than those that the patch sets.
    ``annotated``: whether it has any annotation.
    """

    absent: frozenset[str]
    annotated: bool = True


@dataclass(frozen=True, slots=True)
class Node:
    """A node read in full: the base of a fenced patch. With ``unread``, as it is expected to be."""

    name: str
    uid: str
    version: str
    unschedulable: bool
    taints: tuple[Taint, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    boot_id: str = ""
    ready: bool | None = None
    #: The status of our own condition, empty where it is not there, None where the cluster has no
    #: conditions.
    condition: str | None = None
    #: Accelerators by resource name: capacity and allocatable, as the node reports them.
    devices: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unread: Unread | None = None
    #: When ``ready`` last changed, by the cluster's own wall clock (seconds); 0: unknown.
    ready_since: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """A condition for other tools, as it is to be. ``unhealthy``: it is, by the site's meaning."""

    status: str
    reason: str
    message: str
    unhealthy: bool


@dataclass(frozen=True, slots=True)
class NodeTestCondition:
    """The result of the node's last active test, as its condition (SickbayTestPassed) has it."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ListedNodeTest:
    """A Node that carries a startup taint, or that was tested. ``condition``: the result of its
    last test as it shows it, or None without one.
    """

    node: str
    uid: str
    tainted: bool
    condition: NodeTestCondition | None = None


@dataclass(frozen=True, slots=True)
class WrittenConditions:
    """``written``: the node's record, by type. ``foreign``: the requested types that another has
    written.
    """

    written: Mapping[str, WrittenCondition] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One patch of a node. A field that is None is left alone; a value of None removes its key."""

    taints: tuple[Taint, ...] | None = None
    unschedulable: bool | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A Kubernetes Event about a node, and about its quarantine unless ``quarantine_uid`` is empty.

    ``name`` is the same for each report of one transition. ``at``: wall clock seconds.
    """

    name: str
    node: str
    node_uid: str
    quarantine_uid: str
    reason: str
    action: str
    note: str
    warning: bool
    at: float


@dataclass(frozen=True, slots=True)
class Toleration:
    """One of a pod's tolerations, as its spec has it. An empty ``key`` or ``effect`` fits all."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def fits(self, taint: Taint) -> bool:
        """Whether it tolerates the taint; the scheduler's own rule."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod on a node, with all that decides whether and how it may be evicted.

    ``created_at`` and ``deletion_at`` are the cluster's own wall clock seconds (0: not);
    ``deletion_at`` is when its grace is over. ``grace`` is what its spec sets, in seconds.
    ``group`` is the gang that its spec names. ``gpus``: the accelerators that its containers
    request; ``gpu_ids``: those that it has, by device plugins' ids, as far as the kubelet reports
    them. ``has_claims``: it has devices by claims (DRA), which neither of the two counts.
    ``conditions``: the types of its conditions that are True. ``has_responders``: it names others
    that respond to an EvictionRequest of it.
    """

    namespace: str
    name: str
    uid: str
    version: str
    phase: str
    deleting: bool
    mirror: bool
    owner_kind: str  # kind of the controlling owner, "" for a bare pod
    owner_name: str
    empty_dirs: tuple[str, ...]  # volumes with data on the node: emptyDir on its disk
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    created_at: float = 0.0
    deletion_at: float = 0.0
    grace: float = 30.0
    group: str = ""
    tolerations: tuple[Toleration, ...] = ()
    gpus: int = 0
    gpu_ids: tuple[str, ...] = ()
    has_claims: bool = False
    conditions: frozenset[str] = frozenset()
    has_responders: bool = False

    def tolerates(self, taint: Taint) -> bool:
        return any(one.fits(taint) for one in self.tolerations)

    @property
    def key(self) -> str:
        """Names it for people. Outside Kubernetes it has no namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Evicted(enum.StrEnum):
    """The outcome of an eviction."""

    ACCEPTED = "accepted"
    GONE = "gone"  # 404, or 409: that pod is no longer this pod
    BLOCKED = "blocked"  # 429 with cause DisruptionBudget: this pod's own state
    MISCONFIGURED = "misconfigured"  # 500: two budgets cover it; a person must fix that
    FORBIDDEN = "forbidden"  # 403: we have no right to delete pods of its namespace
    REJECTED = "rejected"  # another 4xx: admission, or the pod itself, does not allow it
    FAILING = "failing"  # an admission webhook could not be called: it may pass


#: The message of an eviction that the deletion of the pod's namespace makes needless.
NAMESPACE_DELETED = "its namespace is being deleted"


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """``retry_after``: seconds, where the cluster named them."""

    outcome: Evicted
    message: str = ""
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class RecordText:
    """The admission record as stored; ``version`` is what a write names, ``uid`` its object's."""

    text: str
    version: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class StopText:
    """The stop switch's own object as stored; its ``version`` is empty where it is not there.

    ``reason``: not empty means that no new action may start, and is why; empty, that a person has
    turned the switch off; with None the object has no reason.
    """

    reason: str | None = None
    version: str = ""


def is_older(version: str, than: str) -> bool:
    """Whether one is an earlier version of the same object: they compare as numbers.

    Only watch events are compared. A read or a fresh list counts whatever its version is: versions
    move backwards when etcd is restored.

    A version that is no number (an absent object has none) is not known to be older.
    """
    try:
        return int(version) < int(than)
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class QuarantineSeen:
    """A quarantine was made or changed."""

    quarantine: Quarantine


@dataclass(frozen=True, slots=True)
class QuarantineGone:
    """A quarantine is no longer there.

    ``with_definition``: its definition (the CRD) is gone or going too, which releases no node.
    """

    node: str
    uid: str
    with_definition: bool = False


@dataclass(frozen=True, slots=True)
class NodeUncordoned:
    """The node is no longer unschedulable: our own release, a person, or its end."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A Node with a quarantine is unschedulable, and is so now; reported at each of its changes.

    It may be older than what we last wrote: a read decides.
    """

    node: Node


@dataclass(frozen=True, slots=True)
class RecordSeen:
    record: RecordText


@dataclass(frozen=True, slots=True)
class StopSeen:
    stop: StopText


@dataclass(frozen=True, slots=True)
class WatchLost:
    """The watches stopped: later changes are not known until `WatchSynced`."""

    reason: str


@dataclass(frozen=True, slots=True)
class WatchSynced:
    """The view is complete again: every existing object was reported again before this.

    A node in quarantine that is none of the ``unschedulable`` was uncordoned meanwhile.
    """

    unschedulable: frozenset[str]


ClusterEvent = (
    QuarantineSeen
    | QuarantineGone
    | NodeUncordoned
    | NodeSeen
    | RecordSeen
    | StopSeen
    | WatchLost
    | WatchSynced
)


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where the record lies, and the command that empties it and leaves the stop; for people."""

    where: str
    empties: str


class Quarantines(Protocol):
    """The objects that are intent. Every method may raise `ClusterError`, whose subclass determines
    what to do.

    A request may wait in a queue for seconds. Methods that act take a ``guard``, which checks for
    changes since; see `Guard`. A patch that undoes checks the place alone.
    """

    async def create_quarantine(
        self, node: str, spec: QuarantineSpec, *, guard: Guard
    ) -> Quarantine:
        """Make it, with our finalizer. `Conflict` when the node has one."""

    async def read_quarantine(self, node: str) -> Quarantine | None:
        """Never from a cache."""

    async def write_quarantine_spec(
        self, quarantine: Quarantine, spec: QuarantineSpec
    ) -> Quarantine: ...

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine: ...

    async def add_finalizer(self, quarantine: Quarantine) -> Quarantine: ...

    async def drop_quarantine(self, quarantine: Quarantine, *, guard: Guard) -> None:
        """Remove our finalizer and the object, by uid. Gone already is success."""

    async def definition_is_going(self) -> bool:
        """Whether the definition of quarantines is being deleted or is gone (an uninstall)."""


class SeenOperations(Protocol):
    """The operations as last seen: no request is made."""

    @property
    def requests(self) -> list[Operation]:
        """People's own that have not ended, the oldest first."""

    @property
    def deleted_tests(self) -> list[Operation]:
        """Those of `node_tests` that have ended, and that a person has deleted since."""

    def node_tests(self, node: str = "") -> list[Operation]:
        """The tests of nodes in no quarantine that have begun, all or of one node."""


class Operations(Protocol):
    """The store of operations of one kind of cluster. Every method may raise `ClusterError`."""

    @property
    def known(self) -> SeenOperations: ...

    async def create(self, name: str, spec: OperationSpec) -> Operation:
        """Make it, in phase Pending, with our finalizer. `Conflict` where the name is taken."""

    async def adopt(self, operation: Operation) -> Operation:
        """Give a person's request our finalizer and label, at the version that was read."""

    async def read(self, name: str) -> Operation | None:
        """Never from a cache."""

    async def of(self, node: str) -> list[Operation]:
        """All of the node's that may have begun, never from a cache: a release decides on them."""

    async def all(self) -> list[Operation]:
        """All of the fleet's, of each installation, never from a cache."""

    async def write_status(self, operation: Operation, status: OperationStatus) -> Operation:
        """`Conflict` where another process has changed it since."""

    async def drop(self, operation: Operation) -> None:
        """Remove our finalizer and the object. Gone already is success; `Conflict` where another
        process has changed it since.
        """


class NodesAndPods(Protocol):
    """What intent is carried out on. Errors, waits and guards are those of `Quarantines`."""

    #: Whether it lists all its nodes. Else a read of a node adds it.
    lists_all: bool

    async def list_nodes(self) -> list[NodeMeta]:
        """Every node's metadata; may be a little stale (from the cache)."""

    def has_condition(self, kind: str) -> bool:
        """Whether a node of this cluster can have a condition of this type."""

    async def list_conditions(self, types: Collection[str]) -> list[ReportedConditions]:
        """Every node's conditions of these types that others wrote. Costs all nodes in full."""

    async def list_node_tests(
        self, taint: str, tested: Collection[str] = ()
    ) -> list[ListedNodeTest]:
        """The Nodes with a taint of this key, and the ``tested``. Costs all nodes in full.

        From a cache: a read decides.
        """

    async def read_node(
        self, name: str, *, cached: bool = False, background: bool = False
    ) -> Node | None:
        """In full, from the store, or None if it is not there.

        ``cached``: as it is now or was before. Only where a patch against its version follows.
        ``background``: the node is marked already, or is only read: it goes after the taints.
        """

    async def wait_for_node(self, name: str) -> None:
        """Return once there is a Node of this name: now, or when it is created."""

    async def patch_node(self, node: Node, change: NodeChange, *, guard: Guard) -> Node:
        """One patch against the node's version and uid. Returns the node as it is then.

        A node with ``unread`` has no version: `Conflict` unless its uid, taints, cordon, labels,
        the annotations in it, and those that the patch sets, are as they are expected.
        """

    async def pods_on(self, node: str, *, background: bool = False) -> list[Pod]:
        """All pods of the node. ``background``: they were read before, and little has changed."""

    async def pods_labelled(
        self, namespace: str, label: str, value: str, *, background: bool = False
    ) -> list[Pod]:
        """The pods of a namespace with this label, on any node."""

    async def evict(
        self,
        pod: Pod,
        *,
        dry_run: bool = False,
        background: bool = False,
        guard: Guard,
    ) -> EvictionResult:
        """With the pod's uid and version as preconditions. ``dry_run``: only check whether the
        eviction is allowed.

        ``background``: a retry, which goes after every first request.
        """

    async def delete_pod(
        self, pod: Pod, *, grace: int, background: bool = False, guard: Guard
    ) -> EvictionResult:
        """Past its budgets, with the same preconditions. ``grace`` is in seconds, 1 or more."""

    async def announce(
        self, node: str, *, node_uid: str, quarantined: bool, reason: str, message: str
    ) -> None:
        """The node's condition (SickbayQuarantined) and an Event about it. May trail."""

    async def write_conditions(
        self,
        node: str,
        *,
        node_uid: str,
        wanted: Mapping[str, NodeCondition | None],
        guard: NodeGuard,
    ) -> WrittenConditions:
        """Conditions for other tools, by type; None removes one. Another's is left as it is.

        One that is to be healthy is written only where ours is there. Raises `Conflict` where
        another node has the name.
        """

    async def write_test_condition(
        self, node: str, *, node_uid: str, condition: NodeTestCondition, guard: Guard
    ) -> None:
        """Write it unless the Node shows just that. `Conflict` where another node has the name.

        By a pass another controller may remove the startup taint.
        """


class SharedObjects(Protocol):
    """Objects of the installation: record, stop switch, Events. As `Quarantines` in the rest."""

    #: The installation's name: the namespace of its record. Empty: there is only one.
    installation: str

    @property
    def record_place(self) -> RecordPlace: ...

    async def read_record(self) -> RecordText:
        """The record, made empty if it is not there. Never from a cache."""

    async def write_record(self, text: str, version: str, *, guard: Guard) -> RecordText: ...

    async def read_stop(self) -> StopText:
        """The stop switch. Never from a cache, and ahead of all queued requests."""

    async def write_event(self, event: NodeEvent) -> None:
        """About the node and its quarantine, for `kubectl describe`; once for each name. Trails."""


class Cluster(Quarantines, NodesAndPods, SharedObjects, Protocol):
    """All three, and the view of their changes. `aggregator.cluster.registry` has the kinds."""

    #: Its words for people; their ``kind`` is its name in the registry.
    words: ClusterWords

    @property
    def operations(self) -> Operations:
        """The attempts at repairs, an object each. Every Quarantine is read with its own."""

    async def start(self) -> None:
        """Connect and check rights; raises `Refused` with those that a person has to grant."""

    async def close(self) -> None: ...

    def events(self) -> AsyncIterator[ClusterEvent]:
        """Every existing object, then `WatchSynced`, then changes as they come; for ever.

        Reconnects by itself, with backoff, and reports `WatchLost` and every object again.
        """
