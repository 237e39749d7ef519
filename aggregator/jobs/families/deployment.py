"""Deployment: the lost replica is started again, perhaps on another node. Pure.

The pod's owner is a ReplicaSet; `aggregator.jobs.identity` removes the hash from its name.
"""

from aggregator.jobs.family import Family, Loss

DEPLOYMENT = Family(
    name="deployment",
    kind="Deployment",
    loss=Loss.REPLICA,
    owner_kinds=("ReplicaSet",),
    progress=False,
)
