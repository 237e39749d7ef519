"""Kubeflow Trainer v2: a TrainJob is a JobSet of its own name. Pure.

The label is on the pods where the runtime's template has it; without it the job is the JobSet.
https://www.kubeflow.org/docs/components/trainer/
"""

from aggregator.jobs.families.jobset import JOBSET_NAME
from aggregator.jobs.family import Family, Loss

TRAINER = Family(
    name="trainer",
    kind="TrainJob",
    loss=Loss.GANG,
    job_keys=(JOBSET_NAME,),
    only_with="trainer.kubeflow.org/trainjob-ancestor-step",
)
