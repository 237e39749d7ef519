"""Which mounts are disks of the node: not containers', not tenants', not the vendor's."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nodeagent.checks import disk_readonly, disk_space
from nodeagent.model import Status
from nodeagent.sources import mountinfo
from tests.agent.machines import built, made_up, options, sources, this_machine, verdicts
from tests.agent.real_disks import MARKS, ext4, provoke_error, run
from tests.agent.test_disk_verdicts import write_table

ROOT = "22 1 8:1 / @ rw,relatime - ext4 /dev/sda1 rw"


async def watched(tmp_path: Path, *lines: str, named: tuple[str, ...] = ()) -> set[str]:
    """The mount points that disk-readonly reports, by a mount table of ours."""
    machine = made_up(tmp_path)
    write_table(tmp_path, ROOT, *lines)
    settings = options(disk_readonly.SPEC, mounts=named)
    check = built(disk_readonly.SPEC, sources(machine), settings)
    return set(verdicts(await check.run_check()))


@pytest.mark.parametrize(
    "line",
    [
        "72 22 253:5 / @/run/x/io.containerd.runtime.v2.task/k8s.io/aa/rootfs rw - ext4 x rw",
        "72 22 253:5 / @/data/ctd/io.containerd.snapshotter.v1.devmapper/5 rw - ext4 /dev/dm-5 rw",
        "73 22 253:6 / @/var/lib/docker/devicemapper/mnt/ddee rw - xfs /dev/mapper/docker-8:1 rw",
        "74 22 0:41 / @/var/lib/docker/zfs/graph/0a1b rw - zfs rpool/docker/0a1b rw,xattr",
        "74 22 0:41 / @/srv/docker/zfs/graph/0a1b rw - zfs tank/0a1b rw,xattr",
        "74 22 0:42 /@ @/var/lib/containers/storage/btrfs/subvolumes/9c rw - btrfs /dev/sdb rw",
        "74 22 252:3 / @/var/lib/lxd/storage-pools/a/containers/c1 rw - ext4 /dev/lxd/c1 rw",
        "74 22 0:51 / @/var/lib/incus/storage-pools/zp/containers/c2 rw - zfs zp/c2 rw",
        "74 22 253:8 / @/var/lib/lxc/101/rootfs rw - ext4 /dev/mapper/pve-vm--101--disk--0 rw",
        "74 22 253:9 / @/var/lib/fc/snapshotter/devmapper/mnt/5 rw - ext4 /dev/mapper/fc-5 rw",
        "75 22 259:3 / @/mnt/disks/minio-pv-0 rw,relatime - xfs /dev/nvme1n1 rw",
        "75 22 259:3 / @/mnt/fast-disks/vol1 rw - xfs /dev/nvme1n1 rw",
        "75 22 259:3 / @/mnt/local-storage/ssd/disk1 rw - xfs /dev/nvme1n1 rw",
        "76 22 8:6 / @/oem rw - ext4 /dev/sda6 rw",
        "76 22 8:64 / @/var/lib/overlaybd/snapshots/12/block/mountpoint rw - ext4 /dev/sde rw",
        "77 22 252:0 / @/var/lib/docker/volumes/v1/_data rw - ext4 /dev/rbd0 rw",
        "77 22 252:0 / @/srv/docker/plugins/0a1b/propagated-mount/v rw - ext4 /dev/rbd0 rw",
        "77 22 252:0 / @/data/k8s/plugins/kubernetes.io/csi/x/ab/globalmount rw - xfs /dev/x rw",
        "77 22 259:3 / @/var/lib/directpv/mnt/0a1b rw - xfs /dev/nvme1n1 rw",
        "77 22 252:1 / @/var/lib/osd/mounts/pvc-1 rw - ext4 /dev/pxd/pxd1 rw",
        "77 22 252:1 / @/var/lib/osd/pxns/1070600 rw - ext4 /dev/pxd/pxd1 rw",
        "77 22 259:5 / @/opt/nomad/data/client/csi/node/ebs/staging/v/rw rw - ext4 /dev/nvme2n1 rw",
        "77 22 252:9 / @/mnt/0/containerd/tmpmounts/containerd-mount12 rw - ext4 /dev/dm-9 rw",
        "78 22 0:44 / @/var/lib/machines rw - btrfs /dev/loop1 rw",
        "78 22 8:2 / @/media/diagnostics rw - vfat /dev/sda2 rw",
    ],
)
async def test_mounts_of_containers_and_tenants_are_not_the_nodes(
    tmp_path: Path, line: str
) -> None:
    assert await watched(tmp_path, line) == {"/"}


@pytest.mark.parametrize(
    "point",
    [
        *("/var/lib/docker", "/var/lib/containers/storage", "/var/lib/containerd"),
        *("/var/lib/kubelet", "/var/lib/lxd/storage-pools/a", "/mnt/data"),
        "/var/lib/lxc",
        "/srv/volumes/fast/_database",
    ],
)
async def test_a_disk_that_holds_all_of_a_runtime_is_the_nodes(tmp_path: Path, point: str) -> None:
    line = f"80 22 259:1 / @{point} rw - xfs /dev/nvme0n1 rw"
    assert await watched(tmp_path, line) == {"/", point}


async def test_a_disk_that_a_pod_has_as_its_volume_is_the_tenants(tmp_path: Path) -> None:
    """A folder of the node's own disk that a pod has as its volume leaves that disk watched."""
    volumes = "@/var/lib/kubelet/pods/0a1b/volumes"
    lines = (
        "81 22 259:4 / @/srv/fast0 rw - ext4 /dev/nvme2n1 rw",
        f"82 22 259:4 / {volumes}/kubernetes.io~local-volume/fast0 rw - ext4 /dev/nvme2n1 rw",
        "83 22 259:5 / @/srv/fast1 rw - ext4 /dev/nvme3n1 rw",
        f"84 22 259:5 /pv {volumes}/kubernetes.io~local-volume/pv rw - ext4 /dev/nvme3n1 rw",
        f"85 22 8:1 / {volumes}/kubernetes.io~local-volume/root rw - ext4 /dev/sda1 rw",
    )
    assert await watched(tmp_path, *lines) == {"/", "/srv/fast1"}
    assert await watched(tmp_path, *lines, named=("/srv/fast0",)) == {
        "/",
        "/srv/fast0",
        "/srv/fast1",
    }


