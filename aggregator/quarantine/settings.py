"""What the controller is told, and how its limits read to people."""

from dataclasses import dataclass, field

from aggregator.quarantine.cluster import Action
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.blame import CommonLimits
from aggregator.quarantine.decide.drainplan import DrainRules
from aggregator.quarantine.hooking import HookRules
from aggregator.quarantine.times import span


@dataclass(frozen=True, slots=True)
class Settings:
    """What the controller is told. Times in seconds."""

    mode: Action
    limits: Limits
    common: CommonLimits
    drain: DrainRules
    drain_deadline: float
    evictions_at_once: int
    silent_after: float
    silent_drain_after: float
    off_balancers: bool = True
    hooks: HookRules = field(default_factory=HookRules)
    #: What a silent agent calls for whose kubelet is ready and whose last evidence was failing.
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
        "common_cause_percent": f"{common.percent:g}%",
        "common_cause_nodes": str(common.nodes),
        "domain_percent": f"{common.domain_percent:g}%",
        "evictions_at_once": str(settings.evictions_at_once),
        "quorum_percent": f"{limits.quorum_percent:g}%",
    }
    if limits.pool_label:
        shown |= {"pool_label": limits.pool_label, "pool_percent": f"{limits.pool_percent:g}%"}
    return shown
