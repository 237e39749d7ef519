"""What the actor needs of a cluster: Kubernetes, or the local one, behind one protocol.

Every write that acts carries the version that it was decided on, so that a late writer fails with
`Conflict`. Nothing here decides anything; the shapes are the cluster's facts.
"""

import enum
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class ClusterError(Exception):
    """A request that failed. ``retry_after`` is in seconds when the cluster named it."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Unreachable(ClusterError):
    """The cluster did not answer, or answered that it can't now (5xx, 429). Try again later."""


class Conflict(ClusterError):
    """Somebody wrote in between (409), or another has the name (422): read and decide again."""


class NotFound(ClusterError):
    """The object is gone (404)."""


class Refused(ClusterError):
    """The cluster will not do this however often it is asked (401, 403, 400, 405, other 422)."""


class Action(enum.StrEnum):
    """What is done about an incident, weakest first."""

    OBSERVE = "observe"
    CORDON = "cordon"
    DRAIN = "drain"

    @property
    def strength(self) -> int:
        return _STRENGTH[self]


_STRENGTH = {Action.OBSERVE: 0, Action.CORDON: 1, Action.DRAIN: 2}


class Phase(enum.StrEnum):
    """How far a quarantine has come. Each change is a compare-and-set on the object."""

    ADMITTED = "Admitted"  # intent is durable; the node is not touched yet
    CORDONED = "Cordoned"  # taint and unschedulable are on the node
    DRAINING = "Draining"  # evictions under way
    DRAINED = "Drained"  # nothing left to evict
    RELEASING = "Releasing"  # being undone
    INVALID = "Invalid"  # a hand-made object that makes no sense; the message says why


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
    """Intent. ``requester`` is "sickbay", or what its maker likes for one made by hand.

    ``kind`` is the taint's value: gpu, disk, network, node or manual.
    """

    action: Action
    kind: str
    reason: str
    requester: str = ""
    incident: str = ""
    boot_id: str = ""
    policy_hash: str = ""
    evidence: tuple[EvidenceItem, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocker:
    """A pod that can't be evicted now, why, and since when (wall clock seconds)."""

    pod: str
    reason: str
    since: float


class HookState(enum.StrEnum):
    """How far a site's own step before the first eviction has come."""

    ASKING = "Asking"  # begun; it may have run already, and is asked again
    DONE = "Done"
    GIVEN_UP = "GivenUp"  # not done in its time, and the configuration says to go on


@dataclass(frozen=True, slots=True)
class HookStatus:
    """What came of the hook. ``asked_at`` is when it was first asked; ``message`` its last words.

    ``ended_at`` in state Asking is when it was said that its time is over.
    """

    state: HookState
    asked_at: float
    ended_at: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class QuarantineStatus:
    """Progress. Times are wall clock seconds since the epoch (0: not yet).

    ``deadline_at`` is when a drain should have ended, and ``overdue_at`` when it was said that it
    has not.
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
    released_because: str = ""
    overruled: bool = False
    #: Why the node is not released although its cause is over; empty while nothing holds that.
    release_held: str = ""
    pods_remaining: int | None = None
    blockers: tuple[Blocker, ...] = ()


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
    #: What is wrong with an object that could not be understood (made by hand); for its status.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str
    time_added: str = ""


@dataclass(frozen=True, slots=True)
class NodeMeta:
    """A node as the metadata list tells of it. ``annotations``: those under ``sickbay.dev/``."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """A node read in full: what a fenced patch is decided on."""

    name: str
    uid: str
    version: str
    unschedulable: bool
    taints: tuple[Taint, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    boot_id: str = ""
    ready: bool | None = None
    #: Accelerators by resource name: capacity and allocatable, as the node says them.
    devices: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One patch of a node. None leaves a field alone; a None value removes its key."""

    taints: tuple[Taint, ...] | None = None
    unschedulable: bool | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod on a node, with what decides whether and how it may go.

    ``created_at`` and ``deletion_at`` are the cluster's own wall clock seconds (0: not);
    ``deletion_at`` is when its grace is over. ``grace`` is what it asks for, in seconds. ``group``
    is what its spec names as its gang.
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
    empty_dir: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    created_at: float = 0.0
    deletion_at: float = 0.0
    grace: float = 30.0
    group: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Evicted(enum.StrEnum):
    """What an eviction came to."""

    ACCEPTED = "accepted"
    GONE = "gone"  # 404, or 409: that pod is no longer this pod
    BLOCKED = "blocked"  # 429 with cause DisruptionBudget: this pod's own state
    MISCONFIGURED = "misconfigured"  # 500: two budgets cover it; never heals by itself
    FORBIDDEN = "forbidden"  # 403: we have no right to delete pods of its namespace


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """``retry_after``: seconds, where the cluster named them."""

    outcome: Evicted
    message: str = ""
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class RecordText:
    """The admission record as stored, with the version to write against.

    ``stop`` is the fleet-wide stop switch in the same object: not empty means that nothing new may
    start, and says why. It is a person's; the aggregator never writes it.
    """

    text: str
    version: str
    stop: str


def is_older(version: str, than: str) -> bool:
    """Whether one is an earlier version of the same object: they compare as numbers.

    What is no number (an object that is not there has none) is not known to be older.
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

    ``with_definition``: its definition (the CRD) is gone or going too, which releases nobody.
    """

    node: str
    uid: str
    with_definition: bool = False


@dataclass(frozen=True, slots=True)
class NodeUncordoned:
    """The node is no longer unschedulable: our own release, a person, or its end."""

    node: str


@dataclass(frozen=True, slots=True)
class RecordSeen:
    record: RecordText


@dataclass(frozen=True, slots=True)
class ViewLost:
    """The cluster's news stopped: what follows is not known until `ViewRestored`."""

    reason: str


@dataclass(frozen=True, slots=True)
class ViewRestored:
    """The view is whole again: everything that exists was told anew before this."""

    quarantined_nodes: frozenset[str]


News = QuarantineSeen | QuarantineGone | NodeUncordoned | RecordSeen | ViewLost | ViewRestored


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where the record lies, and the command that empties it and leaves the stop; for people."""

    where: str
    empties: str


class Cluster(Protocol):
    """A cluster. Every method may raise `ClusterError` of the kind that tells what to do."""

    #: "kubernetes" or "local", for people.
    kind: str
    #: Whether it has nodes of its own accord. Else it learns of one when it is asked about it.
    lists_all: bool

    @property
    def record_place(self) -> RecordPlace: ...

    async def start(self) -> None:
        """Connect and check rights; raises `Refused` with what is missing for a person to mend."""
        ...

    async def close(self) -> None: ...

    def news(self) -> AsyncIterator[News]:
        """Everything that exists, then `ViewRestored`, then changes as they come; for ever.

        Reconnects by itself, with backoff, telling `ViewLost` and all of it anew.
        """
        ...

    async def list_nodes(self) -> list[NodeMeta]:
        """Every node's metadata; may be a little stale (from the cache)."""
        ...

    async def read_record(self) -> RecordText:
        """The record, made empty if it is not there. Never from a cache."""
        ...

    async def write_record(self, text: str, version: str) -> RecordText: ...

    async def create_quarantine(self, node: str, spec: QuarantineSpec) -> Quarantine:
        """Make it, with our finalizer. `Conflict` when the node has one."""
        ...

    async def read_quarantine(self, node: str) -> Quarantine | None:
        """Never from a cache."""
        ...

    async def write_quarantine_spec(
        self, quarantine: Quarantine, spec: QuarantineSpec
    ) -> Quarantine: ...

    async def write_quarantine_status(
        self, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine: ...

    async def add_finalizer(self, quarantine: Quarantine) -> Quarantine: ...

    async def drop_quarantine(self, quarantine: Quarantine) -> None:
        """Remove our finalizer and the object, by uid. Gone already is success."""
        ...

    async def definition_is_going(self) -> bool:
        """Whether the definition of quarantines is being deleted or is gone (an uninstall)."""
        ...

    async def read_node(self, name: str, *, cached: bool = False) -> Node | None:
        """In full, from where it is stored. None: it is not there.

        ``cached``: as it is now or was before. Only for what a patch against its version follows.
        """
        ...

    async def patch_node(self, node: Node, change: NodeChange) -> Node:
        """One patch against the node's version and uid. Returns the node as it is then."""
        ...

    async def pods_on(self, node: str) -> list[Pod]: ...

    async def pods_labelled(self, namespace: str, label: str, value: str) -> list[Pod]:
        """The pods of a namespace with this label, on whatever node."""
        ...

    async def evict(self, pod: Pod, *, dry_run: bool = False) -> EvictionResult:
        """With the pod's uid and version as preconditions. ``dry_run``: only ask whether."""
        ...

    async def delete_pod(self, pod: Pod, *, grace: int) -> EvictionResult:
        """Past its budgets, with the same preconditions. ``grace`` is in seconds, 1 or more."""
        ...

    async def announce(
        self, node: str, *, node_uid: str, quarantined: bool, reason: str, message: str
    ) -> None:
        """The node's condition (SickbayQuarantined) and an Event about it. May trail."""
        ...
