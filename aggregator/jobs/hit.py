"""A job on a faulty node: its record, as details of a transition and back. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from aggregator.cluster.port import Pod
from aggregator.events import EventKind, Transition
from aggregator.jobs.checkpoint import costs_of
from aggregator.jobs.family import Loss
from aggregator.jobs.gpu_report import GpusOfPod
from aggregator.jobs.identity import (
    Job,
    JobSize,
    Markers,
    gpus_in_use,
    job_of,
    lost_with,
    size_of,
    within,
)
from aggregator.jobs.settings import JobRules
from aggregator.runtime.interning import EMPTY
from aggregator.runtime.text import counted, truncate

_FINISHED = ("Succeeded", "Failed")
#: Characters: some 20 GPUs with the names of their pods.
_MOST_GPU_IDS = 1_000
#: The fields of a record that a job has by the same name.
_OF_THE_JOB = ("key", "kind", "name", "namespace", "family", "team", "queue", "progress")


@dataclass(frozen=True, slots=True)
class JobOnNode:
    """``here``: its pods on the node, and one of them by key; ``whole``: all of its pods, as far as
    they were read; ``lost``: those that stop with the pods here; ``gpu_ids``: as in `gpus_named`.
    """

    job: Job
    pod: str
    pods: tuple[Pod, ...]
    here: JobSize
    whole: JobSize
    lost: JobSize
    nodes: int
    gpu_ids: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """One record of a job on a faulty node. ``stopped``: pods of it were evicted; otherwise it was
    there at the fault. Times are wall clock seconds.
    """

    at: float
    node: str
    incident: str
    stopped: bool
    key: str
    kind: str
    name: str
    namespace: str
    family: str
    team: str
    queue: str
    gang: str
    loss: str
    progress: bool
    pods_here: int
    gpus_here: int
    gpu_ids: str
    pods: int
    gpus: int
    lost_pods: int
    lost_gpus: int
    nodes: int
    code: str
    pool: str
    pod: str
    age: float
    age_source: str
    interval: float
    restart: float
    restart_source: str


def jobs_on(pods: Iterable[Pod], more: Markers, own_namespace: str) -> dict[Job, list[Pod]]:
    """The jobs with pods on a node, those with the most GPUs first, without what belongs to the
    node. ``own_namespace``: pods of sickbay's own are no job.
    """
    found: dict[Job, list[Pod]] = {}
    for pod in pods:
        if pod.phase in _FINISHED or pod.mirror or pod.namespace == own_namespace:
            continue
        job = job_of(pod, more)
        if job.loss is not Loss.NOTHING:
            found.setdefault(job, []).append(pod)
    order = sorted(found, key=lambda job: (-sum(map(gpus_in_use, found[job])), job))
    return {job: found[job] for job in order}


def evicted_details(pod: Pod, gang_keys: Sequence[str]) -> dict[str, str]:
    """The pod's job for the transition of its eviction: a pod without grace is gone at once."""
    job = job_of(pod, Markers(gangs=tuple(gang_keys)))
    return {
        "job": job.key,
        "job_kind": job.kind,
        "team": job.team,
        "queue": job.queue,
        "loss": job.loss.value,
        "progress": str(job.progress),
        "gpus": str(gpus_in_use(pod)),
    }


def from_evicted(details: Mapping[str, str]) -> JobOnNode | None:
    """The evicted pod's job, as far as its transition has it."""
    try:
        key = details["job"]
        namespace, family, name = (key if key.count("/") > 1 else f"/{key}").split("/", 2)
        size = JobSize(1, int(details["gpus"]))
        job = Job(
            namespace=namespace,
            family=family,
            name=name,
            kind=details["job_kind"],
            team=details["team"],
            queue=details["queue"],
            loss=Loss(details["loss"]),
            progress=details["progress"] == "True",
        )
    except (KeyError, ValueError):
        return None
    return JobOnNode(job, details.get("pod", ""), (), size, size, size, 1)


def gpus_named(here: Sequence[Pod], used: Mapping[str, GpusOfPod]) -> str:
    """Which GPUs each of the pods uses: "rank-0: GPU-1 GPU-2; rank-1: unknown"; "" without GPUs."""
    parts = []
    for pod in here:
        found = used.get(pod.uid)
        if found is not None and (found.gpus or (found.unknown and (pod.gpus or pod.has_claims))):
            ids = [*sorted(found.gpus), *(["unknown"] if found.unknown else [])]
            parts.append(f"{pod.name}: {' '.join(ids)}")
    return truncate("; ".join(parts), _MOST_GPU_IDS)


