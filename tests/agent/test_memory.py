"""Memory and its pressure: files as kernels write them, and this kernel's."""

from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import memory
from nodeagent.checks.base import Off
from nodeagent.evidence.latch import Latch
from nodeagent.model import Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.pressure import Memory, Stall, parse_stall, read_memory
from tests.agent.kernel_log import BOOT
from tests.agent.machines import built, made_up, options, sources, this_machine, verdicts

GIB = 1 << 20  # in the kernel's kB


def meminfo(available: int) -> str:
    return (
        f"MemTotal:       {2000 * GIB} kB\nMemFree:          123 kB\n"
        f"MemAvailable:   {available} kB\nBuffers:            1 kB\n"
        "HugePages_Total:       0\n"
    )


def psi(*, some: float = 0.0, full: float | None = 0.0) -> str:
    text = f"some avg10=99.00 avg60={some:.2f} avg300=0.10 total=123\n"
    return text if full is None else text + f"full avg10=99.00 avg60={full:.2f} avg300=0 total=9\n"


def machine_with(root: Path, available: int, pressure: str | None = None) -> HostRoots:
    machine = made_up(root)
    (machine.proc / "meminfo").write_text(meminfo(available))
    if pressure is not None:
        (machine.proc / "pressure").mkdir(exist_ok=True)
        (machine.proc / "pressure/memory").write_text(pressure)
    return machine


async def verdict(machine: HostRoots, **settings: float) -> tuple[Status, str]:
    check = built(memory.SPEC, sources(machine), options(memory.SPEC, **settings))
    return verdicts(await check.run_check())[""]


@pytest.mark.parametrize(
    ("available", "pressure", "expected"),
    [
        (40 * GIB, psi(), (Status.OK, "")),
        (39 * GIB, psi(), (Status.DEGRADED, "low")),
        (1000 * GIB, psi(some=90.0, full=20.0), (Status.OK, "")),
        (1000 * GIB, psi(some=90.0, full=20.1), (Status.DEGRADED, "stalled")),
        (1000 * GIB, None, (Status.OK, "")),
    ],
)
async def test_verdicts(
    tmp_path: Path, available: int, pressure: str | None, expected: tuple[Status, str]
) -> None:
    assert await verdict(machine_with(tmp_path, available, pressure)) == expected


async def test_thresholds_are_settings(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, 100 * GIB, psi(full=10.0))
    assert await verdict(machine, low=6.0) == (Status.DEGRADED, "low")
    assert await verdict(machine, stalled=5.0) == (Status.DEGRADED, "stalled")


async def test_no_procfs_is_unknown(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    assert await verdict(machine) == (Status.UNKNOWN, "no-procfs")
    for text in ("", "MemTotal: what? kB\n", "MemTotal: 5 kB\n", "MemTotal:\n", "\n"):
        (machine.proc / "meminfo").write_text(text)
        assert await verdict(machine) == (Status.UNKNOWN, "no-procfs")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MemFree: 5 kB\n", "meminfo has no MemTotal"),
        ("MemTotal: what? kB\n", "meminfo is malformed: invalid literal for int"),
        ("MemTotal:\n", "meminfo is malformed: list index out of range"),
    ],
)
def test_the_message_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    machine = made_up(tmp_path)
    (machine.proc / "meminfo").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_memory(machine)


def test_the_file_is_named_when_it_is_missing(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{machine.proc}/meminfo"):
        read_memory(machine)


def test_two_machines_are_told_apart(tmp_path: Path) -> None:
    """psutil has one path for the whole process."""
    full, spare = (machine_with(tmp_path / name, size) for name, size in (("a", 3), ("b", 4)))
    assert read_memory(full) == Memory(2000 << 30, 3 << 10)
    assert read_memory(spare) == Memory(2000 << 30, 4 << 10)
    assert psutil.virtual_memory().total == read_memory(this_machine()).total


async def test_a_number_of_a_well_machine_is_no_change_to_send(tmp_path: Path) -> None:
    """10,000 nodes must not send their free memory once a minute."""
    latch = Latch(boot_id=BOOT, epoch="e")
    for now, available in enumerate((1000 * GIB, 1001 * GIB)):
        check = built(
            memory.SPEC, sources(machine_with(tmp_path, available, psi())), options(memory.SPEC)
        )
        report = await check.run_check()
        assert not isinstance(report, Off)
        changed = latch.apply(report, float(now))
        assert changed is (now == 0)
    [entry] = latch.components.values()
    assert entry.message == "1001.0 of 2000 GiB available"


def test_parsers() -> None:
    assert parse_stall(psi(some=1.5, full=0.25)) == Stall(1.5, 0.25)
    assert parse_stall(psi(some=1.5, full=None)) == Stall(1.5, 0.0)


@given(st.text())
def test_garbage_is_an_error_and_no_crash(text: str) -> None:
    with pytest.raises(ValueError):
        parse_stall(text)


async def test_this_machine_has_memory() -> None:
    assert (await verdict(this_machine()))[1] != "no-procfs"