@pytest.mark.parametrize(
    ("uuid", "pool", "is_watched"),
    [
        ("", "", False),
        ("LVM-x1", "LVM-x1-tpool", True),
        ("CRYPT-LUKS2-1", "", True),
        ("", None, True),
    ],
)
async def test_a_thin_snapshot_of_a_runtime_is_not_the_nodes(
    tmp_path: Path, uuid: str, pool: str | None, *, is_watched: bool
) -> None:
    """``pool`` is the uuid of the device below it, or None for one that is no device mapper's."""
    device = tmp_path / "sys/dev/block/253:9"
    (device / "dm").mkdir(parents=True)
    (device / "dm/uuid").write_text(f"{uuid}\n")
    (device / "slaves/below/dm").mkdir(parents=True)
    if pool is not None:
        (device / "slaves/below/dm/uuid").write_text(f"{pool}\n")
    line = "90 22 253:9 / @/data/c1 rw - ext4 /dev/mapper/c1 rw"
    assert ("/data/c1" in await watched(tmp_path, line)) is is_watched
    assert "/data/c1" in await watched(tmp_path, line, named=("/data/c1",))


async def test_a_vendors_partition_is_known_by_its_label(tmp_path: Path) -> None:
    for number, label in (("8:6", "OEM"), ("8:7", "SCRATCH")):
        device = tmp_path / "sys/dev/block" / number
        device.mkdir(parents=True)
        (device / "uevent").write_text(f"DEVTYPE=partition\nPARTNAME={label}\n")
    lines = (
        "91 22 8:6 / @/srv/vendor rw - ext4 /dev/sda6 rw",
        "92 22 8:7 / @/srv/scratch rw - ext4 /dev/sda7 rw",
    )
    assert await watched(tmp_path, *lines) == {"/", "/srv/scratch"}


