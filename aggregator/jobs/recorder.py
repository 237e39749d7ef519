"""Records the jobs on a node at a fault and a quarantine, and those that an eviction stops.

It receives the transitions that history receives, and emits transitions of its own. It reads the
node's pods a moment later, after every request that acts on a fault. So its requests grow with
faults. One task reads for one node at a time: a fault of many nodes is recorded in minutes, and
holds up nothing.
"""

import asyncio
import logging
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError, Pod
from aggregator.cluster.words import ClusterWords
from aggregator.events import EventKind, Transition
from aggregator.jobs.family import Loss
from aggregator.jobs.gpu_reader import PodGpuReader
from aggregator.jobs.gpu_report import GpusOfPod, gpus_by_pod
from aggregator.jobs.hit import (
    Hit,
    JobOnNode,
    details_of,
    from_evicted,
    hit,
    jobs_on,
    on_node,
    summary,
)
from aggregator.jobs.identity import Job, Markers
from aggregator.jobs.settings import JobRules
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.recent import Recent
from aggregator.runtime.text import visible

log = logging.getLogger("sickbay.jobs")

#: Nodes that are remembered, those with the latest transition; and jobs of one node.
MOST_NODES, MOST_JOBS = 20_000, 64
#: Seconds for which a read of a node, and of a job's pods, counts.
FRESH, FRESH_JOB = 30.0, 60.0
#: Jobs whose pods are remembered for this long.
_MOST_LISTS = 64
#: Evictions of one node that wait for its read.
_MOST_EVICTED = 512
#: Reads of one node that may fail in a row before its transitions are left without a job.
_MOST_FAILURES = 6
_BACKOFF = Backoff(first=0.5, most=30.0)
_MOST_WHY = 300
_STOPS = frozenset({EventKind.MOVED, EventKind.FORCED})
_FAULTS = frozenset({EventKind.INCIDENT_OPENED, EventKind.CORDONED})
_OVER = frozenset({EventKind.RELEASED, EventKind.OVERRULED})


class PodReader(Protocol):
    """The part of the cluster's port that the recorder reads."""

    @property
    def words(self) -> ClusterWords: ...

    async def pods_on(self, node: str, *, background: bool = False) -> list[Pod]: ...

    async def pods_labelled(
        self, namespace: str, label: str, value: str, *, background: bool = False
    ) -> list[Pod]: ...


@dataclass(slots=True)
class JobCounts:
    """Since the start. ``unattributed``: evicted pods whose job could not be read."""

    hit: Counter[str] = field(default_factory=Counter)
    stopped: Counter[str] = field(default_factory=Counter)
    unattributed: int = 0
    failed_reads: int = 0


@dataclass(frozen=True, slots=True)
class _Eviction:
    """``details`` are those of its transition."""

    details: Mapping[str, str]
    incident: str
    at: float

    @property
    def pod(self) -> str:
        return self.details.get("pod", "")


@dataclass(slots=True)
class _Node:
    """``faults``: when each incident began, its code and its text. ``read_at`` is monotonic."""

    faults: dict[str, tuple[float, str, str]] = field(default_factory=dict)
    wanted: dict[str, float] = field(default_factory=dict)
    evicted: list[_Eviction] = field(default_factory=list)
    jobs: dict[str, JobOnNode] = field(default_factory=dict)
    read_at: float = float("-inf")
    recorded: set[tuple[str, str, bool]] = field(default_factory=set)
    failures: int = 0

    def forget_faults(self, incident: str) -> None:
        """The incident has ended: the next one of this id is another fault."""
        self.recorded = {one for one in self.recorded if one[1:] != (incident, False)}


