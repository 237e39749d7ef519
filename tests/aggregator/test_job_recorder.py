"""The jobs that a fault hits are recorded: which reads are made, and what is emitted."""

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from aggregator.clock import Clocks
from aggregator.cluster.port import Pod, Unreachable
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.events import EventKind, Transition
from aggregator.jobs.gpu_reader import PodGpuReader
from aggregator.jobs.gpu_report import GpuReport, PodGpu
from aggregator.jobs.hit import evicted_details, hit_of
from aggregator.jobs.identity import SHIPPED
from aggregator.jobs.recorder import FRESH, MOST_JOBS, JobRecorder
from aggregator.jobs.settings import JobRules
from tests.support.present import present
from tests.support.waiting import until
from tests.unit.test_jobs import pod

_JOBSET = "jobset.sigs.k8s.io/jobset-name"


def rank(name: str, node: str = "n1", job: str = "llama", **changes: Any) -> Pod:
    made = pod(name, owner=("Job", f"{job}-0"), labels={_JOBSET: job}, gpus="8", **changes)
    return replace(made, node=node)


@dataclass
class Pods:
    """Pods by node, and the reads that were made of them."""

    words: ClassVar[ClusterWords] = KUBERNETES

    pods: list[Pod]
    reads: list[str] = field(default_factory=list)
    failures: int = 0

    async def pods_on(self, node: str, *, background: bool = False) -> list[Pod]:
        assert background
        self.reads.append(node)
        if self.failures:
            self.failures -= 1
            raise Unreachable("away")
        return [one for one in self.pods if one.node == node]

    async def pods_labelled(
        self, namespace: str, label: str, value: str, *, background: bool = False
    ) -> list[Pod]:
        assert background
        self.reads.append(f"{namespace}/{label}={value}")
        found = (one for one in self.pods if one.namespace == namespace)
        return [one for one in found if one.labels.get(label) == value]


class Recorded:
    """A recorder, its clock and what it has emitted."""

    def __init__(self, pods: Pods) -> None:
        self.now = 1000.0
        self.pods = pods
        self.emitted: list[Transition] = []
        self.report, self.requested = GpuReport(unknown="no agent"), list[str]()
        self.recorder = JobRecorder(
            pods,
            self.emitted.append,
            clocks=Clocks(lambda: self.now, lambda: 1.8e9 + self.now),
            rng=random.Random(1),
            rules=JobRules(),
            markers=SHIPPED,
            pool_of=lambda _: "h100",
            pod_gpus=PodGpuReader(self, Clocks(lambda: self.now, lambda: 1.8e9 + self.now)),
            own_namespace="sickbay",
        )

    async def read_pods(self, node: str) -> GpuReport:
        self.requested.append(node)
        return self.report

    def tell(self, kind: EventKind, node: str = "n1", incident: str = "i1", **details: str) -> None:
        text = f"{node}: xid:79 (GPU has fallen off the bus) on 1 GPU"
        told = Transition(1.8e9 + self.now, kind, node, text, incident, details)
        self.recorder.record_event(told)

    def fault(self, node: str = "n1", incident: str = "i1") -> None:
        evidence = "xid:79 GPU-1 (gpu-gone); xid:94 GPU-2 (x)"
        self.tell(EventKind.INCIDENT_OPENED, node, incident, evidence=evidence)

    def evict(self, one: Pod, incident: str = "i1") -> None:
        details = {"pod": one.key} | evicted_details(one, ())
        self.tell(EventKind.MOVED, one.node, incident, **details)

    async def settle(self, node: str = "n1") -> list[Transition]:
        """The transitions of one round of the node."""
        before = len(self.emitted)
        await self.recorder.serve(node)
        return self.emitted[before:]


async def test_a_fault_records_each_job_of_the_node_once_with_its_size() -> None:
    pods = [rank("a0"), rank("a1"), rank("b0", "n2"), rank("web", job="web", namespace="serve")]
    ours = replace(pod("agent", owner=("DaemonSet", "agent")), node="n1")
    seen = Recorded(Pods([*pods, ours]))
    seen.fault()
    emitted = await seen.settle()
    assert [one.kind for one in emitted] == [EventKind.JOB_HIT] * 2
    llama = present(hit_of(emitted[0]))
    assert (llama.key, llama.pods_here, llama.gpus_here) == ("ml/jobset/llama", 2, 16)
    assert (llama.gpus, llama.lost_gpus, llama.nodes) == (24, 24, 2)
    assert (llama.code, llama.pool, llama.incident) == ("xid:79", "h100", "i1")
    assert emitted[0].details["pod"] == "ml/a0"
    seen.tell(EventKind.CORDONED)
    assert await seen.settle() == []  # the same jobs at the quarantine


