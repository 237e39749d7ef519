"""The kernel's lines about disks, filesystems and arrays: each line's kind and device."""

from pathlib import Path

import pytest

from nodeagent.model import FaultSighting
from nodeagent.sources.block_devices import Stacks, namespaces
from nodeagent.sources.mountinfo import Mount
from tests.agent.kernel_log import fixture_records, record
from tests.agent.line_checks import line_check
from tests.agent.test_disk_io import a_machine, device, made_of

#: The kinds and devices of the fixture's lines, by the index of the first line of each run.
RUNS = {
    0: ("filesystem", "dm-0"),  # XFS
    30: ("filesystem", "sda1"),  # btrfs
    39: ("filesystem", "sda1"),  # the journal
    41: ("filesystem", "dm-0"),
    42: ("filesystem", "sda1"),
    46: ("filesystem", "dm-0"),  # an external journal
    47: ("filesystem", "sda1"),  # ext4
    59: ("error", "sda1"),
    60: ("array", "md0"),
    72: ("lost", "nvme0"),
    74: ("lost-interrupt", "nvme0"),
    76: ("timeout", "nvme0"),
    78: ("lost", "nvme0"),
    81: ("timeout", "0000:3d:00.0"),
    82: ("lost", "0000:3d:00.0"),
    83: ("no-path", "nvme0n1"),
    85: ("path", "252:0"),
    86: ("path", "8:2"),
    87: ("no-path", "252:0"),
    88: ("path", "sdc1"),
    89: None,
}


def found_in(line: bytes) -> FaultSighting | None:
    return next(iter(line_check("disk-io").read(record(line))), None)


def kind(found: FaultSighting | None) -> str | None:
    return found.code.removeprefix("disk-io:") if found else None


def test_every_line_has_the_kind_and_the_device_that_it_states() -> None:
    expected = None
    for at, each in enumerate(fixture_records("disk-lines.log")):
        expected = RUNS.get(at, expected)
        found = found_in(each.text)
        assert (found and (kind(found), found.component)) == expected, each.text


@pytest.mark.parametrize(
    ("operation", "told"),
    [("0x3:(DISCARD)", None), ("0x9:(WRITE_ZEROES)", None), ("0x1:(WRITE)", "error")],
)
def test_a_hint_that_the_device_refuses_is_no_error(operation: str, told: str | None) -> None:
    head = b"blk_update_request: critical target error, dev sdc, sector 0 op "
    found = found_in(head + operation.encode() + b" flags 0x800 phys_seg 1 prio class 0")
    assert kind(found) == told


def test_a_completion_that_was_polled_is_a_lost_interrupt_and_no_timeout() -> None:
    polled = found_in(b"nvme nvme0: I/O 12 QID 2 timeout, completion polled")
    reset = found_in(b"nvme nvme0: I/O 12 QID 2 timeout, reset controller")
    assert polled is not None
    assert reset is not None
    assert (kind(polled), kind(reset)) == ("lost-interrupt", "timeout")


@pytest.mark.parametrize(
    ("line", "device"),
    [
        (b"md/raid1:md126: active with 1 out of 2 mirrors", "md126"),
        (b"md/raid10:md3: active with 3 out of 4 devices", "md3"),
        (b"md/raid:md0: raid level 6 active with 5 out of 6 devices, algorithm 2", "md0"),
        (b"md/raid1:md126: active with 2 out of 2 mirrors", None),
        (b"md/raid:md0: raid level 6 active with 10 out of 10 devices, algorithm 2", None),
    ],
)
def test_an_array_that_starts_without_a_member_is_trouble(line: bytes, device: str | None) -> None:
    found = found_in(line)
    assert (found and (kind(found), found.component)) == (device and ("array", device))


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (b"failed to run delalloc range, root=5 ino=257: -28", False),
        (b"failed to run delalloc range, root=5 ino=257: -5", True),
        (b"unrecognized mount option 'rootflags=recovery'", False),
        (b"open_ctree failed: -117", True),
    ],
)
def test_a_full_btrfs_and_a_wrong_mount_option_are_no_trouble_of_the_disk(
    words: bytes, *, trouble: bool
) -> None:
    assert (found_in(b"BTRFS error (device dm-3): " + words) is not None) == trouble


def test_the_member_of_an_array_and_the_path_of_a_map_are_details() -> None:
    array = found_in(b"md/raid0md0: Disk failure on sdc1 detected, failing array.")
    path = found_in(b"device-mapper: multipath: 252:0: Failing path 8:2.")
    assert array is not None
    assert path is not None
    assert (array.details["member"], path.details["path"]) == ("sdc1", "8:2")


def test_a_device_told_by_its_numbers_is_that_of_the_mount_on_it(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    mapped = device(machine.sys, "253:7", "virtual/block/dm-7")
    made_of(mapped, device(machine.sys, "8:65", "scsi/sde/sde1", start=0, size=8))
    stacks = Stacks(machine)
    none: frozenset[str] = frozenset()
    stacks.read_stacks([Mount(1, 1, "253:7", "/", "/maps", none, "ext4", "/dev/mapper/maps", none)])
    assert stacks.points("253:7", None) == ("/maps",), "the map"
    assert stacks.points("8:65", None) == ("/maps",), "one of its paths"
    assert stacks.points("8:66", None) == (), "no such device"
    assert stacks.points("8:1", None) == (), "a device of another mount"


def test_a_controller_told_by_its_address_has_its_disks(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    (machine.sys / "bus/pci/devices/0000:3d:00.0/nvme/nvme3").mkdir(parents=True)
    (machine.sys / "class/nvme/nvme3/nvme5n1").mkdir(parents=True)
    assert namespaces(machine, "0000:3d:00.0") == {"nvme5n1"}
    assert namespaces(machine, "0000:3e:00.0") == frozenset()


@pytest.mark.parametrize(
    "line",
    [
        # The name of a process is its user's choice, up to 15 bytes, at the line's start.
        b"EXT4-fs (sda1):[4711]: segfault at 0 ip 000055d1 sp 00007ffc error 4",
        b"XFS (dm-0): log: page allocation failure: order:9, mode:0x40dc0(GFP_KERNEL)",
        b"BTRFS error (de invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0",
        b"md/raid1:md0: D[4711]: segfault at 0 ip 000055d1 sp 00007ffc error 4",
        b"device-mapper: (4711) used greatest stack depth: 11992 bytes left",
        # Or within a line of another kind.
        b"EXT4-fs warning (device sda1): ext4_rename:1: comm ext4_end_bio:1: I/O error 10 writing",
        b"XFS: log I/O error(4711) possible memory allocation deadlock size 65552",
        b"BTRFS info (device sda1): relocating comm error (device sda1)",
    ],
)
def test_the_name_of_a_process_is_not_read_as_trouble(line: bytes) -> None:
    assert found_in(line) is None
