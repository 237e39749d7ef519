"""LeaderWorkerSet: one lost pod stops the pods of its group, and no other group. Pure.

https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/
"""

from aggregator.jobs.family import Family, Loss

LEADERWORKERSET = Family(
    name="leaderworkerset",
    kind="LeaderWorkerSet",
    loss=Loss.GANG,
    job_keys=("leaderworkerset.sigs.k8s.io/name",),
    gang_keys=("leaderworkerset.sigs.k8s.io/group-key",),
    size_keys=("leaderworkerset.sigs.k8s.io/size",),
    progress=False,  # it serves, mostly: requests are lost, and no work of hours
)
