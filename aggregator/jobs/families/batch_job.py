"""The Job of Kubernetes itself: a lost pod is started again, after a growing delay. Pure.

The ranks of one Job hang without the lost one: such a Job has a gang's marker, or the annotation
`sickbay.dev/pod-loss`.
https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from aggregator.jobs.family import Family, Loss

BATCH_JOB = Family(
    name="job",
    kind="Job",
    loss=Loss.REPLICA,
    job_keys=("batch.kubernetes.io/job-name", "job-name"),
    owner_kinds=("Job",),
)
