"""Argo Workflows: the pod of one step. Pure.

https://github.com/argoproj/argo-workflows/blob/main/workflow/common/common.go
"""

from aggregator.jobs.family import Family, Loss

ARGO = Family(
    name="argo",
    kind="Workflow",
    loss=Loss.REPLICA,
    job_keys=("workflows.argoproj.io/workflow",),
    owner_kinds=("Workflow",),
)
