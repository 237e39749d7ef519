"""StatefulSet: the lost replica is started again. Pure."""

from aggregator.jobs.family import Family, Loss

STATEFULSET = Family(
    name="statefulset",
    kind="StatefulSet",
    loss=Loss.REPLICA,
    owner_kinds=("StatefulSet",),
    progress=False,
)
