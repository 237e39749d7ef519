"""Expected mounts, and a remote filesystem that goes away: a FUSE process that is stopped."""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodeagent.checks import disk_mounts, disk_space
from nodeagent.checks.base import Off
from nodeagent.checks.disk_common import Watch
from nodeagent.model import Status
from nodeagent.sources import Sources
from nodeagent.sources.mountinfo import MountTable
from tests.agent.fuse_server import Filer
from tests.agent.machines import (
    built,
    made_up,
    observations,
    options,
    sources,
    this_machine,
    verdicts,
)
from tests.agent.real_disks import run, tmpfs
from tests.support.waiting import patiently

OK = (Status.OK, "")
MISSING = (Status.FAILED, "not-mounted")


async def test_expected_mounts_and_those_of_an_automounter(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    table = machine.proc / "self/mountinfo"
    check = built(
        disk_mounts.SPEC,
        sources(machine),
        options(disk_mounts.SPEC, expected=("/scratch", "/data", "/auto")),
    )
    assert verdicts(await check.run_check()) == {"": (Status.UNKNOWN, "no-mount-table")}
    scratch = f"9 1 8:1 / {tmp_path}/scratch rw - xfs /dev/sda1 rw\n"
    auto = f"8 1 0:40 / {tmp_path}/auto rw - autofs systemd-1 rw\n"
    table.write_text(scratch + auto)
    assert verdicts(await check.run_check()) == {"/scratch": OK, "/data": MISSING, "/auto": OK}
    table.write_text(auto)
    assert verdicts(await check.run_check())["/scratch"] == MISSING


def test_the_mounts_to_watch_are_found_anew_only_for_another_table(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    table = machine.proc / "self/mountinfo"
    watch = Watch(MountTable(machine), options(disk_space.SPEC))
    table.write_text(f"9 1 8:1 / {tmp_path}/a rw - xfs /dev/sda1 rw\n")
    found = watch.mounts()
    assert [mount.point for mount in found] == ["/a"]
    assert watch.mounts() is found
    table.write_text(f"9 1 8:1 / {tmp_path}/b rw - xfs /dev/sda1 rw\n")
    assert [mount.point for mount in watch.mounts()] == ["/b"]


async def test_nothing_expected_and_nothing_remote_is_off(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    (machine.proc / "self/mountinfo").write_text("9 1 8:1 / / rw - xfs /dev/sda1 rw\n")
    check = built(disk_mounts.SPEC, sources(machine), options(disk_mounts.SPEC))
    assert isinstance(await check.run_check(), Off)


@pytest.fixture
async def disks() -> AsyncIterator[Sources]:
    found = sources(this_machine(), deadline=5.0)  # of healthy probes too, on a busy machine
    yield found
    await found.disk.close()


@pytest.mark.root
async def test_a_remote_filesystem_that_goes_away_and_comes_back(
    filer: Filer, disks: Sources
) -> None:
    point, server = filer
    name = str(point)
    check = built(disk_mounts.SPEC, disks, options(disk_mounts.SPEC, expected=(name,)))
    space = built(disk_space.SPEC, disks, options(disk_space.SPEC))
    assert verdicts(await check.run_check())[name] == OK
    assert verdicts(await space.run_check())[name] == OK
    filer.stop()
    # Both checks at once: they share the one question that is outstanding.
    mine, its = await asyncio.gather(check.run_check(), space.run_check())
    assert verdicts(mine)[name] == (Status.DEGRADED, "hung")
    assert verdicts(its)[name] == (Status.DEGRADED, "hung")
    assert verdicts(its)["/"] == OK
    assert len(disks.disk.outstanding()) <= 1
    assert "the probe is " in observations(mine)[name].message, "where it waits"
    server.send_signal(signal.SIGCONT)
    for _ in patiently():
        if verdicts(await check.run_check())[name] == OK:
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("it did not come back")
    server.kill()
    server.wait()
    assert verdicts(await check.run_check())[name] == (Status.FAILED, "shut-down")
    run("umount", point)
    assert verdicts(await check.run_check())[name] == MISSING


@pytest.mark.root
@pytest.mark.parametrize(
    ("filer", "verdict"),
    [
        (errno.EIO, (Status.FAILED, "io-error")),
        (errno.ESTALE, (Status.FAILED, "stale")),
        (errno.EACCES, OK),
    ],
    indirect=["filer"],
)
async def test_a_filesystem_that_counts_and_does_not_read_its_root_has_failed(
    filer: Filer, disks: Sources, verdict: tuple[Status, str]
) -> None:
    """As XFS does that has shut down after an error."""
    assert os.statvfs(filer.point).f_blocks
    check = built(disk_mounts.SPEC, disks, options(disk_mounts.SPEC))
    assert verdicts(await check.run_check())[str(filer.point)] == verdict


async def test_a_remote_filesystem_may_be_left_out(filer: Filer, disks: Sources) -> None:
    point, _ = filer
    check = built(disk_mounts.SPEC, disks, options(disk_mounts.SPEC))
    assert str(point) in verdicts(await check.run_check())
    check = built(
        disk_mounts.SPEC, disks, options(disk_mounts.SPEC, exclude=(f"{point.parent}/*",))
    )
    report = await check.run_check()
    assert isinstance(report, Off) or str(point) not in verdicts(report)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
async def test_a_real_mount_that_goes_is_missed(tmp_path: Path, disks: Sources) -> None:
    check = built(
        disk_mounts.SPEC, disks, options(disk_mounts.SPEC, expected=(str(tmp_path / "t"),))
    )
    with tmpfs(tmp_path / "t", "size=1m") as point:
        assert verdicts(await check.run_check())[str(point)] == OK
    report = await check.run_check()
    assert verdicts(report)[str(point)] == MISSING
