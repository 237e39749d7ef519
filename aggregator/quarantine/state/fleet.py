"""The fleet in memory: the known state of each node. Read by the page, written by the controller.

It can be lost: snapshots, Quarantine objects and the record bring all of it back.
"""

import asyncio
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from aggregator.cluster.port import Phase, Quarantine
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.health.model import Hello
from aggregator.health.node import NodeHealth, name_gpus
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.policy.lemons import Lemon
from aggregator.policy.network.verdict import NetworkVerdict
from aggregator.policy.outliers.fleet import FleetMeasurements
from aggregator.quarantine.decide.common_cause import CommonCause
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import DesiredState
from aggregator.quarantine.decide.node_tests import NodeTest
from aggregator.quarantine.decide.pools import Pools
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.state.cluster_view import ClusterView
from aggregator.quarantine.state.quarantine_view import QuarantineView
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.runtime.interning import EMPTY


@dataclass(slots=True)
class AgentView:
    """Changed by the agent's events alone, and by a read that shows another Node of its name.

    ``last_seen``: monotonic seconds, None for never.
    ``conflict``: which two agents claim the node; empty: one at most does.
    ``refused``: why no snapshot of its agent was accepted; empty: the last one was.
    ``claimed``: the UID of the Node that the agent's identity proves; empty where it proves none.
    ``misnamed``: the node was read, and the known state is of another Node of its name.
    ``silent``: it was reported that the agent has been gone for too long.
    ``silent_failing``: the failing evidence when its agent fell silent, while its kubelet is ready,
    and ``silent_failing_since`` when that was found (monotonic).
    """

    health: NodeHealth | None = None
    attached: bool = False
    last_seen: float | None = None
    conflict: str = ""
    refused: str = ""
    claimed: str = ""
    misnamed: bool = False
    silent: bool = False
    silent_failing: str = ""
    silent_failing_since: float = 0.0

    @property
    def is_reporting(self) -> bool:
        """Its agent is attached, and its messages are accepted."""
        return self.attached and not self.refused

    @property
    def was_received(self) -> bool:
        """Its agent has sent a snapshot since this process started, and may be gone since."""
        return self.health is not None and self.health.has_snapshot

    @property
    def is_fresh(self) -> bool:
        """The agent is attached and has given its snapshot since."""
        return self.attached and self.was_received

    def connect(self, hello: Hello, now: float) -> None:
        """An authenticated stream has sent Hello; its snapshot follows."""
        if self.health is None:
            self.health = NodeHealth(hello)
        else:
            self.health.greet(hello)
        self.attached = True
        self.note_attempt(now)
        self.claimed, self.misnamed, self.silent_failing = hello.node_uid, False, ""

    def note_attempt(self, now: float) -> None:
        """The first sign of an agent, which counts as a report: from now on it can be silent."""
        if self.last_seen is None:
            self.last_seen = now

    def accept_snapshot(self) -> bool:
        """Returns whether its silence was reported before, which is over now."""
        was_silent, self.silent, self.refused = self.silent, False, ""
        return was_silent

    def note_failing(self, evidence: str, now: float) -> None:
        """Its kubelet is ready, and this was failing when the agent fell silent."""
        self.silent_failing, self.silent_failing_since = evidence, now

    def compare_uid(self, node_uid: str | None) -> None:
        """The UID of the Node as just read, None for no Node, against the claimed one."""
        self.misnamed = node_uid is not None and self.claimed not in ("", node_uid)

    def compare_boot(self, boot_id: str) -> None:
        """The boot of the Node that replaced the released one, against the evidence's."""
        self.misnamed = self.health is not None and self.health.boot_id != boot_id

    def discard(self) -> None:
        """Its evidence is of another Node of this name."""
        self.claimed, self.misnamed = "", False
        self.attached, self.refused = False, ""
        self.health = None


#: The hold of a quarantine whose status can't be read in whole: none of the limits.
UNREAD_STATUS = "unread-status"