async def test_requests_grow_with_faults_and_lists_are_shared() -> None:
    seen = Recorded(Pods([rank(f"r{n}", f"n{n}") for n in range(4)]))
    assert seen.pods.reads == []
    for n in range(4):
        seen.fault(f"n{n}", f"i{n}")
        await seen.settle(f"n{n}")
    lists = [one for one in seen.pods.reads if "=" in one]
    assert (len(seen.pods.reads), len(lists)) == (5, 1)


async def test_an_eviction_records_one_stop_for_a_job_and_incident() -> None:
    pods = [rank("a0"), rank("a1"), rank("b0", "n2")]
    seen = Recorded(Pods(pods))
    seen.fault()
    await seen.settle()
    seen.now += 60
    for one in pods[:2]:
        seen.evict(one)
    [stop] = await seen.settle()
    assert stop.kind is EventKind.JOB_STOPPED
    assert stop.summary == (
        "JobSet ml/llama (team ml) stopped: xid:79 (GPU has fallen off the bus) on 1 GPU on n1; "
        "24 GPUs restart"
    )
    found = present(hit_of(stop))
    assert (found.age, found.age_source) == (1800 + 60, "default")
    seen.evict(pods[1])
    assert await seen.settle() == []
    seen.tell(EventKind.RELEASED)
    seen.fault()
    seen.evict(pods[0])
    assert [one.kind for one in await seen.settle()] == [EventKind.JOB_HIT, EventKind.JOB_STOPPED]


async def test_a_pod_that_is_gone_before_it_is_read_keeps_the_job_of_its_eviction() -> None:
    gone = rank("quick")
    seen = Recorded(Pods([]))
    seen.evict(gone)
    [stop] = await seen.settle()
    found = present(hit_of(stop))
    assert (found.key, found.lost_gpus) == ("ml/jobset/llama", 8)
    seen.tell(EventKind.MOVED, pod="ml/other")
    assert await seen.settle() == []
    assert seen.recorder.counts.unattributed == 1
    assert seen.recorder.counts.stopped == {"jobset": 1}


async def test_a_gang_of_another_namespace_is_none_of_the_jobs_pods() -> None:
    theirs = replace(rank("fake", "n9"), namespace="mallory")
    seen = Recorded(Pods([rank("a0"), theirs]))
    seen.fault()
    [hit] = await seen.settle()
    assert hit.details["gpus"] == "8"


async def test_a_node_with_a_thousand_jobs_is_recorded_within_the_bound() -> None:
    many = [rank(f"p{n}", job=f"job-{n}") for n in range(200)]
    seen = Recorded(Pods(many))
    seen.fault()
    assert len(await seen.settle()) == MOST_JOBS


async def test_a_cluster_that_is_away_is_read_again() -> None:
    seen = Recorded(Pods([rank("a0")], failures=2))
    seen.fault()
    running = asyncio.create_task(seen.recorder.run())
    try:
        await until(lambda: bool(seen.emitted))
    finally:
        running.cancel()
    assert seen.recorder.counts.failed_reads == 2
    assert seen.pods.reads.count("n1") == 3


async def test_a_read_counts_for_a_while_and_no_longer() -> None:
    seen = Recorded(Pods([rank("a0")]))
    seen.fault(incident="i1")
    await seen.settle()
    seen.fault(incident="i2")
    await seen.settle()
    assert seen.pods.reads.count("n1") == 1
    seen.now += FRESH + 1
    seen.fault(incident="i3")
    await seen.settle()
    assert seen.pods.reads.count("n1") == 2


async def test_the_record_names_the_gpus_of_each_pod() -> None:
    known = replace(pod("rank-0", gpus=1), gpu_ids=("GPU-1",), node="n1")
    world = Recorded(Pods([known, replace(pod("rank-1", gpus=2), node="n1")]))
    entries = [PodGpu("ml", "rank-1", "", gpu) for gpu in ("GPU-3", "GPU-2")]
    world.report = GpuReport(tuple(entries))
    world.fault()
    await world.recorder.serve("n1")
    named = {one.details["gpu_ids"] for one in world.emitted}
    assert {text for text in named if "rank-0" in text} <= {
        "rank-0: GPU-1; rank-1: GPU-2 GPU-3",
        "rank-0: GPU-1",
    }
    assert any("rank-1: GPU-2 GPU-3" in text for text in named)
    assert world.requested == ["n1"]
    # Where the status has all, the agent gets no request; without an answer it is shown.
    for pods, text, requests in (
        ([known], "rank-0: GPU-1", 0),
        ([pod("x", gpus=1)], "x: unknown", 1),
    ):
        world = Recorded(Pods([replace(one, node="n1") for one in pods]))
        world.fault()
        await world.recorder.serve("n1")
        assert {one.details["gpu_ids"] for one in world.emitted} == {text}
        assert len(world.requested) == requests
