"""Parts of the tests of GPU checks: a clock to wind forward, and sources around FakeGpus."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, cast

from nodeagent.checks.base import Check, CheckSpec, Off, Report
from nodeagent.model import Clearing, FaultSighting, Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.disk_probe import DiskProbe
from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.mountinfo import MountTable
from nodeagent.sources.nvidia_driver import DriverVersion
from nodeagent.sources.nvml import Nvml
from nodeagent.sources.nvml_process import WorkerReply
from tests.nvml import FakeGpu, FakeGpus
from tests.support.present import present
from tests.support.waiting import until

#: An hour after the boot: no grace applies any more.
LONG_AFTER_BOOT = 3600.0
#: Turns of the event loop from bytes in a pipe to the task that awaits a line of them, and more.
_TURNS = 5


class WoundClock:
    """A clock that moves only where a test winds it forward: no figure is one of the machine."""

    def __init__(self, start: float = LONG_AFTER_BOOT) -> None:
        self._now = start

    def boottime(self) -> float:
        return self._now

    def wind(self, seconds: float) -> None:
        self._now += seconds


class UntilItHangs(Nvml):
    """A deadline that passes once the driver hangs, however busy the machine is."""

    def __init__(self, gpus: FakeGpus, clock: WoundClock, **options: Any) -> None:
        super().__init__(worker_env=gpus.env, **options)
        self._gpus = gpus
        self._clock = clock
        self.deadline_is_far = False

    async def _wait_for(self, request: asyncio.Task[WorkerReply], pid: int, left: float) -> None:
        def is_over() -> bool:
            return request.done() or (self._gpus.has_hung(pid) and not self.deadline_is_far)

        if left > 0:
            await until(is_over, "an answer or a hang")
        # The GPUs that answered before the hang are in the pipe: turns of the loop read them.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if not request.done():
            self._clock.wind(max(0.0, left))


class Bench:
    """A machine with FakeGpus, and the agent's eyes on it."""

    def __init__(
        self,
        folder: Path,
        gpus: Sequence[FakeGpu] = (),
        *,
        expected: int | None = None,
        remembered: Mapping[str, str] | None = None,
        boottime: float = LONG_AFTER_BOOT,
        library: str | None = None,
        proc: Path = Path("/proc"),
        **nvml: Any,
    ) -> None:
        self.clock = WoundClock(boottime)
        self.gpus = FakeGpus(folder, gpus)
        self.machine = self.gpus.machine(self.clock, proc=proc)
        self.nvml = UntilItHangs(
            self.gpus, self.clock, machine=self.machine, library=library, **nvml
        )
        self.sources = Sources(
            machine=self.machine,
            nvml=self.nvml,
            disk=DiskProbe(machine=self.machine),
            mounts=MountTable(self.machine),
            gpus=GpuMap(self.machine, remembered or {}),
            driver=DriverVersion(self.machine),
            expected_gpus=expected,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.gpus.heal()
        await self.nvml.close()

    def build(self, spec: CheckSpec) -> Check:
        built = spec.build(self.sources, {each.name: each.default for each in spec.options})
        return cast("Check", built)  # the GPU checks read no log

    def later(self, seconds: float = 61.0) -> None:
        """Let the next look be a fresh one: past the shared sample and the cached bus."""
        self.clock.wind(seconds)

    async def sample(self) -> GpuSample:
        """A fresh sample."""
        self.later()
        return await self.nvml.sample()

    async def answered(self) -> None:
        """Wait for the answer that came too late for its sample."""
        worker = present(self.nvml._worker)
        assert worker.pending is not None
        await until(worker.pending.done, "the late answer")


class Seen:
    """The results of one run of a check, sorted by kind."""

    def __init__(self, report: Report) -> None:
        assert not isinstance(report, Off), report
        self.kinds = [type(each).__name__ for each in report]
        self.by_component = {
            each.component: each for each in report if isinstance(each, Observation)
        }
        self.faults = [each for each in report if isinstance(each, FaultSighting)]
        self.clearings = [each for each in report if isinstance(each, Clearing)]

    def is_well(self, component: str) -> bool:
        """Whether the GPU is called ok, or is among those that the node's row calls well."""
        said = self.by_component.get(component, self.by_component.get(""))
        return said is not None and said.status is Status.OK

    def status(self, component: str) -> tuple[str, str]:
        """("FAILED", "missing") of a component."""
        observation = self.by_component[component]
        return observation.status.name, observation.reason


async def run_check(check: Check) -> Seen:
    return Seen(await check.run_check())


class Machine(Protocol):
    """A machine with GPUs, whose clock a test turns."""

    def build(self, spec: CheckSpec) -> Check: ...

    def later(self, seconds: float = 61.0) -> None: ...


async def first_run(machine: Machine, spec: CheckSpec) -> Check:
    """The check, after a run."""
    check = machine.build(spec)
    await run_check(check)
    return check


async def next_run(machine: Machine, check: Check, seconds: float = 61.0) -> Seen:
    """A run of the check, of which nothing is remembered from the one before."""
    machine.later(seconds)
    return await run_check(check)
