"""Objects of each family of jobs, their status and their pods, as the family's controllers make
them.

The controllers themselves do not run: pods of a Job are made by the real Job controller from the
template that JobSet's controller writes, the others here, with the labels that the family's
published source sets.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregator.jobs.family import Loss
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.waiting import wait_until
from tests.support.waiting import PATIENCE
from tests.support.yaml_documents import read_yaml

JSON = Mapping[str, Any]
GPUS = 4


@dataclass(frozen=True, slots=True)
class Workload:
    """One object of a family with two pods on a node.

    ``expected``: family, kind and name of the job, its gang, queue and team, declared size, and the
    loss with a pod. ``one``: labels that only one of its pods has. ``markers``: the keys on its
    pods that its published module sets.
    """

    make: Callable[["Site"], None]
    expected: tuple[str, str, str, str, str, str, int, Loss]
    one: Mapping[str, str]
    markers: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Site:
    """A node of the plane, and the namespace of the workloads."""

    space: Space
    node: str

    @property
    def plane(self) -> ControlPlane:
        return self.space.plane

    def create(
        self,
        version: str,
        kind: str,
        name: str,
        spec: JSON,
        status: JSON | None = None,
        **meta: Any,
    ) -> dict[str, Any]:
        """An owner's reference to the object, once it has its status."""
        # Discovery shows a new kind some time after it is served.
        path = f"/apis/{version}/namespaces/{self.space.namespace}/{kind.lower()}s"
        body = {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, **meta},
            "spec": spec,
        }
        made = self.plane.call("POST", path, body)
        if status is not None:
            merge = "application/merge-patch+json"
            kept = self.plane.call("PATCH", f"{path}/{name}/status", {"status": status}, merge)
            # A status that the definition does not know would be dropped without an error.
            assert set(kept["status"]) >= set(status), (kind, json.dumps(kept["status"]))
        return {
            "apiVersion": version,
            "kind": kind,
            "name": name,
            "uid": made["metadata"]["uid"],
            "controller": True,
        }

    def job(self, name: str, owner: JSON, labels: Mapping[str, str]) -> None:
        """A Job of two pods for the real Job controller."""
        template = {"metadata": {"labels": dict(labels)}, "spec": self._placed() | _RANK}
        spec = {
            "parallelism": 2,
            "completions": 2,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": template,
        }
        self.create("batch/v1", "Job", name, spec, ownerReferences=[owner], labels=dict(labels))

    def pod(
        self,
        name: str,
        labels: Mapping[str, str],
        annotations: Mapping[str, str] | None = None,
        owner: JSON | None = None,
    ) -> dict[str, Any]:
        body = {
            "metadata": {
                "name": name,
                "labels": dict(labels),
                "annotations": dict(annotations or {}),
                "ownerReferences": [owner] if owner else [],
            },
            "spec": _RANK | {"nodeName": self.node},
        }
        found: dict[str, Any] = self.plane.call("POST", self.space.path("pods"), body)
        return found

    def _placed(self) -> dict[str, Any]:
        fields = [{"key": "metadata.name", "operator": "In", "values": [self.node]}]
        terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        return {"affinity": affinity}


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@contextmanager
def defined(plane: ControlPlane, files: Iterable[Path]) -> Iterator[None]:
    """The plane serves these kinds. Descriptions are left out: they are most of each text, and the
    API server composes all texts again at each change.
    """
    known = [_without_descriptions(read_yaml(one.read_bytes())) for one in files]
    names = [one["metadata"]["name"] for one in known]
    try:
        for one in known:
            plane.call("POST", DEFINITIONS, one)
        for one in known:
            wait_until(
                functools.partial(_is_served, plane, one["spec"]),
                what=f"{one['metadata']['name']} to be served",
                timeout_s=PATIENCE,
            )
        yield
    finally:
        paths = [f"{DEFINITIONS}/{name}" for name in names]
        for path in paths:
            plane.request("DELETE", path)
        for path in paths:  # the next test may define the same
            plane.wait_gone(path, timeout_s=PATIENCE)


def _is_served(plane: ControlPlane, spec: JSON) -> bool:
    paths = [
        f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}?limit=1"
        for version in spec["versions"]
        if version["served"]
    ]
    return all(plane.request("GET", path).status == 200 for path in paths)


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_descriptions(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_descriptions(value)
        for key, value in schema.items()
        if not (key == "description" and isinstance(value, str))
    }