@pytest.mark.parametrize("part", ["", "/sdd1"])
async def test_a_removable_disk_is_not_the_nodes_unless_it_is_all_that_it_has(
    tmp_path: Path, part: str
) -> None:
    disk = tmp_path / "sys/block/sdd"
    (disk / "sdd1").mkdir(parents=True)
    (disk / "removable").write_text("1\n")
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    for number in ("8:49", "8:1"):
        (tmp_path / "sys/dev/block" / number).symlink_to(f"{disk}{part}")
    assert await watched(tmp_path, "93 22 8:49 / @/srv/stick rw - ext4 /dev/sdd1 rw") == {"/"}


@pytest.mark.parametrize("below", ["loop7", "sdb"])
@pytest.mark.parametrize("layers", [0, 1, 2])  # a partition; LUKS on it; LVM on that
async def test_a_file_that_is_mounted_through_a_partition_or_luks_is_no_disk(
    tmp_path: Path, below: str, layers: int
) -> None:
    """systemd's homes and extensions are such files, full by their size."""
    device = f"block/{below}/{below}p1"
    (tmp_path / "sys" / device).mkdir(parents=True)
    for layer in range(layers):
        slaves = tmp_path / f"sys/block/dm-{layer}/slaves"
        slaves.mkdir(parents=True)
        (slaves.parent / "dm").mkdir()
        (slaves.parent / "dm/uuid").write_text("CRYPT-LUKS2-1\n")
        (slaves / "below").symlink_to(tmp_path / "sys" / device)
        device = f"block/dm-{layer}"
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/259:9").symlink_to(f"../../{device}")
    line = "95 22 259:9 / @/home/ada rw - ext4 /dev/mapper/home-ada rw"
    assert ("/home/ada" in await watched(tmp_path, line)) is (below == "sdb")


async def test_a_remote_filesystem_made_read_only_is_no_fault_of_a_disk(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    write_table(tmp_path, "94 22 0:70 / @/home rw - nfs4 filer:/home rw")
    check = built(disk_readonly.SPEC, sources(machine), options(disk_readonly.SPEC))
    assert verdicts(await check.run_check()) == {"/home": (Status.OK, "")}
    write_table(tmp_path, "94 22 0:70 / @/home ro - nfs4 filer:/home ro")
    assert verdicts(await check.run_check()) == {"/home": (Status.DEGRADED, "read-only")}


RO, RW = "- ext4 /dev/sdb1 ro", "- ext4 /dev/sdb1 rw"


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ((f"97 22 8:17 / @/a ro {RO}", f"98 22 8:17 / @/b rw {RO}"), "OK"),
        ((f"97 22 8:17 / @/long/a ro {RO}", f"98 22 8:17 /x @/b rw {RO}"), "OK"),
        # The kernel gave the bind an id that was free again: the table's order is the mounts'.
        ((f"97 22 8:17 / @/a ro {RO}", f"45 22 8:17 / @/b rw {RO}"), "OK"),
        ((f"97 22 8:17 / @/a rw {RO}", f"45 22 8:17 /x @/b ro {RO}"), "FAILED"),
        # The first mount was writable: a bind that is read-only on purpose explains nothing.
        ((f"97 22 8:17 / @/a rw {RO}", f"98 22 8:17 /x @/b ro {RO}"), "FAILED"),
        ((f"97 22 8:17 / @/a rw {RO}",), "FAILED"),
        ((f"97 22 8:17 / @/a ro {RW}", f"98 22 8:17 / @/b rw {RW}"), "OK"),
        # XFS shuts down on an error; a program set the superblock's flag alone (fsconfig).
        (("97 22 8:17 / @/a rw - xfs /dev/sdb1 ro,norecovery",), "OK"),
        (("97 22 0:50 / @/a rw - btrfs /dev/sdb1 ro",), "FAILED"),
    ],
)
async def test_a_bind_made_writable_is_no_filesystem_that_stopped_writing(
    tmp_path: Path, lines: tuple[str, ...], verdict: str
) -> None:
    machine = made_up(tmp_path)
    write_table(tmp_path, *lines)
    check = built(disk_readonly.SPEC, sources(machine), options(disk_readonly.SPEC))
    (seen,) = verdicts(await check.run_check()).values()
    assert seen[0].name == verdict


