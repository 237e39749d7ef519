"""The disk checks' verdicts on given observations: no disk is touched here."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import disk_readonly, disk_space, disk_write
from nodeagent.model import Status
from nodeagent.sources.disk_probe import (
    Differs,
    DiskProbe,
    Hung,
    NotProbed,
    ProbeRefused,
    Result,
    Space,
    Written,
)
from nodeagent.sources.mountinfo import Mount, parse
from tests.agent.kernel_log import HandClock
from tests.agent.machines import built, made_up, options, sources, verdicts
from tests.support.present import of_type

GIB = 1 << 30
LIMITS = disk_space.SpaceLimits(
    degrade_above=90,
    fail_above=97,
    inodes_degrade_above=90,
    inodes_fail_above=97,
    min_free=0,
    plenty=50 * GIB,
)


def mount(line: str) -> Mount:
    return parse(line.encode())[0]


DISK = mount("1 0 8:1 / /data rw - ext4 /dev/sda1 rw")
HOME = mount("2 1 0:9 / /home rw - nfs4 filer:/home rw")


def space(percent: float, size: int = 100 * GIB, inodes: int = 1000, left: int = 1000) -> Space:
    used = int(size * percent / 100)
    return Space(size, used, size - used, inodes, left)


def test_reserved_blocks_count_as_df_counts_them() -> None:
    # 100 of 105 used, 0 left to others than root: full, though 5 are free.
    assert disk_space.evaluate(DISK, Space(105, 100, 0, 0, 0), LIMITS).message.startswith("100 %")


def test_min_free_fails_whatever_the_per_cent() -> None:
    limits = disk_space.SpaceLimits(90, 97, 90, 97, min_free=60 * GIB, plenty=50 * GIB)
    observation = disk_space.evaluate(DISK, space(45), limits)
    assert (observation.status, observation.reason) == (Status.FAILED, "full")


@given(st.floats(0, 100), st.integers(0, 10**16), st.integers(0, 10**12))
def test_more_free_never_makes_it_worse(percent: float, size: int, more: int) -> None:
    tight = space(percent, size)
    roomy = Space(tight.size + more, tight.used, tight.free + more, 0, 0)
    before = disk_space.evaluate(DISK, tight, LIMITS).status
    if tight.size:
        assert disk_space.evaluate(DISK, roomy, LIMITS).status <= before


@pytest.mark.parametrize(
    ("result", "status", "reason", "words"),
    [
        (Written(0.0024), Status.OK, "", "took 2 ms"),
        (Differs(), Status.FAILED, "corrupt", "other bytes than were written"),
        (Hung(10.0, "D in io_schedule"), Status.DEGRADED, "hung", "D in io_schedule"),
        (Hung(61.0, "D in io_schedule"), Status.FAILED, "hung", "D in io_schedule"),
        (ProbeRefused(errno.EIO, "fsync"), Status.FAILED, "io-error", "fsync"),
        (ProbeRefused(errno.EUCLEAN, "fsync"), Status.FAILED, "io-error", "fsync"),
        (ProbeRefused(errno.EROFS, "open"), Status.FAILED, "read-only", "open"),
        (ProbeRefused(errno.ENOSPC, "write"), Status.DEGRADED, "no-space", "write"),
        (ProbeRefused(errno.EDQUOT, "write"), Status.DEGRADED, "no-space", "write"),
        (ProbeRefused(errno.ENOENT, "open"), Status.UNKNOWN, "no-directory", "there is no such"),
        (ProbeRefused(errno.ENOTDIR, "open"), Status.UNKNOWN, "no-directory", "there is no such"),
        (ProbeRefused(errno.EACCES, "open"), Status.UNKNOWN, "not-permitted", "open"),
        (ProbeRefused(errno.EPERM, "open"), Status.UNKNOWN, "not-permitted", "open"),
        (ProbeRefused(errno.EEXIST, "open"), Status.UNKNOWN, "probe-failed", "open"),
        (NotProbed("no such interpreter"), Status.UNKNOWN, "probe-failed", "no such interpreter"),
    ],
)
def test_a_write_probe(result: Result, status: Status, reason: str, words: str) -> None:
    found = disk_write.evaluate("/data", result)
    assert (found.check, found.component) == ("disk-write", "/data")
    assert (found.status, found.reason) == (status, reason)
    assert words in found.message


def test_a_pods_read_only_volume_is_not_a_sick_disk() -> None:
    found = disk_write.evaluate("/data", ProbeRefused(errno.EROFS, "open"), only_this_mount=True)
    assert (found.status, found.reason) == (Status.UNKNOWN, "read-only-mount")


def test_fstab_names_what_boots_writable() -> None:
    text = (
        "# <what> <where> <type> <options> <dump> <pass>\n"
        "# /data /data ext4 defaults 0 0\n"
        "#/dev/sda1 /disabled ext4 defaults 0 0\n"
        "UUID=1 / ext4 errors=remount-ro,nofail 0 1\n"
        "UUID=2 /ro xfs defaults,ro 0 2\n"
        "UUID=3 /later ext4 noauto,rw 0 0\n"
        "/dev/md0 /scratch xfs defaults\n"
        "/dev/md1 /without-options ext4\n"
        "garbage\n"
    )
    assert disk_readonly.writable_in_fstab(text) == {"/", "/scratch"}


def write_table(root: Path, *lines: str) -> None:
    """A mount table whose mount points lie below ``root``, where a pod sees the host."""
    text = "".join(line.replace("@", str(root)) + "\n" for line in lines)
    (root / "proc/self/mountinfo").write_text(text)


async def test_an_error_is_a_failure_until_it_is_writable_again(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    check = built(disk_readonly.SPEC, sources(machine), options(disk_readonly.SPEC))
    write_table(tmp_path, "1 0 8:1 / @ rw - ext4 /dev/sda rw")
    assert verdicts(await check.run_check()) == {"/": (Status.OK, "")}
    write_table(tmp_path, "1 0 8:1 / @ rw - ext4 /dev/sda ro")
    assert verdicts(await check.run_check()) == {"/": (Status.FAILED, "read-only")}
    write_table(tmp_path, "1 0 8:1 / @ rw - ext4 /dev/sda rw")
    assert verdicts(await check.run_check()) == {"/": (Status.OK, "")}


async def test_a_disk_that_was_opened_for_an_update_is_read_only_by_design_again(
    tmp_path: Path,
) -> None:
    """As dpkg's hooks do with a read-only /usr. An error in between leaves the mount's own flag."""
    machine = made_up(tmp_path)
    check = built(disk_readonly.SPEC, sources(machine), options(disk_readonly.SPEC))
    closed, opened = (f"1 0 8:1 / @ {flag} - ext4 /dev/sda {flag}" for flag in ("ro", "rw"))
    for table in (closed, opened, closed, opened):
        write_table(tmp_path, table)
        assert verdicts(await check.run_check()) == {"/": (Status.OK, "")}
    write_table(tmp_path, "1 0 8:1 / @ rw - ext4 /dev/sda ro")
    assert verdicts(await check.run_check()) == {"/": (Status.FAILED, "read-only")}


async def test_after_a_restart_fstab_and_the_error_count_still_tell(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    (tmp_path / "etc/fstab").write_text("/dev/sda / ext4 defaults 0 1\n")
    (machine.sys / "fs/ext4/sdb").mkdir(parents=True)
    (machine.sys / "fs/ext4/sdb/errors_count").write_text("2\n")
    (machine.sys / "dev/block").mkdir(parents=True)
    (machine.sys / "devices/sdb").mkdir(parents=True)
    (machine.sys / "dev/block/8:16").symlink_to("../../devices/sdb")
    write_table(
        tmp_path,
        "1 0 8:1 / @ ro - ext4 /dev/sda ro",
        "2 1 8:16 / @/b ro - ext4 /dev/sdb ro,errors=remount-ro",
        "3 1 8:32 / @/c ro - ext4 /dev/sdc ro,errors=remount-ro",
    )
    check = built(disk_readonly.SPEC, sources(machine), options(disk_readonly.SPEC))
    assert verdicts(await check.run_check()) == {
        "/": (Status.FAILED, "read-only"),
        "/b": (Status.FAILED, "read-only"),
        "/c": (Status.OK, ""),
    }


async def test_an_unmounted_disk_is_gone_and_a_named_one_is_missed(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    settings = options(disk_readonly.SPEC, mounts=("/scratch/",))
    check = built(disk_readonly.SPEC, sources(machine), settings)
    root = "1 0 8:1 / @ rw - ext4 /dev/sda rw"
    data = "2 1 8:2 / @/data rw - ext4 /dev/sdb rw"
    scratch = "3 1 0:9 / @/scratch rw - tmpfs tmpfs rw"
    write_table(tmp_path, root, data, scratch)
    assert set(verdicts(await check.run_check())) == {"/", "/data", "/scratch"}
    write_table(tmp_path, root)
    report = await check.run_check()
    assert verdicts(report)["/scratch"] == (Status.UNKNOWN, "not-mounted")
    assert "/data" not in verdicts(report)


@pytest.mark.parametrize("spec", [disk_readonly.SPEC, disk_space.SPEC])
async def test_no_mount_table_is_unknown_and_not_a_crash(tmp_path: Path, spec: object) -> None:
    module = disk_readonly if spec is disk_readonly.SPEC else disk_space
    check = built(module.SPEC, sources(made_up(tmp_path)), options(module.SPEC))
    assert verdicts(await check.run_check()) == {"": (Status.UNKNOWN, "no-mount-table")}


class Answering:
    """Replaces the children: keeps the requests, and answers full for every path."""

    def __init__(self) -> None:
        self.asked: dict[bool, list[str]] = {}

    async def space(self, paths: list[str], *, apart: bool = False) -> dict[str, Result]:
        self.asked[apart] = sorted(paths)
        return {path: space(100) for path in paths}


async def test_remote_filesystems_are_asked_apart_from_those_of_this_node(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    check = built(disk_space.SPEC, sources(machine), options(disk_space.SPEC))
    check._probe = asked = Answering()
    write_table(
        tmp_path,
        "1 0 8:1 / @ rw - ext4 /dev/sda rw",
        "2 1 8:2 / @/data rw - xfs /dev/sdb rw",
        "3 1 0:9 / @/home rw - nfs4 filer:/home rw",
    )
    found = verdicts(await check.run_check())
    assert asked.asked == {
        False: [f"{tmp_path}/", f"{tmp_path}/data"],
        True: [f"{tmp_path}/home"],
    }
    assert found == {
        "/": (Status.FAILED, "full"),
        "/data": (Status.FAILED, "full"),
        "/home": (Status.DEGRADED, "full"),
    }


async def test_a_full_disk_that_was_unmounted_is_full_no_longer(tmp_path: Path) -> None:
    """A job's scratch: it would be failed for ever."""
    check = built(disk_space.SPEC, sources(made_up(tmp_path)), options(disk_space.SPEC))
    check._probe = Answering()
    root = "1 0 8:1 / @ rw - ext4 /dev/sda rw"
    full = (Status.FAILED, "full")
    write_table(tmp_path, root, "2 1 253:2 / @/scratch rw - xfs /dev/dm-2 rw")
    assert verdicts(await check.run_check()) == {"/": full, "/scratch": full}
    write_table(tmp_path, root)
    assert verdicts(await check.run_check()) == {"/": full, "/scratch": (Status.OK, "")}
    assert verdicts(await check.run_check()) == {"/": full}


