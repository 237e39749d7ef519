"""Space and inodes of every disk, and whether it answers at all.

Reasons: ``full`` (space), ``inodes``, ``hung`` (statvfs does not return), ``io-error`` and
``shut-down`` (the filesystem refuses), ``stale`` (a remote server forgot the mount),
``not-mounted`` (a mount that the configuration names; ``not-up-yet``, unknown, after a boot),
``probe-failed`` and ``no-mount-table`` (this check could not look: unknown). The component is the
mount point; without one it is this check itself.

Defaults: 90 % is where the kubelet begins to evict for its own disk (nodefs.available below
10 %), so it is worth a look. 97 % is well past what the kubelet can hold, and a checkpoint or a log
burst takes the rest in minutes: failed. 97 % of a 30 TB scratch disk leaves 900 GB, so a disk
with more than ``plenty`` free is never called full. A *remote* filesystem is degraded at most: it
is as full on every other node, and whether it answers is disk-mounts's to evaluate. So is a
dataset of ZFS that has less room than its pool's own, or without that than most others of its pool:
it is full by its own quota. The root filesystem is never so mild. One that was full and is
unmounted (a job's scratch) is ok: it is full no longer.
"""

import asyncio
from collections.abc import Mapping

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.disk_common import (
    MOUNT_OPTIONS,
    Watch,
    no_mount_table,
    of_mount,
    without_space,
)
from nodeagent.checks.late_parts import LateParts
from nodeagent.dataclass import dataclass
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.disk_probe import Result, Space
from nodeagent.sources.mountinfo import Mount

NAME = "disk-space"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class SpaceLimits:
    """Per cent used, and bytes free: ``plenty`` is never full, below ``min_free`` always."""

    degrade_above: float
    fail_above: float
    inodes_degrade_above: float
    inodes_fail_above: float
    min_free: int
    plenty: int


def evaluate(mount: Mount, space: Space, limits: SpaceLimits) -> Observation:
    """Worst first: space, then inodes. Pure."""
    used = _percent(space.used, space.used + space.free)
    message = f"{used:.0f} % used, {_size(space.free)} free"
    if mount.superblock_read_only:  # an image is full for ever; disk-readonly watches the rest
        return Observation(NAME, mount.name, Status.OK, "", message + ", read-only")
    status = _space_status(space, used, limits)
    reason = "full"
    if space.inodes > 0:
        inodes = _percent(space.inodes - space.inodes_free, space.inodes)
        by_inodes = _level(inodes, limits.inodes_degrade_above, limits.inodes_fail_above)
        if by_inodes > status:
            status, reason = by_inodes, "inodes"
            message = f"{inodes:.0f} % of inodes used, {space.inodes_free} free"
    if status is Status.OK:
        return Observation(NAME, mount.name, Status.OK, "", message)
    return of_mount(mount, Observation(NAME, mount.name, status, reason, message))


def _is_full(observation: Observation) -> bool:
    return observation.status is Status.FAILED and observation.reason in ("full", "inodes")


def room_of_pools(results: Mapping[Mount, Result]) -> dict[str, int]:
    """The free bytes of each ZFS pool, by its own dataset: the others may have reservations.

    Without that one it is the middle dataset's.
    """
    free: dict[str, list[int]] = {}
    own: dict[str, int] = {}
    for mount, result in results.items():
        if isinstance(result, Space) and _pool(mount):
            free.setdefault(_pool(mount), []).append(result.free)
            own |= {mount.source: result.free} if mount.source == _pool(mount) else {}
    return {pool: sorted(each)[len(each) // 2] for pool, each in free.items()} | own


def _pool(mount: Mount) -> str:
    return mount.source.partition("/")[0] if mount.fstype == "zfs" else ""


def _space_status(space: Space, used: float, limits: SpaceLimits) -> Status:
    if space.free < limits.min_free:
        return Status.FAILED
    if space.free >= limits.plenty or space.size == 0:
        return Status.OK
    return _level(used, limits.degrade_above, limits.fail_above)


def _level(percent: float, degrade_above: float, fail_above: float) -> Status:
    if percent >= fail_above:
        return Status.FAILED
    return Status.DEGRADED if percent >= degrade_above else Status.OK


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole > 0 else 0.0


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


class DiskSpace:
    """Remote filesystems have a child of their own: they hang together, apart from local disks."""

    def __init__(self, sources: Sources, watch: Watch, limits: SpaceLimits) -> None:
        self._probe = sources.disk
        self._late = LateParts(sources)
        self._watch = watch
        self._root = str(sources.machine.root).rstrip("/")
        self._limits = limits
        self._full: frozenset[str] = frozenset()

    async def run_check(self) -> Report:
        try:
            mounts = self._watch.mounts()
        except OSError as error:
            return [no_mount_table(NAME, error)]
        paths = {mount: self._root + mount.point for mount in mounts}
        local, remote = await asyncio.gather(
            self._probe.space([path for mount, path in paths.items() if not mount.remote]),
            self._probe.space([p for mount, p in paths.items() if mount.remote], apart=True),
        )
        answers = local | remote
        results = {mount: answers[path] for mount, path in paths.items()}
        room = room_of_pools(results)
        report = [self._verdict(mount, result, room) for mount, result in results.items()]
        self._late.been_up.update(each.component for each in report)
        report += self._watch.missing(NAME, mounts)
        gone = sorted(self._full - {each.component for each in report})
        report += [Observation(NAME, each, Status.OK, "", "not mounted any more") for each in gone]
        self._full = frozenset(each.component for each in report if _is_full(each))
        return self._late.excuse(report) or Off("no disk is mounted")

    def _verdict(self, mount: Mount, result: Result, room: Mapping[str, int]) -> Observation:
        if not isinstance(result, Space):
            return of_mount(mount, without_space(NAME, mount.name, result))
        at_its_quota = mount.point != "/" and result.free + _GIB < room.get(_pool(mount), 0)
        return of_mount(mount, evaluate(mount, result, self._limits), mild=at_its_quota)


SPEC = CheckSpec(
    name=NAME,
    sees="a filesystem that is full or out of inodes, or that no longer answers",
    source="/proc/self/mountinfo; statvfs and stat in a child process, remote ones in a second",
    cost="12 ms of CPU a minute, shared with disk-write; as much again for remote filesystems",
    blind_to="quotas; filesystems of containers and volumes of pods, local ones included; a "
    "tmpfs or a loop device unless named in mounts",
    build=lambda sources, options: DiskSpace(
        sources,
        Watch(sources.mounts, options),
        SpaceLimits(**{name: options[name] for name in SpaceLimits.__slots__}),
    ),
    options=(
        Option("degrade_above", Kind.PERCENT, 90.0, "space used: degraded from here on"),
        Option("fail_above", Kind.PERCENT, 97.0, "space used: failed from here on"),
        Option("inodes_degrade_above", Kind.PERCENT, 90.0, "inodes used: degraded from here on"),
        Option("inodes_fail_above", Kind.PERCENT, 97.0, "inodes used: failed from here on"),
        Option("min_free", Kind.SIZE, 0, "failed with less than this free, whatever the per cent"),
        Option("plenty", Kind.SIZE, 50 * _GIB, "never called full with this much free"),
        *MOUNT_OPTIONS,
    ),
)
