"""The reasons that Slurm itself gives, as conditions of the node. Pure."""

from collections.abc import Collection, Mapping

from aggregator.cluster.slurm.drain import OurDrain, has_our_words, words_of_slurm
from aggregator.cluster.slurm.state import SlurmNode
from aggregator.policy.node_condition import ReportedCondition
from aggregator.policy.slurm_reason import condition_of


def conditions_of(
    node: SlurmNode, ours: OurDrain | None, types: Collection[str], now: float
) -> Mapping[str, ReportedCondition]:
    """The conditions of these types. ``now``: wall clock seconds; Slurm was read then.

    Our own drain replaces Slurm's words on a node that is DOWN: there the earlier ones count, until
    Slurm appends others to ours.
    """
    hidden = ours is not None and has_our_words(node, ours)
    reason, since = node.reason, node.reason_at
    if ours is not None and hidden:
        appended = words_of_slurm(node, ours)
        reason, since = (appended[-1], since) if appended else (ours.before, 0)
    in_force = node.is_down or (node.has_drain and not hidden)
    kind = condition_of(reason) if in_force else ""
    return {
        one: ReportedCondition(
            type=one,
            status="True" if one == kind else "False",
            reason=one.removeprefix("Slurm"),
            message=f"Slurm's reason: {reason}" if one == kind else "",
            heartbeat=now,
            since=float(since) if one == kind else 0.0,
        )
        for one in types
    }