async def test_a_named_mount_may_be_late_after_a_boot(tmp_path: Path) -> None:
    machine = made_up(tmp_path, HandClock(60.0))
    settings = options(disk_space.SPEC, mounts=("/scratch",))
    check = built(disk_space.SPEC, sources(machine), settings)
    check._probe = Answering()
    write_table(tmp_path, "1 0 8:1 / @ rw - ext4 /dev/sda rw")
    assert verdicts(await check.run_check())["/scratch"] == (Status.UNKNOWN, "not-up-yet")
    job = built(disk_space.SPEC, replace(sources(machine), single_run=True), settings)
    job._probe = Answering()
    assert verdicts(await job.run_check())["/scratch"] == (Status.FAILED, "not-mounted")


class OfZfs(Answering):
    """A pool whose dataset ``name`` is full.

    ``pool`` is the room of the others, and ``reserved`` that of the dataset "bob".
    """

    def __init__(self, pool: int, reserved: int, name: str = "alice") -> None:
        super().__init__()
        self.pool, self.reserved, self.name = pool, reserved, name

    async def space(self, paths: list[str], *, apart: bool = False) -> dict[str, Result]:
        full = Space(size=100, used=100, free=0, inodes=0, inodes_free=0)
        room = Space(size=900 << 30, used=100 << 30, free=self.pool, inodes=0, inodes_free=0)
        own = Space(size=9 << 30, used=1 << 30, free=self.reserved, inodes=0, inodes_free=0)
        ends = {self.name: full, "bob": own}
        return {path: ends.get(path.rpartition("/")[2], room) for path in paths}


