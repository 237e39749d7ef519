"""Whether the checksum of a GPU's InfoROM (its configuration and its memory of errors) holds.

Reason ``corrupted`` (degraded): the GPU's records, retired pages and its limits among them, are not
to be trusted.

A GPU that lacks this while most of its model on the node have it is ``unlike-siblings``
(degraded).
"""

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec
from nodeagent.checks.gpu_common import EachGpu, Verdict
from nodeagent.model import Status
from nodeagent.sources.gpu_sample import Code, Gpu


def evaluate(gpu: Gpu) -> Verdict:
    """The verdict on one GPU."""
    if gpu.inforom is None:
        return gpu_common.unreadable(gpu, "inforom")
    if gpu.inforom == Code.CORRUPTED_INFOROM:
        return Status.DEGRADED, "corrupted", "the InfoROM is corrupted (error 14)"
    return Status.OK, "", "the InfoROM is valid"


SPEC = CheckSpec(
    name="gpu-inforom",
    sees="a GPU whose InfoROM is corrupted",
    source="NVML, nvmlDeviceValidateInforom",
    cost="one call for each GPU at the start and once a day",
    blind_to="damage within the day, unless another call shows it (gpu-inventory)",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, _: EachGpu("gpu-inforom", sources, "inforom", evaluate),
)
