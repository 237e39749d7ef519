"""GPUs whose hardware has slowed them down, at the moment of the look.

Reasons, all degraded: ``hw-thermal`` (too hot), ``power-brake`` (the power supply requests it),
``hw-slowdown`` (either of them, or a power draw that is too fast for the regulator). A GPU that is
idle, or at its power limit, is as it should be.

A GPU that works without a pause has its clock measured, for comparison with those of other nodes:
at the power cap, where the load decides about it, apart from the others.

A GPU that lacks this while most of its model on the node have it is ``unlike-siblings``
(degraded).
"""

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Off, Report
from nodeagent.checks.gpu_common import EachGpu, Verdict
from nodeagent.model import Status
from nodeagent.sources.gpu_sample import Gpu, GpuSample
from nodeagent.sources.measurements import Measurements

#: Bits of nvmlClocksEventReasons that show a fault. The first two come with the third, which is
#: less specific.
_REASONS = (
    (0x40, "hw-thermal", "the hardware has lowered the clocks because it is too hot"),
    (0x80, "power-brake", "the power supply has lowered the clocks (power brake)"),
    (0x08, "hw-slowdown", "the hardware has lowered the clocks"),
)

#: All bits of nvmlClocksEventReasons, in the words of nvidia-smi.
_WORDS = (
    (0x1, "Idle"),
    (0x2, "Applications Clocks Setting"),
    (0x4, "SW Power Cap"),
    (0x8, "HW Slowdown"),
    (0x10, "Sync Boost"),
    (0x20, "SW Thermal Slowdown"),
    (0x40, "HW Thermal Slowdown"),
    (0x80, "HW Power Brake Slowdown"),
    (0x100, "Display Clock Setting"),
)

#: Bits of clocks that are as a person, a program or no load wants them: idle, application clocks,
#: sync boost, display clocks. And of those that the power cap has lowered.
_AS_SET = 0x1 | 0x2 | 0x10 | 0x100
_POWER_CAP = 0x4
#: Per cent of the time with a kernel at work, from which the clock is that of a load.
_LOADED = 90
_CLOCKS = ("gpu-clock", "gpu-clock-capped")


def evaluate(gpu: Gpu) -> Verdict:
    """The verdict on one GPU."""
    if gpu.clocks is None:
        return gpu_common.unreadable(gpu, "clocks")
    described = _describe_reasons(gpu.clocks)
    for bit, reason, text in _REASONS:
        if gpu.clocks & bit:
            return Status.DEGRADED, reason, f"{text}; {described}"
    return Status.OK, "", described


def _describe_reasons(clocks: int) -> str:
    words = ", ".join(text for bit, text in _WORDS if clocks & bit)
    return f"clock event reasons {clocks:#x} ({words or 'none known' if clocks else 'none'})"


def measure(gpu: Gpu) -> tuple[str, int] | None:
    """The measure and its value in MHz, or None for a GPU without a load that can be compared."""
    if gpu.sm_clock is None or gpu.load is None or gpu.clocks is None:
        return None
    if gpu.load < _LOADED or gpu.clocks & _AS_SET:
        return None
    return _CLOCKS[bool(gpu.clocks & _POWER_CAP)], gpu.sm_clock


class GpuClocks(EachGpu):
    """Evaluates each GPU by itself, and measures those at work; the machine's GPUs in any case."""

    async def run_check(self) -> Report:
        sample = await gpu_common.take_sample(self._sources)
        if not isinstance(sample, Off):
            _measure_all(sample, self._sources.measurements)
        return await super().run_check()


def _measure_all(sample: GpuSample, measurements: Measurements) -> None:
    for gpu in sample.gpus:
        measured = measure(gpu)
        for name in _CLOCKS:
            value = measured[1] if measured is not None and measured[0] == name else None
            measurements.put(name, gpu.uuid, value, at=sample.at, model=gpu.name)
    names = {gpu.name for gpu in sample.gpus if gpu.name}
    if names:
        measurements.machine = f"{len(sample.gpus)} {', '.join(sorted(names))}"


SPEC = CheckSpec(
    name="gpu-clocks",
    sees="a GPU that its hardware has slowed down: heat, power brake",
    source="NVML, nvmlDeviceGetCurrentClocksEventReasons",
    cost=gpu_common.COST,
    blind_to="slowdowns shorter than the interval; whether the room or the fan is to blame",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, _: GpuClocks("gpu-clocks", sources, "clocks", evaluate),
)
