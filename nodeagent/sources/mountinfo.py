"""The mount table: all mounts, and those that are disks worth watching.

Format: proc_pid_mountinfo(5). Two sets of flags matter and differ: a mount's own ("rw" before the
hyphen) and its superblock's (after it). A bind mount may be read-only over a healthy disk; only the
superblock's flag shows that the filesystem itself stopped writing.
"""

import fnmatch
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import entries, read_small, read_whole, small_text

__all__ = ["REMOTE", "Mount", "MountTable", "find", "parse", "under", "watched", "worth_parsing"]

#: Filesystems of a network server: they hang with it, and their fullness is not this node's fault.
REMOTE = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "mmfs"),
        *("ncpfs", "nfs", "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs"),
        *("fuse.beegfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs"),
        *("fuse.goofys", "fuse.juicefs", "fuse.mount-s3", "fuse.s3fs", "fuse.sshfs"),
        "virtiofs",  # the virtual machine's host's
    )
)
#: Local filesystems on devices without a number of their own (major 0).
_LOCAL_WITHOUT_DEVICE = frozenset({"bcachefs", "btrfs", "zfs"})
#: Images, always full and read-only by design; and filesystems of firmware, of a BMC's virtual
#: media and of other systems, where no job writes.
_IMAGES = frozenset(
    (
        *("cramfs", "erofs", "exfat", "iso9660", "msdos", "ntfs", "ntfs3", "romfs", "squashfs"),
        *("udf", "vfat"),
    )
)
#: Access to such a mount would mount it.
_NEVER = frozenset({"autofs"})
_LOOP_MAJOR, _LOOP = "7:", "/dev/loop"
#: Volumes of pods come and go with them and are their tenants' business.
_POD_VOLUME = re.compile(
    rb"/kubelet/(pods|plugins)/|/volumes/kubernetes\.io~|/volume-subpaths/|/plugins/kubernetes\.io/"
)
#: Where container runtimes mount what they hold for a container: its root filesystem, the layers of
#: its image, its volumes; and storage drivers the volumes of their tenants (DirectPV, Portworx,
#: Nomad's CSI plugins). Folders within their own, wherever that is; a disk that holds all of it is
#: none.
_CONTAINER = re.compile(
    rb"/io\.containerd\.[^/]+/|/containers/storage/[^/]+/[^/]+|/run/kata-containers/"
    rb"|/(devicemapper/mnt|zfs/graph|btrfs/subvolumes|aufs/mnt|snapshotter/[^/]+/mnt)/."
    rb"|/storage-pools/[^/]+/[^/]+/.|/lxc/[^/]+/rootfs(?:/|$)|/snapshots/[^/]+/block/mountpoint|/volumes/[^/]+/_data(?:/|$)"
    rb"|/docker/plugins/.|/directpv/mnt/.|/osd/(mounts|pxns)/.|/client/csi/.|/tmpmounts/containerd-mount"
)
#: Names of partitions (GPT) that a vendor fills once: Flatcar's and others'.
_VENDOR_PARTITIONS = frozenset({"OEM", "OEM-CONFIG", "RECOVERY", "USR-A", "USR-B"})
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_ESCAPED = re.compile(rb"[ \t\n\\]")
#: Filesystems that hold no files of their own. They are recognised before a line is parsed in full,
#: because a node with hundreds of pods has thousands of such lines.
_DULL = frozenset(
    (
        *(b"autofs", b"bpf", b"cgroup", b"cgroup2", b"configfs", b"debugfs", b"devpts"),
        *(b"devtmpfs", b"efivarfs", b"fusectl", b"hugetlbfs", b"mqueue", b"nsfs", b"overlay"),
        *(b"proc", b"pstore", b"ramfs", b"rpc_pipefs", b"securityfs", b"selinuxfs", b"sysfs"),
        b"tracefs",
    )
)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the table. ``device`` is "major:minor"; ``point`` opens it (os.fsencode)."""

    ident: int
    parent: int
    device: str
    root: str
    point: str
    options: frozenset[str]
    fstype: str
    source: str
    super_options: frozenset[str]
    opened: bool = False
    """Made writable over a filesystem whose first mount is read-only, as a bind mount can be."""

    @property
    def name(self) -> str:
        """The mount point as a component's name: printable text, whatever the path's bytes."""
        if self.point.isprintable():
            return self.point
        text = os.fsencode(self.point).decode("utf-8", "backslashreplace")
        return "".join(c if c.isprintable() else f"\\{ord(c):03o}" for c in text)

    @property
    def remote(self) -> bool:
        """Whether it may hang with something outside this machine's kernel and disks."""
        return self.fstype in REMOTE or self.fstype.startswith("fuse")

    @property
    def superblock_read_only(self) -> bool:
        return "ro" in self.super_options

    @property
    def stopped_writing(self) -> bool:
        """Read-only by flag, or by an error that ext4 shows while its flag stays "rw"."""
        return not self.super_options.isdisjoint(("ro", "emergency_ro", "shutdown"))


