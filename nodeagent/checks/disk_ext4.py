"""The errors that ext4 counts in its superblock: damage that it found in its own structure.

Reasons: ``errors`` (an error since this boot: failed), ``old-errors`` (only from before: degraded;
the count lasts until e2fsck clears it, through any number of boots), ``no-mount-table``: unknown.
The component is the mount point. A filesystem may continue to write with such an error
(``errors=continue`` is the default of many distributions); disk-readonly shows whether it stopped.
"""

import os
import time
from collections.abc import Callable

from nodeagent.checks.base import CheckSpec, Off, Report
from nodeagent.checks.disk_common import MOUNT_OPTIONS, Watch, no_mount_table
from nodeagent.configfile.units import counted
from nodeagent.dataclass import dataclass
from nodeagent.model import Observation, Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.mountinfo import Mount
from nodeagent.sources.small_file import small_number, small_text

NAME = "disk-ext4"
#: Clocks are set at a boot: an error this shortly before it may be of it.
_SLACK = 60.0


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors that ext4 noted: ``last`` is wall time (s), ``where`` the kernel's function."""

    count: int
    last: int
    where: str


def evaluate(mount: Mount, errors: Errors, *, booted: float, rose: bool) -> Observation:
    """Pure. ``booted`` is the wall time of the boot; ``rose``: the count rose while we looked."""
    if errors.count == 0:
        return Observation(NAME, mount.name, Status.OK, "", "no errors")
    message = f"{counted(errors.count, 'error')} on {mount.source}, the last {_when(errors.last)}"
    message += f" in {errors.where}" if errors.where else ""
    if rose or errors.last >= booted - _SLACK:
        return Observation(NAME, mount.name, Status.FAILED, "errors", message)
    message += ", before this boot; e2fsck repairs it and clears the count"
    return Observation(NAME, mount.name, Status.DEGRADED, "old-errors", message)


def _when(at: int) -> str:
    try:
        return time.strftime("at %Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    except (OverflowError, ValueError, OSError):
        return f"at {at}"


def read_errors(machine: HostRoots, mount: Mount) -> Errors | None:
    """The errors, or None where ext4 counts none (before Linux 3.7) or the mount is going."""
    try:
        link = os.readlink(f"{machine.sys}/dev/block/{mount.device}")  # noqa: PTH115
        folder = f"{machine.sys}/fs/ext4/{link.rpartition('/')[2]}"
    except OSError:
        return None
    count, last = (small_number(f"{folder}/{name}") for name in ("errors_count", "last_error_time"))
    where = small_text(f"{folder}/last_error_func")
    return None if count is None else Errors(count, last or 0, where)


def is_clean(machine: HostRoots, mount: Mount) -> bool:
    """Whether the filesystem has no error, and would show one: ext4 counts them, XFS shuts down on
    one, and ZFS suspends its pool.
    """
    if mount.fstype in ("xfs", "zfs"):
        return True
    errors = read_errors(machine, mount)
    return errors is not None and errors.count == 0


def is_remounted(machine: HostRoots, mount: Mount, *, flagged: bool = False) -> bool:
    """Whether a read-only filesystem is so by a person's or a program's remount: neither an error
    nor its device, which may take no writes itself, explains it.

    ``flagged``: with it the mount's own flag became read-only. That counts where no errors show.
    """
    if small_number(f"{machine.sys}/dev/block/{mount.device}/ro"):
        return False
    return is_clean(machine, mount) or (flagged and read_errors(machine, mount) is None)


class DiskExt4:
    """Reads counts that the kernel has in memory, so it touches no device."""

    def __init__(self, machine: HostRoots, watch: Watch, now: Callable[[], float]) -> None:
        self._machine = machine
        self._watch = watch
        self._now = now
        self._first: dict[tuple[str, str], int] = {}

    async def run_check(self) -> Report:
        try:
            mounts = self._watch.mounts()
        except OSError as error:
            return [no_mount_table(NAME, error)]
        # Both clocks now and not the boot's own note of the time: that one was not set yet.
        booted = self._now() - self._machine.clock.boottime()
        counts: dict[tuple[str, str], int] = {}
        report = []
        for mount in mounts:
            if mount.fstype not in ("ext2", "ext3", "ext4"):
                continue
            errors = read_errors(self._machine, mount)
            if errors is None:
                continue
            key = (mount.device, mount.point)
            # Compare with the first count, not with that of the last look: a rise must stay one,
            # because the error's own time may come from a clock that was wrong.
            first = counts[key] = min(self._first.get(key, errors.count), errors.count)
            report.append(evaluate(mount, errors, booted=booted, rose=errors.count > first))
        self._first = counts
        return report or Off("no ext4 filesystem")


SPEC = CheckSpec(
    name=NAME,
    sees="an ext4 filesystem that found itself damaged, whether it went on or not",
    source="/sys/fs/ext4: errors_count, last_error_time and last_error_func",
    cost="0.2 ms of CPU every 60 s",
    blind_to="damage that ext4 has not come across; other filesystems, which keep no count",
    deadline=5.0,
    build=lambda sources, options: DiskExt4(
        sources.machine, Watch(sources.mounts, options), time.time
    ),
    options=MOUNT_OPTIONS,
)
