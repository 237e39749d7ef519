"""The mount table: disks, hidden mounts, and a pod's view of the host."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.clock import SystemClock
from nodeagent.sources.host import HostRoots
from nodeagent.sources.mountinfo import (
    Mount,
    MountTable,
    find,
    parse,
    under,
    watched,
    worth_parsing,
)
from tests.agent.machines import made_up, this_machine
from tests.support.present import present

# A GPU node with containers: root on LVM, a data disk bound twice, scratch on RAID, remote homes.
NODE = rb"""22 29 0:21 / /proc rw,nosuid shared:13 - proc proc rw
23 29 0:22 / /sys rw,nosuid shared:6 - sysfs sysfs rw
24 29 0:6 / /dev rw,nosuid shared:2 - devtmpfs udev rw,size=1024k
25 24 0:23 / /dev/shm rw shared:4 - tmpfs tmpfs rw
29 1 253:0 / / rw,relatime shared:1 - ext4 /dev/mapper/vg-root rw,errors=remount-ro
30 29 259:2 / /boot rw,relatime shared:30 - ext4 /dev/nvme0n1p2 rw
31 30 259:1 / /boot/efi rw,relatime shared:31 - vfat /dev/nvme0n1p1 rw
32 29 9:127 / /scratch rw,relatime shared:32 - xfs /dev/md127 rw,attr2
33 29 259:5 / /data/disk\0401 rw,relatime shared:33 - ext4 /dev/nvme1n1 rw
34 29 259:5 /images /var/lib/images ro,relatime shared:33 - ext4 /dev/nvme1n1 rw
35 29 0:50 / /home rw,relatime shared:35 - nfs4 filer:/home rw,vers=4.2,hard
36 29 0:51 / /lustre rw,relatime shared:36 - lustre mgs@tcp:/fs rw
37 29 7:3 / /snap/core/1 ro shared:37 - squashfs /dev/loop3 ro
38 29 7:9 / /mnt/image rw shared:38 - ext4 /dev/loop9 rw
39 29 0:60 / /net rw shared:39 - autofs systemd-1 rw,fd=50
40 29 0:70 / /run/containerd/overlay/rootfs rw - overlay overlay rw,lowerdir=/a
41 29 0:71 / /var/lib/kubelet/pods/1f2e/volumes/kubernetes.io~secret/t rw - tmpfs tmpfs rw
42 29 252:16 / /var/lib/kubelet/pods/1f2e/volumes/kubernetes.io~csi/pv/mount rw - ext4 /dev/rbd0 rw
43 29 253:0 /var/lib/kubelet/pods/x /var/lib/kubelet/pods/x/volume-subpaths/a/b rw - ext4 /dev/x rw
44 29 0:80 / /pool rw - zfs pool rw
45 29 0:81 / /var/lib/lxcfs rw - fuse.lxcfs lxcfs rw
46 29 0:82 / /buckets rw - fuse.gcsfuse bucket rw
"""
DISKS = ["/", "/data/disk 1", "/pool", "/scratch"]
REMOTE = ["/buckets", "/home", "/lustre"]


def _points(mounts: tuple[Mount, ...]) -> list[str]:
    return [mount.point for mount in mounts]


def test_each_disk_once_and_remote_filesystems_and_nothing_else() -> None:
    mounts = watched(worth_parsing(NODE), exclude=("/boot", "/boot/*"))
    assert _points(mounts) == sorted(DISKS + REMOTE)
    assert [mount.point for mount in mounts if mount.remote] == REMOTE


def test_named_mounts_are_added_and_excludes_are_patterns() -> None:
    mounts = worth_parsing(NODE)
    found = watched(mounts, named=("/dev/shm", "/mnt/image"), exclude=("/boot*", "/data/*"))
    assert {"/dev/shm", "/mnt/image"} <= set(_points(found))
    # Its disk is seen at another place then.
    assert "/var/lib/images" in _points(found)
    assert "/data/disk 1" not in _points(found)


def test_a_named_mount_is_not_excluded() -> None:
    found = watched(worth_parsing(NODE), named=("/scratch",), exclude=("/*",))
    assert _points(found) == ["/scratch"]


def test_superblock_and_mount_flags_are_kept_apart() -> None:
    images = next(mount for mount in parse(NODE) if mount.point == "/var/lib/images")
    assert "ro" in images.options
    assert not images.superblock_read_only
    assert not images.stopped_writing


@pytest.mark.parametrize("option", ["ro", "emergency_ro", "shutdown"])
def test_a_filesystem_that_stopped_writing_is_told_by_its_superblock(option: str) -> None:
    line = f"29 1 253:0 / / rw shared:1 - ext4 /dev/vda rw,{option}\n".encode()
    assert parse(line)[0].stopped_writing


def test_what_lies_under_a_later_mount_is_not_looked_at() -> None:
    table = (
        b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        b"2 1 8:2 / /a rw - ext4 /dev/sda2 rw\n"
        b"3 2 8:3 / /a/b rw - ext4 /dev/sda3 rw\n"
        b"4 2 8:4 / /a rw - ext4 /dev/sda4 rw\n"  # over mount 2 and all in it
        b"5 4 8:5 / /a/c rw - ext4 /dev/sda5 rw\n"
    )
    assert [mount.device for mount in worth_parsing(table)] == ["8:1", "8:4", "8:5"]


def test_a_root_over_the_root_hides_it() -> None:
    table = b"1 0 0:1 / / rw - xfs old rw\n2 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    assert [mount.device for mount in worth_parsing(table)] == ["8:1"]


def test_dull_filesystems_still_carry_the_mounts_below_them() -> None:
    table = (
        b"1 0 0:1 / / rw - overlay overlay rw\n"
        b"2 1 0:2 / /sys rw - sysfs sysfs rw\n"
        b"3 2 8:3 / /sys/deep/down rw - ext4 /dev/sda3 rw\n"
    )
    assert _points(worth_parsing(table)) == ["/sys/deep/down"]


def test_in_a_pod_the_host_is_what_lies_below_its_root() -> None:
    table = (
        b"1 0 0:1 / / rw - overlay overlay rw\n"
        b"2 1 8:1 / /host ro - ext4 /dev/sda1 rw\n"
        b"3 2 8:2 / /host/data rw - ext4 /dev/sda2 rw\n"
        b"4 1 8:1 /etc/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
        b"5 1 8:9 / /hostile rw - ext4 /dev/sdz rw\n"
    )
    assert _points(under(worth_parsing(table), "/host")) == ["/", "/data"]


def test_the_longest_mount_point_above_a_path_is_its_mount() -> None:
    mounts = parse(NODE)
    for path, point in [
        ("/scratch/a", "/scratch"),
        ("/scratch", "/scratch"),
        ("/scratchpad", "/"),
        ("/boot/efi/x", "/boot/efi"),
    ]:
        mount = present(find(mounts, path))
        assert mount.point == point


def test_names_are_printable_whatever_the_bytes() -> None:
    line = rb"29 1 8:1 / /a\040b\012c" + b"\xff" + rb"\134d rw - ext4 /dev/sda rw" + b"\n"
    mount = parse(line)[0]
    assert mount.point == "/a b\nc\udcff\\d"
    assert mount.name == "/a b\\012c\\xff\\d"
    mount.name.encode("utf-8")


def test_the_table_is_read_again_when_it_changes(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    root = str(tmp_path)
    line = "1 0 8:1 / {}{} rw - ext4 /dev/sda rw,{}\n"
    path = machine.proc / "self/mountinfo"
    table = MountTable(machine)
    path.write_text(line.format(root, "", "x"))
    first = table.read()
    assert table.read() is first
    path.write_text(line.format(root, "", "emergency_ro"))
    assert table.read()[0].stopped_writing


def test_this_machine_has_a_root() -> None:
    assert "/" in _points(MountTable(this_machine()).read()) or find(
        parse(Path("/proc/self/mountinfo").read_bytes()), "/"
    )


@given(st.binary(max_size=400))
def test_garbage_is_skipped(table: bytes) -> None:
    for mount in (*parse(table), *worth_parsing(table)):
        mount.name.encode("utf-8")
    watched(worth_parsing(table))


@given(st.lists(st.sampled_from(NODE.split(b"\n")), max_size=8), st.integers(0, 60))
def test_lines_in_any_number_order_and_cut_short_are_survived(lines: list[bytes], cut: int) -> None:
    table = b"\n".join([*lines, NODE[:cut]])
    assert {m.ident for m in worth_parsing(table)} <= {m.ident for m in parse(table)}


def test_two_thousand_pod_mounts_are_skipped_before_they_are_parsed() -> None:
    pod = b"%d 29 0:%d / /var/lib/kubelet/pods/p%d/volumes/kubernetes.io~secret/t rw - tmpfs t rw\n"
    table = NODE + b"".join(pod % (1000 + n, 1000 + n, n) for n in range(2000))
    assert worth_parsing(table) == worth_parsing(NODE)


@pytest.mark.parametrize("root", ["/", "/host"])
@pytest.mark.parametrize("point", ["/pages", "/a b\\c", "/var/lib/kubelet/pods/x"])
@pytest.mark.parametrize(("fstype", "counts"), [("hugetlbfs", True), ("autofs", False)])
def test_at_a_named_point_any_filesystem_counts_that_is_there(
    tmp_path: Path, root: str, point: str, fstype: str, *, counts: bool
) -> None:
    """A mount that a site expects is missed if it is left out, and a healthy node would fail."""
    made_up(tmp_path)
    written = (root.rstrip("/") + point).replace("\\", "\\134").replace(" ", "\\040")
    line = f"2 1 0:9 / {written} rw - {fstype} none rw\n"
    first = f"1 0 8:1 / {root} rw - ext4 /dev/sda rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(first + line)
    machine = HostRoots(clock=SystemClock(), root=Path(root), proc=tmp_path / "proc")
    table = MountTable(machine)
    named = table.read((point,))
    assert (point in _points(named)) is counts
    assert _points(table.read((point + "/", "/"))) == _points(named)
    assert _points(table.read(("/other",))) == ["/"]
    assert [each.point for each in watched(named, named=(point,))] == _points(named)


def test_a_named_point_that_another_mount_covers_is_not_there() -> None:
    table = (
        b"1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        b"2 1 0:9 / /a/pages rw - hugetlbfs none rw\n"
        b"3 1 8:2 / /a rw - ext4 /dev/sdb rw\n"
    )
    assert _points(worth_parsing(table, {b"/a/pages"})) == ["/", "/a"]
