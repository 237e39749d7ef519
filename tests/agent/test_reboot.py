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


async def test_the_evidence_is_named(tmp_path: Path) -> None:
    machine = machine_up(tmp_path, 900)
    left = tmp_path / "var/crash/202611211105"
    left.mkdir(parents=True)
    os.utime(left, (BOOTED - 600, BOOTED - 600))
    report = await built(reboot.SPEC, sources(machine), options(reboot.SPEC)).run_check()
    message = "the kernel crashed before this boot: /var/crash/202611211105"
    assert observations(report)[""].message == message


async def test_this_machine_has_booted() -> None:
    assert reboot.boot_time(this_machine()) > 1_500_000_000
    assert (await verdict(this_machine()))[1] in ("", "rebooted", "crashed")
