"""A repairer's requests and answers. Each is one file of `aggregator/repairers`."""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from aggregator.cluster.port import Guard
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.new_nodes import NewNodeRules
from aggregator.quarantine.decide.repair import RepairMode, RepairRules

#: The fields of an order that a site's command or endpoint gets.
_VALUES = ("operation", "repair", "node", "node_uid", "boot_id", "quarantine", "reason", "profile")


@dataclass(frozen=True, slots=True)
class RepairOrder:
    """One attempt, as a repairer is to carry it out. ``operation`` is its id everywhere.

    ``lasts``: seconds until its deadline. ``gpus``: the UUIDs of the GPUs with evidence.
    ``bundle``: the evidence for a ticket, as JSON. ``profile``: the profile of a test; empty: of
    the other kinds. ``quarantine`` is empty for the test of a new node, and ``tolerates`` the key
    of the startup taint of such a one. ``idle_class``: the PriorityClass of a test on an idle
    node, which gives way to work and tolerates no mark of ours. ``began_at`` (wall clock seconds)
    is that of the test of a node in no quarantine, whose operation comes again where the node's
    annotation was lost.
    """

    operation: str
    repair: str
    node: str
    node_uid: str
    boot_id: str
    quarantine: str
    reason: str
    lasts: float
    gpus: tuple[str, ...] = ()
    bundle: str = ""
    profile: str = ""
    tolerates: str = ""
    idle_class: str = ""
    began_at: float = 0.0

    def values(self) -> dict[str, str]:
        """The values for a site's command or endpoint."""
        return {name: getattr(self, name) for name in _VALUES}


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """A node's agent is about to begin the act of an order that it has accepted.

    ``quarantine`` is the UID that the order had: of the Quarantine, or of the Node.
    """

    operation: str
    repair: str
    quarantine: str


class AnswerState(enum.Enum):
    """The answer of a repairer."""

    TAKEN = "taken"  # the order is under way: its proof is to come
    DONE = "done"  # the repairer reports that the repair is done
    NOT_SENT = "not sent"  # certainly nothing was ordered: it may be sent again
    FAILED = "failed"  # refused, or done without success: the next rung is due
    INCONCLUSIVE = "inconclusive"  # of a test: no verdict about the node; of a repair: not begun
    UNSURE = "unsure"  # it may have been ordered, or not


@dataclass(frozen=True, slots=True)
class RepairAnswer:
    """``text`` is for people. ``details`` go into the event of the attempt's end."""

    state: AnswerState
    text: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


class Repairer(Protocol):
    """Carries out one kind of repair. Its methods never raise, except when they are cancelled, what
    a guard raises, and as `cancel` states.
    """

    #: Whether an order with the same operation may be sent twice, and is carried out once.
    sends_twice: bool

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        """Send the order. Cancelled, it leaves no process or request running here.

        ``guard`` is awaited after its last wait; its error is raised, and the order was not sent.
        """
        ...

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        """How far it has come: TAKEN while that is open, or where the node itself is the proof."""
        ...

    async def cancel(self, order: RepairOrder) -> bool:
        """Take the order back. False: it may be carried out all the same. Raises `Unreachable` or
        `Conflict` where a later try may take it back.
        """
        ...


@dataclass(frozen=True, slots=True)
class ConfiguredRepairer:
    """``timeout``: seconds from the order until its proof must have come.

    ``clean_up`` removes what an order leaves in the cluster, before the end of the attempt is
    written. It answers DONE (it has left nothing), NOT_SENT (call again) or FAILED (it stays), and
    never raises. ``missing_rights`` lists the rights in the cluster that orders need and this
    process lacks; it raises ClusterError. ``is_over``: whether the controller that carries orders
    out has finished with the node; before that the Node is no proof. It never raises. ``withdraw``
    cancels an order, as far as that goes without an answer, where a person releases the node.
    ``pauses_operands``: the GPU operator's pods that hold GPUs are stopped on the node until the
    attempt has ended. ``note_end`` is called with node and operation once the end of an attempt is
    durable: it is not queried again. ``pod_namespace``: that of the pods that its orders have on
    the node; empty: none. ``profiles``: those that a test can have, or None where they are not
    known here. ``gives_way``: work preempts its tests, so that a node in service can be tested.
    ``by_agent``: the node's agent carries its orders out and reports their end, so that an order
    that is withdrawn without an answer may still run. Other orders end by ``clean_up``, or report
    no end after `cancel`.
    """

    repairer: Repairer
    timeout: float
    clean_up: Callable[[RepairOrder], Awaitable[RepairAnswer]] | None = None
    missing_rights: Callable[[], Awaitable[Sequence[str]]] | None = None
    is_over: Callable[[RepairOrder], Awaitable[bool]] | None = None
    withdraw: Callable[[RepairOrder], None] | None = None
    note_end: Callable[[str, str], None] | None = None
    pod_namespace: str = ""
    pauses_operands: bool = False
    profiles: frozenset[str] | None = None
    gives_way: bool = False
    by_agent: bool = False


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """The rules, and the repairer of each kind that has one. ``domain_labels``: node labels whose
    value names a failure domain. ``collected`` has what a node's agent collected before the acts
    of a quarantine: JSON objects as text, by operation. ``node_owner_kinds``: those of the drain.
    """

    rules: RepairRules = field(default_factory=RepairRules)
    repairers: Mapping[str, ConfiguredRepairer] = field(default_factory=dict)
    domain_labels: tuple[str, ...] = ()
    collected: Callable[[str, str], Mapping[str, str]] = lambda _node, _quarantine: {}
    node_owner_kinds: tuple[str, ...] = ()

    @property
    def test_namespace(self) -> str:
        """That of the pods of active tests; empty: they have none."""
        entry = self.repairers.get(TEST)
        return entry.pod_namespace if entry is not None else ""

    @property
    def tests_in_service(self) -> bool:
        """Whether a person may have a node in service tested."""
        entry = self.repairers.get(TEST)
        return entry is not None and entry.gives_way and not self.off

    @property
    def test_profiles(self) -> frozenset[str] | None:
        """The profiles that a test can have, or None where they are not known here."""
        entry = self.repairers.get(TEST)
        return entry.profiles if entry is not None else None

    @property
    def off(self) -> bool:
        return self.rules.mode is RepairMode.OFF

    @property
    def node_tests_end(self) -> str:
        """Why no test of a node in no quarantine may continue; empty: one may."""
        if self.off:
            return "repairs are off (repair.mode: off)"
        wanted = self.rules.new_nodes.taint or self.rules.idle_nodes or self.tests_in_service
        return "" if wanted else "the configuration has no tests of nodes any more"

    @property
    def new_nodes(self) -> NewNodeRules:
        """The rules of new nodes; where no test may continue without the taint, which thus
        stays.
        """
        rules = self.rules.new_nodes
        return replace(rules, taint="") if self.node_tests_end else rules

    @property
    def verifies(self) -> bool:
        """Whether nodes are tested before their release by recovery."""
        return self.rules.mode is RepairMode.REPAIR and bool(self.rules.verify)
