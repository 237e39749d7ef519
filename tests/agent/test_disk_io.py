"""The kernel's log lines about the disks under watched mounts; and about all others."""

import secrets
import select
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks.base import LogCheck
from nodeagent.checks.kernel_lines import SPECS, KernelLines
from nodeagent.clock import SystemClock
from nodeagent.model import FaultSighting
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import KmsgReader, Record
from tests.agent import real_disks
from tests.agent.kernel_log import HandClock, fixture_records, record
from tests.agent.line_checks import faults, node_check
from tests.agent.machines import made_up, options, sources, this_machine
from tests.support.folders import fresh_folder
from tests.support.waiting import PATIENCE

MOUNTS = """\
1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 252:0 / /data rw - xfs /dev/mapper/vg-data rw
3 1 259:1 / /scratch rw - xfs /dev/nvme0n1p1 rw
4 1 9:0 / /raid rw - ext4 /dev/md0 rw
5 1 8:19 / /var/lib/kubelet/pods/x/volumes/y rw - ext4 /dev/sdb3 rw
"""


def device(sys: Path, number: str, path: str, *, start: int = -1, size: int = 0) -> Path:
    """A block device of sysfs: its folder, its number, and for a partition where it lies."""
    folder = sys / "devices" / path
    folder.mkdir(parents=True, exist_ok=True)
    if start >= 0:
        (folder / "partition").write_text("1\n")
        (folder / "start").write_text(f"{start}\n")
        (folder / "size").write_text(f"{size}\n")
    numbers = sys / "dev/block"
    numbers.mkdir(parents=True, exist_ok=True)
    (numbers / number).symlink_to(folder)
    return folder


def made_of(above: Path, *below: Path) -> None:
    (above / "slaves").mkdir()
    for each in below:
        (above / "slaves" / each.name).symlink_to(each)


def a_machine(root: Path) -> HostRoots:
    """/ on sda1; /data on LVM over sda2; /scratch on NVMe; /raid on a mirror of sdc1 and sdd1."""
    for folder in ("proc/self", "sys"):
        (root / folder).mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(MOUNTS)
    machine = HostRoots(clock=HandClock(), proc=root / "proc", sys=root / "sys")
    sys = machine.sys
    device(sys, "8:1", "scsi/sda/sda1", start=2048, size=1_000_000)
    second = device(sys, "8:2", "scsi/sda/sda2", start=1_002_048, size=1_000_000)
    made_of(device(sys, "252:0", "virtual/block/dm-0"), second)
    device(sys, "259:1", "nvme/nvme0n1/nvme0n1p1", start=2048, size=900_000_000)
    mirrored = [
        device(sys, f"8:{number}", f"scsi/{disk}/{disk}1", start=2048, size=1000)
        for number, disk in ((33, "sdc"), (49, "sdd"))
    ]
    made_of(device(sys, "9:0", "virtual/block/md0"), *mirrored)
    device(sys, "8:19", "scsi/sdb/sdb3", start=0, size=100_000)
    return machine


def a_check(root: Path) -> KernelLines:
    return node_check("disk-io", a_machine(root))


@pytest.fixture
def check(tmp_path: Path) -> KernelLines:
    return a_check(tmp_path)


def seen(check: LogCheck, fixture: str) -> dict[int, list[FaultSighting]]:
    found: dict[int, list[FaultSighting]] = {}
    for each in fixture_records(fixture):
        for fault in faults(check, each):
            found.setdefault(each.seq - 1000, []).append(fault)
    return found


def see(check: LogCheck, text: str) -> list[tuple[str, str]]:
    return [(fault.code, fault.component) for fault in faults(check, record(text.encode()))]