def on_node(
    job: Job,
    here: Sequence[Pod],
    others: Sequence[Pod],
    more: Markers,
    used: Mapping[str, GpusOfPod] = EMPTY,
) -> JobOnNode:
    """``others``: all pods of the job that a list has shown, with or without those here; ``used``:
    the GPUs of those here, by uid.
    """
    known = {pod.uid for pod in here}
    whole = [*here, *(pod for pod in others if pod.uid not in known)]
    lost = {one.uid: one for pod in here for one in lost_with(pod, job_of(pod, more), whole, more)}
    return JobOnNode(
        job=job,
        pod=here[0].key,
        pods=tuple(here),
        here=size_of(here),
        whole=size_of(whole),
        lost=size_of(lost.values()),
        nodes=len({pod.node for pod in whole if pod.node}),
        gpu_ids=gpus_named(here, used),
    )


def hit(
    found: JobOnNode,
    *,
    at: float,
    fault_at: float,
    node: str,
    incident: str,
    code: str,
    pool: str,
    stopped: bool,
    rules: JobRules,
) -> Hit:
    job = found.job
    costs = costs_of(found.pods, at, fault_at, rules)
    if not job.progress:
        costs = replace(costs, age=0.0)
    return Hit(
        at=at,
        node=node,
        incident=incident,
        stopped=stopped,
        **{name: getattr(job, name) for name in _OF_THE_JOB},
        gang=job.gang.name if job.gang else "",
        loss=job.loss.value,
        pods_here=found.here.pods,
        gpus_here=found.here.gpus,
        gpu_ids=found.gpu_ids,
        pods=found.whole.pods,
        gpus=found.whole.gpus,
        lost_pods=found.lost.pods,
        lost_gpus=found.lost.gpus,
        nodes=found.nodes,
        code=code,
        pool=pool,
        pod=found.pod,
        **asdict(costs),
    )


#: The fields that a transition has itself.
_ITS_OWN = frozenset({"at", "node", "incident", "stopped"})
_KINDS = {field.name: field.type for field in fields(Hit) if field.name not in _ITS_OWN}


def details_of(one: Hit) -> dict[str, str]:
    """The details of the transition that records it, all of them texts."""
    values = asdict(one)
    return {name: _text(values[name]) for name in _KINDS}


def hit_of(one: Transition) -> Hit | None:
    """The record that the transition is, or None for any other transition, and where details are
    missing or are no numbers.
    """
    if one.kind not in (EventKind.JOB_HIT, EventKind.JOB_STOPPED):
        return None
    try:
        values = {name: _value(kind, one.details[name]) for name, kind in _KINDS.items()}
    except (KeyError, ValueError):
        return None
    stopped = one.kind is EventKind.JOB_STOPPED
    return Hit(at=one.at, node=one.node, incident=one.incident, stopped=stopped, **values)


def _text(value: str | float | bool) -> str:  # noqa: FBT001 - any value of a field
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _value(kind: Any, text: str) -> Any:
    if kind is bool:
        return text == "True"
    found = kind(text)
    if isinstance(found, float) and not 0.0 <= found < 1e10:
        raise ValueError(text)
    return found


def summary(one: Hit, why: str) -> str:
    """The record in the words of the job's owner."""
    team = f" (team {one.team})" if one.team else ""
    who = f"{one.kind} {within(one.namespace)}{one.name}{team}"
    what = "stopped" if one.stopped else "is on the node"
    size = counted(one.lost_gpus, "GPU") if one.lost_gpus else counted(one.lost_pods, "pod")
    if one.loss == Loss.GANG and one.lost_pods == 1 and not one.lost_gpus:
        then = "it restarts" if one.stopped else "it stops with the node"
    elif one.loss == Loss.GANG:
        then = f"{size} restart" if one.stopped else f"{size} stop with it"
    else:
        then = f"{one.pods_here} of its pods {'start' if one.stopped else 'would start'} elsewhere"
    return f"{who} {what}: {why} on {one.node}; {then}"