@dataclass(slots=True)
class Decision:
    """Changed by each evaluation, and by the answers to proposals.

    ``incidents``: the open ones, by id; the mapping is replaced, never changed.
    ``wanted``: the desired quarantine. ``hold``: the limit that keeps it from admission.
    ``would``: the action that the mode, or an operator's request, prevents; ``spared``: the
    request that does.
    ``requests``: operators' requests, in sentences; ``exempt``: people want it left alone now.
    ``unreported``: ids of open incidents whose report waits until it is known whether the node's
    fabric is the cause; the set is replaced, never changed.
    ``timer`` evaluates the node again when time alone may change the result.
    """

    incidents: Mapping[str, Incident] = field(default_factory=lambda: EMPTY)
    wanted: DesiredState | None = None
    hold: Held | None = None
    would: str = ""
    spared: str = ""
    requests: tuple[str, ...] = ()
    exempt: bool = False
    unreported: frozenset[str] = frozenset()
    timer: asyncio.TimerHandle | None = None

    @property
    def evidence(self) -> Iterator[Evidence]:
        """All evidence of the open incidents."""
        return (item for incident in self.incidents.values() for item in incident.evidence)

    def update(self, incidents: Mapping[str, Incident], wanted: DesiredState | None) -> None:
        """The result of an evaluation."""
        self.incidents, self.wanted = incidents, wanted

    def forget_evidence(self) -> None:
        """There is no evidence any more; the next evaluation begins from none."""
        self.incidents, self.wanted, self.unreported = EMPTY, None, frozenset()

    def take_deferred(self, incident: str) -> bool:
        """Whether the incident's report was deferred; it is no longer."""
        deferred = incident in self.unreported
        if deferred:
            self.unreported -= {incident}
        return deferred

    def set_prevented(self, would: str, spared: str) -> None:
        self.would, self.spared = would, spared

    def take_requests(self, requests: tuple[str, ...], *, exempt: bool) -> None:
        self.requests, self.exempt = requests, exempt

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        """The next evaluation by time, instead of the one that was set."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer


@dataclass(slots=True)
class Work:
    """Changed by the queue, its worker, and those who request a read of the node.

    ``task`` reconciles the node; ``is_queued``: it is to be reconciled once more. ``queued`` ends
    then, and is made when a task waits for that.
    ``waiters``: messages that are acknowledged when their evidence is durable.
    ``needs_read``: an event hints that the node may be schedulable again, or gone; a read decides.
    ``recheck_pods``: it was drained, and its pods are to be read again.
    ``polled_at``: when the node was last polled, or read for the begin of its drain (monotonic).
    ``in_record``: the record, as last seen, has an entry of it.
    ``last_error``: why the last step failed, which is tried again; empty: it did not.
    ``evaluation_due``: its state has changed since it was last evaluated; ``arrived``: when the
    first delta since then arrived (monotonic). ``evaluation_cost``: seconds that its evaluations
    took and that its agent was not charged for yet.
    """

    task: asyncio.Task[None] | None = None
    is_queued: bool = False
    queued: asyncio.Future[None] | None = None
    waiters: tuple[asyncio.Future[None], ...] = ()
    needs_read: bool = False
    recheck_pods: bool = False
    polled_at: float = float("-inf")
    in_record: bool = False
    last_error: str = ""
    evaluation_due: bool = False
    arrived: float | None = None
    evaluation_cost: float = 0.0

    def queue(self) -> None:
        self.is_queued = True
        if self.queued is not None and not self.queued.done():
            self.queued.set_result(None)

    def take_queued(self) -> None:
        """The node is about to be reconciled, or what has changed was checked."""
        self.is_queued = False
        if self.queued is not None and self.queued.done():
            self.queued = None

    def until_queued(self) -> "asyncio.Future[None]":
        """Ends once the node is to be reconciled; all who wait for that share it."""
        if self.queued is None:
            self.queued = asyncio.get_running_loop().create_future()
        if self.is_queued and not self.queued.done():
            self.queued.set_result(None)
        return self.queued

    @property
    def is_running(self) -> bool:
        """Whether its task reconciles the node now."""
        return self.task is not None and not self.task.done()

    def request_evaluation(self, arrived: float | None = None) -> None:
        """The node is to be evaluated once, however many changes request it; see `WorkQueue`."""
        self.evaluation_due = True
        if self.arrived is None:
            self.arrived = arrived

    def begin_evaluation(self) -> float | None:
        """The node is about to be evaluated. Returns when the delta that caused it arrived."""
        arrived, self.arrived, self.evaluation_due = self.arrived, None, False
        return arrived

    def take_evaluation_cost(self) -> float:
        """The seconds that evaluations took since the last call."""
        cost, self.evaluation_cost = self.evaluation_cost, 0.0
        return cost

    def begin_pods(self) -> bool:
        """Returns whether the pods are to be read; they are about to be."""
        requested, self.recheck_pods = self.recheck_pods, False
        return requested

    def acknowledge(self) -> None:
        """The evidence is durable."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters = ()

    def refuse_waiters(self) -> None:
        """The evidence is not acknowledged: the agent sends it again."""
        for waiter in self.waiters:
            waiter.cancel()
        self.waiters = ()


#: Why a node without a Quarantine is nevertheless in quarantine.
UNCLAIMED = (
    "sickbay has marked the node and its Quarantine is gone; mode observe makes none, and the "
    "marks stay"
)
#: The same, while the Quarantines can't be seen, or before their end was reported.
MARKED_ALONE = (
    "sickbay has marked the node and its Quarantine is not known; the node stays as it is until "
    "the Quarantines can be seen"
)


class QuarantineSummary(enum.StrEnum):
    """The summary of a node's state, worst last; the page's colours."""

    OK = "ok"
    UNKNOWN = "unknown"  # no evidence yet, or only unknowns
    SILENT = "silent"  # its agent has gone quiet; failing evidence stays in force
    WARNING = "warning"  # degraded, or an incident that is only observed
    HELD = "held"  # no mark yet: a limit or the mode holds it, or the marks are still to be written
    QUARANTINED = "quarantined"


