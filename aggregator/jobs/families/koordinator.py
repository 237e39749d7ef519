"""Koordinator: gangs by annotation. Pure.

https://koordinator.sh/docs/user-manuals/gang-scheduling/
"""

from aggregator.jobs.family import Family, Loss

_GANG = "gang.scheduling.koordinator.sh/name"

KOORDINATOR = Family(
    name="koordinator",
    kind="Koordinator gang",
    loss=Loss.GANG,
    job_keys=(_GANG,),
    gang_keys=(_GANG,),
    size_keys=("gang.scheduling.koordinator.sh/total-number",),
)
