"""A node of played GPUs, whose NVML, bus and log a test sets."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from nodeagent.checks.base import Check, CheckSpec
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import (
    Gpu,
    GpuSample,
    NvmlTrouble,
    TroubleKind,
    XidEvent,
)
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.nvml import Nvml
from tests.agent.kernel_log import HandClock, pci_device
from tests.agent.machines import options, sources
from tests.nvml.gpu_bench import Seen

ADDRESSES = [f"0000:{bus}:00" for bus in ("1b", "3b", "5b", "9b")]
GPUS = tuple(
    Gpu(n, uuid=f"GPU-{n}", pci=address, name="NVIDIA H100") for n, address in enumerate(ADDRESSES)
)
ONE, TWO = GPUS[:1], GPUS[:2]


class PlayedNvml:
    """NVML as the checks ask it: its answers are set by hand."""

    def __init__(self) -> None:
        self.answer = GpuSample(at=5000.0, driver="580.65.06", gpus=TWO)
        self.library = True
        self.back_for = 1e9
        self.quiesced_for = 0.0
        self.xids: list[XidEvent] = []
        self.xids_received = 0

    async def sample(self) -> GpuSample:
        return self.answer

    def has_library(self) -> bool:
        return self.library


class Node:
    """A node of made-up files, long after its boot, and what a check says of it."""

    def __init__(self, folder: Path, *, on_bus: int = 2, expected: int | None = None) -> None:
        self.sys = folder / "sys"
        self.clock = HandClock(100_000.0)
        machine = HostRoots(clock=self.clock, root=folder, sys=self.sys)
        for address in ADDRESSES[:on_bus]:
            pci_device(self.sys, f"{address}.0", "0x030200")
        self.nvml = PlayedNvml()
        self.sources: Sources = replace(
            sources(machine),
            nvml=cast("Nvml", self.nvml),
            gpus=GpuMap(machine),
            expected_gpus=expected,
        )

    def build(self, spec: CheckSpec, **settings: Any) -> Check:
        return cast("Check", spec.build(self.sources, options(spec, **settings)))

    def set_gpus(self, *gpus: Gpu, **sample: Any) -> None:
        self.nvml.answer = replace(self.nvml.answer, gpus=gpus, **sample)

    def fail(self, kind: TroubleKind, message: str = "no answer") -> None:
        self.set_gpus(trouble=NvmlTrouble(kind, message))

    def heal(self, *gpus: Gpu) -> None:
        self.set_gpus(*gpus, trouble=None)

    def later(self, seconds: float = 61.0) -> None:
        self.clock.now += seconds
        self.nvml.answer = replace(self.nvml.answer, at=self.nvml.answer.at + seconds)

    def take_off_the_bus(self, number: int) -> None:
        folder = self.sys / f"bus/pci/devices/{ADDRESSES[number]}.0"
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        self.later()


def failing(gpu: Gpu, **errors: int) -> Gpu:
    return replace(gpu, errors=errors)


def said(seen: Seen, component: str) -> tuple[str, str, str]:
    return (*seen.status(component), seen.by_component[component].message)