_AMOUNT = {"limits": {"nvidia.com/gpu": str(GPUS)}}
_CONTAINERS = [{"name": "main", "image": "example.test/rank:1", "resources": _AMOUNT}]
_RANK: dict[str, Any] = {"restartPolicy": "Never", "containers": _CONTAINERS}
_TEMPLATE = {"spec": _RANK}
_JOBSET, _LWS = "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/"


def _replicated(name: str) -> dict[str, Any]:
    template = {"spec": {"parallelism": 2, "completions": 2, "template": _TEMPLATE}}
    return {"name": name, "replicas": 1, "template": template}


def _job_status(name: str) -> dict[str, Any]:
    counts = {"active": 1, "ready": 1, "succeeded": 0, "failed": 0, "suspended": 0}
    return {"restarts": 0, "replicatedJobsStatus": [{"name": name, **counts}]}


def _jobset(
    site: Site, name: str, step: str, labels: Mapping[str, str], owner: JSON | None = None
) -> None:
    jobset = site.create(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        name,
        {"replicatedJobs": [_replicated(step)]},
        _job_status(step),
        ownerReferences=[owner] if owner else [],
    )
    job = f"{name}-{step}-0"
    marks = {
        f"{_JOBSET}jobset-name": name,
        f"{_JOBSET}jobset-uid": jobset["uid"],
        f"{_JOBSET}replicatedjob-name": step,
        f"{_JOBSET}replicatedjob-replicas": "1",
        f"{_JOBSET}job-index": "0",
        f"{_JOBSET}restart-attempt": "0",
    }
    site.job(job, jobset, {**marks, **labels})


def _jobset_in_a_queue(site: Site) -> None:
    _jobset(site, "ranks", "workers", {"kueue.x-k8s.io/local-queue-name": "vision"})


def _trainjob(site: Site) -> None:
    status = {"jobsStatus": [_job_status("node")["replicatedJobsStatus"][0]]}
    owner = site.create(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        "llama",
        {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 2}},
        status,
    )
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    _jobset(site, "llama", "node", step, owner)


def _leaderworkerset(site: Site) -> None:
    owner = site.create(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "vllm",
        {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": _TEMPLATE}},
        {"replicas": 1, "readyReplicas": 1},
    )

    def marks(index: int) -> dict[str, str]:
        return {
            f"{_LWS}name": "vllm",
            f"{_LWS}group-index": "0",
            f"{_LWS}group-key": "5c5f",
            f"{_LWS}worker-index": str(index),
        }

    size = {f"{_LWS}size": "2"}
    sets = {"serviceName": "vllm", "replicas": 0, "template": {"metadata": {}, **_TEMPLATE}}
    leaders = _stateful_set(site, "vllm", sets, owner)
    leader = site.pod("vllm-0", marks(0), size, leaders)
    body = {"apiVersion": "v1", "kind": "Pod", "name": "vllm-0", "controller": True}
    workers = _stateful_set(site, "vllm-0", sets, body | {"uid": leader["metadata"]["uid"]})
    site.pod("vllm-0-1", marks(1), size, workers)


def _stateful_set(site: Site, name: str, spec: JSON, owner: JSON) -> dict[str, Any]:
    """Not followed by its controller: a reference to it with no replicas would end the pods."""
    labels = {"matchLabels": {"of": name}}
    metadata = {"metadata": {"labels": {"of": name}}}
    never = {"containers": _CONTAINERS}
    spec = {**spec, "selector": labels, "template": metadata | {"spec": never}}
    return site.create("apps/v1", "StatefulSet", name, spec, ownerReferences=[owner])


def _volcano(site: Site) -> None:
    site.create(
        "scheduling.volcano.sh/v1beta1",
        "PodGroup",
        "sim-6b1a",
        {"minMember": 2, "queue": "physics"},
        {"phase": "Running", "running": 2},
    )
    owner = site.create(
        "batch.volcano.sh/v1alpha1",
        "Job",
        "sim",
        {
            "minAvailable": 2,
            "queue": "physics",
            "tasks": [{"name": "rank", "replicas": 2, "template": _TEMPLATE}],
        },
        {"state": {"phase": "Running"}, "minAvailable": 2, "running": 2},
    )
    for index in ("0", "1"):
        labels = {
            "volcano.sh/job-name": "sim",
            "volcano.sh/queue-name": "physics",
            "volcano.sh/task-index": index,
        }
        group = {"scheduling.k8s.io/group-name": "sim-6b1a"}
        site.pod(f"sim-rank-{index}", labels, group, owner)


def _kueue(site: Site) -> None:
    pods = []
    for index in ("0", "1"):
        labels = {
            "kueue.x-k8s.io/managed": "true",
            "kueue.x-k8s.io/pod-group-name": "pair",
            "kueue.x-k8s.io/queue-name": "user-queue",
            "rank": index,
        }
        total = {"kueue.x-k8s.io/pod-group-total-count": "2"}
        pods.append(site.pod(f"pair-{index}", labels, total))
    owners = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": p["metadata"]["name"],
            "uid": p["metadata"]["uid"],
        }
        for p in pods
    ]
    at = "2026-01-01T00:00:00Z"
    admitted = {"type": "Admitted", "status": "True", "reason": "Admitted", "message": ""}
    assigned = {"name": "main", "count": 2}
    site.create(
        "kueue.x-k8s.io/v1beta2",
        "Workload",
        "pair",
        {
            "queueName": "user-queue",
            "podSets": [{"name": "main", "count": 2, "template": _TEMPLATE}],
        },
        {
            "conditions": [admitted | {"lastTransitionTime": at}],
            "admission": {"clusterQueue": "all", "podSetAssignments": [assigned]},
        },
        ownerReferences=owners,
    )


