"""Which mounts lie on which block device: through partitions, device mapper and md.

From ``/sys/dev/block/MAJOR:MINOR``: a partition's folder lies in its disk's; ``slaves`` names the
parts of a dm or md device. Reading it touches no device.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.mountinfo import Mount
from nodeagent.sources.small_file import entry_names, small_number

#: Devices above one another, deeper than which it is a loop and no stack.
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Extent:
    """A partition on its disk, in sectors of 512 bytes, whatever the disk's own sectors are."""

    disk: str
    start: int
    size: int

    def holds(self, sector: int) -> bool:
        return self.start <= sector < self.start + self.size


@dataclass(frozen=True, slots=True)
class Stack:
    """The devices under one mount: device names, and the partitions among them."""

    point: str
    names: frozenset[str]
    extents: tuple[Extent, ...]

    def is_on(self, name: str, sector: int | None) -> bool:
        """Whether trouble on device ``name`` is this mount's.

        A disk's sector counts only within the mount's partitions: the swap next to them is not its
        trouble. ``name`` may be an NVMe path ("nvme0c1n1") of its disk.
        """
        if name not in self.names:
            return False
        extents = [extent for extent in self.extents if extent.disk == name]
        return sector is None or not extents or any(each.holds(sector) for each in extents)


def stack(machine: HostRoots, mount: Mount) -> Stack:
    """The devices below the mount. Empty where sysfs does not know its device."""
    names: set[str] = set()
    extents: list[Extent] = []
    for place in _places(machine, mount):
        for folder in _down(place):
            names.add(folder.name)
            extent = _extent(folder)
            if extent is not None:
                names.add(extent.disk)
                extents.append(extent)
    return Stack(mount.name, frozenset(names), tuple(extents))


def namespaces(machine: HostRoots, controller: str) -> frozenset[str]:
    """The disks of an NVMe controller ("nvme0"): with multipath their names do not follow its.

    Linux before 4.5 names a controller by its PCI address ("0000:3b:00.0").
    """
    if ":" in controller:
        names = entry_names(machine.sys / "bus/pci/devices" / controller / "nvme")
        return frozenset().union(*(namespaces(machine, name) for name in names))
    found = {
        name for name in entry_names(machine.sys / "class/nvme" / controller) if "n" in name[4:]
    }
    # nvme0c1n1 is controller 1's path to the disk nvme0n1.
    plain = {_without_path(name) for name in found if name.startswith("nvme")}
    return frozenset(plain or {f"{controller}n1"})


def _without_path(name: str) -> str:
    head, c, rest = name[4:].partition("c")
    return f"nvme{head}n{rest.partition('n')[2]}" if c else name


def _places(machine: HostRoots, mount: Mount) -> Iterator[Path]:
    """The sysfs folder of the mount's device; btrfs and zfs have one by name at best."""
    by_number = machine.sys / "dev/block" / mount.device
    by_name = machine.sys / "class/block" / Path(mount.source).name
    for place in (by_number, by_name) if mount.source.startswith("/dev/") else (by_number,):
        try:
            yield place.resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        return


def _down(folder: Path, depth: int = 0) -> Iterator[Path]:
    """The device and all devices that it is made of."""
    yield folder
    if depth >= _DEEPEST:
        return
    for slave in entry_names(folder / "slaves"):
        try:
            below = (folder / "slaves" / slave).resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        yield from _down(below, depth + 1)


def _extent(folder: Path) -> Extent | None:
    """Where a partition lies on its disk, or None for a device that is no partition."""
    start, size = (small_number(folder / name) for name in ("start", "size"))
    if start is None or size is None or not (folder / "partition").exists():
        return None
    return Extent(folder.parent.name, start, size)


def _named(machine: HostRoots, numbers: str) -> str:
    """The name of the device with these numbers ("253:0"); empty where there is none."""
    try:
        return (machine.sys / "dev/block" / numbers).resolve(strict=True).name
    except (OSError, RuntimeError):
        return ""


class Stacks:
    """The stacks of the mounts that matter, read again on a request once a while has passed.

    ``mounts`` gives the mounts and may raise OSError. A mount whose device has left keeps the stack
    that it had: that is when its name is in the log.
    """

    def __init__(self, machine: HostRoots, fresh_for: float = 10.0) -> None:
        self._machine = machine
        self._fresh_for = fresh_for
        self._at: float | None = None
        self._stacks: dict[tuple[str, str], Stack] = {}

    def due(self) -> bool:
        now = self._machine.clock.boottime()
        return self._at is None or now - self._at >= self._fresh_for

    def read_stacks(self, mounts: Iterable[Mount]) -> None:
        """Learn the stacks of ``mounts``, and forget those of others."""
        self._at = self._machine.clock.boottime()
        kept: dict[tuple[str, str], Stack] = {}
        for mount in mounts:
            key = (mount.device, mount.point)
            found = stack(self._machine, mount)
            kept[key] = found if found.names else self._stacks.get(key, found)
        self._stacks = kept

    def points(self, name: str, sector: int | None) -> tuple[str, ...]:
        """The mounts on device ``name`` (at ``sector``), or "MAJOR:MINOR"."""
        if ":" in name:
            name = _named(self._machine, name)
        return tuple(each.point for each in self._stacks.values() if each.is_on(name, sector))

    def controller(self, controller: str) -> tuple[str, ...]:
        """The mounts on an NVMe controller's disks."""
        found = [
            point
            for disk in sorted(namespaces(self._machine, controller))
            for point in self.points(disk, None)
        ]
        return tuple(dict.fromkeys(found))
