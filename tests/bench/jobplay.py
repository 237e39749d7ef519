"""A month of jobs on a fleet, the faults that stop them, and the hours that these truly cost.

The world knows of each job when it last wrote a checkpoint and how long its restarts take; its pods
state it, state only the interval, or state nothing. `JobRecorder` receives the transitions that a
controller emits, and reads the world's pods. Rate of faults: 6.5 for 1,000 node-days (Meta, arXiv
2410.21680); job sizes, intervals and restarts are assumptions.
"""

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from aggregator.clock import Clocks
from aggregator.cluster.port import Pod
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.events import EventKind, Transition
from aggregator.jobs.checkpoint import CHECKPOINT_INTERVAL, LAST_CHECKPOINT, RESTART_TIME
from aggregator.jobs.hit import evicted_details
from aggregator.jobs.identity import SHIPPED
from aggregator.jobs.recorder import JobRecorder
from aggregator.jobs.settings import JobRules
from aggregator.rfc3339 import write_time
from tests.support.gpu_reports import no_reports

BEGIN, DAY, HOUR = 1_790_000_000.0, 86400.0, 3600.0
GPUS = 8
#: Faults of a node and day.
RATE = 6.5e-3
#: Of all nodes so many run no job, and take the place of those in quarantine.
_SPARE = 0.1
_CODES = ("xid:79", "xid:94", "nvlink", "ecc", "disk")
_LWS = "leaderworkerset.sigs.k8s.io/"


class Statement(Enum):
    """The statement of a job's pods about checkpoints."""

    LAST = "last"
    INTERVAL = "interval"
    NOTHING = "nothing"


@dataclass
class World:
    """Jobs on nodes. ``now`` is wall clock seconds; ``lost`` the true GPU hours by job."""

    words: ClassVar[ClusterWords] = KUBERNETES
    rng: random.Random
    now: float = BEGIN
    jobs: "list[_Job]" = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    on: dict[str, "list[_Job]"] = field(default_factory=lambda: defaultdict(list))
    lost: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    stops: int = 0
    reads: int = 0

    async def pods_on(self, node: str, *, background: bool = False) -> list[Pod]:
        del background
        self.reads += 1
        return [pod for job in self.on[node] for pod in job.pods(self.now) if pod.node == node]

    async def pods_labelled(
        self, namespace: str, label: str, value: str, *, background: bool = False
    ) -> list[Pod]:
        del background
        self.reads += 1
        pods = (pod for job in self.jobs for pod in job.pods(self.now))
        return [
            one for one in pods if one.namespace == namespace and one.labels.get(label) == value
        ]


@dataclass(eq=False)
class _Job:
    """One unit that stops together. ``ready_at``: it computes from then on."""

    name: str
    key: str
    namespace: str
    labels: dict[str, str]
    owner: str
    nodes: list[str]
    gang: bool
    progress: bool
    statement: Statement
    interval: float
    states_restart: bool
    rng: random.Random
    restart: float = 600.0
    ready_at: float = BEGIN
    created_at: float = BEGIN
    phase: float = 0.0

    def last_checkpoint(self, at: float) -> float:
        """When the last one before ``at`` was written; a restart continues from it."""
        since = max(0.0, at - self.ready_at + self.phase)
        return max(self.ready_at, at - since % self.interval)

    def pods(self, at: float) -> Iterator[Pod]:
        annotations = {}
        if self.progress and self.statement is Statement.LAST and at > self.ready_at:
            annotations[LAST_CHECKPOINT] = write_time(self.last_checkpoint(at))
        if self.progress and self.statement is Statement.INTERVAL:
            annotations[CHECKPOINT_INTERVAL] = f"{self.interval:.0f}s"
        if self.states_restart:
            annotations[RESTART_TIME] = f"{self.restart:.0f}s"
        for number, node in enumerate(self.nodes):
            yield Pod(
                namespace=self.namespace,
                name=f"{self.name}-{number}",
                uid=f"{self.name}-{number}-{self.created_at:.0f}",
                version="1",
                phase="Running",
                deleting=False,
                mirror=False,
                owner_kind=self.owner,
                owner_name=self.name,
                empty_dirs=(),
                labels=self.labels,
                annotations=annotations,
                node=node,
                created_at=self.created_at,
                gpus=GPUS,
            )


def populate(world: World, nodes: int) -> None:
    """Jobs of several families and sizes on all nodes except the spare ones."""
    names = [f"gpu-{number}" for number in range(nodes)]
    spare = max(4, int(nodes * _SPARE))
    world.free = names[:spare]
    rest = names[spare:]
    for number in itertools.count():
        if not rest:
            return
        size = min(len(rest), world.rng.choice((1, 2, 4, 8, 16, 32)))
        placed, rest = rest[:size], rest[size:]
        job = _job(world.rng, number, placed)
        world.jobs.append(job)
        for node in placed:
            world.on[node].append(job)


