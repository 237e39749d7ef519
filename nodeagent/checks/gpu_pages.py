"""Memory pages that a GPU before Ampere has taken out of use.

Reasons: ``too-many`` (failed: NVIDIA replaces such a GPU), ``pending`` (degraded: a page waits for
a reset of the GPU).

A GPU that lacks this while most of its model on the node have it is ``unlike-siblings``
(degraded).
"""

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec
from nodeagent.checks.gpu_common import EachGpu, Verdict
from nodeagent.model import Status
from nodeagent.sources.gpu_sample import Gpu

#: NVIDIA's terms for a replacement ("Dynamic page retirement"): this number of pages in the GPU's
#: life, or more than 15 for double-bit errors that still come at more than one a week.
MOST_PAGES = 63
_MANY_DOUBLE_BIT = 15
_A_WEEK = 1


def evaluate(gpu: Gpu) -> Verdict:
    """The verdict on one GPU."""
    pages = gpu.pages
    if pages is None:
        return gpu_common.unreadable(gpu, "pages")
    message = (
        f"pages retired: {pages.double_bit} for double-bit errors ({pages.double_bit_lately} "
        f"within a week), {pages.single_bit} for single-bit errors"
    )
    is_going_on = pages.double_bit > _MANY_DOUBLE_BIT and pages.double_bit_lately > _A_WEEK
    if pages.single_bit + pages.double_bit >= MOST_PAGES or is_going_on:
        return Status.FAILED, "too-many", f"{message}: replace the GPU"
    if pages.pending:
        return Status.DEGRADED, "pending", f"{message}; another waits for a reset of the GPU"
    return Status.OK, "", message


SPEC = CheckSpec(
    name="gpu-pages",
    sees="a GPU that has retired too many pages of its memory, or waits for a reset to retire one",
    source="NVML, nvmlDeviceGetRetiredPages, nvmlDeviceGetRetiredPagesPendingStatus",
    cost=gpu_common.COST_SELDOM,
    blind_to="GPUs from Ampere on, which remap rows instead (gpu-rows): off there; the last "
    "minutes",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, _: EachGpu("gpu-pages", sources, "pages", evaluate),
)
