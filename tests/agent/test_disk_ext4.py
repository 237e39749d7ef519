"""ext4's own count of errors: on a real filesystem, and as other kernels show it."""

import asyncio
import time
from pathlib import Path

import pytest

from nodeagent.checks import disk_ext4
from nodeagent.checks.base import Off
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
from tests.agent.real_disks import MARKS, ext4, provoke_error, run
from tests.support.waiting import patiently

OK, NEW, OLD = (Status.OK, ""), (Status.FAILED, "errors"), (Status.DEGRADED, "old-errors")
LINE = "25 1 8:{0} / {1}/d{0} rw,relatime shared:1 - ext4 /dev/sda{0} rw\n"


def disk(machine: HostRoots, number: int, **files: object) -> Path:
    """An ext4 of /dev/sda as sysfs shows it."""
    folder = machine.sys / f"fs/ext4/sda{number}"
    folder.mkdir(parents=True)
    device = machine.sys / f"devices/sda/sda{number}"
    device.mkdir(parents=True)
    link = machine.sys / f"dev/block/8:{number}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(device)
    values = {"errors_count": 0, "last_error_time": 0, "last_error_func": ""}
    for name, value in (values | files).items():
        (folder / name).write_text(f"{value}\n")
    with (machine.proc / "self/mountinfo").open("a") as table:
        table.write(LINE.format(number, machine.root))
    return folder


async def test_errors_of_this_boot_and_of_earlier_ones_are_told_apart(tmp_path: Path) -> None:
    machine = made_up(tmp_path, HandClock(3600.0))
    now = int(time.time())
    disk(machine, 1)
    disk(machine, 2, errors_count=3, last_error_time=now - 60, last_error_func="ext4_lookup")
    disk(machine, 3, errors_count=1, last_error_time=now - 86400)
    check = built(disk_ext4.SPEC, sources(machine), options(disk_ext4.SPEC))
    report = await check.run_check()
    assert verdicts(report) == {"/d1": OK, "/d2": NEW, "/d3": OLD}
    message = observations(report)["/d2"].message
    assert message.startswith("3 errors on /dev/sda2, the last at 20")
    assert message.endswith("UTC in ext4_lookup")


async def test_a_count_that_rises_is_new_whatever_the_clock_said(tmp_path: Path) -> None:
    machine = made_up(tmp_path, HandClock(3600.0))
    folder = disk(machine, 1, errors_count=1, last_error_time=1)
    check = built(disk_ext4.SPEC, sources(machine), options(disk_ext4.SPEC))
    assert verdicts(await check.run_check()) == {"/d1": OLD}
    (folder / "errors_count").write_text("2\n")
    assert verdicts(await check.run_check()) == {"/d1": NEW}
    assert verdicts(await check.run_check()) == {"/d1": NEW}, "and it stays so"
    (folder / "errors_count").write_text("0\n")  # repaired and mounted again
    assert verdicts(await check.run_check()) == {"/d1": OK}


@pytest.mark.parametrize("nonsense", ["what?", "-", "", "\udcff"])
async def test_what_cannot_be_read_is_left_out(tmp_path: Path, nonsense: str) -> None:
    machine = made_up(tmp_path, HandClock(3600.0))
    folder = disk(machine, 1)
    other = disk(machine, 2, errors_count=1)
    (other / "last_error_time").unlink()
    check = built(disk_ext4.SPEC, sources(machine), options(disk_ext4.SPEC))
    assert verdicts(await check.run_check()) == {"/d1": OK, "/d2": OLD}
    (folder / "errors_count").write_bytes(nonsense.encode(errors="surrogateescape"))
    assert verdicts(await check.run_check()) == {"/d2": OLD}


async def test_no_ext4_is_off_and_no_mount_table_is_unknown(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    check = built(disk_ext4.SPEC, sources(machine), options(disk_ext4.SPEC))
    assert verdicts(await check.run_check()) == {"": (Status.UNKNOWN, "no-mount-table")}
    (machine.proc / "self/mountinfo").write_text("25 1 8:1 / /x rw - xfs /dev/sda1 rw\n")
    assert isinstance(await check.run_check(), Off)


@pytest.mark.root
@MARKS[1]
async def test_a_real_ext4_that_found_an_error(tmp_path: Path) -> None:
    with ext4(tmp_path / "e", "errors=continue") as point:
        name = str(point)
        found = sources(this_machine())
        check = built(disk_ext4.SPEC, found, options(disk_ext4.SPEC, mounts=(name,)))
        assert verdicts(await check.run_check())[name] == OK
        provoke_error(point)
        for _ in patiently():  # the kernel notes it in its own time
            if verdicts(await check.run_check())[name] == NEW:
                break
            await asyncio.sleep(0.05)
        restarted = built(disk_ext4.SPEC, found, options(disk_ext4.SPEC, mounts=(name,)))
        report = await restarted.run_check()
        assert verdicts(report)[name] == NEW
        assert "1 error on /dev/loop" in observations(report)[name].message
        assert "in trigger_test_error" in observations(report)[name].message
        run("umount", point)
        assert name not in {each.component for each in [*(await check.run_check())]}
        run("mount", "-o", "loop", point.with_suffix(".img"), point)
