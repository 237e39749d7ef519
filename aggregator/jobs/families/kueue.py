"""Kueue: queues of any job, and groups of plain pods. Pure.

https://kueue.sigs.k8s.io/docs/reference/labels-and-annotations/
"""

from aggregator.jobs.family import Family, Loss

_GROUP = "kueue.x-k8s.io/pod-group-name"

KUEUE = Family(
    name="kueue",
    kind="Kueue pod group",
    loss=Loss.GANG,
    job_keys=(_GROUP,),
    gang_keys=(_GROUP,),
    size_keys=("kueue.x-k8s.io/pod-group-total-count",),
    queue_keys=("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/local-queue-name"),
)
