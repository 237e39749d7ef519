"""``scope: gpu`` of a rule: a fault of one GPU evicts the pods that use it. Pure.

The others run to their end on the node, which stays cordoned. Once no other pod has a GPU, or
after ``drain.gpu_scope_for``, the drain goes on with the rest as without this scope. Where it is
unknown which GPUs a pod has, the scope is the node: no pod is evicted that otherwise would not be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aggregator.cluster.port import Action, Pod, Quarantine
from aggregator.jobs.gangs import Gang, gang_of
from aggregator.quarantine.decide.drain_plan import DrainMoment, DrainRules, work_of
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.drain.pod_waits import DrainRound
from aggregator.rfc3339 import write_time
from aggregator.runtime.interning import EMPTY
from aggregator.runtime.text import some_of

#: How a device plugin names whole GPUs, and how it marks those that several pods share.
_UUID, _SHARE = "GPU-", "::"
_MOST_NAMED = 2


@dataclass(frozen=True, slots=True)
class GpuScope:
    """Implements `PodWaits`. ``scope_of`` gives a rule's scope by its name."""

    rules: DrainRules
    scope_of: Callable[[str], str]

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        gpus = faulty_gpus(one.quarantine, self.scope_of)
        return spared(one.pods, gpus, self.rules, one.moment)


def faulty_gpus(quarantine: Quarantine, scope_of: Callable[[str], str]) -> frozenset[str]:
    """The GPUs whose evidence drains the node; empty where the node's scope applies.

    ``scope_of`` gives a rule's scope by its name, "" for a rule that is unknown now.
    """
    spec = quarantine.spec
    if spec.requester != OURS or spec.action is not Action.DRAIN:
        return frozenset()
    found = [one for one in spec.evidence if not one.cleared]
    if any(scope_of(one.rule) != "gpu" or not one.component.startswith(_UUID) for one in found):
        return frozenset()
    return frozenset(one.component for one in found)


def spared(
    pods: Sequence[Pod], gpus: frozenset[str], rules: DrainRules, moment: DrainMoment
) -> Mapping[str, str]:
    """By uid, why pods of the node run to their end. ``gpus`` are the faulty ones."""
    until = moment.began + rules.gpu_scope_for
    work = [one for one in work_of(pods, rules.node_owner_kinds) if not one.deleting]
    if not gpus or moment.now >= until or not all(_is_known(pod) for pod in work):
        return EMPTY
    users = {pod.uid for pod in work if gpus & set(_devices(pod)) or _is_to_get_some(pod)}
    gangs: set[Gang | None] = {
        gang_of(pod, rules.gang_keys) for pod in work if pod.uid in users
    } - {None}
    # A gang stops with one of its pods: the others here would only wait for it.
    others = [
        pod for pod in work if pod.uid not in users and gang_of(pod, rules.gang_keys) not in gangs
    ]
    if not any(pod.gpus for pod in others):
        return EMPTY
    named = some_of(sorted(gpus), _MOST_NAMED)
    reason = f"may run to its end until {write_time(until)}: it does not use {named} (scope: gpu)"
    return {pod.uid: reason for pod in others}


def _is_known(pod: Pod) -> bool:
    """Whether all of its GPUs are known by UUID."""
    if pod.has_claims:
        return False
    devices = _devices(pod)
    if not all(one.startswith(_UUID) for one in devices):
        return False
    return len(devices) == pod.gpus or _is_to_get_some(pod)


def _is_to_get_some(pod: Pod) -> bool:
    """A pod that has not begun may still get the faulty GPU."""
    return pod.phase == "Pending" and pod.gpus > len(pod.gpu_ids)


def _devices(pod: Pod) -> list[str]:
    return [one.partition(_SHARE)[0] for one in pod.gpu_ids]