@dataclass(slots=True)
class NodeSummary:
    """One node, in parts: tests/unit/test_node_state_parts.py names who changes each."""

    node: str
    agent: AgentView = field(default_factory=AgentView)
    cluster: ClusterView = field(default_factory=ClusterView)
    decision: Decision = field(default_factory=Decision)
    work: Work = field(default_factory=Work)
    quarantine_view: QuarantineView = field(default_factory=QuarantineView)

    @property
    def quarantine(self) -> Quarantine | None:
        return self.quarantine_view.quarantine

    def state(self) -> QuarantineSummary:
        health = self.agent.health
        if awaits_marks(self):
            return QuarantineSummary.HELD
        if self.quarantine is not None or self.cluster.marked or self.quarantine_view.unclaimed:
            return QuarantineSummary.QUARANTINED
        if self.decision.hold is not None or self.decision.would:
            return QuarantineSummary.HELD
        if health is None:
            return QuarantineSummary.UNKNOWN
        if not self.agent.is_reporting:
            return QuarantineSummary.SILENT
        if self.agent.conflict or self.decision.incidents or health.worst_is_degraded():
            return QuarantineSummary.WARNING
        return QuarantineSummary.UNKNOWN if health.only_unknown() else QuarantineSummary.OK


def awaits_marks(summary: NodeSummary) -> bool:
    """Whether the node is admitted and carries no mark yet: new work may still come to it."""
    found = summary.quarantine
    admitted = found is not None and found.status.phase is Phase.ADMITTED
    return admitted and not summary.cluster.marked


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool in the admission record: its nodes in quarantine, those admitted within the window,
    and until when it cools down, and why (empty: it does not).
    """

    in_quarantine: int
    lately: int
    cooling: str = ""


@dataclass(frozen=True, slots=True)
class NodeTestView:
    """A node with a test, or that needs one. ``held``: why no test begins now; ``needs_person``:
    none begins by itself. ``requested``: the id of a person's request that no test answers yet.
    ``passed``: it has passed as a new node, and another controller is to remove its taint.
    """

    test: NodeTest | None
    tainted: bool
    held: str = ""
    needs_person: bool = False
    requested: str = ""
    passed: bool = False


@dataclass(slots=True)
class FleetState:
    """All node summaries by node name, and the state of the whole fleet."""

    node_summaries: dict[str, NodeSummary] = field(default_factory=dict)
    #: The nodes of this replica with a startup taint, and those whose test is under way.
    node_tests: Mapping[str, NodeTestView] = field(default_factory=dict)
    #: Gives the last test of a node in no quarantine; None: it has had none.
    last_test: Callable[[str], NodeTest | None] = lambda _node: None
    mode: str = "observe"
    how: str = ""  # flags that a command of `sickbay` needs to act here; begins with a space
    words: ClusterWords = KUBERNETES  # those of the cluster, for people
    documentation_url: str = ""  # where sections of the documentation are; empty: no address
    stop: str = ""  # the stop switch's reason; empty: not stopped
    clock_doubt: str = ""  # why the wall clock is not trusted now; empty: it is
    view_lost: str = ""  # why the watches are lost; empty: they are not
    record_entries: int = 0
    absent_entries: int = 0  # of these, whose Node is gone: they count for no limit
    limits: Mapping[str, str] = field(default_factory=dict)
    group_labels: tuple[str, ...] = ()  # node labels that name a pool or a place, for the page
    waiting_for_quorum: str = ""
    lemons: tuple[Lemon, ...] = ()  # repeat offenders of the last weeks, worst first
    lemons_trouble: str = ""  # why they can't be detected now
    causes: Mapping[str, CommonCause] = field(default_factory=dict)  # open common causes, by id
    cooling: str = ""  # until when no node is admitted, and why; empty: no cooldown
    admitted_lately: int = 0  # within the limits' window
    measurements: FleetMeasurements = field(default_factory=FleetMeasurements)
    network: Mapping[str, NetworkVerdict] = field(default_factory=dict)  # blamed now, by subject
    stages: StageTimes = field(default_factory=StageTimes)
    pools: Pools = field(default_factory=Pools)
    pool_use: Mapping[str, PoolUse] = field(default_factory=dict)  # by the pool's name
    repairs: RepairPlan = field(default_factory=RepairPlan)
    repairing: int = 0  # nodes with a repair under way, by the admission record

    def test_of(self, node: str) -> NodeTestView | None:
        """The last test of the node in no quarantine, or the one that it needs."""
        found, last = self.node_tests.get(node), self.last_test(node)
        return found or (NodeTestView(last, tainted=False) if last is not None else None)

    def pool_of(self, summary: NodeSummary | None) -> str:
        """The node's pool; empty: there are none, or its labels are not known."""
        return self.pools.name_of(summary.cluster.labels) if summary is not None else ""

    def mode_of(self, summary: NodeSummary) -> str:
        """The mode that caps what is done to the node."""
        return self.pools.mode_of(self.pool_of(summary)).value if self.pools else self.mode

    def name_gpus(self, node: str, text: str) -> str:
        """The text about the node, with its GPUs by index and PCI address, as far as known."""
        found = self.node_summaries.get(node)
        return name_gpus(text, found.agent.health) if found is not None else text

    def doubt_clock(self, why: str) -> None:
        self.clock_doubt = why