def parse(table: bytes) -> tuple[Mount, ...]:
    """The table's mounts in its order. Lines that are not of the format are skipped."""
    mounts = (_parse_line(line) for line in table.split(b"\n"))
    return tuple(mount for mount in mounts if mount is not None)


def _parse_line(line: bytes) -> Mount | None:
    before, hyphen, after = line.partition(b" - ")
    fields, rest = before.split(b" "), after.split(b" ")
    if not hyphen or len(fields) < 6 or len(rest) < 3:
        return None
    if not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    return Mount(
        ident=int(fields[0]),
        parent=int(fields[1]),
        device=_text(fields[2]),
        root=_text(fields[3]),
        point=_text(fields[4]),
        options=frozenset(_text(fields[5]).split(",")),
        fstype=_text(rest[0]),
        source=_text(rest[1]),
        super_options=frozenset(_text(rest[2]).split(",")),
    )


def _text(raw: bytes) -> str:
    if b"\\" in raw:
        raw = _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), raw)
    return os.fsdecode(raw)


def _escaped(text: str) -> bytes:
    """A path as the table writes it."""
    return _ESCAPED.sub(lambda match: b"\\%03o" % match[0][0], os.fsencode(text))


def worth_parsing(
    table: bytes, named: Collection[bytes] = (), top: bytes = b"/"
) -> tuple[Mount, ...]:
    """The mounts that may hold files and that a path still leads to, in the table's order.

    At the points ``named`` (as the table writes them) any filesystem counts, for the configuration
    names it; an automounter that waits there is none. At ``top``, the host's root, a disk counts
    also where a pod has it as its volume.

    A mount under a later one cannot be reached: a look-up crosses from a mount to the one
    attached to it at that path, so that is replayed. Cheap on thousands of lines: only those that
    may hold files are parsed in full.
    """
    attached: dict[tuple[bytes, bytes], bytes] = {}
    heads: list[tuple[bytes, bytes, bytes]] = []
    kept: list[bytes] = []
    volumes: set[bytes] = set()
    for line in table.split(b"\n"):
        head = line.split(b" ", 5)
        if len(head) < 6:
            continue
        ident, parent, point = head[0], head[1], head[4]
        attached[parent, point] = ident
        heads.append((ident, parent, point))
        fstype = line.partition(b" - ")[2].partition(b" ")[0]
        is_volume = _POD_VOLUME.search(point) is not None
        if is_volume and not head[2].startswith(b"0:"):
            volumes.add(_whole(line))
        is_dull = is_volume or fstype in _DULL or _CONTAINER.search(point) is not None
        if not is_dull or (point in named and fstype != b"autofs"):
            kept.append(line)
    idents = {ident for ident, _, _ in heads}
    roots = [(i, point) for i, parent, point in heads if parent not in idents or parent == i]
    mounts = [
        mount
        for line in kept
        if (_whole(line) not in volumes or line.split(b" ", 5)[4] in (top, *named))
        and _reachable(line, roots, attached)
        and (mount := _parse_line(line)) is not None
    ]
    return tuple(_opened(mounts))


def _whole(line: bytes) -> bytes:
    """The device and the folder on it: a disk that a pod has as its volume is mounted twice."""
    return b" ".join(line.split(b" ", 4)[2:4])


def _opened(mounts: Sequence[Mount]) -> Iterator[Mount]:
    """``mounts`` with those marked whose first mount is read-only.

    By the table's order, which is that of the mounts: the kernel gives an id again when it is free.
    """
    for at, mount in enumerate(mounts):
        is_opened = "rw" in mount.options and any(
            each.device == mount.device
            and "ro" in each.options
            and (each.root == mount.root or mount.root.startswith(each.root.rstrip("/") + "/"))
            for each in (mounts[:at] if mount.superblock_read_only else ())
        )
        yield replace(mount, opened=True) if is_opened else mount


def _reachable(
    line: bytes,
    roots: Sequence[tuple[bytes, bytes]],
    attached: dict[tuple[bytes, bytes], bytes],
) -> bool:
    target, _, _, _, point, _ = line.split(b" ", 5)
    return any(_resolve(point, root, top, attached) == target for root, top in roots)


def _resolve(
    point: bytes, root: bytes, top: bytes, attached: dict[tuple[bytes, bytes], bytes]
) -> bytes:
    """The mount in which a look-up of ``point`` ends that starts in mount ``root`` at ``top``."""

    def topmost(mount: bytes, path: bytes) -> bytes:
        above = attached.get((mount, path))
        while above is not None and above != mount:  # mounts may be stacked on one point
            mount, above = above, attached.get((above, path))
        return mount

    mount, path = topmost(root, top), top.rstrip(b"/")
    if point != top and not point.startswith(path + b"/"):
        return b""
    for part in filter(None, point[len(path) :].split(b"/")):
        path += b"/" + part
        mount = topmost(mount, path)
    return mount