@pytest.mark.parametrize(
    ("pool", "reserved", "status"),
    [
        (800 << 30, 800 << 30, "DEGRADED"),
        (0, 0, "FAILED"),
        (0, 8 << 30, "FAILED"),
        (1 << 20, 1 << 20, "FAILED"),
    ],
)
async def test_a_dataset_at_its_quota_is_no_full_disk(
    tmp_path: Path, pool: int, reserved: int, status: str
) -> None:
    check = built(disk_space.SPEC, sources(made_up(tmp_path)), options(disk_space.SPEC))
    check._probe = OfZfs(pool, reserved)
    write_table(
        tmp_path,
        "1 0 0:30 / @ rw - zfs rpool/ROOT/debian rw",
        "2 1 0:31 / @/home/alice rw - zfs rpool/home/alice rw",
        "3 1 0:32 / @/other/alice rw - zfs tank/alice rw",
        "4 1 0:33 / @/home/bob rw - zfs rpool/home/bob rw",
    )
    found = verdicts(await check.run_check())
    assert found["/home/alice"] == (Status[status], "full")
    assert found["/other/alice"] == (Status.FAILED, "full"), "nothing else of its pool is known"


@pytest.mark.parametrize(
    ("names", "pool", "status"),
    [
        (("a/alice", "b/alice", "c/alice"), 800 << 30, "DEGRADED"),  # all are at their quotas
        (("a/alice", "b/bob", "c/bob"), 0, "FAILED"),  # most have reservations
    ],
)
async def test_the_room_of_a_pool_is_that_of_its_own_dataset(
    tmp_path: Path, names: tuple[str, ...], pool: int, status: str
) -> None:
    check = built(disk_space.SPEC, sources(made_up(tmp_path)), options(disk_space.SPEC))
    check._probe = OfZfs(pool, 8 << 30)
    write_table(
        tmp_path,
        "1 0 0:30 / @ rw - zfs rpool/ROOT/debian rw",
        "2 1 0:31 / @/tank rw - zfs tank rw",
        *(f"3 2 0:{at} / @/tank/{n} rw - zfs tank/{n} rw" for at, n in enumerate(names, 32)),
    )
    found = verdicts(await check.run_check())
    assert found["/tank/a/alice"] == (Status[status], "full")


async def test_a_root_filesystem_at_its_quota_is_full(tmp_path: Path) -> None:
    check = built(disk_space.SPEC, sources(made_up(tmp_path)), options(disk_space.SPEC))
    check._probe = OfZfs(800 << 30, 0, name="")
    write_table(
        tmp_path,
        "1 0 0:30 / @ rw - zfs rpool/ROOT/debian rw",
        "2 1 0:31 / @/home rw - zfs rpool/home rw",
    )
    assert verdicts(await check.run_check())["/"] == (Status.FAILED, "full")


async def test_a_probe_that_cannot_start_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "nothing"))
    probe = DiskProbe(machine=made_up(tmp_path))
    result = of_type((await probe.write(["/tmp"]))["/tmp"], NotProbed)
    assert "cannot start" in result.message
