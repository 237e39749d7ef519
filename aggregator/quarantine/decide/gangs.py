"""Which pods belong together: those that a scheduler or controller runs all or none of. Pure.

The keys are their makers' own: scheduler-plugins (coscheduling), Volcano, Kueue (plain pod groups),
LeaderWorkerSet, JobSet, the Kubeflow trainer; and the group that the pod's spec names (KEP-4671).
"""

import enum
from dataclasses import dataclass

from aggregator.cluster.port import Pod

#: The narrowest first: a LeaderWorkerSet's pods may carry Kueue's label of the same group too.
LABELS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "leaderworkerset.sigs.k8s.io/group-key",
    "kueue.x-k8s.io/pod-group-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
)
ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_SPEC = "spec"


class Gangs(enum.StrEnum):
    """How far a gang is taken together."""

    NODE = "node"  # its pods on the node that is drained
    WHOLE = "whole"  # those on other nodes too


@dataclass(frozen=True, slots=True, order=True)
class Gang:
    """One gang. ``key`` is the label, the annotation, or "spec" that names it."""

    namespace: str
    key: str
    name: str

    @property
    def label(self) -> str:
        """The label that all of its pods can be listed by; empty where there is none."""
        return self.key if self.key in LABELS else ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def gang_of(pod: Pod) -> Gang | None:
    """The gang that the pod belongs to, or None for a pod without one."""
    if pod.group:
        return Gang(pod.namespace, _SPEC, pod.group)
    for label in LABELS:
        if pod.labels.get(label):
            return Gang(pod.namespace, label, pod.labels[label])
    for annotation in ANNOTATIONS:
        if pod.annotations.get(annotation):
            return Gang(pod.namespace, annotation, pod.annotations[annotation])
    return None
