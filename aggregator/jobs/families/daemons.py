"""Pods that belong to their node, and are no job's. Pure."""

from aggregator.jobs.family import Family, Loss

DAEMONS = Family(
    name="daemonset",
    kind="DaemonSet",
    loss=Loss.NOTHING,
    owner_kinds=("DaemonSet", "ExtendedDaemonSetReplicaSet", "Node"),
    progress=False,
)
