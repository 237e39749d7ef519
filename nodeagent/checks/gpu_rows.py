"""Memory rows that the GPU has replaced, is waiting to replace, or could not replace.

Reasons: ``failure`` (failed), ``pending``, ``no-reserve`` (degraded: a memory bank has no spare row
left, so that its next bad row is a failure).

A GPU that lacks this while most of its model on the node have it is ``unlike-siblings``
(degraded).
"""

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec
from nodeagent.checks.gpu_common import EachGpu, Verdict
from nodeagent.model import Status
from nodeagent.sources.gpu_sample import Gpu


def evaluate(gpu: Gpu) -> Verdict:
    """The verdict on one GPU. After a remapping new work may start, so pending is degraded."""
    rows = gpu.rows
    if rows is None:
        return gpu_common.unreadable(gpu, "rows")
    counts = f"rows remapped: {rows.uncorrected} uncorrectable, {rows.corrected} corrected"
    spent = 0 if gpu.reserve is None else gpu.reserve.none
    if spent:
        counts += f"; {spent} memory banks have no spare row left"
    if rows.failure:
        return Status.FAILED, "failure", f"a row could not be remapped: replace the GPU; {counts}"
    if rows.pending:
        return Status.DEGRADED, "pending", f"a remapping waits for a GPU reset; {counts}"
    if spent:
        return Status.DEGRADED, "no-reserve", counts
    return Status.OK, "", counts


SPEC = CheckSpec(
    name="gpu-rows",
    sees="row remapping that failed (replace the GPU) or waits for a reset; memory banks without "
    "a spare row, before they need one",
    source="NVML, nvmlDeviceGetRemappedRows, nvmlDeviceGetRowRemapperHistogram",
    cost=gpu_common.COST,
    blind_to="GPUs before Ampere, which retire pages instead (gpu-pages)",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, _: EachGpu("gpu-rows", sources, "rows", evaluate, brief=False),
)