def _job(rng: random.Random, number: int, nodes: list[str]) -> _Job:
    namespace = f"team-{number % 7}"
    kind = rng.choice(("jobset", "training-operator", "leaderworkerset", "kuberay", "deployment"))
    name = f"{kind}-{number}"
    labels = {
        "jobset": {"jobset.sigs.k8s.io/jobset-name": name},
        "training-operator": {"training.kubeflow.org/job-name": name},
        "leaderworkerset": {f"{_LWS}name": name, f"{_LWS}group-key": name},
        "kuberay": {"ray.io/cluster": name, "ray.io/node-type": "worker"},
        "deployment": {},
    }[kind]
    owners = {"jobset": "Job", "training-operator": "PyTorchJob", "kuberay": "RayCluster"}
    return _Job(
        name=name,
        key=f"{namespace}/{kind}/{name}",
        namespace=namespace,
        labels=labels,
        owner=owners.get(kind, "StatefulSet" if kind == "leaderworkerset" else "ReplicaSet"),
        nodes=nodes,
        gang=kind in ("jobset", "training-operator", "leaderworkerset"),
        progress=kind in ("jobset", "training-operator", "kuberay"),
        statement=rng.choice((Statement.LAST, Statement.LAST, *Statement)),
        interval=rng.uniform(0.5, 1.5) * HOUR,
        states_restart=rng.random() < 0.7,
        rng=rng,
    )


async def play(world: World, nodes: int, days: float, emit: list[Transition]) -> JobRecorder:
    """A month: every transition, the recorder's own included, is appended to ``emit``."""
    recorder = JobRecorder(
        world,
        emit.append,
        clocks=Clocks(lambda: world.now, lambda: world.now),
        rng=world.rng,
        rules=JobRules(),
        markers=SHIPPED,
        pool_of=lambda _: "h100",
        pod_gpus=no_reports(lambda: world.now),
    )

    async def tell(kind: EventKind, node: str, incident: str, **details: str) -> None:
        text = f"{node}: {details.get('evidence', 'a fault')}"
        one = Transition(world.now, kind, node, text, incident, details)
        emit.append(one)
        recorder.record_event(one)
        await recorder.serve(node)

    due: list[tuple[float, int, str]] = []
    numbers = itertools.count()
    for number in range(nodes):
        at = BEGIN + world.rng.expovariate(RATE) * DAY
        while at < BEGIN + days * DAY:
            heapq.heappush(due, (at, next(numbers), f"gpu-{number}"))
            at += world.rng.expovariate(RATE) * DAY
    while due:
        at, _, node = heapq.heappop(due)
        if at < world.now:  # a fault while another one was handled: its node comes next
            at = world.now
        world.now = at
        if node not in world.on or not world.on[node]:
            continue
        fault_at, code = at, world.rng.choice(_CODES)
        incident = f"{node}-{at:.0f}"
        await tell(EventKind.INCIDENT_OPENED, node, incident, evidence=f"{code} GPU-1 (rule)")
        world.now += 1
        await tell(EventKind.CORDONED, node, incident)
        world.now += world.rng.uniform(1, 120)
        for job in list(world.on[node]):
            gone = [pod for pod in job.pods(world.now) if pod.node == node]
            for pod in gone:
                details = {"pod": pod.key} | evicted_details(pod, ())
                await tell(EventKind.MOVED, node, incident, **details)
            _stop(world, job, node, fault_at)
        world.on[node] = []
        world.now += 1
        emit.append(Transition(world.now, EventKind.RELEASED, node, "released", incident))
        recorder.record_event(emit[-1])
        world.free.append(node)
    return recorder


def _stop(world: World, job: _Job, node: str, fault_at: float) -> None:
    """The truth of one stop: the work since the last checkpoint before the fault, and the restart.
    After the fault a gang computes nothing that is kept.
    """
    size = len(job.nodes) if job.gang else job.nodes.count(node)
    # A gang that still starts has done no work to lose.
    work = max(0.0, world.now - job.last_checkpoint(fault_at)) if job.progress else 0.0
    work = min(work, max(0.0, world.now - job.ready_at))
    restart = job.restart if job.states_restart else world.rng.uniform(0.5, 1.5) * 600.0
    dead_before = max(0.0, job.ready_at - world.now)
    world.lost[job.key] += size * GPUS * (work + restart - dead_before) / HOUR
    world.stops += 1
    other = world.free.pop(0)
    job.nodes = [other if one == node else one for one in job.nodes]
    world.on[other].append(job)
    if job.gang:
        job.created_at = world.now
        job.ready_at = world.now + restart
        job.phase = 0.0
    job.restart = world.rng.uniform(0.5, 1.5) * 600.0
