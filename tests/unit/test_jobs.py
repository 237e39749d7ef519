"""From a pod to its job: each family's markers as its controller sets them, and hostile ones."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.kubernetes.objects import PodObject, to_pod
from aggregator.cluster.port import Pod
from aggregator.jobs.family import FAMILIES, GANG_FAMILIES, Loss
from aggregator.jobs.hit import evicted_details
from aggregator.jobs.identity import (
    MOST_DECLARED,
    POD_LOSS,
    Job,
    JobSize,
    Markers,
    job_of,
    lost_with,
    size_of,
)

_LWS, _JOBSET = "leaderworkerset.sigs.k8s.io/", "jobset.sigs.k8s.io/"


def pod(
    name: str = "p", *, owner: tuple[str, str] = ("", ""), gpus: Any = None, **meta: Any
) -> Pod:
    """The pod as an API server sends it."""
    kind, owned_by = owner
    refs = [{"kind": kind, "name": owned_by, "controller": True}] if kind else []
    requests = {} if gpus is None else {"nvidia.com/gpu": gpus, "cpu": "4"}
    body = {
        "metadata": {
            "name": name,
            "namespace": meta.pop("namespace", "ml"),
            "uid": f"uid-{name}",
            "ownerReferences": refs,
            **meta,
        },
        "spec": {
            "nodeName": "gpu-17",
            "containers": [{"name": "main", "resources": {"requests": requests}}],
        },
        "status": {"phase": "Running"},
    }
    return to_pod(msgspec.json.decode(msgspec.json.encode(body), type=PodObject))


#: (pod, family, name of the job, gang, queue, loss, declared size), the markers as set by the
#: controllers of the versions in docs/jobs.md.
CASES: dict[str, tuple[Pod, str, str, str, str, Loss, int]] = {
    "jobset with kueue": (
        pod(
            "ranks-workers-0-1-x2x9k",
            owner=("Job", "ranks-workers-0"),
            labels={
                "batch.kubernetes.io/job-name": "ranks-workers-0",
                "batch.kubernetes.io/job-completion-index": "1",
                f"{_JOBSET}jobset-name": "ranks",
                f"{_JOBSET}global-replicas": "3",
                f"{_JOBSET}restart-attempt": "0",
                "kueue.x-k8s.io/local-queue-name": "vision",
            },
        ),
        *("jobset", "ranks", "ranks", "vision", Loss.GANG, 0),
    ),
    "trainer": (
        pod(
            owner=("Job", "llama-node-0"),
            labels={
                f"{_JOBSET}jobset-name": "llama",
                "trainer.kubeflow.org/trainjob-ancestor-step": "trainer",
            },
        ),
        *("trainer", "llama", "llama", "", Loss.GANG, 0),
    ),
    "leaderworkerset": (
        pod(
            owner=("StatefulSet", "vllm-0"),
            labels={f"{_LWS}name": "vllm", f"{_LWS}group-key": "5c5f", f"{_LWS}group-index": "0"},
            annotations={f"{_LWS}size": "4"},
        ),
        *("leaderworkerset", "vllm", "5c5f", "", Loss.GANG, 4),
    ),
    "pytorchjob": (
        pod(
            owner=("PyTorchJob", "bert"),
            labels={
                "training.kubeflow.org/job-name": "bert",
                "training.kubeflow.org/operator-name": "pytorchjob-controller",
            },
        ),
        *("training-operator", "bert", "bert", "", Loss.GANG, 0),
    ),
    "mpijob": (
        pod(
            owner=("MPIJob", "nccl"),
            labels={
                "training.kubeflow.org/job-name": "nccl",
                "training.kubeflow.org/job-role": "worker",
                "training.kubeflow.org/operator-name": "mpi-operator",
            },
        ),
        *("mpi-operator", "nccl", "nccl", "", Loss.GANG, 0),
    ),
    "volcano": (
        pod(
            owner=("Job", "sim"),
            labels={"volcano.sh/job-name": "sim", "volcano.sh/queue-name": "physics"},
            annotations={"scheduling.k8s.io/group-name": "sim-6b1a"},
        ),
        *("volcano", "sim", "sim-6b1a", "physics", Loss.GANG, 0),
    ),
    "kueue pod group": (
        pod(
            labels={
                "kueue.x-k8s.io/pod-group-name": "pair",
                "kueue.x-k8s.io/queue-name": "user-queue",
            },
            annotations={"kueue.x-k8s.io/pod-group-total-count": "2"},
        ),
        *("kueue", "pair", "pair", "user-queue", Loss.GANG, 2),
    ),
    "a Job of a scheduler's group": (
        pod(
            owner=("Job", "one"),
            labels={
                "batch.kubernetes.io/job-name": "one",
                "scheduling.x-k8s.io/pod-group": "all",
            },
        ),
        *("job", "one", "all", "", Loss.GANG, 0),
    ),
    "scheduler-plugins alone": (
        pod(labels={"scheduling.x-k8s.io/pod-group": "all"}),
        *("coscheduling", "all", "all", "", Loss.GANG, 0),
    ),
    "koordinator": (
        pod(
            annotations={
                "gang.scheduling.koordinator.sh/name": "k",
                "gang.scheduling.koordinator.sh/total-number": "6",
            }
        ),
        *("koordinator", "k", "k", "", Loss.GANG, 6),
    ),
    "kai": (
        pod(
            owner=("ReplicaSet", "web-5d9"),
            labels={"kai.scheduler/queue": "team-a", "pod-template-hash": "5d9"},
            annotations={"pod-group-name": "pg-web-1"},
        ),
        *("deployment", "web", "pg-web-1", "team-a", Loss.REPLICA, 0),
    ),
    "kai alone": (
        pod(labels={"runai/queue": "q"}, annotations={"pod-group-name": "pg"}),
        *("kai", "pg", "pg", "q", Loss.GANG, 0),
    ),
    "grove": (
        pod(owner=("PodClique", "x-0-w"), labels={"grove.io/podgang": "x-0"}),
        *("grove", "x-0", "x-0", "", Loss.GANG, 0),
    ),
    "ray worker": (
        pod(
            owner=("RayCluster", "tune"),
            labels={"ray.io/cluster": "tune", "ray.io/node-type": "worker"},
        ),
        *("kuberay", "tune", "tune", "", Loss.REPLICA, 0),
    ),
    "ray head": (
        pod(
            owner=("RayCluster", "tune"),
            labels={"ray.io/cluster": "tune", "ray.io/node-type": "head"},
        ),
        *("kuberay", "tune", "tune", "", Loss.GANG, 0),
    ),
    "argo": (
        pod(owner=("Workflow", "etl-x"), labels={"workflows.argoproj.io/workflow": "etl-x"}),
        *("argo", "etl-x", "", "", Loss.REPLICA, 0),
    ),
    "a Job that a Workflow makes": (
        pod(
            owner=("Job", "fit"),
            labels={
                "workflows.argoproj.io/workflow": "etl-x",
                "batch.kubernetes.io/job-name": "fit",
            },
        ),
        *("job", "fit", "", "", Loss.REPLICA, 0),
    ),
    "slurm-bridge": (
        pod(
            labels={"scheduler.slinky.slurm.net/slurm-jobid": "4711"},
            annotations={"slurmjob.slinky.slurm.net/account": "chem"},
        ),
        *("slurm-bridge", "4711", "4711", "chem", Loss.GANG, 0),
    ),
    "slurm": (
        pod(
            owner=("SlurmJob", "4711"),
            annotations={"slurm.schedmd.com/account": "chem", "slurm.schedmd.com/partition": "a"},
        ),
        *("slurm", "4711", "", "chem", Loss.GANG, 0),
    ),
    "slurmd": (
        pod(owner=("NodeSet", "h100"), labels={"nodeset.slinky.slurm.net/pod-name": "h100-3"}),
        *("slurm-node", "h100-3", "", "", Loss.REPLICA, 0),
    ),
    "statefulset": (
        pod(owner=("StatefulSet", "db")),
        *("statefulset", "db", "", "", Loss.REPLICA, 0),
    ),
    "daemonset": (
        pod(owner=("DaemonSet", "exporter")),
        *("daemonset", "exporter", "", "", Loss.NOTHING, 0),
    ),
    "an owner of no known kind": (
        pod(owner=("Notebook", "ada")),
        *("other", "ada", "", "", Loss.REPLICA, 0),
    ),
    "bare": (pod("alone"), *("pod", "alone", "", "", Loss.REPLICA, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pod_names_its_job(case: str) -> None:
    one, family, name, gang, queue, loss, declared = CASES[case]
    job = job_of(one)
    assert (job.family, job.name, job.namespace) == (family, name, "ml")
    assert (job.gang.name if job.gang else "", job.queue) == (gang, queue)
    assert (job.loss, job.declared) == (loss, declared)
    assert job.team == (queue or "ml")
    assert not job.label or one.labels[job.label] == name


def test_each_family_is_known_by_a_case_or_is_a_part_of_one() -> None:
    assert {family.name for family in FAMILIES} <= {
        job_of(case[0]).family for case in CASES.values()
    }


def test_a_group_of_the_spec_is_a_gang_and_a_job_without_an_owner() -> None:
    body = {
        "metadata": {"name": "p", "namespace": "ml"},
        "spec": {"schedulingGroup": {"podGroupName": "g"}},
    }
    job = job_of(to_pod(msgspec.json.decode(msgspec.json.encode(body), type=PodObject)))
    assert (job.family, job.name, job.loss) == ("pod-group", "g", Loss.GANG)


def test_a_site_extends_the_markers_and_an_owner_states_the_loss() -> None:
    own = Markers(jobs=("example.test/run",), teams=("example.test/team",))
    labels = {"example.test/run": "r1", "example.test/team": "vision", "job-name": "j"}
    one = pod(owner=("Job", "j"), labels=labels)
    job = job_of(one, own)
    assert (job.family, job.name, job.team, job.loss) == ("site", "r1", "vision", Loss.GANG)
    assert job.label == "example.test/run"
    assert (job_of(one).family, job_of(one).team) == ("job", "ml")
    stated = pod(owner=("Job", "j"), annotations={POD_LOSS: "gang"})
    assert job_of(stated).loss is Loss.GANG
    assert job_of(pod(owner=("Job", "j"), annotations={POD_LOSS: "all"})).loss is Loss.REPLICA


def test_the_size_is_counted_and_what_stops_is_the_gang_of_the_lost_pod() -> None:
    def rank(name: str, group: str, gpus: str = "8", **more: Any) -> Pod:
        labels = {f"{_LWS}name": "vllm", f"{_LWS}group-key": group}
        return pod(name, owner=("StatefulSet", f"vllm-{group}"), labels=labels, gpus=gpus, **more)

    pods = [rank("a0", "a"), rank("a1", "a"), rank("b0", "b"), rank("b1", "b")]
    other = rank("a2", "a", namespace="mallory")
    job = job_of(pods[0])
    assert size_of(pods) == JobSize(4, 32)
    assert [one.name for one in lost_with(pods[0], job, [*pods, other])] == ["a0", "a1"]
    replica = pod("r", owner=("StatefulSet", "db"))
    assert lost_with(replica, job_of(replica), [replica]) == [replica]
    daemon = pod("d", owner=("DaemonSet", "d"))
    assert lost_with(daemon, job_of(daemon), [daemon]) == []


@pytest.mark.parametrize("gpus", ["0", "1k", "-3", "x", "9" * 400])
def test_requests_that_no_node_has_count_for_nothing_or_the_bound(gpus: str) -> None:
    assert pod(gpus=gpus).gpus in (0, 1024)


def test_pods_that_no_kubelet_runs_have_no_gpus_to_lose() -> None:
    """Anyone may name a node, also one that there is not, and request 10^9 GPUs."""
    labels = {f"{_JOBSET}jobset-name": "train"}
    mine = pod("mine", labels=labels, gpus="8")
    claimed = [
        replace(pod(f"claim-{number}", labels=labels, gpus="1000000000"), phase="Pending")
        for number in range(50)
    ]
    job = job_of(mine)
    assert size_of(lost_with(mine, job, claimed)) == JobSize(51, 8)
    assert evicted_details(claimed[0], ())["gpus"] == "0"


def test_an_annotation_of_blanks_names_no_job() -> None:
    one = pod(
        "p1", annotations={"pod-group-name": " \n ", "gang.scheduling.koordinator.sh/name": ""}
    )
    assert job_of(one).name == "p1"


_KEYS = sorted(
    {key for one in FAMILIES for key in (*one.job_keys, *one.gang_keys, *one.queue_keys)}
    | {key for one in GANG_FAMILIES for key in one.size_keys}
    | {POD_LOSS, "ray.io/node-type", "pod-template-hash"}
)
_MARKERS = st.dictionaries(st.sampled_from(_KEYS), st.text(max_size=400), max_size=6)
_OWNERS = st.sampled_from(["", "Job", "ReplicaSet", "StatefulSet", "RayCluster", "DaemonSet"])


@given(labels=_MARKERS, annotations=_MARKERS, kind=_OWNERS, size=st.integers(0, 10**12))
def test_hostile_markers_stay_within_their_namespace_and_bounds(
    labels: dict[str, str], annotations: dict[str, str], kind: str, size: int
) -> None:
    annotations = annotations | {"kueue.x-k8s.io/pod-group-total-count": str(size)}

    def made(namespace: str) -> Job:
        owner = (kind, "victim" if kind else "")
        return job_of(pod(owner=owner, labels=labels, annotations=annotations, namespace=namespace))

    mine, theirs = made("mallory"), made("ml")
    assert mine != theirs
    assert mine.namespace == "mallory"
    assert mine.gang is None or mine.gang != theirs.gang
    assert mine.name
    assert 0 <= mine.declared <= MOST_DECLARED
    for text in (mine.name, mine.team, mine.queue, mine.key):
        assert len(text) <= 600
        assert text.isprintable()


@given(labels=_MARKERS, annotations=_MARKERS)
def test_every_pod_has_one_job_whatever_its_markers(
    labels: dict[str, str], annotations: dict[str, str]
) -> None:
    one = pod(labels=labels, annotations=annotations)
    assert job_of(one) == job_of(one)
    assert lost_with(one, job_of(one), []) in ([one], [])
