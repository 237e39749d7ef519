"""Kernel log lines about a disk: failed I/O, a controller that is lost, a broken filesystem.

Only about devices that a watched mount stands on, through partitions, dm and md: a USB stick or a
pod's volume is not the node. The component is the mount point, once per mount that the device
carries. One line is one occurrence; how many of them matter is policy's.

Kinds: ``disk-io:error`` (an operation failed), ``disk-io:medium`` (the disk could not read what it
held), ``disk-io:timeout`` (NVMe commands), ``disk-io:lost-interrupt`` (an NVMe command had ended,
and its interrupt never came), ``disk-io:lost`` (a controller down, a device offline),
``disk-io:path`` (multipath lost a path), ``disk-io:no-path`` (no path is left),
``disk-io:filesystem`` (ext4, XFS, btrfs or the journal saw an error), ``disk-io:array`` (md dropped
a member, or an array failed).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.disk_common import MOUNT_OPTIONS, Watch
from nodeagent.checks.disk_lines import FIRST, parse
from nodeagent.checks.loglines import sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.block_devices import Stacks
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import Record, is_packet_log

NAME = "disk-io"


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

    first = FIRST

    def __init__(self, mounts: Mounts) -> None:
        self.unwatched = 0
        self._mounts = mounts

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The disk's trouble in this record, if any. Raises no exception, whatever the record."""
        line = record.text
        if line[:4] not in FIRST or is_packet_log(line):
            return ()
        found = parse(line)
        if found is None:
            return ()
        if found.controller:
            points = self._mounts.on_controller(found.device)
        else:
            points = self._mounts.on(found.device, found.sector)
        if not points:
            self.unwatched += 1
        return tuple(
            sighting(
                record,
                check=NAME,
                code=f"{NAME}:{found.kind}",
                component=point,
                message=f"{found.device}, under {point}: {text(line[:400])}",
                details={"device": found.device, **found.details},
            )
            for point in points
        )


def _build(sources: Sources, options: Mapping[str, Any]) -> DiskIo:
    return DiskIo(WatchedMounts(sources.machine, Watch(sources.machine, options)))


SPEC = CheckSpec(
    name=NAME,
    sees="I/O errors, lost controllers, lost paths, broken arrays and filesystem errors of the "
    "devices that a watched mount stands on",
    source="kernel log, lines of the block layer, NVMe, multipath, md and filesystems; "
    "/sys/dev/block",
    cost="a lookup of 4 bytes for each kernel record; a look at sysfs for a disk's line, at "
    "most every 10 s",
    blind_to="remote filesystems; the second and later disks of a btrfs, and zfs; errors that the "
    "disk corrects itself; lines that the kernel leaves out of a storm",
    interval=0,
    deadline=0,
    build=_build,
    options=MOUNT_OPTIONS,
)
