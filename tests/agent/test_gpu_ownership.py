"""Which PCI functions are GPUs of the node: not virtual functions, not GPUs of virtual machines."""

from pathlib import Path

import pytest

from nodeagent.checks import gpu_common, gpu_inventory, gpu_pages, gpu_pcie
from nodeagent.checks.base import Off
from nodeagent.sources import nvidia_driver
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from tests.nvml import FakeGpus, fake_pci, gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check

TWO = [gpu(0), gpu(1)]
VIRTUAL = ["0000:1b:00.4", "0000:1b:00.5", "0000:1b:01.0", "0000:1b:01.7"]


def bind(gpus: FakeGpus, address: str, driver: str) -> Path:
    """Bind one GPU of the made-up bus to ``driver``; to none where that is empty."""
    device = gpus.sys / f"bus/pci/devices/{address}.0"
    (device / "driver").unlink(missing_ok=True)
    if driver:
        (gpus.sys / f"bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(f"../../drivers/{driver}")
    return device


def add_virtual_functions(gpus: FakeGpus, driver: str) -> None:
    for name in VIRTUAL:
        device = gpus.sys / "bus/pci/devices" / name
        device.mkdir()
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        (device / "physfn").symlink_to(f"../{pci_of(0)}.0")
        if driver:
            (gpus.sys / f"bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            (device / "driver").symlink_to(f"../../drivers/{driver}")


async def test_the_driver_of_each_gpu_is_read_once_for_each_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, bound_driver = list[str](), nvidia_driver.bound_driver

    def counted(machine: HostRoots, address: str) -> str:
        read.append(address)
        return bound_driver(machine, address)

    monkeypatch.setattr(nvidia_driver, "bound_driver", counted)
    async with Bench(tmp_path, TWO) as bench:
        read.clear()
        assert GpuMap(bench.sources.machine).present() == {pci_of(0), pci_of(1)}
    assert read == [pci_of(0), pci_of(1)]


@pytest.mark.parametrize("driver", ["nvidia", "", "nvidia-vgpu-vfio"])
@pytest.mark.parametrize("expected", [None, 1])
async def test_virtual_functions_are_no_gpus_of_the_host(
    tmp_path: Path, driver: str, expected: int | None
) -> None:
    async with Bench(tmp_path, [gpu(0)], expected=expected) as bench:
        add_virtual_functions(bench.gpus, driver)
        for spec in (gpu_inventory.SPEC, gpu_pcie.SPEC):
            seen = await run_check(bench.build(spec))
            assert set(seen.by_component) <= {"", uuid_of(0)}
            assert seen.status(uuid_of(0)) == ("OK", "")
        assert bench.sources.gpus.addresses() == {pci_of(0)}


@pytest.mark.parametrize(
    ("driver", "expected", "library"),
    [
        ("vfio-pci", None, True),
        ("vfio-pci", None, False),
        ("vfio-pci", 2, True),
        ("vfio-pci", 2, False),
        ("nvgrace_gpu_vfio_pci", 2, False),
        ("nvidia-vgpu-vfio", None, False),
        ("pci-stub", None, True),
        ("pciback", 2, True),
    ],
)
async def test_checks_are_off_where_virtual_machines_have_all_gpus(
    tmp_path: Path, driver: str, expected: int | None, *, library: bool
) -> None:
    async with Bench(tmp_path, expected=expected) as bench:
        fake_pci(bench.gpus.sys, [pci_of(0), pci_of(1)], driver=driver)
        if library:
            bench.gpus.fail("nvmlInitWithFlags", code=9)
        else:
            bench.nvml._library = str(tmp_path / "none.so")
        for spec in (gpu_inventory.SPEC, gpu_pcie.SPEC):
            report = await bench.build(spec).run_check()
            assert report == Off(f"all GPUs are given to virtual machines ({driver})")


async def test_a_gpu_on_its_way_to_a_virtual_machine_has_no_driver_yet(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        bench.gpus.write([gpu(0)], pci=[pci_of(0), pci_of(1)])
        device = bind(bench.gpus, pci_of(1), "")
        (device / "driver_override").write_text("vfio-pci\n")
        assert bench.sources.gpus.given_away() == {pci_of(1): "vfio-pci"}
        seen = await run_check(bench.build(gpu_inventory.SPEC))
        assert set(seen.by_component) == {"", uuid_of(0)}


async def test_vfio_is_known_by_the_kernels_mark_whatever_the_drivers_name(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        (bind(bench.gpus, pci_of(1), "site_variant") / "vfio-dev/vfio0").mkdir(parents=True)
        assert bench.sources.gpus.present() == {pci_of(0)}


async def test_a_known_gpu_that_a_virtual_machine_takes_is_gone_and_comes_back(
    tmp_path: Path,
) -> None:
    """It counts as one of the expected GPUs meanwhile, and one that leaves the bus does not."""
    async with Bench(tmp_path, TWO, expected=2) as bench:
        check = await first_run(bench, gpu_inventory.SPEC)
        bench.gpus.write([gpu(0)], pci=[pci_of(0), pci_of(1)])
        bind(bench.gpus, pci_of(1), "vfio-pci")
        seen = await next_run(bench, check)
        assert uuid_of(1) not in seen.by_component
        assert seen.status("") == ("OK", "")
        assert f"{pci_of(1)} (vfio-pci)" in seen.by_component[""].message
        bench.gpus.write([gpu(0)])
        seen = await next_run(bench, check)
        assert seen.status("") == ("FAILED", "missing")
        assert seen.status(f"pci:{pci_of(1)}") == ("FAILED", "missing")
        bench.gpus.write(TWO)
        assert (await next_run(bench, check)).status(uuid_of(1)) == ("OK", "")


@pytest.mark.parametrize("driver", ["nvidia", ""])
async def test_a_gpu_taken_out_on_purpose_is_a_note(tmp_path: Path, driver: str) -> None:
    async with Bench(tmp_path, TWO, expected=1) as bench:
        check = await first_run(bench, gpu_inventory.SPEC)
        bench.gpus.write([gpu(0)], pci=[pci_of(0), pci_of(1)])
        bind(bench.gpus, pci_of(1), driver)
        seen = await next_run(bench, check)
        assert seen.status("") == ("OK", "")
        assert pci_of(1) in seen.by_component[""].message
        assert uuid_of(1) not in seen.by_component


async def test_the_node_names_the_foreign_driver_that_has_its_gpus(tmp_path: Path) -> None:
    async with Bench(tmp_path, expected=2) as bench:
        fake_pci(bench.gpus.sys, [pci_of(0), pci_of(1)], driver="nouveau")
        (bench.gpus.sys / "module/nvidia").rmdir()
        bench.gpus.fail("nvmlInitWithFlags", code=9)
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status("") == ("FAILED", "driver-not-loaded")
    assert "nouveau has the GPUs" in seen.by_component[""].message


#: The verdict on a GPU by the error of its handle.
HANDLE_ERRORS = {
    999: ("FAILED", "missing"),
    8: ("FAILED", "missing"),
    15: ("FAILED", "lost"),
    4: ("UNKNOWN", "no-permission"),
    23: ("UNKNOWN", "nvml-error-23"),
    17: ("UNKNOWN", "nvml-error-17"),
    1: ("UNKNOWN", "nvml-error-1"),
    **dict.fromkeys((2, 10, 19, 27), ("FAILED", "missing")),
}


@pytest.mark.parametrize("code", HANDLE_ERRORS)
async def test_a_handles_error_at_the_first_sample_has_its_verdict(
    tmp_path: Path, code: int
) -> None:
    async with Bench(tmp_path, TWO) as bench:
        check = bench.build(gpu_inventory.SPEC)
        bench.gpus.fail("nvmlDeviceGetHandleByIndex_v2", gpu=1, code=code)
        for _ in range(2):
            seen = await next_run(bench, check)
            assert seen.status(f"pci:{pci_of(1)}") == HANDLE_ERRORS[code]
            assert str(code) in seen.by_component[f"pci:{pci_of(1)}"].message


async def test_a_handles_error_has_the_same_verdict_later(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        check = await first_run(bench, gpu_inventory.SPEC)
        for code, verdict in HANDLE_ERRORS.items():
            bench.gpus.heal()
            bench.gpus.fail("nvmlDeviceGetHandleByIndex_v2", gpu=1, code=code)
            seen = await next_run(bench, check)
            assert seen.status(uuid_of(1)) == verdict
            assert str(code) in seen.by_component[uuid_of(1)].message


#: The verdict on a GPU that NVML offers without its identity, by the call and its error.
IDENTITY_ERRORS = {
    ("nvmlDeviceGetUUID", 4): ("UNKNOWN", "no-permission"),
    ("nvmlDeviceGetUUID", 10): ("UNKNOWN", "nvml-error-10"),
    ("nvmlDeviceGetUUID", 999): ("UNKNOWN", "nvml-error-999"),
    ("nvmlDeviceGetUUID", 15): ("FAILED", "lost"),
    ("nvmlDeviceGetPciInfo_v3", 4): ("UNKNOWN", "no-permission"),
    ("nvmlDeviceGetPciInfo_v3", 999): ("UNKNOWN", "nvml-error-999"),
}


@pytest.mark.parametrize(("call", "code"), IDENTITY_ERRORS)
async def test_an_identity_that_cannot_be_read_at_the_first_sample_has_its_verdict(
    tmp_path: Path, call: str, code: int
) -> None:
    async with Bench(tmp_path, TWO) as bench:
        bench.gpus.fail(call, gpu=1, code=code)
        seen = await run_check(bench.build(gpu_inventory.SPEC))
        assert seen.status(f"pci:{pci_of(1)}") == IDENTITY_ERRORS[call, code]
        assert seen.is_well(uuid_of(0))


async def test_an_identity_that_cannot_be_read_later_has_the_same_verdict(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        check = await first_run(bench, gpu_inventory.SPEC)
        for (call, code), verdict in IDENTITY_ERRORS.items():
            bench.gpus.heal()
            bench.gpus.fail(call, gpu=1, code=code)
            seen = await next_run(bench, check)
            if "Pci" in call:
                assert seen.is_well(uuid_of(1)), "its address is known"
            else:
                assert seen.status(uuid_of(1)) == verdict
            assert seen.is_well(uuid_of(0))


@pytest.mark.parametrize("code", [15, 999])
async def test_a_gpu_without_a_handle_turns_no_check_of_the_others_on(
    tmp_path: Path, code: int
) -> None:
    """No GPU here has retired pages; the one that gives no answer lacks none."""
    async with Bench(tmp_path, TWO) as bench:
        bench.gpus.fail("nvmlDeviceGetHandleByIndex_v2", gpu=1, code=code)
        assert await bench.build(gpu_pages.SPEC).run_check() == gpu_common.NOT_SUPPORTED


def test_a_gpu_of_a_virtual_machine_still_has_its_kernel_lines(tmp_path: Path) -> None:
    gpus = FakeGpus(tmp_path, TWO)
    bind(gpus, pci_of(1), "vfio-pci")
    known = GpuMap(gpus.machine())
    assert known.addresses() == {pci_of(0)}
    assert known.has_gpu(pci_of(1))
