"""A reboot, and what a crash leaves behind: trees as systemd-pstore and kdump make them."""

import os
from pathlib import Path

import pytest

from nodeagent.checks import reboot
from nodeagent.model import Status
from nodeagent.sources.host import HostRoots
from tests.agent.kernel_log import HandClock
from tests.agent.machines import (
    built,
    made_up,
    observations,
    options,
    sources,
    this_machine,
    verdicts,
)

BOOTED = 1_795_259_073
REBOOTED, CRASHED = (Status.OK, "rebooted"), (Status.DEGRADED, "crashed")


def machine_up(root: Path, seconds: float) -> HostRoots:
    machine = made_up(root, HandClock(seconds))
    stat = f"cpu  1 2 3\nctxt 25255418\nbtime {BOOTED}\nprocesses 122422\n"
    (machine.proc / "stat").write_text(stat)
    return machine


def left(path: Path, at: float, *, folder: bool = True) -> None:
    if folder:
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    os.utime(path, (at, at))


async def verdict(machine: HostRoots, **settings: float) -> tuple[Status, str]:
    check = built(reboot.SPEC, sources(machine), options(reboot.SPEC, **settings))
    return verdicts(await check.run_check())[""]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(60, REBOOTED), (3599, REBOOTED), (3600, (Status.OK, ""))]
)
async def test_a_reboot_is_told_for_an_hour(
    tmp_path: Path, seconds: float, expected: tuple[Status, str]
) -> None:
    assert await verdict(machine_up(tmp_path, seconds)) == expected


async def test_how_long_is_a_setting(tmp_path: Path) -> None:
    assert await verdict(machine_up(tmp_path, 60), recent=30) == (Status.OK, "")


@pytest.mark.parametrize(
    ("path", "at", "folder", "expected"),
    [
        ("sys/fs/pstore/dmesg-efi_pstore-179525880001001", BOOTED - 273, False, CRASHED),
        ("sys/fs/pstore/dmesg-efi_pstore-178625907301001", BOOTED - 9e6, False, REBOOTED),
        ("sys/fs/pstore/console-ramoops-0", BOOTED - 9, False, REBOOTED),
        ("var/lib/systemd/pstore/1795259080", BOOTED + 7, True, CRASHED),
        ("var/lib/systemd/pstore/1700000000", BOOTED - 9e6, True, REBOOTED),
        ("var/crash/202611211105", BOOTED - 600, True, CRASHED),
        ("var/crash/202511211105", BOOTED - 9e6, True, REBOOTED),
        ("var/crash/kexec_cmd", BOOTED - 5, False, REBOOTED),
        ("var/crash/written-by-an-application", BOOTED + 600, True, REBOOTED),
    ],
)
async def test_what_a_crash_leaves(
    tmp_path: Path, path: str, at: float, *, folder: bool, expected: tuple[Status, str]
) -> None:
    machine = machine_up(tmp_path, 900)
    left(tmp_path / path, at, folder=folder)
    assert await verdict(machine) == expected


async def test_the_evidence_is_named(tmp_path: Path) -> None:
    machine = machine_up(tmp_path, 900)
    left(tmp_path / "var/crash/202611211105", BOOTED - 600)
    report = await built(reboot.SPEC, sources(machine), options(reboot.SPEC)).run_check()
    message = "the kernel crashed before this boot: /var/crash/202611211105"
    assert observations(report)[""].message == message


async def test_a_crash_of_long_ago_is_not_told(tmp_path: Path) -> None:
    machine = machine_up(tmp_path, 7200)
    left(tmp_path / "var/crash/202611211105", BOOTED - 600)
    assert await verdict(machine) == (Status.OK, "")


@pytest.mark.parametrize("text", ["", "cpu 1\n", "btime what\n", "btime -1\n"])
async def test_no_time_of_the_boot_is_unknown(tmp_path: Path, text: str) -> None:
    machine = machine_up(tmp_path, 60)
    (machine.proc / "stat").write_text(text)
    assert await verdict(machine) == (Status.UNKNOWN, "no-procfs")


async def test_this_machine_has_booted() -> None:
    assert reboot.boot_time(this_machine()) > 1_500_000_000
    assert (await verdict(this_machine()))[1] in ("", "rebooted", "crashed")
