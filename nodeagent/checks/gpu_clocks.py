"""GPUs whose hardware has slowed them down, at the moment of the look.

Reasons, all degraded: ``hw-thermal`` (too hot), ``power-brake`` (the power supply asks for it),
``hw-slowdown`` (either of them, or a power draw that is too fast for the regulator). A GPU that is
idle, or at its power limit, is as it should be.
"""

from collections.abc import Mapping
from typing import Any

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec
from nodeagent.checks.gpu_common import EachGpu, Verdict
from nodeagent.model import Status
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import Gpu

#: Bits of nvmlClocksEventReasons that tell of a fault. The first two come with the third, which
#: says less.
_REASONS = (
    (0x40, "hw-thermal", "the hardware has lowered the clocks because it is too hot"),
    (0x80, "power-brake", "the power supply has lowered the clocks (power brake)"),
    (0x08, "hw-slowdown", "the hardware has lowered the clocks"),
)


def judge(gpu: Gpu) -> Verdict:
    """The verdict on one GPU."""
    if gpu.clocks is None:
        return gpu_common.unreadable(gpu, "clocks")
    said = f"event reasons {gpu.clocks:#x}"
    for bit, reason, text in _REASONS:
        if gpu.clocks & bit:
            return Status.DEGRADED, reason, f"{text} ({said})"
    return Status.OK, "", said


def _build(sources: Sources, _options: Mapping[str, Any]) -> EachGpu:
    return EachGpu(SPEC.name, sources, "clocks", judge)


SPEC = CheckSpec(
    name="gpu-clocks",
    sees="a GPU that its hardware has slowed down: heat, power brake",
    source="NVML, nvmlDeviceGetCurrentClocksEventReasons",
    cost=gpu_common.COST,
    blind_to="slowdowns shorter than the interval; whether the room or the fan is to blame",
    interval=gpu_common.INTERVAL,
    deadline=gpu_common.DEADLINE,
    build=_build,
)
