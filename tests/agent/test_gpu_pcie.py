"""The PCIe link of each GPU, by sysfs even while the driver hangs."""

import shutil
from pathlib import Path
from typing import cast

import pytest

from nodeagent.checks import gpu_pcie
from nodeagent.checks.base import Check
from nodeagent.sources.host import HostRoots
from nodeagent.sources.pcie_link import PcieLink, read_link
from tests.agent.kernel_log import HandClock
from tests.agent.machines import options
from tests.nvml import PCIE_LINK, FakeGpu, gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check

COR = "RxErr 3\nBadTLP 1\nBadDLLP 0\nRollover 2\nTimeout {}\nTOTAL_ERR_COR 6\n"


def link(
    sys: Path,
    index: int,
    *,
    width: str = "16",
    most: str = "16",
    timeouts: int = 5,
    nonfatal: int = 0,
    fatal: int = 0,
) -> None:
    device = sys / f"bus/pci/devices/{pci_of(index)}.0"
    for name, text in {
        "current_link_width": f"{width}\n",
        "max_link_width": f"{most}\n",
        "current_link_speed": "16.0 GT/s PCIe\n",
        "aer_dev_correctable": COR.format(timeouts),
        "aer_dev_nonfatal": f"Undefined 0\nTOTAL_ERR_NONFATAL {nonfatal}\n",
        "aer_dev_fatal": f"Undefined 0\nTOTAL_ERR_FATAL {fatal}\n",
    }.items():
        (device / name).write_text(text)


def test_a_link_of_a_real_kernel_s_files(tmp_path: Path) -> None:
    (tmp_path / f"bus/pci/devices/{pci_of(0)}.0").mkdir(parents=True)
    link(tmp_path, 0, width="8", nonfatal=4, fatal=1)
    machine = HostRoots(clock=HandClock(), sys=tmp_path)
    assert read_link(machine, f"{pci_of(0)}.0") == PcieLink(
        8, 16, "16.0 GT/s PCIe", 7, 4, 1, correctable=6
    )


@pytest.mark.parametrize("width", ["", "0", "63", "255", "-1", "x8", "٤", "9" * 80])
def test_a_width_that_is_none_is_unknown(tmp_path: Path, width: str) -> None:
    (tmp_path / f"bus/pci/devices/{pci_of(0)}.0").mkdir(parents=True)
    link(tmp_path, 0, width=width)
    assert read_link(HostRoots(clock=HandClock(), sys=tmp_path), f"{pci_of(0)}.0").width is None


async def test_errors_are_told_for_an_hour_and_not_those_from_before(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        link(bench.gpus.sys, 0, nonfatal=9, fatal=9)
        check = bench.build(gpu_pcie.SPEC)
        assert (await run_check(check)).status("pci:" + pci_of(0)) == ("OK", "")
        link(bench.gpus.sys, 0, nonfatal=12, fatal=11)
        seen = await next_run(bench, check)
        assert seen.status("pci:" + pci_of(0)) == ("DEGRADED", "errors")
        assert "2 fatal, 3 non-fatal" in seen.by_component["pci:" + pci_of(0)].message
        assert (await next_run(bench, check, 3601)).status("pci:" + pci_of(0)) == ("OK", "")


async def test_a_driver_that_hangs_does_not_hide_the_link(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, replays=7000)], deadline=0.2, init_deadline=0.2) as bench:
        link(bench.gpus.sys, 0)
        check = await first_run(bench, gpu_pcie.SPEC)
        bench.gpus.fail("nvmlDeviceGetUUID", hang=True)
        link(bench.gpus.sys, 0, width="4")
        assert (await next_run(bench, check)).status("pci:" + pci_of(0)) == ("DEGRADED", "narrow")
        link(bench.gpus.sys, 0, timeouts=90)
        seen = await next_run(bench, check, 61)
    assert seen.status("pci:" + pci_of(0)) == ("DEGRADED", "replays"), "the kernel counts them too"


