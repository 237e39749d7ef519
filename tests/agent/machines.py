"""Machines for the tests of checks: this one, and made-up ones from files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.checks.base import CheckSpec, Off, Report
from nodeagent.clock import Clock, SystemClock
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.disk_probe import DiskProbe
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.mountinfo import MountTable
from nodeagent.sources.nvidia_driver import DriverVersion
from nodeagent.sources.nvml import Nvml


def this_machine() -> HostRoots:
    return HostRoots(clock=SystemClock())


class SettledClock(SystemClock):
    """This machine's clock, long after a boot however young the machine is."""

    def boottime(self) -> float:
        return super().boottime() + 100_000.0


def made_up(root: Path, clock: Clock | None = None) -> HostRoots:
    """A machine whose /proc and /sys are folders of ``root``."""
    for name in ("proc/self", "proc/net", "sys", "etc"):
        (root / name).mkdir(parents=True, exist_ok=True)
    return HostRoots(clock=clock or SettledClock(), root=root, proc=root / "proc", sys=root / "sys")


def sources(machine: HostRoots, deadline: float = 10.0) -> Sources:
    return Sources(
        machine=machine,
        nvml=Nvml(machine=machine),
        disk=DiskProbe(machine=machine, deadline=deadline),
        mounts=MountTable(machine),
        gpus=GpuMap(machine),
        driver=DriverVersion(machine),
    )


def options(spec: CheckSpec, **settings: Any) -> Mapping[str, Any]:
    """A check's options as the configuration gives them: parsed, defaults where not set."""
    unknown = settings.keys() - {option.name for option in spec.options}
    assert not unknown, f"{spec.name} has no option {unknown}"
    values = {option.name: settings.get(option.name, option.default) for option in spec.options}
    return {o.name: o.parse(values[o.name]) if o.parse else values[o.name] for o in spec.options}


def built(spec: CheckSpec, sources: Sources, settings: Mapping[str, Any]) -> Any:
    """The check itself, of whatever class it is."""
    return spec.build(sources, settings)


def observations(report: Report) -> dict[str, Observation]:
    """The report's observations by component."""
    assert not isinstance(report, Off), report
    found = [entry for entry in report if isinstance(entry, Observation)]
    by_component = {observation.component: observation for observation in found}
    assert len(by_component) == len(found), "a component is reported once"
    return by_component


def verdicts(report: Report) -> dict[str, tuple[Status, str]]:
    return {name: (o.status, o.reason) for name, o in observations(report).items()}