def _ray(site: Site) -> None:
    group = {"groupName": "w", "replicas": 1, "minReplicas": 1, "maxReplicas": 1}
    start = {"rayStartParams": {}, "template": _TEMPLATE}
    owner = site.create(
        "ray.io/v1",
        "RayCluster",
        "tune",
        {"headGroupSpec": start, "workerGroupSpecs": [group | start]},
        {"state": "ready", "readyWorkerReplicas": 1, "desiredWorkerReplicas": 1},
    )
    for role, group_name in (("head", "headgroup"), ("worker", "w")):
        labels = {
            "ray.io/cluster": "tune",
            "ray.io/node-type": role,
            "ray.io/group": group_name,
            "ray.io/is-ray-node": "yes",
        }
        site.pod(f"tune-{role}", labels, owner=owner)


_INDEX = "batch.kubernetes.io/job-completion-index"
_JOB = "batch.kubernetes.io/job-name"
WORKLOADS: dict[str, Workload] = {
    "jobset": Workload(
        _jobset_in_a_queue,
        ("jobset", "JobSet", "ranks", "ranks", "vision", "vision", 0, Loss.GANG),
        {_JOB: "ranks-workers-0", _INDEX: "1"},
        (f"{_JOBSET}jobset-name",),
        "jobset",
    ),
    "trainer": Workload(
        _trainjob,
        ("trainer", "TrainJob", "llama", "llama", "", "", 0, Loss.GANG),
        {_JOB: "llama-node-0", _INDEX: "1"},
        ("trainer.kubeflow.org/trainjob-ancestor-step",),
        "trainer",
    ),
    "leaderworkerset": Workload(
        _leaderworkerset,
        ("leaderworkerset", "LeaderWorkerSet", "vllm", "5c5f", "", "", 2, Loss.GANG),
        {f"{_LWS}name": "vllm", f"{_LWS}worker-index": "1"},
        (f"{_LWS}name", f"{_LWS}group-key", f"{_LWS}size"),
        "leaderworkerset",
    ),
    "volcano": Workload(
        _volcano,
        ("volcano", "Volcano Job", "sim", "sim-6b1a", "physics", "physics", 0, Loss.GANG),
        {"volcano.sh/job-name": "sim", "volcano.sh/task-index": "1"},
        ("volcano.sh/job-name", "volcano.sh/queue-name", "scheduling.k8s.io/group-name"),
        "volcano-apis",
    ),
    "kueue": Workload(
        _kueue,
        ("kueue", "Kueue pod group", "pair", "pair", "user-queue", "user-queue", 2, Loss.GANG),
        {"kueue.x-k8s.io/pod-group-name": "pair", "rank": "1"},
        (
            "kueue.x-k8s.io/pod-group-name",
            "kueue.x-k8s.io/pod-group-total-count",
            "kueue.x-k8s.io/queue-name",
            "kueue.x-k8s.io/local-queue-name",
        ),
        "kueue",
    ),
    "kuberay": Workload(
        _ray,
        ("kuberay", "RayCluster", "tune", "tune", "", "", 0, Loss.GANG),
        {"ray.io/cluster": "tune", "ray.io/node-type": "worker"},
        ("ray.io/cluster", "ray.io/node-type"),
        "kuberay",
    ),
}
