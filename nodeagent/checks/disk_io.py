"""Kernel log lines about a disk: failed I/O, a controller that is lost, a broken filesystem.

Only about devices that a watched mount stands on, through partitions, dm and md: a USB stick or a
pod's volume is not the node. The component is the mount point, once per mount that the device
carries. One line is one occurrence; how many of them matter is policy's.

Kinds: ``disk-io:error`` (an operation failed), ``disk-io:medium`` (the disk could not read what it
held), ``disk-io:timeout`` (NVMe commands), ``disk-io:lost`` (a controller down, a device offline),
``disk-io:filesystem`` (ext4, XFS, btrfs or the journal saw an error), ``disk-io:array`` (md dropped
a member).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.disk_common import MOUNT_OPTIONS, Watch
from nodeagent.checks.loglines import sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.block_devices import Stacks
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import Record, is_packet_log

NAME = "disk-io"

_DEV = rb"([a-z][\w!-]{1,31})"

# The block layer, in the words of Linux 3 to 6. Messages that say nothing about the disk (operation
# not supported, reservation conflict, no resources) are left out.
_BLOCK = re.compile(
    rb"(?:(?:blk_update_request|blk_print_req_error|print_req_error|end_request): )?"
    rb"(I/O|critical medium|critical target|timeout|recoverable transport|protection"
    rb"|device offline) error, dev " + _DEV + rb", sector (\d{1,20})"
    rb"(?: op 0x[0-9a-f]{1,4}:\(([A-Z_ ]{1,24})\))?"
)
_BUFFER = re.compile(
    rb"Buffer I/O error on dev(?:ice)? " + _DEV + rb", logical block \d{1,20}(?:, ([\w ]{1,40}))?"
)
_NVME = re.compile(
    rb"nvme (nvme\d{1,4}): (?:"
    rb"(I/O (?:tag )?\d{1,6}.{0,60}\bQID \d{1,5} timeout)"
    rb"|(controller is down; will reset|Device not ready; aborting"
    rb"|Removing after probe failure|Disabling device after reset failure"
    rb"|Removing controller|failed to mark controller))"
)
_FILESYSTEM = re.compile(
    rb"(?:EXT[234]-fs error \(device " + _DEV + rb"\)"
    rb"|EXT[234]-fs \(" + _DEV + rb"\): (?:Remounting filesystem read-only"
    rb"|I/O error while writing superblock|failed to convert unwritten)"
    rb"|XFS \(" + _DEV + rb"\): (?:.{0,12}[Mm]etadata (?:I/O error|corruption)|log I/O error"
    rb"|Corruption |xfs_do_force_shutdown|.{0,24}I/O Error Detected"
    rb"|Filesystem has been shut down)"
    rb"|BTRFS:? (?:error|critical) \(device " + _DEV + rb"(?: state \w{1,8})?\)"
    rb"|(?:Aborting journal on device|JBD2: (?:Detected IO errors while flushing file data on"
    rb"|Error -?\d+ detected when updating journal superblock for)) "
    rb"(dm-\d{1,5}|[a-z][\w!]{1,31})-\d{1,3}\b)"
)
_ARRAY = re.compile(rb"md/raid\w{0,8}:(md[\w-]{1,24}): Disk failure on " + _DEV + rb", disabling")

#: The beginning of every line above, for the comparison that each record costs.
_STARTS = (
    *(b"I/O error, dev ", b"critical ", b"timeout error", b"recoverable ", b"protection error"),
    *(b"device offline", b"blk_", b"print_req", b"end_request", b"Buffer I/O ", b"nvme nvme"),
    *(b"EXT", b"XFS (", b"BTRFS", b"Aborting journal", b"JBD2: ", b"md/raid"),
)

_KINDS = {b"critical medium": "medium", b"device offline": "lost", b"timeout": "timeout"}


class Mounts(Protocol):
    """Which watched mounts stand on a device."""

    def on(self, device: str, sector: int | None) -> tuple[str, ...]: ...

    def on_controller(self, controller: str) -> tuple[str, ...]: ...


class WatchedMounts:
    """The mounts of the configuration, through sysfs."""

    def __init__(self, machine: HostRoots, watch: Watch) -> None:
        self._watch = watch
        self._stacks = Stacks(machine)

    def on(self, device: str, sector: int | None) -> tuple[str, ...]:
        self._refresh()
        return self._stacks.points(device, sector)

    def on_controller(self, controller: str) -> tuple[str, ...]:
        self._refresh()
        return self._stacks.controller(controller)

    def _refresh(self) -> None:
        if not self._stacks.due():
            return
        try:
            mounts = self._watch.mounts()
        except OSError:
            return  # keep the last; disk-readonly reports this
        self._stacks.read_stacks(mounts)


class DiskIo:
    """Reads records as they come. ``unwatched`` counts lines about devices of no watched mount."""

    def __init__(self, mounts: Mounts) -> None:
        self.unwatched = 0
        self._mounts = mounts

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The disk's trouble in this record, if any. Raises no exception, whatever the record."""
        line = record.text
        if not line.startswith(_STARTS) or is_packet_log(line):
            return ()
        found = _parse(line)
        if found is None:
            return ()
        kind, device, sector, details = found
        if "controller" in details:
            points = self._mounts.on_controller(device)
        else:
            points = self._mounts.on(device, sector)
        if not points:
            self.unwatched += 1
        return tuple(
            sighting(
                record,
                check=NAME,
                code=f"{NAME}:{kind}",
                component=point,
                message=f"{device}, under {point}: {text(line[:400])}",
                details={"device": device, **details},
            )
            for point in points
        )


def _parse(line: bytes) -> tuple[str, str, int | None, dict[str, str]] | None:
    """Kind, device, sector if the line names one, details."""
    block = _BLOCK.match(line)
    if block is not None:
        details = {"sector": text(block[3]), "operation": text(block[4] or b"").lower()}
        return _KINDS.get(block[1], "error"), text(block[2]), int(block[3]), details
    buffer = _BUFFER.match(line)
    if buffer is not None:
        return "error", text(buffer[1]), None, {"operation": text(buffer[2] or b"")}
    nvme = _NVME.match(line)
    if nvme is not None:
        kind = "timeout" if nvme[2] else "lost"
        return kind, text(nvme[1]), None, {"controller": text(nvme[1])}
    filesystem = _FILESYSTEM.match(line)
    if filesystem is not None:
        device = next(group for group in filesystem.groups() if group)
        return "filesystem", text(device), None, {}
    array = _ARRAY.match(line)
    if array is not None:
        return "array", text(array[1]), None, {"member": text(array[2])}
    return None


def _build(sources: Sources, options: Mapping[str, Any]) -> DiskIo:
    return DiskIo(WatchedMounts(sources.machine, Watch(sources.machine, options)))


SPEC = CheckSpec(
    name=NAME,
    sees="I/O errors, lost controllers and filesystem errors of the devices that a watched mount "
    "stands on",
    source="kernel log, lines of the block layer, NVMe, md and filesystems; /sys/dev/block",
    cost="a comparison of 15 bytes for each kernel record; a look at sysfs for a disk's line, at "
    "most every 10 s",
    blind_to="remote filesystems; the second and later disks of a btrfs, and zfs; errors that the "
    "disk corrects itself; lines that the kernel leaves out of a storm",
    interval=0,
    deadline=0,
    build=_build,
    options=MOUNT_OPTIONS,
)
