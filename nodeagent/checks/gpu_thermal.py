"""How hot each GPU and its memory are, and how far from the temperatures that slow it down.

Reasons, both degraded: ``hot`` (within ``margin`` degrees of the slowdown) and ``memory-hot``
(within ``margin`` of the memory's highest temperature). Clocks that are lowered are gpu-clocks'.
The power draw and its limit are shown with them, as a GPU's heat depends on them.

A GPU that lacks this while most of its model on the node have it is ``unlike-siblings``
(degraded).
"""

from functools import partial

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.gpu_clocks import measure
from nodeagent.checks.gpu_common import EachGpu, Verdict
from nodeagent.model import Status
from nodeagent.sources.gpu_sample import Gpu


def evaluate(gpu: Gpu, *, margin: int) -> Verdict:
    """The verdict on one GPU. Pure. ``margin`` in degrees."""
    if gpu.temperature is None:
        return gpu_common.unreadable(gpu, "temperature")
    text = f"{gpu.temperature} degrees Celsius"
    left = gpu.margin
    if left is None and gpu.limits.slowdown is not None:
        left = gpu.limits.slowdown - gpu.temperature
    text += f", {left} below its slowdown" if left is not None else ""
    memory_left = None
    if gpu.memory_temperature is not None:
        text += f"; its memory {gpu.memory_temperature}"
        if gpu.limits.memory is not None:
            memory_left = gpu.limits.memory - gpu.memory_temperature
            text += f", {memory_left} below its limit"
    if gpu.power is not None:
        text += f"; {gpu.power} W" + (f" of {gpu.limits.power}" if gpu.limits.power else "")
    if left is not None and left <= margin:
        return Status.DEGRADED, "hot", text
    if memory_left is not None and memory_left <= margin:
        return Status.DEGRADED, "memory-hot", text
    return Status.OK, "", text


class GpuThermal(EachGpu):
    """Evaluates each GPU by itself, and measures those at work, also where the check is off."""

    async def run_check(self) -> Report:
        sample = await gpu_common.take_sample(self._sources)
        if isinstance(sample, Off):
            return sample
        for gpu in sample.gpus:
            value = gpu.temperature if measure(gpu) is not None else None
            put = self._sources.measurements.put
            put("gpu-temperature", gpu.uuid, value, at=sample.at, model=gpu.name)
        return await super().run_check()


SPEC = CheckSpec(
    name="gpu-thermal",
    sees="a GPU, or its memory, that is about to be slowed down for heat",
    source="NVML, nvmlDeviceGetTemperature, nvmlDeviceGetMarginTemperature or "
    "nvmlDeviceGetTemperatureThreshold; fields 82 (memory) and 186 (power)",
    cost="no cost next to gpu-inventory; two calls for each GPU, four every 5 minutes",
    blind_to="heat between two runs; a slowdown that NVML names no temperature for",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, options: GpuThermal(
        "gpu-thermal", sources, "temperature", partial(evaluate, margin=options["margin"])
    ),
    options=(
        Option(
            "margin",
            Kind.INTEGER,
            2,
            "Degrees below the slowdown, or the memory's limit, from which a GPU is degraded.",
        ),
    ),
)
