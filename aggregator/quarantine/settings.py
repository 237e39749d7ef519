"""The controller's settings, and its limits as shown to people."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from aggregator.cluster.port import Action
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import Duration, NodeLabels
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.common_cause import CommonLimits
from aggregator.quarantine.decide.drain_plan import DrainRules
from aggregator.quarantine.decide.held import limit_text
from aggregator.quarantine.decide.lost_marks import RestoreRules
from aggregator.quarantine.decide.maintenance import MaintenanceRules
from aggregator.quarantine.decide.node_conditions import NodeConditionRule
from aggregator.quarantine.decide.node_events import EventRules
from aggregator.quarantine.decide.pools import Pool
from aggregator.quarantine.decide.uncordon import UncordonRules
from aggregator.quarantine.drain.hooks import HookRules
from aggregator.quarantine.drain.pod_waits import InTurn, PodWaits
from aggregator.quarantine.repair.protocol import RepairSettings


@dataclass(frozen=True, slots=True)
class SilenceRules(SectionDataclass):
    """When an agent is silent (seconds), and the action where its kubelet is ready and its last
    evidence was failing: a part of the section ``agents``. ``none_on``: labels of further nodes on
    which no agent runs.
    """

    silent_after: Annotated[Duration, Field(ge=1)] = 60.0
    """An agent that has sent no message for this long is silent: shown, never quarantined for it.
    At least two heartbeats.
    """
    silent_failing: Literal["alert", "cordon"] = "alert"
    """An agent is silent, its kubelet is ready, and its last evidence was failing: ``alert`` sends
    an alert, ``cordon`` also cordons, through every limit. See docs/release.md.
    """
    none_on: NodeLabels = ()
    """Labels of nodes on which no agent runs, as ``"KEY=VALUE"`` or ``"KEY"``, in addition to
    Fargate's and ``type=virtual-kubelet``: these nodes count for no limit and no quorum.
    """

    @property
    def silent_action(self) -> str:
        """As a rule's action."""
        return "cordon" if self.silent_failing == "cordon" else "observe"


@dataclass(frozen=True, slots=True)
class ReconcilerRules(SectionDataclass):
    """The section ``reconcilers``: those that a site leaves out, with their rights."""

    drain: bool = True
    """``false``: no pod is evicted, and ``mode`` is ``cordon`` at most. The right to create
    ``pods/eviction`` is not needed.
    """
    operations: bool = True
    """``false``: no repair and no test is begun or followed. Needs ``repair.mode`` ``off``; let
    those that are open end before. No right to Operations is needed.
    """
    publish: bool = True
    """``false``: no Event is written, and the conditions of a Quarantine are written with its other
    changes alone. The right to create ``events`` is not needed.
    """


@dataclass(frozen=True, slots=True)
class Settings:
    """The controller's settings: sections of the configuration, hooks and waits made of some.

    ``mode`` is that of the nodes in no pool of ``pools``, and of pools without one.
    """

    mode: Action
    pools: tuple[Pool, ...] = ()
    limits: Limits = field(default_factory=Limits)
    common: CommonLimits = field(default_factory=CommonLimits)
    drain: DrainRules = field(default_factory=DrainRules)
    silence: SilenceRules = field(default_factory=SilenceRules)
    hooks: HookRules = field(default_factory=HookRules)
    waits: PodWaits = field(default_factory=InTurn)
    uncordon: UncordonRules = field(default_factory=UncordonRules)
    marks: RestoreRules = field(default_factory=RestoreRules)
    maintenance: MaintenanceRules = field(default_factory=MaintenanceRules)
    conditions: tuple[NodeConditionRule, ...] = ()
    events: EventRules = field(default_factory=EventRules)
    repair: RepairSettings = field(default_factory=RepairSettings)
    reconcilers: ReconcilerRules = field(default_factory=ReconcilerRules)


#: The limits that people see, of admission and of common causes.
_SHOWN = (
    *("concurrent", "concurrent_percent", "small_fleet_floor", "new_per_window"),
    *("new_per_window_percent", "window", "cooldown", "after_upgrade", "fabric_hold"),
    *("absent_node_after", "common_cause_percent", "common_cause_nodes", "domain_percent"),
    *("evictions_at_once", "per_workload", "quorum_percent"),
)


def limits_for_people(settings: Settings) -> dict[str, str]:
    """The limits by their names in the configuration."""
    limits, common = settings.limits, settings.common
    found = {key: limit_text(limits if hasattr(limits, key) else common, key) for key in _SHOWN}
    if limits.pool_label:
        found |= {key: limit_text(limits, key) for key in ("pool_label", "pool_percent")}
    return found


def group_labels(settings: Settings) -> tuple[str, ...]:
    """The node labels that name a pool, a place or a clique, each once."""
    limits, common = settings.limits, settings.common
    found = (limits.pool_label, *common.domain_labels, common.clique_label)
    return tuple(dict.fromkeys(key for key in found if key))
