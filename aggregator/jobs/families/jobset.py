"""JobSet: the ranks of one job in several Jobs, which restart together. Pure.

https://jobset.sigs.k8s.io/docs/reference/labels/
"""

from aggregator.jobs.family import Family, Loss

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"

JOBSET = Family(
    name="jobset",
    kind="JobSet",
    loss=Loss.GANG,
    job_keys=(JOBSET_NAME,),
    gang_keys=(JOBSET_NAME,),
)
