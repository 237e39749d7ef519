"""md arrays, from trees as Linux shows them in sysfs."""

from pathlib import Path

import pytest

from nodeagent.checks import disk_md
from nodeagent.checks.base import Off
from nodeagent.model import Status
from nodeagent.sources.host import HostRoots
from tests.agent.machines import built, made_up, observations, options, sources, verdicts

OK = (Status.OK, "")
BROKEN, INACTIVE = (Status.FAILED, "broken"), (Status.FAILED, "inactive")
DEGRADED = (Status.DEGRADED, "degraded")


def array(machine: HostRoots, name: str = "md0", **files: object) -> Path:
    """An array as sysfs shows it; ``faulty`` names members that the kernel has thrown out."""
    md = machine.sys / "block" / name / "md"
    md.mkdir(parents=True)
    values = {
        "array_state": "clean",
        "level": "raid1",
        "raid_disks": 2,
        "degraded": 0,
        "sync_action": "idle",
        "sync_completed": "none",
        "metadata_version": "1.2",
    } | files
    for member in ("nvme0n1p2", "nvme1n1p2"):
        (md / f"dev-{member}").mkdir()
        state = "faulty" if member == values.get("faulty") else "in_sync"
        (md / f"dev-{member}" / "state").write_text(f"{state}\n")
    values.pop("faulty", None)
    for file, value in values.items():
        if value is not None:
            (md / file).write_text(f"{value}\n")
    return md


async def looked(machine: HostRoots) -> dict[str, tuple[Status, str]]:
    check = built(disk_md.SPEC, sources(machine), options(disk_md.SPEC))
    return verdicts(await check.run_check())


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        ({}, OK),
        ({"array_state": "active"}, OK),
        ({"array_state": "write-pending"}, OK),
        ({"sync_action": "check", "sync_completed": "100 / 1000"}, OK),
        ({"sync_action": "resync", "sync_completed": "100 / 1000"}, OK),
        ({"degraded": 1}, DEGRADED),
        ({"degraded": 1, "faulty": "nvme1n1p2"}, DEGRADED),
        ({"degraded": 1, "sync_action": "recover", "sync_completed": "100 / 1000"}, DEGRADED),
        ({"degraded": 2}, BROKEN),
        ({"level": "raid5", "raid_disks": 4, "degraded": 1}, DEGRADED),
        ({"level": "raid5", "raid_disks": "5 (4)", "degraded": 2}, BROKEN),
        ({"level": "raid6", "raid_disks": 8, "degraded": 2}, DEGRADED),
        ({"level": "raid6", "raid_disks": 8, "degraded": 3}, BROKEN),
        ({"level": "raid10", "raid_disks": 4, "degraded": 2}, DEGRADED),
        ({"level": "raid0", "degraded": None, "sync_action": None}, OK),
        ({"level": "raid0", "degraded": None, "array_state": "broken"}, BROKEN),
        ({"level": "linear", "degraded": None, "faulty": "nvme0n1p2"}, BROKEN),
        ({"array_state": "inactive", "level": ""}, INACTIVE),
        ({"array_state": "readonly"}, (Status.DEGRADED, "read-only")),
        ({"array_state": "read-auto"}, OK),  # until the first write
        ({"raid_disks": "what?", "degraded": "\ufffd", "sync_completed": "1 / 0"}, OK),
    ],
)
async def test_what_an_array_says(
    tmp_path: Path, files: dict[str, object], verdict: tuple[Status, str]
) -> None:
    machine = made_up(tmp_path)
    array(machine, "md0", **files)
    assert await looked(machine) == {"md0": verdict}


async def test_a_person_is_told_which_member_and_how_far(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    array(machine, degraded=1, faulty="nvme1n1p2", sync_action="recover", sync_completed="1 / 4")
    check = built(disk_md.SPEC, sources(machine), options(disk_md.SPEC))
    assert observations(await check.run_check())["md0"].message == (
        "raid1 of 2: 1 missing or not in sync; faulty: nvme1n1p2; recover 25 %"
    )


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"level": "raid0", "degraded": None, "array_state": "broken"},
            "raid0 of 2: a member is lost, and this level works without none",
        ),
        (
            {"level": "linear", "degraded": None, "faulty": "nvme0n1p2"},
            "linear of 2: 1 member is lost; faulty: nvme0n1p2",
        ),
        ({"level": "raid1", "degraded": 2}, "raid1 of 2: 2 members are lost"),
        ({"array_state": "readonly"}, "raid1 of 2: set read-only"),
        ({"array_state": "inactive", "degraded": 2}, "raid1 of 2: not started"),
    ],
)
async def test_an_array_that_is_not_well_says_why(
    tmp_path: Path, files: dict[str, object], words: str
) -> None:
    machine = made_up(tmp_path)
    array(machine, "md0", **files)
    check = built(disk_md.SPEC, sources(machine), options(disk_md.SPEC))
    assert observations(await check.run_check())["md0"].message == words


async def test_containers_and_cleared_arrays_are_none(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    array(machine, "md126", metadata_version="external:/md127/0")
    array(machine, "md127", array_state="inactive", level="", metadata_version="external:imsm")
    array(machine, "md5", array_state="clear")
    (machine.sys / "block/md_d7").mkdir()
    (machine.sys / "block/sda/md").mkdir(parents=True)
    assert await looked(machine) == {"md126": OK}


async def test_an_array_that_is_stopped_is_gone(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    check = built(disk_md.SPEC, sources(machine), options(disk_md.SPEC))
    assert verdicts(await check.run_check()) == {"": (Status.UNKNOWN, "no-sysfs")}
    md = array(machine)
    assert verdicts(await check.run_check()) == {"md0": OK}
    (md / "array_state").write_text("clear\n")
    assert isinstance(await check.run_check(), Off)