def under(mounts: Sequence[Mount], root: str) -> tuple[Mount, ...]:
    """The host's mounts, as a process sees them that has the host's root mounted at ``root``.

    Its own table is right where the host's is not: it holds exactly the mounts that this process
    can reach, and needs no host PID namespace.
    """
    if root == "/":
        return tuple(mounts)
    inside = root + "/"
    return tuple(
        replace(mount, point=mount.point[len(root) :] or "/")
        for mount in mounts
        if mount.point == root or mount.point.startswith(inside)
    )


def watched(
    mounts: Sequence[Mount], *, named: Sequence[str] = (), exclude: Sequence[str] = ()
) -> tuple[Mount, ...]:
    """The mounts to watch: each disk once, remote filesystems, and the named ones.

    ``named`` adds mount points that would be skipped (a tmpfs, a loop device). ``exclude`` drops
    mount points by shell pattern and does not drop named ones.
    """
    by_name = set(named)
    kept = [m for m in mounts if m.point in by_name]
    devices = {m.device for m in kept}
    candidates = [m for m in mounts if m.point not in by_name and _holds_files(m)]
    # The whole filesystem before a bind of its part, the shortest path before longer ones.
    for mount in sorted(candidates, key=lambda m: (m.root != "/", len(m.point), m.point)):
        skip = any(fnmatch.fnmatchcase(mount.point, pattern) for pattern in exclude)
        if not skip and mount.device not in devices:
            devices.add(mount.device)
            kept.append(mount)
    return tuple(sorted(kept, key=lambda m: m.point))


def _holds_files(mount: Mount) -> bool:
    if mount.fstype in _NEVER or mount.fstype in _IMAGES:
        return False
    if mount.fstype in REMOTE or mount.fstype in _LOCAL_WITHOUT_DEVICE:
        return not mount.source.startswith(_LOOP)
    on_device = not mount.device.startswith("0:") and not mount.device.startswith(_LOOP_MAJOR)
    return on_device and not mount.fstype.startswith("fuse")


def find(mounts: Iterable[Mount], path: str) -> Mount | None:
    """The mount that ``path`` lies on: the longest mount point above it."""
    best: Mount | None = None
    for mount in mounts:
        above = mount.point in ("/", path) or path.startswith(mount.point + "/")
        if above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _is_file(device: Path) -> bool:
    """Whether a block device, by its folder in sysfs, is on loop devices alone."""
    below = list(entries(device / "slaves"))
    is_loop = "/block/loop" in os.path.realpath(device)
    return is_loop or (bool(below) and all(_is_file(each) for each in below))


class MountTable:
    """The table of this process, seen as the host's: one for all checks.

    It is parsed again only when its text differs. Reading it touches no device.
    """

    def __init__(self, machine: HostRoots) -> None:
        self._path = f"{machine.proc}/self/mountinfo"
        self._sys = machine.sys
        self._root = str(machine.root)
        self._below = "" if self._root == "/" else self._root
        self._raw = b""
        self._mounts: dict[tuple[str, ...], tuple[Mount, ...]] = {}

    def read(self, named: tuple[str, ...] = ()) -> tuple[Mount, ...]:
        """The mounts, and those at the points ``named``, at which any filesystem counts.

        The same object while the table stays the same. Raises OSError without ``/proc``.
        """
        raw = read_whole(self._path)
        if raw != self._raw:
            self._raw, self._mounts = raw, {}
        if named not in self._mounts:
            points = {_escaped(self._below + point.rstrip("/") or "/") for point in named}
            mounts = under(worth_parsing(raw, points, _escaped(self._root)), self._root)
            kept = (each for each in mounts if not self._is_foreign(each, points))
            self._mounts[named] = tuple(kept)
        return self._mounts[named]

    def _is_foreign(self, mount: Mount, named: Collection[bytes]) -> bool:
        """Whether its block device is a container's snapshot, a vendor's partition, a stick or a
        file: a partition of a loop device, or LUKS or kpartx on one (a home, a system extension).

        LVM, dm-crypt and multipath give their devices a uuid. Runtimes make thin snapshots without
        one, on a pool that is a device of the same kind.
        """
        if _escaped(self._below + mount.point) in named:
            return False
        folder = self._sys / "dev/block" / mount.device
        if read_small(folder / "dm/uuid") == "":
            return any(read_small(each / "dm/uuid") == "" for each in entries(folder / "slaves"))
        if mount.point != "/" and _is_file(folder):
            return True
        # A partition's folder is within its disk's.
        if mount.point != "/" and "1" in {
            read_small(folder / each) for each in ("removable", "../removable")
        }:
            return True
        label = re.search(r"^PARTNAME=(.*)$", small_text(folder / "uevent"), re.MULTILINE)
        return label is not None and label[1].upper() in _VENDOR_PARTITIONS
