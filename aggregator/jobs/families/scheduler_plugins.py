"""scheduler-plugins' coscheduling, and the PodGroups of the sigs.k8s.io group. Pure.

https://github.com/kubernetes-sigs/scheduler-plugins/blob/master/pkg/coscheduling/README.md
"""

from aggregator.jobs.family import Family, Loss

_KEYS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",  # Koordinator reads it as well
)

COSCHEDULING = Family(
    name="coscheduling",
    kind="pod group",
    loss=Loss.GANG,
    job_keys=_KEYS,
    gang_keys=_KEYS,
)
