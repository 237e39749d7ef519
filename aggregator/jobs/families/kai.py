"""KAI Scheduler and Run:ai: every pod has a pod group, alone or with others. Pure.

https://github.com/NVIDIA/KAI-Scheduler/tree/main/docs
"""

from aggregator.jobs.family import Family, Loss

_GROUP = "pod-group-name"

KAI = Family(
    name="kai",
    kind="KAI pod group",
    loss=Loss.GANG,
    job_keys=(_GROUP,),
    gang_keys=(_GROUP,),
    queue_keys=("kai.scheduler/queue", "runai/queue", "project"),
)
