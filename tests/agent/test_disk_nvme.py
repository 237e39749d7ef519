"""NVMe drives: sysfs as the kernel shows it, logs as drives give them, the probe's real request."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import disk_nvme
from nodeagent.checks.base import Off
from nodeagent.child_process import python
from nodeagent.model import Status
from nodeagent.sources.disk_probe import DiskProbe, Files, Hung, NotProbed, Page, Result
from nodeagent.sources.host import HostRoots
from nodeagent.sources.nvme import Controller, Health, controllers, parse_health
from tests.agent.kernel_log import HandClock
from tests.agent.machines import built, made_up, observations, options, sources, verdicts

OK = (Status.OK, "")
DRIVE = Controller("nvme0", "live", "SOMETHING PM9A3", "S64GNE0R")
HEALTHY = Health(warning=0, temperature=41, spare=100, spare_threshold=10, used=3, media_errors=0)
BAD = replace(HEALTHY, warning=0x13, spare=9, used=100, media_errors=9)
WORN = (Status.DEGRADED, "worn")


def controller(machine: HostRoots, number: int, **files: str) -> Path:
    """A drive as sysfs shows it, with a device file that is none."""
    folder = machine.sys / f"class/nvme/nvme{number}"
    folder.mkdir(parents=True)
    values = {"state": "live", "transport": "pcie", "model": "PM9A3 ", "serial": f"S{number}  "}
    for name, value in (values | files).items():
        (folder / name).write_text(f"{value}\n")
    device = machine.root / f"dev/nvme{number}"
    device.parent.mkdir(exist_ok=True)
    device.touch()
    return folder


def page(warning: int = 0, media_errors: int = 0) -> Page:
    data = bytearray(192)
    data[0] = warning
    data[1:3] = (273 + 41).to_bytes(2, "little")
    data[3:6] = bytes((100, 10, 3))
    data[160:176] = media_errors.to_bytes(16, "little")
    return Page(bytes(data))


class Drives(DiskProbe):
    """Answers for the drives by hand."""

    def __init__(self, machine: HostRoots) -> None:
        super().__init__(machine=machine)
        self.answer: Result = page()

    async def nvme_health(self, devices: Sequence[str]) -> dict[str, Result]:
        return dict.fromkeys(devices, self.answer)


def nvme(machine: HostRoots, probe: DiskProbe, **settings: object) -> disk_nvme.DiskNvme:
    found = replace(sources(machine), disk=probe)
    chosen = options(disk_nvme.SPEC, **settings)
    check: disk_nvme.DiskNvme = built(disk_nvme.SPEC, found, chosen)
    return check


def test_the_log_page() -> None:
    assert parse_health(page(warning=0x0C, media_errors=263).data) == replace(
        HEALTHY, warning=12, media_errors=263
    )


@given(st.binary(max_size=600))
def test_a_garbled_page_is_an_error_or_a_page(data: bytes) -> None:
    try:
        parse_health(data)
    except ValueError:
        assert len(data) < 192 or not any(data)


@pytest.mark.parametrize(
    ("health", "new", "verdict", "words"),
    [
        (HEALTHY, 0, OK, "3 % of its life used, 41 degrees Celsius"),
        (replace(HEALTHY, media_errors=900), 0, OK, "3 % of its life used"),  # years old
        (replace(HEALTHY, warning=0xE0), 0, OK, "3 % of its life used"),  # bits that we don't know
        (replace(HEALTHY, used=99), 0, OK, "99 % of its life used, 41 degrees Celsius"),
        (replace(HEALTHY, used=100), 0, WORN, "100 % of its rated life is used"),
        (replace(BAD, warning=0x1F), 1, (Status.FAILED, "read-only"), "the drive takes no writes"),
        (replace(BAD, warning=8), 0, (Status.FAILED, "read-only"), "the drive takes no writes"),
        (replace(BAD, warning=0x17), 1, (Status.FAILED, "unreliable"), "the drive calls itself"),
        (replace(BAD, warning=4), 0, (Status.FAILED, "unreliable"), "the drive calls itself"),
        (BAD, 1, (Status.DEGRADED, "media-errors"), "1 media errors within a day, 9 in all"),
        (BAD, 0, (Status.DEGRADED, "spare-low"), "9 % of spare blocks left, below 10 %"),
        (replace(BAD, warning=0x12), 0, (Status.DEGRADED, "hot"), "41 degrees Celsius"),
        (replace(BAD, warning=0x10), 0, (Status.DEGRADED, "backup-failed"), "the backup of its"),
    ],
)
def test_of_what_a_drive_says_the_worst_is_told(
    health: Health, new: int, verdict: tuple[Status, str], words: str
) -> None:
    found = disk_nvme.evaluate_health(DRIVE, health, new)
    assert (found.status, found.reason) == verdict
    assert found.message.startswith(f"SOMETHING PM9A3 S64GNE0R: {words}")


async def test_drives_of_this_machine_and_none_of_a_network(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    assert isinstance(await nvme(machine, Drives(machine)).run_check(), Off)
    controller(machine, 0)
    controller(machine, 1, transport="tcp", state="connecting")
    (controller(machine, 2) / "state").unlink()
    (controller(machine, 3) / "transport").unlink()  # Linux before 4.12
    (controller(machine, 4, state="dead") / "device/physfn").mkdir(parents=True)
    assert [found.name for found in controllers(machine)] == ["nvme0", "nvme3"]
    assert controllers(machine)[0] == Controller("nvme0", "live", "PM9A3", "S0")
    assert verdicts(await nvme(machine, Drives(machine)).run_check()) == {"nvme0": OK, "nvme3": OK}


async def test_a_controller_that_does_not_come_back_is_stuck(tmp_path: Path) -> None:
    clock = HandClock(1000.0)
    machine = made_up(tmp_path, clock)
    folder = controller(machine, 0, state="resetting")
    check = nvme(machine, Drives(machine))
    assert verdicts(await check.run_check()) == {"nvme0": (Status.DEGRADED, "not-live")}
    clock.now += 300
    assert verdicts(await check.run_check()) == {"nvme0": (Status.FAILED, "stuck")}
    (folder / "state").write_text("live\n")
    assert verdicts(await check.run_check()) == {"nvme0": OK}
    (folder / "state").write_text("resetting\n")
    assert verdicts(await check.run_check()) == {"nvme0": (Status.DEGRADED, "not-live")}
    (folder / "state").write_text("dead\n")
    assert verdicts(await check.run_check()) == {"nvme0": (Status.FAILED, "dead")}


async def test_a_drive_that_vanishes_is_missing_until_it_is_back_or_replaced(
    tmp_path: Path,
) -> None:
    machine = made_up(tmp_path)
    folder = controller(machine, 0)
    controller(machine, 1)
    check = nvme(machine, Drives(machine))
    await check.run_check()
    folder.rename(tmp_path / "away")
    for _ in range(2):
        report = await check.run_check()
        assert verdicts(report) == {"nvme0": (Status.FAILED, "missing"), "nvme1": OK}
    assert "PM9A3 S0: it was there" in observations(report)["nvme0"].message
    controller(machine, 2, serial="S0")  # found again, under another name
    report = await check.run_check()
    assert verdicts(report) == {"nvme1": OK, "nvme2": OK}
    shutil.rmtree(machine.sys / "class/nvme/nvme2")
    assert verdicts(await check.run_check())["nvme2"] == (Status.FAILED, "missing")
    controller(machine, 2, serial="S7")
    assert verdicts(await check.run_check()) == {"nvme1": OK, "nvme2": OK}


@pytest.mark.parametrize(
    ("model", "is_missed"),
    [
        ("Amazon Elastic Block Store", False),
        ("Alibaba Cloud Elastic Block Storage", False),
        ("nvme_card-pd", False),
        ("MSFT NVMe Accelerator v1.0", False),
        ("Amazon EC2 NVMe Instance Storage", True),
        ("nvme_card", True),
        ("Microsoft NVMe Direct Disk v2", True),
    ],
)
async def test_a_clouds_volume_that_is_detached_is_not_missing(
    tmp_path: Path, model: str, *, is_missed: bool
) -> None:
    machine = made_up(tmp_path)
    controller(machine, 0)
    folder = controller(machine, 1, model=model)
    check = nvme(machine, Drives(machine))
    assert ("nvme1" in verdicts(await check.run_check())) is is_missed
    (folder / "state").write_text("dead\n")
    assert verdicts(await check.run_check())["nvme1"] == (Status.FAILED, "dead")
    shutil.rmtree(folder)
    assert ("nvme1" in verdicts(await check.run_check())) is is_missed


async def test_drives_that_were_never_there_are_missed_by_their_number(tmp_path: Path) -> None:
    machine = made_up(tmp_path)
    check = nvme(machine, Drives(machine), expected=1)
    assert verdicts(await check.run_check()) == {"": (Status.FAILED, "missing")}
    controller(machine, 0)
    assert verdicts(await check.run_check()) == {"": OK, "nvme0": OK}


async def test_media_errors_count_when_they_rise_and_for_a_day(tmp_path: Path) -> None:
    clock = HandClock(1000.0)
    machine = made_up(tmp_path, clock)
    controller(machine, 0)
    drives = Drives(machine)
    drives.answer = page(media_errors=12)
    check = nvme(machine, drives)
    assert verdicts(await check.run_check()) == {"nvme0": OK}
    drives.answer = page(media_errors=14)
    clock.now += 60
    report = await check.run_check()
    assert verdicts(report) == {"nvme0": (Status.DEGRADED, "media-errors")}
    assert "2 media errors within a day, 14 in all" in observations(report)["nvme0"].message
    clock.now += 86400
    assert verdicts(await check.run_check()) == {"nvme0": OK}


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Hung(12.0, "D in nvme_submit_user_cmd"), (Status.DEGRADED, "hung")),
        (Hung(70.0, "D in nvme_submit_user_cmd"), (Status.FAILED, "hung")),
        (NotProbed("the probe ended with 1"), (Status.UNKNOWN, "no-log")),
        (Page(bytes(192)), (Status.UNKNOWN, "no-log")),
    ],
)
async def test_a_log_that_cannot_be_had(
    tmp_path: Path, answer: Result, verdict: tuple[Status, str]
) -> None:
    machine = made_up(tmp_path)
    controller(machine, 0)
    drives = Drives(machine)
    drives.answer = answer
    assert verdicts(await nvme(machine, drives).run_check()) == {"nvme0": verdict}


async def test_the_probe_refused_by_what_is_no_drive(tmp_path: Path) -> None:
    """The real child: a file takes no such command, and a controller may have no device file."""
    machine = made_up(tmp_path)
    controller(machine, 0)
    controller(machine, 1)
    (tmp_path / "dev/nvme1").unlink()
    report = await nvme(machine, DiskProbe(machine=machine)).run_check()
    unknown = (Status.UNKNOWN, "no-log")
    assert verdicts(report) == {"nvme0": unknown, "nvme1": unknown}
    found = observations(report)
    assert "get-log-page: Inappropriate ioctl" in found["nvme0"].message
    assert "open: No such file" in found["nvme1"].message


async def test_small_files_are_read_by_the_same_child(tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("4: ACTIVE\n")
    (tmp_path / "long").write_text("x" * 100)
    probe = DiskProbe(machine=made_up(tmp_path))
    group = [str(tmp_path / name) for name in ("a b", "nothing", "long")]
    assert await probe.files([group, group[:1]]) == [
        Files(("4: ACTIVE", 2, "x" * 64)),
        Files(("4: ACTIVE",)),
    ]


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that answers in the kernel's place, built against its header."""
    library = tmp_path_factory.mktemp("nvme") / "ioctl.so"
    if shutil.which("gcc") is None or not Path("/usr/include/linux/nvme_ioctl.h").exists():
        pytest.skip("needs gcc and linux-libc-dev: tests/setup-debian.sh")
    source = Path(__file__).with_name("nvme_ioctl.c")
    command = ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source]
    subprocess.run([*map(str, command)], check=True)
    return library


def asked(preload: Path, **environ: str) -> list[str]:
    done = subprocess.run(
        python("disk_child.py"),
        input=f"0 nvme {b'/dev/null'.hex()}\n",
        env={"LD_PRELOAD": str(preload), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[1].split(" ")[1:]


def test_the_command_is_what_the_kernels_header_says(preload: Path) -> None:
    word, data = asked(preload)
    assert word == "page"
    found = parse_health(bytes.fromhex(data))
    assert found == Health(
        warning=4, temperature=41, spare=97, spare_threshold=10, used=3, media_errors=263
    )


def test_a_drive_that_refuses_the_command(preload: Path) -> None:
    assert asked(preload, NVME_STATUS="2") == ["refused", "5", "nvme-status-0x2"]
