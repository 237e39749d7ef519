"""Code that the disk checks share: which mounts they look at, and the verdict on a hung probe."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nodeagent.checks.base import Kind, Option
from nodeagent.model import Gone, Observation, Status
from nodeagent.sources.disk_probe import Hung, NotProbed
from nodeagent.sources.host import HostRoots
from nodeagent.sources.mountinfo import Mount, MountTable, watched

#: One time-out may be a busy disk (measured: fdatasync takes 100 ms beside one writer; a second
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
        "mount points to watch besides the disks (a tmpfs, a loop device); missing ones fail",
        absolute_paths,
    ),
    Option("exclude", Kind.TEXTS, _NOT_THE_NODES, "mount points to leave out, as shell patterns"),
)


class Watch:
    """The mounts that a check looks at by ``MOUNT_OPTIONS``, and those that it has spoken of."""

    def __init__(self, machine: HostRoots, options: Mapping[str, Any]) -> None:
        self._named: tuple[str, ...] = options["mounts"]
        self._table = MountTable(machine, self._named)
        self._exclude: tuple[str, ...] = options["exclude"]
        self._read: tuple[Mount, ...] | None = None
        self._watched: tuple[Mount, ...] = ()
        self._spoken_of = ReportedComponents()

    def mounts(self) -> tuple[Mount, ...]:
        """The same object while the table stays the same.

        Raises OSError when the mount table cannot be read.
        """
        table = self._table.read()
        if table is not self._read:
            self._watched = watched(table, named=self._named, exclude=self._exclude)
            self._read = table
        return self._watched

    def missing(self, check: str, mounts: Iterable[Mount]) -> list[Observation]:
        """The mounts that the configuration names and that are not there."""
        there = {mount.point for mount in mounts}
        return [
            Observation(check, point, Status.FAILED, "not-mounted", "named in the configuration")
            for point in self._named
            if point not in there
        ]

    def gone(self, check: str, report: Iterable[Observation]) -> list[Gone]:
        return self._spoken_of.gone(check, report)


class ReportedComponents:
    """The components of a check's last report: a component that left it is reported as gone."""

    def __init__(self) -> None:
        self._components: frozenset[str] = frozenset()

    def gone(self, check: str, report: Iterable[Observation]) -> list[Gone]:
        now = frozenset(observation.component for observation in report)
        gone = [Gone(check, component) for component in sorted(self._components - now)]
        self._components = now
        return gone


def hung(check: str, component: str, result: Hung) -> Observation:
    """Degraded at first, failed when the same wait has lasted ``HUNG_FAILS_AFTER`` seconds."""
    status = Status.FAILED if result.seconds >= HUNG_FAILS_AFTER else Status.DEGRADED
    message = f"no answer for {result.seconds:.0f} s; the probe is {result.where or 'gone'}"
    return Observation(check, component, status, "hung", message)


def not_probed(check: str, component: str, result: NotProbed) -> Observation:
    return Observation(check, component, Status.UNKNOWN, "probe-failed", result.message)


def no_mount_table(check: str, error: OSError) -> Observation:
    message = f"cannot read the mount table: {error}"
    return Observation(check, "", Status.UNKNOWN, "no-mount-table", message)