# ---- on real filesystems ----------------------------------------------------------------------


@contextmanager
def bind(source: Path, target: Path) -> Iterator[Path]:
    target.mkdir(parents=True)
    run("mount", "--bind", source, target)
    try:
        yield target
    finally:
        run("umount", "--lazy", target)


@pytest.fixture
def loops_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loop devices are no disks; here they are all that there is."""
    monkeypatch.setattr(mountinfo, "_LOOP_MAJOR", "none")
    monkeypatch.setattr(mountinfo, "_is_file", lambda _: False)


def fill(point: Path) -> None:
    with (point / "data").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            return


@pytest.mark.usefixtures("loops_count")
@pytest.mark.parametrize("is_last", [False, True])
class TestReal:
    pytestmark = MARKS

    async def test_a_real_writable_bind_of_a_read_only_mount_is_ok(
        self, tmp_path: Path, *, is_last: bool
    ) -> None:
        """Also once the first mount is gone, where ext4's count of errors is all that tells."""
        with ExitStack() as mounts:
            origin = mounts.enter_context(ext4(tmp_path / "golden", "ro"))
            ours = mounts.enter_context(bind(origin, tmp_path / "ro"))
            run("mount", "-o", "remount,bind,rw", ours)
            if is_last:
                run("umount", origin)
                mounts.callback(run, "mount", "--bind", ours, origin)
            disks = sources(this_machine())
            settings = options(disk_readonly.SPEC, mounts=(str(ours),))
            seen = verdicts(await built(disk_readonly.SPEC, disks, settings).run_check())
            assert seen[str(ours)] == (Status.OK, "")
            await disks.disk.close()

    async def test_a_real_error_is_still_a_failure_at_the_first_look(
        self, tmp_path: Path, *, is_last: bool
    ) -> None:
        with ext4(tmp_path / "data", "errors=remount-ro") as point, ExitStack() as mounts:
            if is_last:
                mounts.enter_context(bind(point, tmp_path / "bound"))
            provoke_error(point)
            disks = sources(this_machine())
            settings = options(disk_readonly.SPEC, mounts=(str(point),))
            seen = verdicts(await built(disk_readonly.SPEC, disks, settings).run_check())
            assert seen[str(point)] == (Status.FAILED, "read-only")
            await disks.disk.close()

    async def test_a_full_disk_of_a_container_or_a_tenant_is_not_the_nodes(
        self, tmp_path: Path, *, is_last: bool
    ) -> None:
        task = "io.containerd.runtime.v2.task/k8s.io"
        (tmp_path / task).mkdir(parents=True)
        with ExitStack() as mounts:
            rootfs = mounts.enter_context(ext4(tmp_path / task / "rootfs"))
            tenant = mounts.enter_context(ext4(tmp_path / "fast0"))
            node = mounts.enter_context(ext4(tmp_path / "scratch"))
            pod = tmp_path / "kubelet/pods/0a1b/volumes/kubernetes.io~local-volume/fast0"
            if not is_last:
                mounts.enter_context(bind(tenant, pod))
            for point in (rootfs, tenant, node):
                fill(point)
            disks = sources(this_machine())
            seen = verdicts(
                await built(disk_space.SPEC, disks, options(disk_space.SPEC)).run_check()
            )
            await disks.disk.close()
        assert seen[str(node)][1] == "full"
        assert str(rootfs) not in seen
        assert (str(tenant) in seen) is is_last
