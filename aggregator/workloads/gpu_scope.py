"""``scope: gpu`` of a rule: a fault of one GPU evicts the pods that use it. Pure.

The others run to their end on the node, which stays cordoned. Once no other pod has a GPU, or
after ``drain.gpu_scope_for``, the drain continues with the rest as without this scope. Where it is
unknown which GPUs a pod has, the scope is the node: no pod is evicted that otherwise would not be.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from aggregator.cluster.port import Action, GpuScopeStatus, Pod, Quarantine
from aggregator.events import EventKind
from aggregator.jobs.gangs import Gang, gang_of
from aggregator.jobs.gpu_reader import FRESH, MOST_AGE, PodGpuReader
from aggregator.jobs.gpu_report import UUID, GpusOfPod
from aggregator.quarantine.decide.drain_plan import DrainMoment, DrainRules, work_of
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.drain.pod_waits import DrainRound
from aggregator.rfc3339 import write_time
from aggregator.runtime.interning import EMPTY
from aggregator.runtime.text import some_of

_MOST_NAMED, _MOST_REPORTED = 2, 1000
#: Pods in the status, as in the schema.
_MOST_PODS = 256


@dataclass(slots=True)
class GpuScope:
    """Implements `PodWaits`. ``scope_of`` gives a rule's scope by its name."""

    rules: DrainRules
    scope_of: Callable[[str], str]
    reader: PodGpuReader
    _reported: set[str] = field(default_factory=set)

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        gpus = faulty_gpus(one.quarantine, self.scope_of)
        if not gpus or _is_over(self.rules, one.moment):
            return EMPTY
        work = _work(one.pods, self.rules)
        used = await self.reader.read(one.quarantine.node, work)
        if why := unknown_because(work, used):
            known = one.quarantine.status.gpu_scope
            has_report = math.isfinite(self.reader.age(one.quarantine.node))
            if known is not None and not has_report and covers(known, gpus, work, one.moment.now):
                reason = _reason(gpus, one.moment.began + self.rules.gpu_scope_for)
                return {pod.uid: reason for pod in work if pod.uid in known.spared}
            if len(work) > _MOST_PODS and not has_report:
                why += f"; status.gpuScope has room for {_MOST_PODS} pods, and {len(work)} are here"
            self._report(one, why)
            return EMPTY
        kept = spared(one.pods, gpus, self.rules, one.moment, used)
        await self._record(one, gpus, {pod.uid for pod in work}, kept.keys())
        return kept

    async def _record(
        self, one: DrainRound, gpus: frozenset[str], work: set[str], kept: Collection[str]
    ) -> None:
        """For a controller that gets no report: before the first eviction, and as it gets older."""
        read_at = one.moment.now - self.reader.age(one.quarantine.node)
        evicted, spared = work - set(kept), set(kept)
        known = one.latest().status.gpu_scope
        is_known = (
            known is not None
            and set(known.gpus) == gpus
            and evicted <= set(known.evicted)
            and spared <= set(known.spared)
            and read_at - known.read_at < FRESH
        )
        if spared and not is_known and math.isfinite(read_at) and len(work) <= _MOST_PODS:
            named, gone, left = (tuple(sorted(some)) for some in (gpus, evicted, spared))
            await one.write_status(gpu_scope=GpuScopeStatus(named, gone, left, round(read_at, 3)))

    def _report(self, one: DrainRound, why: str) -> None:
        """Emit once for a quarantine, in this process, why its scope is the node."""
        if one.quarantine.uid not in self._reported:
            text = f"the scope of the drain is the node, not the GPU: {why}"
            one.acts.emit_event(one.node_state, EventKind.DRAINING, text)
        while len(self._reported) >= _MOST_REPORTED:
            self._reported.pop()
        self._reported.add(one.quarantine.uid)


def covers(known: GpuScopeStatus, gpus: frozenset[str], work: Sequence[Pod], now: float) -> bool:
    """Whether a record in the status is of these GPUs and pods, and not too old."""
    uids = {*known.evicted, *known.spared}
    has_all = all(pod.uid in uids or _is_to_get_some(pod) for pod in work)
    return has_all and set(known.gpus) == gpus and now - known.read_at < MOST_AGE


def faulty_gpus(quarantine: Quarantine, scope_of: Callable[[str], str]) -> frozenset[str]:
    """The GPUs whose evidence drains the node; empty where the node's scope applies.

    ``scope_of`` gives a rule's scope by its name, "" for a rule that is unknown now.
    """
    spec = quarantine.spec
    if spec.requester != OURS or spec.action is not Action.DRAIN:
        return frozenset()
    found = [one for one in spec.evidence if not one.cleared]
    if any(scope_of(one.rule) != "gpu" or not one.component.startswith(UUID) for one in found):
        return frozenset()
    return frozenset(one.component for one in found)


def spared(
    pods: Sequence[Pod],
    gpus: frozenset[str],
    rules: DrainRules,
    moment: DrainMoment,
    used: Mapping[str, GpusOfPod],
) -> Mapping[str, str]:
    """By uid, why pods of the node run to their end. ``gpus`` are the faulty ones, ``used`` by
    uid those of each pod.
    """
    until = moment.began + rules.gpu_scope_for
    work = _work(pods, rules)
    if not gpus or _is_over(rules, moment) or unknown_because(work, used):
        return EMPTY
    users = {pod.uid for pod in work if gpus & used[pod.uid].gpus or _is_to_get_some(pod)}
    gangs: set[Gang | None] = {
        gang_of(pod, rules.gang_keys) for pod in work if pod.uid in users
    } - {None}
    # A gang stops with one of its pods: the others here would only wait for it.
    others = [
        pod for pod in work if pod.uid not in users and gang_of(pod, rules.gang_keys) not in gangs
    ]
    if not any(pod.gpus or used[pod.uid].gpus for pod in others):
        return EMPTY
    reason = _reason(gpus, until)
    return {pod.uid: reason for pod in others}


def _reason(gpus: frozenset[str], until: float) -> str:
    named = some_of(sorted(gpus), _MOST_NAMED)
    return f"may run to its end until {write_time(until)}: it does not use {named} (scope: gpu)"


def unknown_because(work: Sequence[Pod], used: Mapping[str, GpusOfPod]) -> str:
    """Why the GPUs of one of these pods are not known; empty where those of all are."""
    found = (
        f"{pod.key}: {used[pod.uid].unknown}"
        for pod in work
        if used[pod.uid].unknown and not _is_to_get_some(pod)
    )
    return next(found, "")


def _work(pods: Sequence[Pod], rules: DrainRules) -> list[Pod]:
    return [one for one in work_of(pods, rules.node_owner_kinds) if not one.deleting]


def _is_over(rules: DrainRules, moment: DrainMoment) -> bool:
    return moment.now >= moment.began + rules.gpu_scope_for


def _is_to_get_some(pod: Pod) -> bool:
    """A pod that has not begun may still get the faulty GPU."""
    return pod.phase == "Pending" and pod.gpus > len(pod.gpu_ids)
