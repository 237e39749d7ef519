"""Memory rows that the GPU has replaced, is waiting to replace, or could not replace."""

from collections.abc import Mapping
from typing import Any

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Off, Report
from nodeagent.checks.gpu_common import PerGpu, Verdict
from nodeagent.model import Status
from nodeagent.sources import Sources
from nodeagent.sources.gpusample import Gpu


class GpuRows:
    """Row remapping of each GPU."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._per_gpu = PerGpu(SPEC.name, sources)

    async def look(self) -> Report:
        sample = await gpu_common.take_sample(self._sources)
        if isinstance(sample, Off):
            return sample
        return self._per_gpu.observe(sample, judge)


def judge(gpu: Gpu) -> Verdict:
    """The verdict on one GPU. After a remapping new work may start, so pending is degraded."""
    rows = gpu.rows
    if rows is None:
        return gpu_common.unreadable(gpu, "rows")
    counts = f"rows remapped: {rows.uncorrected} uncorrectable, {rows.corrected} corrected"
    if rows.failure:
        return Status.FAILED, "failure", f"a row could not be remapped: replace the GPU; {counts}"
    if rows.pending:
        return Status.DEGRADED, "pending", f"a remapping waits for a GPU reset; {counts}"
    return Status.OK, "", counts


def _build(sources: Sources, _options: Mapping[str, Any]) -> GpuRows:
    return GpuRows(sources)


SPEC = CheckSpec(
    name="gpu-rows",
    sees="row remapping that failed (replace the GPU) or waits for a reset",
    source="NVML, nvmlDeviceGetRemappedRows",
    cost=gpu_common.COST,
    blind_to="GPUs before Ampere, which retire pages instead",
    interval=gpu_common.INTERVAL,
    deadline=gpu_common.DEADLINE,
    build=_build,
)
