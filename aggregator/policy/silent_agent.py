"""An agent that is gone while its kubelet is ready, and whose last evidence was failing. Pure.

Silence alone is no evidence. These three together are: the node is alive and takes work, and its
last known evidence is bad. By configuration that may cordon; it drains no node.
"""

from aggregator.health.model import Status
from aggregator.health.node import NodeHealth
from aggregator.policy.rules import HEALTHY_FOR, Match, Rule

#: The evidence's code. It is over when the agent reports again, and not before.
SILENT_FAILING = "agent:silent-failing"
#: Where it is configured, as people read it in the place of a rule's name.
SILENT_RULE = "agents.silent_failing"


def worst_failing(health: NodeHealth) -> str:
    """The failure by the agent's last report; empty where no check had failed."""
    failed = health.components.that_are(Status.FAILED)
    if not failed:
        return ""
    worst = min(failed, key=lambda one: (one.since, one.key))
    return f"{worst.check} {worst.component}".rstrip() + f": {worst.message or worst.reason}"


def silent_rule(action: str) -> Rule:
    """The rule that represents it among the rules. ``action`` is the configured one."""
    return Rule(
        name=SILENT_RULE,
        kind="node",
        action=action,
        why="Its kubelet takes work, no agent watches it, and its last known state is bad.",
        check="agent",
        healthy_for=HEALTHY_FOR,
    )


def silent_match(health: NodeHealth, last: str, since: float, action: str) -> Match:
    """The evidence. ``last`` is the check that was failing."""
    rule = silent_rule(action)
    message = f"its agent is silent, its kubelet is ready, and this was failing: {last}"
    return Match(rule, SILENT_FAILING, "", health.boot_id, message, None, since, since)