@define(eq=False, repr=False, slots=False)
class JobRecorder:
    """Implements `EventSink`. ``emit`` takes its transitions; ``pool_of`` gives a node's pool.

    ``own_namespace`` is that of sickbay's pods, which are no job.
    """

    _cluster: PodReader
    _emit: Callable[[Transition], None]
    _clocks: Clocks
    _rng: random.Random
    _rules: JobRules
    _markers: Markers
    _pool_of: Callable[[str], str]
    _pod_gpus: PodGpuReader
    _own_namespace: str = ""

    def __attrs_post_init__(self) -> None:
        self._nodes: OrderedDict[str, _Node] = OrderedDict()
        self._due: dict[str, None] = {}
        self._some = asyncio.Event()
        self._lists: Recent[tuple[str, str, str], tuple[float, list[Pod]]] = Recent(_MOST_LISTS)
        self.counts = JobCounts()

    def record_event(self, transition: Transition) -> None:
        """Note it; the reads come later. Never blocks and never raises."""
        kind, name = transition.kind, transition.node
        if kind in _OVER:
            known = self._nodes.get(name)
            if known is not None and not known.evicted:
                del self._nodes[name]
            return
        if kind is EventKind.INCIDENT_CLOSED and name in self._nodes:
            self._nodes[name].forget_faults(transition.incident)
        if not name or kind not in _FAULTS | _STOPS:
            return
        node = self._nodes.setdefault(name, _Node())
        self._nodes.move_to_end(name)
        while len(self._nodes) > MOST_NODES:
            self._due.pop(self._nodes.popitem(last=False)[0], None)
        self._note(node, transition)
        self._due[name] = None
        self._some.set()

    def _note(self, node: _Node, transition: Transition) -> None:
        incident, at = transition.incident, transition.at
        if transition.kind in _STOPS:
            node.evicted.append(_Eviction(transition.details, incident, at))
            del node.evicted[:-_MOST_EVICTED]
            return
        why = transition.summary.removeprefix(f"{transition.node}: ").removeprefix(
            f"{self._cluster.words.marked}: "
        )
        code = transition.details.get("evidence", "").split(" ")[0]
        if incident not in node.faults or code:
            node.faults[incident] = (at, code, visible(why, _MOST_WHY))
        while len(node.faults) > MOST_JOBS:
            del node.faults[next(iter(node.faults))]
        node.wanted[incident] = at

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._some.wait()
            if not self._due:
                self._some.clear()
                continue
            name = next(iter(self._due))
            del self._due[name]
            await self.serve(name)

    async def serve(self, name: str) -> None:
        """Record what the node's transitions call for."""
        node = self._nodes.get(name)
        if node is None:
            return
        try:
            await self._read(name, node)
        except ClusterError as error:
            self.counts.failed_reads += 1
            node.failures += 1
            if node.failures < _MOST_FAILURES:
                await asyncio.sleep(_BACKOFF.pause(node.failures, self._rng))
                self._due[name] = None
                self._some.set()
                return
            log.warning(
                "the jobs on a node can't be read",
                extra={"event": "jobs.unread", "node": name, "error": str(error)},
            )
        node.failures = 0
        self._record_faults(name, node)
        self._record_stops(name, node)

    # -- what is recorded -----------------------------------------------------------------

    def _record_faults(self, name: str, node: _Node) -> None:
        wanted, node.wanted = node.wanted, {}
        once = {id(found): found for found in node.jobs.values()}
        for incident, at in wanted.items():
            for found in once.values():
                self._record(name, node, found, incident, at, stopped=False)

    def _record_stops(self, name: str, node: _Node) -> None:
        evicted, node.evicted = node.evicted, []
        for one in evicted:
            found = node.jobs.get(one.pod) or from_evicted(one.details)
            if found is None:
                self.counts.unattributed += 1
                continue
            self._record(name, node, found, one.incident, one.at, stopped=True)

    def _record(
        self, name: str, node: _Node, found: JobOnNode, incident: str, at: float, *, stopped: bool
    ) -> None:
        subject = (found.job.key, incident, stopped)
        if subject in node.recorded:
            return
        node.recorded.add(subject)
        fault_at, code, why = node.faults.get(incident, (at, "", "a quarantine"))
        one = hit(
            found,
            at=at,
            fault_at=fault_at,
            node=name,
            incident=incident,
            code=code or ("unknown" if incident else "by hand"),
            pool=self._pool_of(name),
            stopped=stopped,
            rules=self._rules,
        )
        counts = self.counts.stopped if stopped else self.counts.hit
        counts[found.job.family] += 1
        self._emit(_transition(one, why))

    # -- reads ------------------------------------------------------------------------------

    async def _read(self, name: str, node: _Node) -> None:
        """Read the node's pods and the sizes of their jobs, unless a read is fresh and has all."""
        unknown = any(one.pod not in node.jobs for one in node.evicted)
        if not unknown and self._clocks.now() - node.read_at < FRESH:
            return
        pods = await self._cluster.pods_on(name, background=True)
        jobs = jobs_on(pods, self._markers, self._own_namespace)
        found: dict[str, JobOnNode] = {}
        used = await self._gpus_of(name, [pod for here in jobs.values() for pod in here])
        for job, here in list(jobs.items())[:MOST_JOBS]:
            others = await self._pods_of(job, here)
            one = on_node(job, here, others, self._markers, used)
            found |= {pod.key: one for pod in here}
        # Pods that have left since the fault keep the job that they were read with.
        node.jobs = {key: one for key, one in node.jobs.items() if key not in found} | found
        node.read_at = self._clocks.now()

    async def _gpus_of(self, name: str, pods: list[Pod]) -> Mapping[str, GpusOfPod]:
        """Which GPUs the pods use. The agent gets a request only where their status has not all."""
        used = gpus_by_pod(pods)
        if not any(one.unknown for one in used.values()):
            return used
        return await self._pod_gpus.read(name, pods)

    async def _pods_of(self, job: Job, here: list[Pod]) -> list[Pod]:
        """The job's pods on all nodes, where a label lists them; those here otherwise."""
        label, value = job.label, job.name
        if not label and job.gang is not None:
            label, value = job.gang.label, job.gang.name
        if not label or (job.loss is Loss.REPLICA and not any(pod.gpus for pod in here)):
            return here
        key, now = (job.namespace, label, value), self._clocks.now()
        known = self._lists.get(key)
        if known is not None and now - known[0] < FRESH_JOB:
            return known[1]
        pods = await self._cluster.pods_labelled(*key, background=True)
        self._lists[key] = (now, pods)
        return pods


def _transition(one: Hit, why: str) -> Transition:
    return Transition(
        at=one.at,
        kind=EventKind.JOB_STOPPED if one.stopped else EventKind.JOB_HIT,
        node=one.node,
        summary=summary(one, why),
        incident=one.incident,
        details=details_of(one),
    )
