"""Code that the disk checks share: which mounts they watch, and the verdict on a hung probe."""

import errno
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nodeagent.checks.base import Kind, Option
from nodeagent.model import Observation, Status
from nodeagent.sources.disk_probe import Hung, NotProbed, ProbeRefused, Result
from nodeagent.sources.mountinfo import Mount, MountTable, watched

#: One time-out may be a busy disk (measured: fdatasync takes 100 ms next to one writer; a second
#: writer or a resync, more). A probe that waits in the kernel this long does not wait because of
#: load.
HUNG_FAILS_AFTER = 60.0

#: Filled once at installation, nearly full ever after, and no job writes there; then the folder of
#: Kubernetes' local volumes, each a tenant's.
_NOT_THE_NODES = (
    *("/boot", "/boot/*", "/efi", "/oem", "/usr/share/oem"),
    *("/mnt/disks/*", "/mnt/fast-disks/*", "/mnt/local-storage/*"),
)


def absolute_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """Mount points or directories from the configuration. Raises ValueError for relative ones."""
    for path in paths:
        if not path.startswith("/"):
            raise ValueError(f"{path!r} is not an absolute path")
    return tuple(path.rstrip("/") or "/" for path in paths)


MOUNT_OPTIONS = (
    Option(
        "mounts",
        Kind.TEXTS,
        (),
        "mount points to watch besides the disks (a tmpfs, a loop device); missing ones are shown",
        absolute_paths,
    ),
    Option("exclude", Kind.TEXTS, _NOT_THE_NODES, "mount points to leave out, as shell patterns"),
)


class Watch:
    """The mounts that a check reads by ``MOUNT_OPTIONS``."""

    def __init__(self, table: MountTable, options: Mapping[str, Any]) -> None:
        self._named: tuple[str, ...] = options["mounts"]
        self._table = table
        self._exclude: tuple[str, ...] = options["exclude"]
        self._read: tuple[Mount, ...] | None = None
        self._watched: tuple[Mount, ...] = ()

    def mounts(self) -> tuple[Mount, ...]:
        """The same object while the table stays the same.

        Raises OSError when the mount table cannot be read.
        """
        table = self._table.read(self._named)
        if table is not self._read:
            self._watched = watched(table, named=self._named, exclude=self._exclude)
            self._read = table
        return self._watched

    def missing(
        self, check: str, mounts: Iterable[Mount], status: Status = Status.FAILED
    ) -> list[Observation]:
        """The mounts that the configuration names and that are not there."""
        there = {mount.point for mount in mounts}
        return [
            Observation(check, point, status, "not-mounted", "named in the configuration")
            for point in self._named
            if point not in there
        ]


#: Errors of a probe that are a fault of the filesystem, or of the server or process behind it.
_REFUSALS = {
    errno.EIO: "io-error",
    errno.EHOSTDOWN: "io-error",  # a CIFS server that is away
    errno.ESHUTDOWN: "shut-down",
    errno.ENOTCONN: "shut-down",  # a FUSE filesystem whose process has died
    errno.ECONNABORTED: "shut-down",
    errno.ETIMEDOUT: "hung",  # a soft mount whose server is away
    errno.ESTALE: "stale",
}


def without_space(check: str, component: str, result: Result, source: str = "") -> Observation:
    """The verdict on a filesystem that gave no space; unknown where the probe itself failed.

    ``source`` is shown before a refusal. Raises TypeError for an answer to another question.
    """
    match result:
        case Hung():
            return hung(check, component, result)
        case NotProbed():
            return not_probed(check, component, result)
        case ProbeRefused():
            reason = _REFUSALS.get(result.errno, "probe-failed")
            status = Status.FAILED if result.errno in _REFUSALS else Status.UNKNOWN
            return Observation(check, component, status, reason, f"{source}{result}")
    raise TypeError(f"no answer to a question about space: {result!r}")


def hung(check: str, component: str, result: Hung) -> Observation:
    """Degraded at first, failed when the same wait has lasted ``HUNG_FAILS_AFTER`` seconds."""
    status = Status.FAILED if result.seconds >= HUNG_FAILS_AFTER else Status.DEGRADED
    message = f"no answer for {result.seconds:.0f} s; the probe is {result.where or 'gone'}"
    return Observation(check, component, status, "hung", message)


def of_mount(mount: Mount, observation: Observation, *, mild: bool = False) -> Observation:
    """The verdict with failed as degraded for a remote filesystem: it is not this node's disk."""
    if (mount.remote or mild) and observation.status is Status.FAILED:
        return replace(observation, status=Status.DEGRADED)
    return observation


def not_probed(check: str, component: str, result: NotProbed) -> Observation:
    return Observation(check, component, Status.UNKNOWN, "probe-failed", result.message)


def no_mount_table(check: str, error: OSError) -> Observation:
    message = f"cannot read the mount table: {error}"
    return Observation(check, "", Status.UNKNOWN, "no-mount-table", message)
