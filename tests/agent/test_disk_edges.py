"""The thresholds of the disk checks, on them and beside them, and the words that people read."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.checks import (
    disk_common,
    disk_ext4,
    disk_mounts,
    disk_nvme,
    disk_readonly,
    disk_space,
    disk_write,
)
from nodeagent.checks.kernel_lines import SPECS
from nodeagent.checks.line_places import NodePlaces
from nodeagent.model import Status
from nodeagent.sources.block_devices import Stacks
from nodeagent.sources.disk_probe import Hung, NotProbed, ProbeRefused, Result, Space, Written
from nodeagent.sources.host import HostRoots
from nodeagent.sources.mountinfo import Mount, MountTable, parse
from nodeagent.sources.nvme import Controller
from tests.agent.kernel_log import HandClock, record
from tests.agent.line_checks import faults, line_check
from tests.agent.machines import built, made_up, observations, options, sources, verdicts
from tests.agent.test_disk_nvme import Drives, controller, nvme

GIB = 1 << 30
OK = (Status.OK, "")
FULL = (Status.FAILED, "full")


def mount(line: str) -> Mount:
    return parse(line.encode())[0]


DISK = mount("1 0 8:1 / /data rw - ext4 /dev/sda1 rw")
HOME = mount("2 1 0:9 / /home rw - nfs4 filer:/home rw")


# -- disk-space -----------------------------------------------------------------------------------


def limits(*, min_free: int = 0, plenty: int = 50 * GIB) -> disk_space.SpaceLimits:
    return disk_space.SpaceLimits(90, 97, 80, 95, min_free, plenty)


@pytest.mark.parametrize(
    ("used", "status"),
    [(899, Status.OK), (900, Status.DEGRADED), (969, Status.DEGRADED), (970, Status.FAILED)],
)
def test_a_disk_is_full_from_each_threshold_on(used: int, status: Status) -> None:
    found = disk_space.evaluate(DISK, Space(1000, used, 1000 - used, 0, 0), limits())
    assert (found.status, found.reason) == (status, "full" if status is not Status.OK else "")
    assert found.message == f"{used / 10:.0f} % used, {1000 - used} B free"


@pytest.mark.parametrize(
    ("free", "min_free", "plenty", "verdict"),
    [
        (10, 10, 10**9, (Status.DEGRADED, "full")),
        (9, 10, 10**9, FULL),
        (9, 10, 9, FULL),  # less than the required minimum is never plenty
        (9, 9, 9, OK),
        (9, 0, 10, (Status.DEGRADED, "full")),
        (0, 0, 0, OK),
    ],
)
def test_what_must_be_free_and_what_is_plenty_to_the_byte(
    free: int, min_free: int, plenty: int, verdict: tuple[Status, str]
) -> None:
    space = Space(free * 20, free * 19, free, 0, 0)  # 95 % of it is used
    found = disk_space.evaluate(DISK, space, limits(min_free=min_free, plenty=plenty))
    assert (found.status, found.reason) == verdict


def test_space_outranks_inodes_unless_those_are_worse() -> None:
    both = Space(1000, 910, 90, 100, 15)
    assert disk_space.evaluate(DISK, both, limits()).reason == "full", "degraded by either"
    worse = replace(both, inodes_free=5)
    found = disk_space.evaluate(DISK, worse, limits())
    assert (found.status, found.reason) == (Status.FAILED, "inodes")
    one = Space(1000, 0, 1000, 1, 0)
    assert disk_space.evaluate(DISK, one, limits()).reason == "inodes", (
        "a filesystem with one inode"
    )


@pytest.mark.parametrize(
    ("free", "words"),
    [
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1024**2 - 1, "1024 KiB"),
        (1024**2, "1 MiB"),
        (1024**3, "1 GiB"),
        (1024**4, "1.0 TiB"),
        (5 * 1024**4 // 2, "2.5 TiB"),
        (2048 * 1024**4, "2048.0 TiB"),
    ],
)
def test_sizes_as_people_read_them(free: int, words: str) -> None:
    found = disk_space.evaluate(DISK, Space(free, 0, free, 0, 0), limits())
    assert found.message == f"0 % used, {words} free"


@pytest.mark.parametrize(("size", "verdict"), [(0, OK), (1, FULL)])
def test_a_filesystem_of_no_size_is_never_full(size: int, verdict: tuple[Status, str]) -> None:
    """Even with limits that any percentage exceeds, as for a configured proc or cgroup."""
    strict = disk_space.SpaceLimits(0, 0, 0, 0, min_free=0, plenty=1)
    found = disk_space.evaluate(DISK, Space(size, size, 0, 0, 0), strict)
    assert (found.status, found.reason) == verdict
    assert found.message == f"{100 * size} % used, 0 B free"


@pytest.mark.parametrize("evaluated", [disk_mounts.evaluate, disk_write.evaluate])
def test_an_answer_to_another_question_is_a_defect_and_no_verdict(evaluated: Any) -> None:
    wrong: Result = Written(0.1) if evaluated is disk_mounts.evaluate else Space(1, 0, 1, 0, 0)
    with pytest.raises(TypeError, match="no answer to a"):
        evaluated(HOME, wrong)


async def test_what_is_no_answer_about_space_or_a_log_page_is_a_defect(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no answer to a question about a log page"):
        disk_nvme._health(Written(0.1))
    check = built(disk_space.SPEC, sources(made_up(tmp_path)), options(disk_space.SPEC))
    with pytest.raises(TypeError, match="no answer to a question about space"):
        check._verdict(DISK, Written(0.1), {})


def test_an_image_that_is_full_says_that_it_is_read_only() -> None:
    image = mount("1 0 8:1 / /usr ro - squashfs /dev/loop0 ro")
    found = disk_space.evaluate(image, Space(1000, 1000, 0, 10, 0), limits())
    assert (found.status, found.message) == (Status.OK, "100 % used, 0 B free, read-only")


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        (errno.EIO, (Status.FAILED, "io-error")),
        (errno.ESHUTDOWN, (Status.FAILED, "shut-down")),
        (errno.ENOTCONN, (Status.FAILED, "shut-down")),
        (errno.ESTALE, (Status.FAILED, "stale")),
        (errno.EPERM, (Status.UNKNOWN, "probe-failed")),
        (errno.ENOENT, (Status.UNKNOWN, "probe-failed")),
    ],
)
def test_each_refusal_by_its_errno(number: int, verdict: tuple[Status, str]) -> None:
    found = disk_common.without_space("disk-space", DISK.name, ProbeRefused(number, "statvfs"))
    assert (found.component, found.status, found.reason) == ("/data", *verdict)
    assert found.message == str(ProbeRefused(number, "statvfs"))


# -- what the disk checks share -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "status"), [(59.9, Status.DEGRADED), (60.0, Status.FAILED), (61.0, Status.FAILED)]
)
def test_a_probe_that_hangs_for_a_minute_has_failed(seconds: float, status: Status) -> None:
    found = disk_common.hung("disk-write", "/data", Hung(seconds, "D in io_schedule"))
    assert (found.status, found.reason) == (status, "hung")
    assert found.message == f"no answer for {seconds:.0f} s; the probe is D in io_schedule"
    assert disk_common.hung("disk-write", "/data", Hung(1, "")).message.endswith(
        "the probe is gone"
    )


def test_mounts_are_named_without_the_last_slash() -> None:
    assert disk_common.absolute_paths(["/", "//", "/data//", "/a/b"]) == ("/", "/", "/data", "/a/b")
    with pytest.raises(ValueError, match="'' is not an absolute path"):
        disk_common.absolute_paths([""])
    with pytest.raises(ValueError, match="'data' is not an absolute path"):
        disk_common.absolute_paths(["/ok", "data"])


# -- disk-write and disk-mounts -------------------------------------------------------------------


class Refusing:
    """Replaces the child of disk-write: one answer for all paths."""

    answer: Result = ProbeRefused(errno.EROFS, "open")

    async def write(self, paths: tuple[str, ...]) -> dict[str, Result]:
        return dict.fromkeys(paths, self.answer)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("1 0 8:1 / @ ro - ext4 /dev/sda rw", "read-only-mount"),  # the mount's flag alone
        ("1 0 8:1 / @ rw - ext4 /dev/sda ro", "read-only"),
        ("1 0 7:1 / @ ro - squashfs /dev/loop1 ro", "read-only-mount"),
        ("1 0 0:40 / @ rw - overlay overlay ro,lowerdir=/a:/b", "read-only-mount"),
        ("1 0 0:40 / @ rw - overlay overlay rw,upperdir=/u", "read-only"),
        ("1 0 8:1 / @ ro - ext4 /dev/sda ro", "read-only-mount"),  # mounted so, and never written
        ("1 0 0:9 / @ ro - btrfs /dev/sda ro", "read-only-mount"),
        ("1 0 8:1 / @ ro - ext4 /dev/sda rw,emergency_ro", "read-only"),
        ("1 0 8:1 / @ rw - ext4 /dev/sda rw", "read-only"),  # the mount table shows no reason
        ("", "read-only"),
    ],
)
async def test_a_refused_write_is_the_disks_fault_unless_this_mount_alone_forbids_it(
    tmp_path: Path, table: str, reason: str
) -> None:
    machine = made_up(tmp_path)
    if table:
        (tmp_path / "proc/self/mountinfo").write_text(table.replace("@", str(tmp_path)) + "\n")
    check = built(
        disk_write.SPEC, sources(machine), options(disk_write.SPEC, paths=(str(tmp_path),))
    )

    check._probe = probe = Refusing()
    assert {reason for _, reason in verdicts(await check.run_check()).values()} == {reason}
    probe.answer = Written(0.001)  # an update opens it for a while
    assert {reason for _, reason in verdicts(await check.run_check()).values()} == {""}
    probe.answer = ProbeRefused(errno.EROFS, "open")
    assert {reason for _, reason in verdicts(await check.run_check()).values()} == {reason}
    probe.answer = ProbeRefused(errno.EIO, "write")
    assert [*verdicts(await check.run_check()).values()] == [(Status.FAILED, "io-error")]


@pytest.mark.parametrize(
    ("mount", "status"),
    [
        ("@ rw - nfs4 filer:/ rw", "DEGRADED"),
        ("@ rw - fuse.juicefs jfs rw", "DEGRADED"),
        ("@ rw - fuse.mergerfs a:b rw", "FAILED"),
        ("@ rw - fuseblk /dev/sdb1 rw", "FAILED"),
        ("/ rw - nfs4 filer:/root rw", "FAILED"),
    ],
)
async def test_a_refused_write_is_mild_on_a_network_s_filesystem_alone(
    tmp_path: Path, mount: str, status: str
) -> None:
    machine = made_up(tmp_path)
    table = f"1 0 0:70 / {mount}\n".replace("@", str(tmp_path))
    (tmp_path / "proc/self/mountinfo").write_text(table)
    check = built(
        disk_write.SPEC, sources(machine), options(disk_write.SPEC, paths=(f"{tmp_path}",))
    )
    check._probe = probe = Refusing()
    probe.answer = ProbeRefused(errno.EIO, "write")
    assert [*verdicts(await check.run_check()).values()] == [(Status[status], "io-error")]


@pytest.mark.parametrize(
    ("result", "is_parsed"),
    [
        (Written(0.1), False),
        (ProbeRefused(errno.ENOSPC, "write"), False),
        (ProbeRefused(errno.ENOENT, "open"), False),
        (NotProbed("no python"), False),
        (Hung(12.0, "D"), False),
        (Hung(60.0, "D"), True),
        (ProbeRefused(errno.EROFS, "open"), True),
    ],
)
async def test_the_mount_table_is_parsed_for_a_failure_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Result, *, is_parsed: bool
) -> None:
    tables: list[bytes] = []

    def parse(table: bytes) -> tuple[()]:
        tables.append(table)
        return ()

    monkeypatch.setattr(disk_write, "parse", parse)
    machine = made_up(tmp_path)
    (tmp_path / "proc/self/mountinfo").touch()
    check = built(disk_write.SPEC, sources(machine), options(disk_write.SPEC, paths=("/data",)))
    check._probe = probe = Refusing()
    probe.answer = result
    await check.run_check()
    assert bool(tables) is is_parsed


@pytest.mark.parametrize(
    ("result", "verdict", "message"),
    [
        (Space(1, 0, 1, 0, 0), OK, "filer:/home answers"),
        (
            ProbeRefused(errno.EHOSTDOWN, "statvfs"),
            (Status.FAILED, "io-error"),
            f"filer:/home: {ProbeRefused(errno.EHOSTDOWN, 'statvfs')}",
        ),
        (
            ProbeRefused(errno.ECONNABORTED, "statvfs"),
            (Status.FAILED, "shut-down"),
            f"filer:/home: {ProbeRefused(errno.ECONNABORTED, 'statvfs')}",
        ),
        (
            ProbeRefused(errno.ETIMEDOUT, "statvfs"),
            (Status.FAILED, "hung"),
            f"filer:/home: {ProbeRefused(errno.ETIMEDOUT, 'statvfs')}",
        ),
        (
            ProbeRefused(errno.EACCES, "statvfs"),
            (Status.UNKNOWN, "probe-failed"),
            f"filer:/home: {ProbeRefused(errno.EACCES, 'statvfs')}",
        ),
        (NotProbed("no python"), (Status.UNKNOWN, "probe-failed"), "no python"),
        (Hung(60, "D"), (Status.FAILED, "hung"), "no answer for 60 s; the probe is D"),
    ],
)
def test_a_remote_filesystem_s_answer(
    result: Result, verdict: tuple[Status, str], message: str
) -> None:
    found = disk_mounts.evaluate(HOME, result)
    assert (found.status, found.reason) == verdict
    assert (found.check, found.component, found.message) == ("disk-mounts", "/home", message)


# -- disk-nvme ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "serial", "said"),
    [("M", "", "M: live"), ("", "S", "S: live"), ("", "", "live"), ("M", "S", "M S: live")],
)
def test_a_drive_is_called_by_what_is_known_of_it(model: str, serial: str, said: str) -> None:
    assert disk_nvme._named(Controller("nvme0", "live", model, serial), "live") == said


async def test_drives_that_are_expected_missing_and_back(tmp_path: Path) -> None:
    clock = HandClock(1000.0)
    machine = made_up(tmp_path, clock)
    first, second = (controller(machine, number) for number in (0, 1))
    drives = Drives(machine)
    check = nvme(machine, drives, expected=2, stuck_for=300.0)
    report = await check.run_check()
    assert verdicts(report) == {"": OK, "nvme0": OK, "nvme1": OK}
    assert observations(report)[""].message == "2 drives"
    first.rename(tmp_path / "away")
    report = await check.run_check()
    missing = (Status.FAILED, "missing")
    assert verdicts(report) == {"": OK, "nvme0": missing, "nvme1": OK}, "it is told by its name"
    fresh = nvme(machine, drives, expected=2)
    report = await fresh.run_check()
    assert verdicts(report) == {"": missing, "nvme1": OK}
    assert observations(report)[""].message == "1 drive, and the configuration expects 2"
    (tmp_path / "away").rename(first)
    assert verdicts(await check.run_check()) == {"": OK, "nvme0": OK, "nvme1": OK}
    for after, reason in ((0.0, "not-live"), (299.0, "not-live"), (1.0, "stuck")):
        (second / "state").write_text("resetting\n")
        clock.now += after
        assert verdicts(await check.run_check())["nvme1"][1] == reason
    drives.answer = ProbeRefused(errno.EACCES, "open")
    report = await check.run_check()
    assert verdicts(report)["nvme0"] == (Status.UNKNOWN, "no-log")
    words = f"PM9A3 S0: live; its health log can't be read: {ProbeRefused(errno.EACCES, 'open')}"
    assert observations(report)["nvme0"].message == words


# -- disk-md, disk-readonly, disk-ext4 ------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "signs", "why"),
    [
        ("rw - ext4 /dev/sda1 rw,emergency_ro", {"seen_writable": True}, "(emergency_ro)"),
        ("rw - ext4 /dev/sda1 rw,emergency_ro", {"remounted": True}, "(emergency_ro)"),
        ("ro - ext4 /dev/sda1 ro", {"seen_writable": True, "fstab_writable": True}, "was writable"),
        ("ro - ext4 /dev/sda1 ro", {"must_write": True, "remounted": True}, "configuration"),
        ("ro - ext4 /dev/sda1 ro", {"must_write": True, "fstab_writable": True}, "configuration"),
        ("rw - ext4 /dev/sda1 ro", {"fstab_writable": True}, "mounted writable"),
        ("ro - ext4 /dev/sda1 ro", {"fstab_writable": True, "errors": 1}, "/etc/fstab"),
        ("ro - ext4 /dev/sda1 ro,errors=remount-ro", {"errors": 1}, "1 filesystem error, and"),
        ("ro - ext4 /dev/sda1 ro,errors=remount-ro", {}, None),
        ("ro - ext4 /dev/sda1 ro,errors=continue", {"errors": 5}, None),
    ],
)
def test_the_strongest_sign_of_a_read_only_filesystem_is_told(
    line: str, signs: dict[str, object], why: str | None
) -> None:
    none = {"seen_writable": False, "must_write": False, "fstab_writable": False, "errors": 0}
    found = disk_readonly.evaluate(mount(f"1 0 8:1 / /d {line}"), **(none | signs))  # type: ignore[arg-type]
    if why is None:
        assert (found.status, found.message) == (Status.OK, "read-only since it was first seen")
    else:
        assert found.status is Status.FAILED
        assert found.message.startswith("ext4 on /dev/sda1 is read-only: ")
        assert why in found.message


@pytest.mark.parametrize("sign", ["seen_writable", "fstab_writable"])
def test_a_remount_of_a_filesystem_without_an_error_is_no_failure(sign: str) -> None:
    none = {"seen_writable": False, "must_write": False, "fstab_writable": False, "errors": 0}
    line = "1 0 8:1 / /d ro - xfs /dev/sda1 ro"
    found = disk_readonly.evaluate(mount(line), **(none | {sign: True, "remounted": True}))  # type: ignore[arg-type]
    assert (found.status, found.reason) == (Status.DEGRADED, "read-only")
    assert found.message.endswith("a person or a program has remounted it")


@pytest.mark.parametrize(
    ("fstype", "files", "is_remounted"),
    [
        ("xfs", {}, True),
        ("zfs", {}, True),
        ("btrfs", {}, False),  # keeps no count
        ("ext4", {}, False),
        ("ext4", {"fs/ext4/sda1/errors_count": "0"}, True),
        ("ext4", {"fs/ext4/sda1/errors_count": "1"}, False),
        ("xfs", {"devices/sda1/ro": "1"}, False),  # the device itself takes no writes
        ("xfs", {"devices/sda1/ro": "0"}, True),
    ],
)
def test_a_read_only_filesystem_was_remounted_where_an_error_would_show(
    tmp_path: Path,
    fstype: str,
    files: dict[str, str],
    is_remounted: bool,  # noqa: FBT001
) -> None:
    machine = made_up(tmp_path)
    (machine.sys / "dev/block").mkdir(parents=True)
    (machine.sys / "dev/block/8:1").symlink_to("../../devices/sda1")
    for name, text in files.items():
        (machine.sys / name).parent.mkdir(parents=True)
        (machine.sys / name).write_text(text)
    found = disk_ext4.is_remounted(machine, mount(f"1 0 8:1 / /d ro - {fstype} /dev/sda1 ro"))
    assert found is is_remounted


async def test_a_remount_changes_the_mounts_own_flag_and_an_error_does_not(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    check = built(disk_readonly.SPEC, sources(machine), options(disk_readonly.SPEC))

    async def status(mount: str, superblock: str, fstype: str = "btrfs") -> Status:
        line = f"1 0 0:41 / {tmp_path} {mount} - {fstype} /dev/sda {superblock}\n"
        (tmp_path / "proc/self/mountinfo").write_text(line)
        return observations(await check.run_check())["/"].status

    assert await status("rw", "rw") is Status.OK
    assert await status("ro", "ro") is Status.DEGRADED, "mount -o remount,ro"
    assert await status("rw", "rw") is Status.OK
    assert await status("rw", "ro") is Status.FAILED
    assert await status("ro", "ro") is Status.FAILED, "and then a person remounts it"
    assert await status("ro", "rw") is Status.OK, "a container's read-only view"
    assert await status("ro", "ro") is Status.FAILED


async def test_a_remount_of_the_host_is_seen_from_a_pod_whose_copy_stays_rw(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    check = built(disk_readonly.SPEC, sources(machine), options(disk_readonly.SPEC))
    (tmp_path / "proc/1").mkdir()

    async def status(host: str, superblock: str) -> Status:
        for process, point, flag in (("1", "/", host), ("self", tmp_path, "rw")):
            line = f"1 0 0:41 / {point} {flag} - btrfs /dev/sda {superblock}\n"
            (tmp_path / "proc" / process / "mountinfo").write_text(line)
        return observations(await check.run_check())["/"].status

    assert await status("rw", "rw") is Status.OK
    assert await status("ro", "ro") is Status.DEGRADED, "mount -o remount,ro"
    assert await status("rw", "rw") is Status.OK
    assert await status("rw", "ro") is Status.FAILED
    assert await status("ro", "ro") is Status.FAILED, "and then a person remounts it"


def test_a_filesystem_that_has_shut_down_is_told_before_all_else() -> None:
    found = disk_readonly.evaluate(
        mount("1 0 8:1 / /d rw - xfs /dev/sda1 rw,shutdown"),
        seen_writable=False,
        must_write=False,
        fstab_writable=False,
        errors=0,
    )
    assert (found.status, found.reason) == (Status.FAILED, "shut-down")
    assert found.message == "xfs on /dev/sda1 has shut itself down after an error"


@pytest.mark.parametrize(
    ("last", "rose", "reason"),
    [
        (940, False, "errors"),  # clocks are set at a boot: a minute before it may be of it
        (939, False, "old-errors"),
        (939, True, "errors"),
        (2000, False, "errors"),
    ],
)
def test_ext4_s_errors_are_new_from_a_minute_before_the_boot(
    last: int, reason: str, *, rose: bool
) -> None:
    errors = disk_ext4.Errors(3, last, "ext4_lookup")
    found = disk_ext4.evaluate(DISK, errors, booted=1000.0, rose=rose)
    assert found.reason == reason
    assert found.status is (Status.FAILED if reason == "errors" else Status.DEGRADED)
    assert found.message.startswith("3 errors on /dev/sda1, the last at 1970-01-01 00:")
    assert found.message.endswith(" in ext4_lookup") is (reason == "errors")
    assert ("before this boot" in found.message) is (reason == "old-errors")


def test_ext4_without_an_error_and_with_one_of_no_known_time_or_place() -> None:
    well = disk_ext4.evaluate(DISK, disk_ext4.Errors(0, 0, ""), booted=1000.0, rose=False)
    assert (well.status, well.reason, well.message) == (Status.OK, "", "no errors")
    found = disk_ext4.evaluate(DISK, disk_ext4.Errors(1, 10**18, ""), booted=1000.0, rose=False)
    assert found.message == f"1 error on /dev/sda1, the last at {10**18}"


# -- disk-io --------------------------------------------------------------------------------------


class Everywhere(Stacks):
    """Every device is under /data; the requests are kept."""

    def __init__(self, machine: HostRoots) -> None:
        super().__init__(machine)
        self.asked: list[tuple[str, int | None]] = []

    def points(self, name: str, sector: int | None) -> tuple[str, ...]:
        self.asked.append((name, sector))
        return ("/data",)

    def controller(self, controller: str) -> tuple[str, ...]:
        self.asked.append((controller, -1))
        return ("/data",)


@pytest.mark.parametrize(
    ("line", "code", "asked", "details"),
    [
        (
            b"I/O error, dev sda, sector 2048 op 0x1:(WRITE) flags 0x800",
            "error",
            ("sda", 2048),
            {"sector": "2048", "operation": "write"},
        ),
        (
            b"critical medium error, dev nvme0n1, sector 7",
            "medium",
            ("nvme0n1", 7),
            {"sector": "7", "operation": ""},
        ),
        (
            b"blk_update_request: timeout error, dev sda, sector 7",
            "timeout",
            ("sda", 7),
            {"sector": "7", "operation": ""},
        ),
        (
            b"device offline error, dev sda, sector 7 op 0x0:(READ)",
            "lost",
            ("sda", 7),
            {"sector": "7", "operation": "read"},
        ),
        (
            b"Buffer I/O error on dev sda1, logical block 9, lost async page write",
            "error",
            ("sda1", None),
            {"operation": "lost async page write"},
        ),
        (
            b"Buffer I/O error on device sda1, logical block 9",
            "error",
            ("sda1", None),
            {"operation": ""},
        ),
        (
            b"nvme nvme0: I/O tag 5 (1005) opcode 0x2 (Read) QID 3 timeout, aborting",
            "timeout",
            ("nvme0", -1),
            {"controller": "nvme0"},
        ),
        (
            b"nvme nvme0: controller is down; will reset: CSTS=0xffffffff",
            "lost",
            ("nvme0", -1),
            {"controller": "nvme0"},
        ),
        (b"EXT4-fs error (device dm-3): ext4_lookup:1", "filesystem", ("dm-3", None), {}),
        (b"XFS (md0): log I/O error -5", "filesystem", ("md0", None), {}),
        (b"Aborting journal on device sda1-8.", "filesystem", ("sda1", None), {}),
        (
            b"md/raid1:md0: Disk failure on sdb1, disabling device.",
            "array",
            ("md0", None),
            {"member": "sdb1"},
        ),
    ],
)
def test_a_disk_s_line_with_its_device_and_details(
    line: bytes, code: str, asked: tuple[str, int | None], details: dict[str, str]
) -> None:
    machine = HostRoots(HandClock())
    mounts = Everywhere(machine)
    check = line_check("disk-io", NodePlaces(sources(machine), stacks=mounts))
    [found] = faults(check, record(line, seq=7, historical=True))
    assert mounts.asked == [asked]
    assert (found.code, found.check, found.component) == (f"disk-io:{code}", "disk-io", "/data")
    expected = {"device": asked[0]} | {name: value for name, value in details.items() if value}
    assert {name: value for name, value in found.details.items() if value} == expected
    assert found.message == f"{asked[0]}, under /data: {line.decode()}"
    assert (found.source_seq, found.historical, check.foreign) == (7, True, 0)
    assert check.read(record(b"x" + line)) == (), "only where the kernel's own words begin"


async def test_a_disk_without_its_count_of_errors_is_evaluated_by_the_other_signs(
    tmp_path: Path,
) -> None:
    machine = made_up(tmp_path)
    table = f"1 0 8:1 / {tmp_path} ro - ext4 /dev/sda ro,errors=remount-ro\n"
    (tmp_path / "proc/self/mountinfo").write_text(table)
    check = built(disk_readonly.SPEC, sources(machine), options(disk_readonly.SPEC))
    assert observations(await check.run_check())["/"].status is Status.OK


def test_a_storm_of_a_disk_s_lines_reads_the_mount_table_once_in_ten_seconds(
    tmp_path: Path,
) -> None:
    clock = HandClock(1000.0)
    machine = made_up(tmp_path, clock)
    (tmp_path / "proc/self/mountinfo").write_text(f"1 0 8:1 / {tmp_path} rw - ext4 /dev/sda rw\n")
    watched = disk_common.Watch(MountTable(machine), options(SPECS["disk-io"]))
    read, reads = watched.mounts, []

    def mounts() -> tuple[Mount, ...]:
        reads.append(clock.now)
        return read()

    watched.mounts = mounts  # type: ignore[method-assign]
    check = line_check("disk-io", NodePlaces(sources(machine), watched))
    line = record(b"I/O error, dev sdz, sector 2048")
    for after in (0.0, 0.0, 9.9, 0.1, 1.0):
        clock.now += after
        assert check.read(line) == ()
    assert reads == [1000.0, 1010.0]
    assert check.foreign == 5
    (tmp_path / "proc/self/mountinfo").unlink()
    clock.now += 10.0
    assert check.read(line) == (), "what was known stays"