async def test_a_bus_without_these_files_is_unknown(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        for name in PCIE_LINK:
            (bench.gpus.sys / f"bus/pci/devices/{pci_of(0)}.0" / name).unlink()
        check = bench.build(gpu_pcie.SPEC)
        assert (await run_check(check)).status("pci:" + pci_of(0)) == ("UNKNOWN", "no-sysfs")
        bench.gpus.write([gpu(0, replays=81)])
        seen = await next_run(bench, check)
        assert seen.status("pci:" + pci_of(0)) == ("DEGRADED", "replays"), "what is known counts"
        bench.gpus.write([gpu(0)], pci=[])
        bench.later()
        seen = await run_check(bench.build(gpu_pcie.SPEC))
    assert seen.status("") == ("UNKNOWN", "no-sysfs")


async def test_a_gpu_that_has_no_link_in_a_virtual_machine_is_not_unknown(tmp_path: Path) -> None:
    """On a root bus the kernel writes its width as 0, and the most that it could be as 255."""
    async with Bench(tmp_path, [gpu(0)]) as bench:
        device = bench.gpus.sys / f"bus/pci/devices/{pci_of(0)}.0"
        for name, text in {"current_link_width": "0", "max_link_width": "255"}.items():
            (device / name).write_text(f"{text}\n")
        check = bench.build(gpu_pcie.SPEC)
        assert (await run_check(check)).status("pci:" + pci_of(0)) == ("OK", "")
        bench.gpus.write([gpu(0, replays=81)])
        seen = await next_run(bench, check)
    assert seen.status("pci:" + pci_of(0)) == ("DEGRADED", "replays")


# -- beside the other GPUs ------------------------------------------------------------------------

AT_WORK, IDLE = 0x4, 0x1  # nvmlClocksEventReasonSwPowerCap, GpuIdle


def eight(*, idle: int = -1) -> list[FakeGpu]:
    return [gpu(index, clocks=IDLE if index == idle else AT_WORK) for index in range(8)]


async def looks(bench: Bench, check: Check, count: int) -> tuple[str, str]:
    """The status of GPU 5 after so many looks, a minute apart."""
    for _ in range(count):
        seen = await next_run(bench, check)
    return seen.status(uuid_of(5)) if uuid_of(5) in seen.by_component else ("OK", "")


def slow(bench: Bench, speed: str) -> None:
    path = bench.gpus.sys / f"bus/pci/devices/{pci_of(5)}.0/current_link_speed"
    path.write_text(f"{speed} GT/s PCIe\n")


@pytest.fixture
def known() -> dict[str, str]:
    return {pci_of(index): uuid_of(index) for index in range(8)}


async def test_a_width_that_cannot_be_read_twice_is_unlike_the_siblings(
    tmp_path: Path, known: dict[str, str]
) -> None:
    async with Bench(tmp_path, eight(), remembered=known) as bench:
        device = bench.gpus.sys / f"bus/pci/devices/{pci_of(5)}.0"
        check = bench.build(gpu_pcie.SPEC)
        for _ in range(2):
            (device / "current_link_width").unlink()
            assert await looks(bench, check, 1) == ("UNKNOWN", "no-sysfs")
            (device / "current_link_width").write_text("16\n")
            assert await looks(bench, check, 1) == ("OK", "")
        (device / "current_link_width").unlink()
        assert await looks(bench, check, 2) == ("DEGRADED", "unlike-siblings")
        shutil.rmtree(device)
        seen = await run_check(check)
        assert seen.status(uuid_of(5)) == ("UNKNOWN", "no-sysfs"), "the list of devices is older"


async def test_a_gpu_slower_at_work_than_seven_is_degraded(
    tmp_path: Path, known: dict[str, str]
) -> None:
    async with Bench(tmp_path, eight(), remembered=known) as bench:
        slow(bench, "8.0")
        check = bench.build(gpu_pcie.SPEC)
        assert await looks(bench, check, 9) == ("OK", ""), "too few looks at work"
        assert await looks(bench, check, 2) == ("OK", ""), "for how long is not known yet"
        assert await looks(bench, check, 5) == ("DEGRADED", "slow")
        slow(bench, "32.0")
        assert await looks(bench, check, 1) == ("OK", "")


async def test_an_idle_gpu_may_be_slow(tmp_path: Path, known: dict[str, str]) -> None:
    async with Bench(tmp_path, eight(idle=5), remembered=known) as bench:
        slow(bench, "2.5")
        assert await looks(bench, bench.build(gpu_pcie.SPEC), 20) == ("OK", "")


@pytest.mark.parametrize(("setting", "status"), [("failed", "FAILED"), ("ok", "OK")])
async def test_the_configuration_says_how_bad_a_difference_is(
    tmp_path: Path, known: dict[str, str], setting: str, status: str
) -> None:
    async with Bench(tmp_path, eight(), remembered=known) as bench:
        check = gpu_pcie.SPEC.build(bench.sources, options(gpu_pcie.SPEC, siblings=setting))
        link(bench.gpus.sys, 5, width="8")
        seen = await run_check(cast("Check", check))
        assert seen.status(uuid_of(5))[0] == status
        link(bench.gpus.sys, 5)
        slow(bench, "8.0")
        assert (await looks(bench, cast("Check", check), 16))[0] == status
