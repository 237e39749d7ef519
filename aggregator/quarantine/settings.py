"""The controller's settings, and its limits as shown to people."""

from dataclasses import dataclass, field

from aggregator.cluster.port import Action
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.cause_search import CommonLimits
from aggregator.quarantine.decide.drain_plan import DrainRules
from aggregator.quarantine.decide.lost_marks import RestoreRules
from aggregator.quarantine.decide.uncordon import UncordonRules
from aggregator.quarantine.drain.hooks import HookRules
from aggregator.rfc3339 import span


@dataclass(frozen=True, slots=True)
class Settings:
    """The controller's settings. Times in seconds."""

    mode: Action
    limits: Limits
    common: CommonLimits
    drain: DrainRules
    drain_deadline: float
    evictions_at_once: int
    silent_after: float
    silent_drain_after: float
    off_balancers: bool = True
    absent_node_after: float = 86400.0
    hooks: HookRules = field(default_factory=HookRules)
    uncordon: UncordonRules = field(default_factory=UncordonRules)
    marks: RestoreRules = field(default_factory=RestoreRules)
    #: The action on a silent agent whose kubelet is ready and whose last evidence was failing.
    silent_action: str = "observe"


def limits_for_people(settings: Settings) -> dict[str, str]:
    """The limits by their names in the configuration."""
    limits, common = settings.limits, settings.common
    shown = {
        "concurrent": str(limits.concurrent),
        "concurrent_percent": f"{limits.concurrent_percent:g}%",
        "new_per_window": str(limits.new_per_window),
        "new_per_window_percent": f"{limits.new_per_window_percent:g}%",
        "window": span(limits.window),
        "cooldown": span(limits.cooldown),
        "after_upgrade": span(limits.after_upgrade),
        "absent_node_after": span(settings.absent_node_after),
        "common_cause_percent": f"{common.percent:g}%",
        "common_cause_nodes": str(common.nodes),
        "domain_percent": f"{common.domain_percent:g}%",
        "evictions_at_once": str(settings.evictions_at_once),
        "quorum_percent": f"{limits.quorum_percent:g}%",
    }
    if limits.pool_label:
        shown |= {"pool_label": limits.pool_label, "pool_percent": f"{limits.pool_percent:g}%"}
    return shown
