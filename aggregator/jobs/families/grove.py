"""Grove: a PodGang is stopped as a whole after its terminationDelay. Pure.

https://github.com/ai-dynamo/grove/blob/main/operator/api/common/labels.go
"""

from aggregator.jobs.family import Family, Loss

_GANG = "grove.io/podgang"

GROVE = Family(
    name="grove",
    kind="PodGang",
    loss=Loss.GANG,
    job_keys=(_GANG,),
    gang_keys=(_GANG,),
    progress=False,
)
