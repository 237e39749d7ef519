"""A filesystem that stopped writing: the kernel makes it read-only after an error.

The superblock shows it, never the mount's own flag (a read-only bind mount over a healthy disk is
intended). Several signs count, strongest first, because the agent forgets at its restart what it
saw before:

1. ``emergency_ro`` or ``shutdown`` among the superblock's options: ext4 (since Linux 6.15) reports
   it itself, and its flag stays "rw" (tried on 6.18).
2. The superblock was writable when this agent looked before, or ``writable`` names the mount. Not
   where it was read-only before that without any sign: an update opens such a ``/usr`` for a while.
3. The mount is "rw" over a superblock that is "ro": ``mount -o ro`` and ``-o remount,ro`` set
   both, an error only the superblock's. Not where an earlier mount of the same files is "ro", or
   the filesystem has no error: then a bind mount was made writable over it, or the program that
   mounted it set the superblock's alone.
4. ``/etc/fstab`` (as it was at the first look) has it without "ro".
5. ext4 counts errors and is mounted with ``errors=remount-ro``.

Without any of them it was mounted read-only, and that is ok. A remote filesystem is degraded at
most: no error of this node's disk makes it read-only. So is one without an error (ext4 counts none;
XFS would have shut down, ZFS suspended; of another this agent saw the mount's own "rw" become "ro",
as no error makes it), by the second or fourth sign: a person or a program has remounted it. A pod
has copies of the host's mounts, which keep their "rw": there the flag is that of process 1.
Reasons: ``read-only``, ``shut-down``, ``not-mounted`` and ``no-mount-table`` (both unknown). The
component is the mount point.
"""

from collections.abc import Sequence

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.disk_common import (
    MOUNT_OPTIONS,
    Watch,
    absolute_paths,
    no_mount_table,
    of_mount,
)
from nodeagent.checks.disk_ext4 import is_clean, is_remounted, read_errors
from nodeagent.configfile.units import counted
from nodeagent.model import Observation, Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.mountinfo import Mount, parse
from nodeagent.sources.small_file import read_whole

NAME = "disk-readonly"


def evaluate(
    mount: Mount,
    *,
    seen_writable: bool,
    must_write: bool,
    fstab_writable: bool,
    errors: int,
    opened: bool = False,
    remounted: bool = False,
) -> Observation:
    """The signs of the module's list, in its order. Pure. ``errors`` is ext4's count.

    ``opened``: the mount's own "rw" over a superblock that is "ro" proves no error.
    ``remounted``: it would show an error, and has none.
    """
    status = Status.DEGRADED if remounted else Status.FAILED
    if "shutdown" in mount.super_options:
        message = f"{mount.fstype} on {mount.source} has shut itself down after an error"
        return Observation(NAME, mount.name, Status.FAILED, "shut-down", message)
    if not mount.stopped_writing:
        return Observation(NAME, mount.name, Status.OK, "", "writable")
    if "emergency_ro" in mount.super_options:
        status, why = Status.FAILED, "the kernel stopped writing after an error (emergency_ro)"
    elif must_write:
        status, why = Status.FAILED, "by the configuration it is writable"
    elif seen_writable:
        why = "it was writable before"
    elif "rw" in mount.options and not opened:
        why = "mounted writable, and the kernel made the filesystem read-only"
    elif fstab_writable:
        why = "/etc/fstab mounts it writable"
    elif errors > 0 and "errors=remount-ro" in mount.super_options:
        why = f"{counted(errors, 'filesystem error')}, and errors=remount-ro"
    else:
        return Observation(NAME, mount.name, Status.OK, "", "read-only since it was first seen")
    message = f"{mount.fstype} on {mount.source} is read-only: {why}"
    if status is Status.DEGRADED:
        message += ", and has no error; a person or a program has remounted it"
    return Observation(NAME, mount.name, status, "read-only", message)


def writable_in_fstab(text: str) -> frozenset[str]:
    """The mount points that fstab(5) mounts at boot without "ro"."""
    points = set()
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 4 and not fields[0].startswith("#"):
            options = fields[3].split(",")
            if "ro" not in options and "noauto" not in options:
                points.add(fields[1])
    return frozenset(points)


class DiskReadonly:
    """Reads the mount table in this process, because that touches no device."""

    def __init__(self, machine: HostRoots, watch: Watch, writable: Sequence[str]) -> None:
        self._machine = machine
        self._watch = watch
        self._writable = frozenset(writable)
        self._seen_writable: set[tuple[str, str]] = set()
        #: Those whose mount was "rw" when the superblock was last writable.
        self._seen_rw: set[tuple[str, str]] = set()
        self._by_design: set[tuple[str, str]] = set()
        self._fstab: frozenset[str] | None = None

    async def run_check(self) -> Report:
        try:
            mounts = self._watch.mounts()
        except OSError as error:
            return [no_mount_table(NAME, error)]
        report = [of_mount(mount, self._verdict(mount)) for mount in mounts]
        report += self._watch.missing(NAME, mounts, Status.UNKNOWN)
        return report or Off("no disk is mounted")

    def _verdict(self, mount: Mount) -> Observation:
        key = (mount.device, mount.point)
        is_stopped = mount.stopped_writing
        if not is_stopped and key not in self._by_design:
            self._seen_writable.add(key)
        is_rw = "rw" in mount.options and not (is_stopped and self._is_ro_on_host(mount))
        if is_rw and not is_stopped:
            self._seen_rw.add(key)
        elif is_rw or not is_stopped:
            self._seen_rw.discard(key)
        errors = read_errors(self._machine, mount) if is_stopped else None
        found = evaluate(
            mount,
            seen_writable=key in self._seen_writable,
            must_write=mount.point in self._writable,
            fstab_writable=mount.point in self._fstab_writable(),
            errors=errors.count if errors else 0,
            opened=mount.opened or (is_stopped and is_clean(self._machine, mount)),
            remounted=is_stopped
            and is_remounted(self._machine, mount, flagged=not is_rw and key in self._seen_rw),
        )
        if is_stopped and found.status is Status.OK:
            self._by_design.add(key)
        return found

    def _is_ro_on_host(self, mount: Mount) -> bool:
        try:
            table = read_whole(f"{self._machine.proc}/1/mountinfo")
        except OSError:
            return False
        place = (mount.device, mount.root, mount.point)
        flags = [one.options for one in parse(table) if (one.device, one.root, one.point) == place]
        return bool(flags) and "ro" in flags[-1]

    def _fstab_writable(self) -> frozenset[str]:
        # Read once: the file is on a disk, and later that disk may hang.
        if self._fstab is None:
            try:
                text = self._machine.host("/etc/fstab").read_text(errors="replace")
            except OSError:
                text = ""
            self._fstab = writable_in_fstab(text)
        return self._fstab


SPEC = CheckSpec(
    name=NAME,
    sees="a filesystem that became read-only (after an error, as ext4 does)",
    source="/proc/self/mountinfo, /proc/1/mountinfo, /etc/fstab once, /sys/fs/ext4",
    cost="0.1 ms of CPU every 10 s",
    blind_to="a disk that was read-only before the agent started, on purpose or not, "
    "unless another sign shows it",
    interval=10.0,
    deadline=5.0,
    build=lambda sources, options: DiskReadonly(
        sources.machine, Watch(sources.mounts, options), options["writable"]
    ),
    options=(
        *MOUNT_OPTIONS,
        Option(
            "writable",
            Kind.TEXTS,
            (),
            "mount points that must be writable, even when first seen read-only",
            absolute_paths,
        ),
    ),
)
