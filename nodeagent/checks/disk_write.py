"""Whether the disk takes a write: 4 KiB written, synced, read back from the device, removed.

Reasons: ``io-error`` and ``read-only`` (failed), ``corrupt`` (other bytes came back: failed),
``hung`` (degraded, failed after a minute in the same wait), ``no-space`` (degraded: capacity, and
disk-space's to evaluate), ``no-directory``, ``not-permitted``, ``read-only-mount`` (only this
process's view is read-only, the filesystem is an image, or it was mounted read-only and took no
write at the first probe) and ``probe-failed``: unknown. On a
network's filesystem failed is degraded, except for the root; so is ``read-only`` on one without an
error (``disk_ext4.is_remounted``), which was remounted so. The component is the directory.
"""

import errno
from collections.abc import Sequence
from dataclasses import replace

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.disk_common import absolute_paths, hung, not_probed
from nodeagent.checks.disk_ext4 import is_remounted
from nodeagent.model import Observation, Status
from nodeagent.sources.disk_probe import (
    Differs,
    DiskProbe,
    Hung,
    NotProbed,
    ProbeRefused,
    Result,
    Written,
)
from nodeagent.sources.host import HostRoots
from nodeagent.sources.measurements import Measurements, rounded
from nodeagent.sources.mountinfo import REMOTE, Mount, find, parse

NAME = "disk-write"

_REFUSALS = {
    errno.EIO: (Status.FAILED, "io-error"),
    errno.ENODEV: (Status.FAILED, "io-error"),
    errno.ENXIO: (Status.FAILED, "io-error"),
    errno.EUCLEAN: (Status.FAILED, "io-error"),  # the filesystem found its own structure damaged
    errno.EBADMSG: (Status.FAILED, "io-error"),
    errno.ESHUTDOWN: (Status.FAILED, "io-error"),
    errno.EROFS: (Status.FAILED, "read-only"),
    errno.ENOSPC: (Status.DEGRADED, "no-space"),
    errno.EDQUOT: (Status.DEGRADED, "no-space"),
    errno.EACCES: (Status.UNKNOWN, "not-permitted"),
    errno.EPERM: (Status.UNKNOWN, "not-permitted"),
}


def evaluate(path: str, result: Result, *, only_this_mount: bool = False) -> Observation:
    """The verdict on the probe's answer about ``path``. Pure.

    ``only_this_mount``: the refusal "read-only" comes from how this process sees a filesystem
    that itself takes writes (a pod's read-only volume), which is no evidence about the disk.
    """
    match result:
        case Written():
            return Observation(NAME, path, Status.OK, "", f"took {result.seconds * 1000:.0f} ms")
        case Differs():
            message = "read back other bytes than were written and synced"
            return Observation(NAME, path, Status.FAILED, "corrupt", message)
        case Hung():
            return hung(NAME, path, result)
        case NotProbed():
            return not_probed(NAME, path, result)
        case ProbeRefused(errno=errno.EROFS) if only_this_mount:
            message = "mounted read-only for this process; mount it writable or drop it from paths"
            return Observation(NAME, path, Status.UNKNOWN, "read-only-mount", message)
        case ProbeRefused(errno=errno.ENOENT | errno.ENOTDIR):
            message = "there is no such directory: make it, or set checks.disk-write.paths"
            return Observation(NAME, path, Status.UNKNOWN, "no-directory", message)
        case ProbeRefused():
            status, reason = _REFUSALS.get(result.errno, (Status.UNKNOWN, "probe-failed"))
            return Observation(NAME, path, status, reason, str(result))
        case _:
            raise TypeError(f"no answer to a write probe: {result!r}")


class DiskWrite:
    """Probes its directories in a child. Paths are those that this process sees."""

    def __init__(
        self,
        probe: DiskProbe,
        machine: HostRoots,
        paths: Sequence[str],
        measurements: Measurements,
    ) -> None:
        self._probe = probe
        self._machine = machine
        self._measurements = measurements
        self._table = machine.proc / "self/mountinfo"
        self._paths = paths
        #: Whether a directory took the first write: an error never makes the mount itself "ro".
        self._took_first: dict[str, bool] = {}

    async def run_check(self) -> Report:
        if not self._paths:
            return Off("no paths are configured")
        results = await self._probe.write(self._paths)
        at = self._machine.clock.boottime()
        for path, result in results.items():
            took = rounded(result.seconds * 1000) if isinstance(result, Written) else None
            self._measurements.put("disk-latency", path, took, at=at)
        return [self._verdict(path, result) for path, result in results.items()]

    def _verdict(self, path: str, result: Result) -> Observation:
        found = evaluate(path, result)
        took_first = self._took_first.setdefault(path, isinstance(result, Written))
        mount = self._mount(path) if found.status is Status.FAILED else None
        if mount is None:
            return found
        found = evaluate(path, result, only_this_mount=_is_by_design(mount, took_first=took_first))
        # A filesystem of FUSE may be a local disk's.
        is_mild = mount.fstype in REMOTE and mount.point != "/"
        is_mild |= found.reason == "read-only" and is_remounted(self._machine, mount)
        is_failed = found.status is Status.FAILED
        return replace(found, status=Status.DEGRADED) if is_mild and is_failed else found

    def _mount(self, path: str) -> Mount | None:
        try:
            return find(parse(self._table.read_bytes()), path)
        except OSError:
            return None


def _is_by_design(mount: Mount, *, took_first: bool) -> bool:
    """Whether only the mount's own flag forbids it, or it is an image.

    An overlay is read-only itself where it has no layer for writes; an error of a layer's disk
    leaves its flag.
    """
    is_opened = took_first or "ro" not in mount.options or not mount.superblock_read_only
    if mount.stopped_writing and is_opened:
        return mount.fstype in ("overlay", "squashfs", "erofs", "iso9660")
    return "ro" in mount.options


SPEC = CheckSpec(
    name=NAME,
    sees="a disk that refuses writes, hangs on them or gives back other bytes",
    source="4 KiB written, synced, read back and removed by a child process",
    cost="12 ms of CPU a minute, shared with disk-space, and one small sync",
    blind_to="disks without a directory in paths; damage to data that is already there",
    build=lambda sources, options: DiskWrite(
        sources.disk, sources.machine, options["paths"], sources.measurements
    ),
    options=(
        Option(
            "paths",
            Kind.TEXTS,
            ("/var/lib/sickbay",),
            "directories to write to, one on each disk that matters",
            absolute_paths,
        ),
    ),
)
