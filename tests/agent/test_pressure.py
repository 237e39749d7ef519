"""Work that waits for CPU or I/O: files as kernels write them, and this kernel's."""

from pathlib import Path

import pytest

from nodeagent.checks import pressure
from nodeagent.checks.base import Off
from nodeagent.model import Status
from nodeagent.sources.host import HostRoots
from tests.agent.machines import built, made_up, options, sources, this_machine, verdicts
from tests.agent.test_memory import psi

OK, STALLED = (Status.OK, ""), (Status.DEGRADED, "stalled")


def machine_with(root: Path, *, cpu: str, io: str) -> HostRoots:
    machine = made_up(root)
    (machine.proc / "pressure").mkdir(exist_ok=True)
    (machine.proc / "pressure/cpu").write_text(cpu)
    (machine.proc / "pressure/io").write_text(io)
    return machine


def check_of(machine: HostRoots, **settings: float) -> pressure.PressureCheck:
    check: pressure.PressureCheck = built(
        pressure.SPEC, sources(machine), options(pressure.SPEC, **settings)
    )
    return check


@pytest.mark.parametrize(
    ("cpu", "io", "expected"),
    [
        (psi(), psi(), {"cpu": OK, "io": OK}),
        (psi(some=96.0, full=None), psi(), {"cpu": STALLED, "io": OK}),
        (psi(some=80.0, full=0.0), psi(some=99.0, full=81.0), {"cpu": OK, "io": STALLED}),
        (psi(some=80.0), psi(some=99.0, full=79.0), {"cpu": OK, "io": OK}),
        (psi(), "what?", {"cpu": OK, "io": (Status.UNKNOWN, "no-procfs")}),
    ],
)
async def test_verdicts(
    tmp_path: Path, cpu: str, io: str, expected: dict[str, tuple[Status, str]]
) -> None:
    assert verdicts(await check_of(machine_with(tmp_path, cpu=cpu, io=io)).run_check()) == expected


async def test_thresholds_are_settings(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, cpu=psi(some=50.0), io=psi(full=50.0))
    found = verdicts(await check_of(machine, cpu=40.0, io=40.0).run_check())
    assert found == {"cpu": STALLED, "io": STALLED}


async def test_a_kernel_without_pressure_is_off(tmp_path: Path) -> None:
    assert isinstance(await check_of(made_up(tmp_path)).run_check(), Off)


async def test_this_kernel_answers() -> None:
    report = await check_of(this_machine()).run_check()
    if not isinstance(report, Off):
        assert {reason for _, reason in verdicts(report).values()} <= {"", "stalled"}
