"""``limits.per_workload``: the most nodes from which a job's pods are evicted within a window.

A gang counts as one, and without one a job that loses work with a pod. Each Quarantine has those of
which pods were evicted from its node, written by compare-and-set before the first request. So the
count is that of durable objects, whichever replica acts.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aggregator.clock import Clocks
from aggregator.cluster.port import EvictedWorkload, Pod, Quarantine
from aggregator.events import EventKind
from aggregator.jobs.family import Loss
from aggregator.jobs.identity import Markers, job_of
from aggregator.jobs.notice import Workload, workloads_of
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.drain.pod_waits import DrainRound
from aggregator.rfc3339 import span
from aggregator.runtime.recent import Recent
from aggregator.runtime.text import counted as number_of
from aggregator.runtime.text import some_of

#: Gangs and jobs in one Quarantine, as in the schema. Of further gangs no pod is evicted.
#: Further jobs are not counted: a node may run hundreds of small ones, and its drain has to end.
MOST_WORKLOADS = 128
#: Owners that no family knows, and pods without one: whether they are jobs is not known. A slurmd
#: carries jobs that Slurm alone can name.
_NO_JOB = frozenset({"other", "pod", "slurm-node"})
_MOST_NAMED = 4
#: Pods of quarantines, before those of quarantines that have ended are forgotten.
_MOST_REMEMBERED = 10_000


@dataclass(slots=True)
class WorkloadLimit:
    """Implements `PodWaits`. ``nodes`` 0 sets no limit; ``window`` is in seconds. ``markers`` are a
    site's own, ``quarantines`` all of the cluster.
    """

    nodes: int
    window: float
    markers: Markers
    quarantines: Callable[[], Iterable[Quarantine]]
    clocks: Clocks
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reported: Recent[tuple[str, str], bool] = field(default_factory=Recent)
    #: By uid of a Quarantine and of a pod, the first gang or job that the pod was noted under.
    _noted: dict[tuple[str, str], str] = field(default_factory=dict)
    #: By uid of a Quarantine, notes whose write had no answer: they may be there, so they count.
    _unanswered: dict[str, dict[str, float]] = field(default_factory=dict)

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        going = (*one.plan.evict, *one.plan.force)
        counted = counted_workloads(going, self.markers)
        if not self.nodes or not counted:
            return {}
        async with self._lock:  # two drains of one job must not both be the last
            held, uncounted = self._held(one, counted)
            skipped = held.keys() | uncounted
            due = [
                key for key in counted if key not in skipped and self._is_first(one, counted[key])
            ]
            await self._note(one, due)
        for key, reason in held.items():
            self._report(one, counted[key], reason)
        return {pod.uid: reason for key, reason in held.items() for pod in counted[key].pods}

    def _held(
        self, one: DrainRound, counted: Mapping[str, Workload]
    ) -> tuple[dict[str, str], set[str]]:
        """By gang or job, why its pods are not evicted, and the jobs for which there is no room.

        A person's quarantine counts, and is not held.
        """
        known = {item.workload for item in one.latest().status.evicted_workloads}
        room = MOST_WORKLOADS - len(known)
        held, uncounted = dict[str, str](), set[str]()
        for key, workload in counted.items():
            if key in known:
                continue
            nodes = self._other_nodes(one.quarantine.node, key)
            if len(nodes) >= self.nodes and one.quarantine.spec.requester == OURS:
                held[key] = (
                    f"its {_word(workload)} lost {number_of(len(nodes), 'node')} within "
                    f"{span(self.window)}: {some_of(nodes, _MOST_NAMED)} "
                    f"(limits.per_workload is {self.nodes})"
                )
            elif room > 0:
                room -= 1
            elif workload.gang is None:
                uncounted.add(key)
            else:
                held[key] = f"pods of {MOST_WORKLOADS} gangs were evicted from this node already"
        return held, uncounted

    def _is_first(self, one: DrainRound, workload: Workload) -> bool:
        """Whether it is the first that some of its pods are noted under. A pod that joins one gang
        after the other, and that its own budget keeps there, would take the room of all others.
        """
        if len(self._noted) > _MOST_REMEMBERED:
            uids = {quarantine.uid for quarantine in self.quarantines()}
            self._noted = {key: value for key, value in self._noted.items() if key[0] in uids}
            for gone in self._unanswered.keys() - uids:
                del self._unanswered[gone]
        uid = one.quarantine.uid
        noted = {self._noted.setdefault((uid, pod.uid), workload.key) for pod in workload.pods}
        return workload.key in noted

    def _other_nodes(self, node: str, workload: str) -> list[str]:
        """A note further ahead than the window is of a wrong clock: it must not count for days."""
        since, until = self.clocks.earliest() - self.window, self.clocks.latest() + self.window
        nodes = []
        for quarantine in self.quarantines():
            noted = {item.workload: item.at for item in quarantine.status.evicted_workloads}
            noted |= self._unanswered.get(quarantine.uid, {})
            if quarantine.node != node and since < noted.get(workload, -math.inf) < until:
                nodes.append(quarantine.node)
        return sorted(nodes)

    async def _note(self, one: DrainRound, keys: Iterable[str]) -> None:
        """Note those whose pods go, and again while they still have to go: so a drain that is
        under way always counts.
        """
        known = {item.workload: item.at for item in one.latest().status.evicted_workloads}
        at = round(self.clocks.latest(), 3)
        due = {key: at for key in keys if abs(at - known.get(key, -math.inf)) > self.window / 4}
        if due:
            items = tuple(EvictedWorkload(*item) for item in (known | due).items())
            self._unanswered.setdefault(one.quarantine.uid, {}).update(due)
            await one.write_status(evicted_workloads=items)
            del self._unanswered[one.quarantine.uid]

    def _report(self, one: DrainRound, workload: Workload, reason: str) -> None:
        """Alert once for a quarantine and workload; a blocker in the status was alerted before."""
        subject = (one.quarantine.uid, workload.key)
        pod = workload.pods[0].key
        if subject not in self._reported and all(
            blocker.pod != pod for blocker in one.quarantine.status.blockers
        ):
            text = one.acts.words.not_moved.format(one=pod, reason=reason)
            one.acts.emit_event(one.node_state, EventKind.BLOCKED, text, {"pod": pod})
        self._reported[subject] = True


def counted_workloads(pods: Iterable[Pod], markers: Markers) -> dict[str, Workload]:
    """The gangs of these pods, and then the jobs of those without one that lose work with a pod.

    A marker counts within the pod's namespace alone, so no pod uses up the limit of another team's
    job.
    """
    pods = list(pods)
    found = workloads_of(pods, (*markers.jobs, *markers.gangs))
    jobs: dict[str, list[Pod]] = {}
    for pod in pods:
        job = job_of(pod, markers)
        counts = job.progress and job.loss is not Loss.NOTHING and job.family not in _NO_JOB
        if job.gang is None and counts:
            jobs.setdefault(f"{job.namespace}/{job.name} {job.family}", []).append(pod)
    made = {key: workload for key, workload in found.items() if workload.gang is not None}
    return made | {key: Workload(key, None, tuple(some)) for key, some in jobs.items()}


def _word(workload: Workload) -> str:
    return "job" if workload.gang is None else "gang"
