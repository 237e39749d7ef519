"""From a pod to its job: name, gang, queue, team, and what the loss of the pod costs it. Pure.

No marker reaches beyond the pod's namespace, and no number in one counts pods: the size of a job is
the number of its pods (`size_of`), and a declared size is shown, within a bound.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from aggregator.cluster.port import Pod
from aggregator.jobs.family import FAMILIES, GANG_FAMILIES, Family, Loss, marker
from aggregator.jobs.gangs import Gang, gang_of
from aggregator.runtime.text import visible

#: An owner's own statement of what one lost pod costs: "gang", "replica" or "nothing".
POD_LOSS = "sickbay.dev/pod-loss"
#: The largest number of pods that a marker can declare.
MOST_DECLARED = 100_000
_MOST_NAME = 253
_FINISHED = ("Succeeded", "Failed")
_SITE = Family(name="site", kind="job", loss=Loss.GANG)


@dataclass(frozen=True, slots=True)
class Markers:
    """A site's own markers, which are read before the shipped ones.

    ``jobs`` name a job whose pods are one gang, ``gangs`` a gang, ``teams`` the team.
    """

    jobs: tuple[str, ...] = ()
    gangs: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()


SHIPPED = Markers()


def within(namespace: str) -> str:
    """The namespace before a name in it; empty outside Kubernetes, where there is none."""
    return f"{namespace}/" if namespace else ""


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """One job. Equal jobs have the same namespace, family and name.

    ``declared`` is the number of pods by a marker, 0 without one. ``label``: all pods of the job
    have it with the value ``name``; empty where no label lists them. ``progress``: work since the
    last checkpoint is lost with a pod.
    """

    namespace: str
    family: str
    name: str
    kind: str = field(compare=False)
    team: str = field(compare=False)
    queue: str = field(default="", compare=False)
    gang: Gang | None = field(default=None, compare=False)
    declared: int = field(default=0, compare=False)
    loss: Loss = field(default=Loss.REPLICA, compare=False)
    progress: bool = field(default=True, compare=False)
    label: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """Names the job in history and in addresses; outside Kubernetes it has no namespace."""
        return f"{within(self.namespace)}{self.family}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {within(self.namespace)}{self.name}"


@dataclass(frozen=True, slots=True)
class JobSize:
    """Pods that have a node and have not ended, and the GPUs that the running ones request."""

    pods: int = 0
    gpus: int = 0


def job_of(pod: Pod, more: Markers = SHIPPED) -> Job:
    """The job of the pod. Every pod has one: a pod without owner and marker is its own."""
    family, name, label = _family_of(pod, more)
    gang = gang_of(pod, (*more.jobs, *more.gangs))
    queue = _first(pod, (key for one in GANG_FAMILIES for key in one.queue_keys))
    return Job(
        namespace=pod.namespace,
        family=family.name,
        name=visible(name, _MOST_NAME) or pod.name,
        kind=family.kind if family.name != "other" else visible(pod.owner_kind, _MOST_NAME),
        team=_first(pod, more.teams) or queue or pod.namespace,
        queue=queue,
        gang=gang,
        declared=_declared(pod),
        loss=_loss(pod, family, gang),
        progress=family.progress,
        label=label,
    )


def size_of(pods: Iterable[Pod]) -> JobSize:
    """The size of the job, or of its part, that these pods are."""
    there = [pod for pod in pods if pod.node and pod.phase not in _FINISHED]
    return JobSize(len(there), sum(map(gpus_in_use, there)))


def gpus_in_use(pod: Pod) -> int:
    """The GPUs of a pod that its kubelet runs. A pod may name any node, and request any number, but
    no kubelet runs a pod whose GPUs its node lacks.
    """
    return pod.gpus if pod.phase == "Running" else 0


def lost_with(pod: Pod, job: Job, pods: Sequence[Pod], more: Markers = SHIPPED) -> list[Pod]:
    """Of the job's pods those that stop when this one does, itself included."""
    if job.loss is Loss.NOTHING:
        return []
    if job.loss is Loss.REPLICA:
        return [pod]
    keys = (*more.jobs, *more.gangs)
    same = [
        one
        for one in pods
        if one.uid != pod.uid
        and one.namespace == pod.namespace
        and (gang_of(one, keys) == job.gang if job.gang else job_of(one, more) == job)
    ]
    return [pod, *same]


def _family_of(pod: Pod, more: Markers) -> tuple[Family, str, str]:
    for key in more.jobs:
        if value := marker(pod, key):
            return _SITE, value, key if pod.labels.get(key) else ""
    for family in FAMILIES:
        name, label = family.name_in(pod)
        if name:
            return family, _without_hash(pod, name) if family.name == "deployment" else name, label
    if pod.group:
        return Family(name="pod-group", kind="PodGroup", loss=Loss.GANG), pod.group, ""
    if pod.owner_kind:
        return Family(name="other", kind="", loss=Loss.REPLICA), pod.owner_name, ""
    return Family(name="pod", kind="Pod", loss=Loss.REPLICA), pod.name, ""


def _without_hash(pod: Pod, owner: str) -> str:
    """The Deployment's name: that of the ReplicaSet without its hash."""
    suffix = f"-{pod.labels.get('pod-template-hash', '')}"
    return owner.removesuffix(suffix) if len(suffix) > 1 else owner


def _loss(pod: Pod, family: Family, gang: Gang | None) -> Loss:
    stated = pod.annotations.get(POD_LOSS, "")
    if stated in set(Loss):
        return Loss(stated)
    if family.head_label:
        is_head = pod.labels.get(family.head_label) == family.head_value
        return Loss.GANG if is_head else family.loss
    if family.loss is Loss.REPLICA and gang is not None and family.progress:
        return Loss.GANG
    return family.loss


def _declared(pod: Pod) -> int:
    for family in GANG_FAMILIES:
        for key in family.size_keys:
            text = marker(pod, key)
            if text.isascii() and text.isdigit() and len(text) < 16:
                return min(int(text), MOST_DECLARED)
    return 0


def _first(pod: Pod, keys: Iterable[str]) -> str:
    return visible(next((value for key in keys if (value := marker(pod, key))), ""), _MOST_NAME)
