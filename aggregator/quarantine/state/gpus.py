"""How many GPUs a node has, and how many of them are well, by the evidence of its agent."""

from functools import lru_cache
from typing import NamedTuple

from attrs import define, field

from aggregator.health.model import Status
from aggregator.health.node import Components
from aggregator.quarantine.state.fleet import NodeSummary
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.quarantine.state.stage_times import StageTimes

#: The check with a component for each GPU of the node, and the prefix of all that evaluate a GPU.
_INVENTORY, _GPU_CHECKS = "gpu-inventory", "gpu-"
#: The label of GPU Feature Discovery, for nodes whose agent has not reported since the start.
GPU_COUNT_LABEL = "nvidia.com/gpu.count"
_MOST_GPUS = 1024


class GpuCounts(NamedTuple):
    """GPUs by their worst status. ``unknown``: the agent does not know, or has not reported."""

    ok: int = 0
    degraded: int = 0
    failed: int = 0
    unknown: int = 0


_NONE = GpuCounts()
#: The statuses in the order of these fields.
_ORDER = (Status.OK, Status.DEGRADED, Status.FAILED, Status.UNKNOWN)


def gpu_counts(summary: NodeSummary) -> GpuCounts:
    """The node's GPUs. One that evidence accuses counts as failed, whatever its checks report: an
    incident that calls for a cordon or a drain names it.
    """
    health, counts = summary.agent.health, _by_checks(summary)
    if health is None or not sum(counts):
        return GpuCounts(unknown=_labelled(summary))
    accused = {
        item.component
        for incident in summary.decision.incidents.values()
        if incident.action != "observe"
        for item in incident.in_force
        if item.action != "observe"
    }
    return _count(health.components, accused) if accused else counts


def count_gpus(summary: NodeSummary) -> int:
    """The number of the node's GPUs, which no evidence changes."""
    return sum(_by_checks(summary)) or _labelled(summary)


@define(eq=False, repr=False, slots=False)
class OutOfService:
    """Counts the GPUs of our nodes in quarantine, times seconds, from one round to the next.

    A node counts from the first round after its taint to the last one before its release, so its
    time is right to one round.
    """

    _registry: NodeRegistry
    _stages: StageTimes
    _counted_at: float | None = field(default=None, init=False)

    def go_round(self, now: float) -> None:
        """``now`` is monotonic seconds."""
        before, self._counted_at = self._counted_at, now
        if before is None:
            return
        nodes = filter(_is_out_of_service, self._registry.quarantined())
        gpus = sum(map(count_gpus, nodes))
        self._stages.note_out_of_service(gpus, now - before)


def _is_out_of_service(summary: NodeSummary) -> bool:
    """Whether its quarantine has marked the node."""
    quarantine = summary.quarantine
    return quarantine is not None and quarantine.status.cordoned_at > 0


def _by_checks(summary: NodeSummary) -> GpuCounts:
    health = summary.agent.health
    return health.components.memo(_counted) if health is not None else _NONE


def _counted(components: Components) -> GpuCounts:
    return _count(components, set())


def _count(components: Components, accused: set[str]) -> GpuCounts:
    gpus = {name: Status.OK for name in components.names_of(_INVENTORY) if name}
    if not gpus:
        return _NONE
    for check, name, status, _ in components.findings():
        if name in gpus and check.startswith(_GPU_CHECKS):
            gpus[name] = _worse(gpus[name], status, own=check == _INVENTORY)
    for name in accused & gpus.keys():
        gpus[name] = Status.FAILED
    found = list(gpus.values())
    return _interned(*map(found.count, _ORDER))


_RANK = {Status.OK: 0, Status.UNKNOWN: 1, Status.DEGRADED: 2, Status.FAILED: 3}


def _worse(known: Status, status: Status, *, own: bool) -> Status:
    """Of unknown checks, the inventory alone makes the GPU unknown: each feature that the GPU lacks
    has an unknown check.
    """
    if status is known or (status is Status.UNKNOWN and not own):
        return known
    return max(known, status, key=_RANK.__getitem__)


@lru_cache(maxsize=1024)
def _interned(ok: int, degraded: int, failed: int, unknown: int) -> GpuCounts:
    """One tuple for all nodes alike."""
    return GpuCounts(ok, degraded, failed, unknown)


def _labelled(summary: NodeSummary) -> int:
    meta = summary.cluster.meta
    text = meta.labels.get(GPU_COUNT_LABEL, "") if meta is not None else ""
    return min(int(text), _MOST_GPUS) if text.isascii() and text.isdecimal() else 0