def test_every_line_is_tied_to_the_mounts_on_its_device(check: KernelLines) -> None:
    found = seen(check, "disk-io.log")
    assert {at: [(f.code, f.component) for f in faults] for at, faults in found.items()} == {
        0: [("disk-io:error", "/")],
        1: [("disk-io:error", "/")],
        2: [("disk-io:error", "/")],
        3: [("disk-io:medium", "/")],
        4: [("disk-io:lost", "/")],
        5: [("disk-io:error", "/")],
        6: [("disk-io:error", "/data")],
        8: [("disk-io:error", "/scratch")],
        9: [("disk-io:timeout", "/scratch")],
        10: [("disk-io:timeout", "/scratch")],
        11: [("disk-io:lost", "/scratch")],
        12: [("disk-io:lost", "/scratch")],
        13: [("disk-io:filesystem", "/")],
        14: [("disk-io:filesystem", "/")],
        15: [("disk-io:filesystem", "/data")],
        16: [("disk-io:filesystem", "/data")],
        17: [("disk-io:filesystem", "/")],
        18: [("disk-io:array", "/raid")],
    }
    [first] = found[0]
    assert dict(first.details) == {"device": "sda", "sector": "4096", "operation": "read"}
    assert "sda, under /" in first.message


def test_a_pods_volume_and_a_disk_of_no_mount_are_not_the_nodes(check: KernelLines) -> None:
    found = seen(check, "disk-io.log")
    assert not {7, 19, 21} & found.keys()
    assert check.foreign == 3


def test_a_sector_of_another_partition_is_another_mounts(check: KernelLines) -> None:
    assert see(check, "I/O error, dev sda, sector 2048 op 0x0:(READ)") == [("disk-io:error", "/")]
    in_the_second = "I/O error, dev sda, sector 1002048 op 0x0:(READ)"
    assert see(check, in_the_second) == [("disk-io:error", "/data")], "through device mapper"
    assert see(check, "I/O error, dev sda, sector 9002048 op 0x0:(READ)") == []


@pytest.mark.parametrize(
    ("kind", "name", "line"),
    [
        ("iscsi_session", "session7", " connection7:0: detected conn error (1020)"),
        ("iscsi_session", "session7", " session7: session recovery timed out after 120 secs"),
        (
            "fc_remote_ports",
            "rport-4:0-1",
            " rport-4:0-1: blocked FC remote port time out: removing target and saving binding",
        ),
    ],
)
def test_a_session_that_is_lost_is_that_of_the_mounts_on_its_disks(
    tmp_path: Path, kind: str, name: str, line: str
) -> None:
    machine = a_machine(tmp_path)
    check = node_check("disk-io", machine)
    target = machine.sys / "class" / kind / name / "device/target4:0:0"
    assert see(check, line) == [("disk-io:path", name)], "sysfs has no disk of it"
    (target / "4:0:0:2/block/sdb").mkdir(parents=True)
    assert see(check, line) == [], "a pod's"
    (target / "4:0:0:1/block/sdc").mkdir(parents=True)
    assert see(check, line) == [("disk-io:path", "/raid")]


def test_a_member_of_a_mirror_is_its_arrays(check: KernelLines) -> None:
    assert see(check, "I/O error, dev sdd, sector 2050 op 0x1:(WRITE)") == [
        ("disk-io:error", "/raid")
    ]


def test_an_nvme_disk_whose_name_does_not_follow_its_controllers(tmp_path: Path) -> None:
    """With native multipath nvme3 may be a path to nvme0n1."""
    check = a_check(tmp_path)
    (tmp_path / "sys/class/nvme/nvme3/nvme0c3n1").mkdir(parents=True)
    line = "nvme nvme3: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10"
    assert see(check, line) == [("disk-io:lost", "/scratch")]


