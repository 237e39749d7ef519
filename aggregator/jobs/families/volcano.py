"""Volcano: its own Job, and groups of pods of other owners. Pure.

https://github.com/volcano-sh/apis/blob/master/pkg/apis/batch/v1alpha1/labels.go
"""

from aggregator.jobs.family import Family, Loss

_JOB = "volcano.sh/job-name"

VOLCANO = Family(
    name="volcano",
    kind="Volcano Job",
    loss=Loss.GANG,
    job_keys=(_JOB,),
    gang_keys=("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", _JOB),
    queue_keys=("volcano.sh/queue-name", "scheduling.volcano.sh/queue-name"),
)
