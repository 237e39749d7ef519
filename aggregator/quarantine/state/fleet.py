"""The fleet in memory: the known state of each node. Read by the page, written by the controller.

It can be lost: snapshots, Quarantine objects and the record bring all of it back.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from aggregator.cluster.port import Phase, Quarantine
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.health.gpu_names import name_gpus
from aggregator.policy.lemons import Lemon
from aggregator.policy.network.verdict import NetworkVerdict
from aggregator.policy.outliers.fleet import FleetMeasurements
from aggregator.quarantine.decide.cause_search import CommonCause
from aggregator.quarantine.decide.node_tests import NodeTest
from aggregator.quarantine.decide.pools import Pools
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.state.cluster_view import ClusterView
from aggregator.quarantine.state.evidence import AgentView, Decision
from aggregator.quarantine.state.quarantine_view import NO_QUARANTINE, QuarantineView
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.quarantine.state.work import Work

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
    """How a node stands, worst last; the page's colours."""

    OK = "ok"
    UNKNOWN = "unknown"  # no evidence yet, or only unknowns
    SILENT = "silent"  # its agent has gone quiet; failing evidence stays in force
    WARNING = "warning"  # degraded, or an incident that is only observed
    HELD = "held"  # no mark yet: a limit or the mode holds it, or the marks are still to be written
    QUARANTINED = "quarantined"


@dataclass(slots=True)
class NodeSummary:
    """One node, in parts; the module of a part alone assigns its fields."""

    node: str
    agent: AgentView = field(default_factory=AgentView)
    cluster: ClusterView = field(default_factory=ClusterView)
    decision: Decision = field(default_factory=Decision)
    work: Work = field(default_factory=Work)
    quarantine_view: QuarantineView = field(default_factory=lambda: NO_QUARANTINE)

    @property
    def quarantine(self) -> Quarantine | None:
        return self.quarantine_view.quarantine

    def own_quarantine_view(self) -> QuarantineView:
        """The node's own view, to be changed: made when it has none yet."""
        if self.quarantine_view is NO_QUARANTINE:
            self.quarantine_view = QuarantineView()
        return self.quarantine_view

    def standing(self) -> QuarantineSummary:
        health = self.agent.health
        if awaits_marks(self):
            return QuarantineSummary.HELD
        if self.quarantine is not None or self.cluster.marked or self.quarantine_view.unclaimed:
            return QuarantineSummary.QUARANTINED
        if self.decision.hold is not None or self.decision.would:
            return QuarantineSummary.HELD
        if health is None:
            return QuarantineSummary.UNKNOWN
        if not self.agent.speaks:
            return QuarantineSummary.SILENT
        if self.agent.conflict or self.decision.incidents or health.worst_is_degraded():
            return QuarantineSummary.WARNING
        return QuarantineSummary.UNKNOWN if health.only_unknown() else QuarantineSummary.OK


def awaits_marks(summary: NodeSummary) -> bool:
    """Whether the node is admitted and carries no mark yet: new work may still come to it."""
    return (
        summary.quarantine is not None
        and summary.quarantine.status.phase is Phase.ADMITTED
        and not summary.cluster.marked
    )


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool in the admission record: its nodes in quarantine, those admitted within the window,
    and until when it cools down, and why (empty: it does not).
    """

    standing: int
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
    mode: str = "observe"
    how: str = ""  # flags that a command of `sickbay` needs to act here; begins with a space
    words: ClusterWords = KUBERNETES  # those of the cluster, for people
    documentation_url: str = ""  # where sections of the documentation are; empty: no address
    stop: str = ""  # the stop switch's reason; empty: not stopped
    clock_doubt: str = ""  # why the wall clock is not believed now; empty: it is
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
