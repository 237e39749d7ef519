"""Which pods belong together: those that a scheduler or controller runs all or none of. Pure.

A gang is named by the pod's spec (KEP-4671), or by a label or an annotation whose equal value makes
it. The shipped keys are their makers' own; a site adds those of its scheduler.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from aggregator.cluster.port import Pod

#: The narrowest first: a LeaderWorkerSet's pods may carry Kueue's label of the same group too.
SHIPPED_KEYS = (
    "scheduling.x-k8s.io/pod-group",  # scheduler-plugins (coscheduling)
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    "gang.scheduling.koordinator.sh/name",  # Koordinator
    "leaderworkerset.sigs.k8s.io/group-key",
    "grove.io/podgang",
    "kueue.x-k8s.io/pod-group-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "scheduling.k8s.io/group-name",  # Volcano
    "scheduling.volcano.sh/group-name",
    "volcano.sh/job-name",
    "pod-group-name",  # KAI
    "ray.io/cluster",
)
_SPEC = "spec"


class Gangs(enum.StrEnum):
    """How far a gang is taken together."""

    NODE = "node"  # its pods on the node that is drained
    WHOLE = "whole"  # those on other nodes too


@dataclass(frozen=True, slots=True, order=True)
class Gang:
    """One gang. ``key`` is the label, the annotation, or "spec" that names it.

    ``label``: the label that all of its pods can be listed by; empty where there is none.
    """

    namespace: str
    key: str
    name: str
    label: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def gang_of(pod: Pod, more: Sequence[str] = ()) -> Gang | None:
    """The gang that the pod belongs to, or None for a pod without one.

    ``more``: a site's own keys, which go before the shipped ones.
    """
    if pod.group:
        return Gang(pod.namespace, _SPEC, pod.group)
    for key in (*more, *SHIPPED_KEYS):
        if name := pod.labels.get(key):
            return Gang(pod.namespace, key, name, label=key)
        if name := pod.annotations.get(key):
            return Gang(pod.namespace, key, name)
    return None