def test_a_disk_that_has_gone_from_under_its_mount_is_still_known(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    check = node_check("disk-io", machine)
    line = "Buffer I/O error on dev nvme0n1p1, logical block 0, lost async page write"
    assert see(check, line) == [("disk-io:error", "/scratch")]
    (machine.sys / "dev/block/259:1").unlink()
    assert isinstance(machine.clock, HandClock)
    machine.clock.now += 60
    assert see(check, line) == [("disk-io:error", "/scratch")]


def test_a_loop_of_devices_ends(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    mirror = machine.sys / "devices/virtual/block/md0"
    (mirror / "slaves/md0").symlink_to(mirror)
    check = node_check("disk-io", machine)
    assert see(check, "I/O error, dev sdd, sector 2050 op 0x1:(WRITE)") == [
        ("disk-io:error", "/raid")
    ]


def test_without_a_mount_table_nothing_is_known_and_nothing_breaks(tmp_path: Path) -> None:
    machine = made_up(tmp_path, HandClock())
    check = node_check("disk-io", machine)
    assert see(check, "I/O error, dev sda, sector 2048 op 0x0:(READ)") == []


def test_text_that_a_user_made_the_kernel_print_is_not_believed(check: KernelLines) -> None:
    assert seen(check, "forged-machine.log") == {}
    assert see(check, "I/O error, dev sda, sector 4096 op 0x0:(READ)"), "it would be"


@given(
    start=st.sampled_from(
        [
            b"I/O error, dev sda, sector 4096 op 0x0:(",
            b"Buffer I/O error on dev sda1",
            b"nvme nvme0: I/O ",
            b"XFS (sda1): ",
            b"EXT4-fs error (device ",
            b"Aborting journal on device ",
        ]
    ),
    rest=st.binary(max_size=200),
    repeat=st.sampled_from([1, 500]),
)
def test_no_text_raises_and_no_message_is_endless(
    tmp_path_factory: pytest.TempPathFactory, start: bytes, rest: bytes, repeat: int
) -> None:
    check = a_check(fresh_folder(tmp_path_factory, "machine"))
    for fault in check.read(record(start + rest * repeat)):
        assert len(fault.message) <= 512
        assert all(len(value) <= 128 for value in fault.details.values())


# -- a real disk that fails, in the real kernel log -------------------------------------------


def _until(reader: KmsgReader, check: LogCheck, code: str, component: str) -> FaultSighting:
    poll = select.poll()
    poll.register(reader.fileno(), select.POLLIN)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for each in reader.read_batch():
            for fault in faults(check, each) if isinstance(each, Record) else ():
                if (fault.code, fault.component) == (code, component):
                    return fault
        poll.poll(500)
    raise AssertionError(f"no {code} of {component} in the kernel log")


def _open_kernel_log() -> KmsgReader:
    machine = this_machine()
    reader = KmsgReader(
        Path("/dev/kmsg"),
        clock=SystemClock(),
        boot_id=machine.boot_id(),
        cursor=None,
        started_at=SystemClock().boottime(),
        boot_grace=0.0,
    )
    reader.open()
    while not reader.caught_up:
        reader.read_batch()
    return reader


@pytest.mark.root
@pytest.mark.skipif(bool(real_disks.why_not()), reason=real_disks.why_not() or "-")
def test_a_disk_that_loses_its_sectors_is_seen_in_the_real_log(tmp_path: Path) -> None:
    """An ext4 whose image is cut off under it: true lines of the kernel, facility 0."""
    point = tmp_path / f"disk-{secrets.token_hex(4)}"
    reader = _open_kernel_log()
    with closing(reader), real_disks.ext4(point):
        (point / "file").write_bytes(b"x" * (4 << 20))
        real_disks.run("sync", "-f", point)
        machine = this_machine()
        check = SPECS["disk-io"].build(
            sources(machine), options(SPECS["disk-io"], mounts=(str(point),))
        )
        assert isinstance(check, KernelLines)
        with point.with_suffix(".img").open("r+b") as image:
            image.truncate(1 << 20)
        subprocess.run(
            ["dd", f"if={point / 'file'}", "of=/dev/null", "iflag=direct", "bs=1M"],
            capture_output=True,
            check=False,
        )
        fault = _until(reader, check, "disk-io:error", str(point))
        assert fault.details["device"] == real_disks.loop_of(point)
        assert not fault.historical


@pytest.mark.root
@pytest.mark.skipif(bool(real_disks.why_not()), reason=real_disks.why_not() or "-")
def test_a_real_ext4_error_names_its_device(tmp_path: Path) -> None:
    point = tmp_path / f"disk-{secrets.token_hex(4)}"
    reader = _open_kernel_log()
    with closing(reader), real_disks.ext4(point, "errors=continue"):
        check = SPECS["disk-io"].build(
            sources(this_machine()), options(SPECS["disk-io"], mounts=(str(point),))
        )
        assert isinstance(check, KernelLines)
        real_disks.provoke_error(point)
        fault = _until(reader, check, "disk-io:filesystem", str(point))
        assert fault.details["device"] == real_disks.loop_of(point)
