"""An NVML that refuses for long, and GPUs that differ from their siblings in what NVML gives."""

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from nodeagent.checks import (
    gpu_common,
    gpu_driver,
    gpu_ecc,
    gpu_fabric,
    gpu_inventory,
    gpu_nvlink,
    gpu_pages,
    gpu_pcie,
    gpu_recovery,
    gpu_settings,
    gpu_thermal,
)
from nodeagent.checks.base import Check, CheckSpec
from nodeagent.sources.gpu_sample import EccCounts, Mode
from nodeagent.sources.kubelet_devices import CHECKPOINT
from nodeagent.sources.nvml import Nvml
from nodeagent.sources.nvml_sampler import SLOW_EVERY
from tests.agent.gpu_node import GPUS, Node, failing
from tests.agent.machines import options
from tests.nvml import UNSUPPORTED, gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check

TWO = [gpu(0), gpu(1)]
NO_ECC = (UNSUPPORTED,) * 4
GB200 = "NVIDIA GB200"
NO_FABRIC = (0, 0, 0, 0, 0, 3)


def kubelet(bench: Bench, devices: list[str]) -> None:
    path = bench.machine.host(CHECKPOINT)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"Data": {"RegisteredDevices": {"nvidia.com/gpu": devices}}}))


async def driver_after(bench: Bench, seconds: float) -> tuple[str, str]:
    """gpu-driver's verdict when ``seconds`` have passed since its first sample."""
    check = await first_run(bench, gpu_driver.SPEC)
    bench.later(seconds)
    return (await run_check(check)).status("")


@pytest.mark.parametrize(
    ("code", "reason"), [(18, "library-mismatch"), (27, "nvml-failed"), (999, "nvml-failed")]
)
async def test_a_refusal_that_lasts_is_degraded(tmp_path: Path, code: int, reason: str) -> None:
    async with Bench(tmp_path, TWO, expected=2, boottime=36_000.0) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=code)
        check = bench.build(gpu_driver.SPEC)
        assert (await run_check(check)).status("") == ("UNKNOWN", reason)
        assert (await next_run(bench, check, 599.0)).status("") == ("UNKNOWN", reason)
        assert (await next_run(bench, check, 61.0)).status("") == ("DEGRADED", reason)
        bench.gpus.heal()
        assert (await next_run(bench, check, 301.0)).status("") == ("OK", "")


@pytest.mark.parametrize("code", [18, 999])
async def test_a_kubelet_without_gpus_makes_it_failed(tmp_path: Path, code: int) -> None:
    async with Bench(tmp_path, TWO, boottime=36_000.0) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=code)
        kubelet(bench, ["GPU-1"])
        assert (await driver_after(bench, 700.0))[0] == "DEGRADED"
        kubelet(bench, [])
        check = await first_run(bench, gpu_driver.SPEC)
        seen = await next_run(bench, check, 700.0)
    assert seen.status("")[0] == "FAILED"
    assert "the kubelet has no healthy device of nvidia.com/gpu" in seen.by_component[""].message


@pytest.mark.parametrize(("module", "status"), [("570.86.15", "FAILED"), ("580.65.06", "DEGRADED")])
async def test_the_versions_of_module_and_library_are_a_witness(
    tmp_path: Path, module: str, status: str
) -> None:
    library = tmp_path / "root/usr/lib64/libnvidia-ml.so.1"
    async with Bench(tmp_path, TWO, boottime=36_000.0) as bench:
        bench.nvml._worker_env.pop("LD_LIBRARY_PATH")
        real = Path(bench.gpus.env["LD_LIBRARY_PATH"]) / library.name
        library.parent.mkdir(parents=True)
        (library.parent / "libnvidia-ml.so.580.65.06").write_bytes(real.read_bytes())
        library.symlink_to("libnvidia-ml.so.580.65.06")
        (bench.gpus.sys / "module/nvidia/version").write_text(f"{module}\n")
        bench.gpus.fail("nvmlInitWithFlags", code=18)
        assert await driver_after(bench, 700.0) == (status, "library-mismatch")


async def test_a_library_of_no_bytes_is_broken_and_none_at_all_is_the_agents(
    tmp_path: Path,
) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    library.touch()
    async with Bench(tmp_path / "a", TWO, library=str(library), boottime=36_000.0) as bench:
        assert await driver_after(bench, 700.0) == ("DEGRADED", "library-broken")
    async with Bench(tmp_path / "b", TWO, boottime=36_000.0) as bench:
        bench.nvml._worker_env["LD_LIBRARY_PATH"] = "/nowhere"
        assert await driver_after(bench, 700.0) == ("UNKNOWN", "no-library")


async def test_a_driver_that_starts_is_no_refusal(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, boottime=60.0) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=999)
        assert await driver_after(bench, 700.0) == ("UNKNOWN", "nvml-failed")


@pytest.mark.parametrize("code", [1, 4, 17, 20, 23])
async def test_an_error_of_the_agents_own_accuses_no_driver(tmp_path: Path, code: int) -> None:
    async with Bench(tmp_path, TWO, boottime=36_000.0) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=code)
        assert await driver_after(bench, 7000.0) == ("UNKNOWN", "nvml-failed")


async def test_a_driver_that_nvml_denies_needs_the_kubelet_as_a_witness(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, boottime=36_000.0) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=9)
        assert await driver_after(bench, 700.0) == ("UNKNOWN", "driver-not-loaded")
        kubelet(bench, [])
        assert await driver_after(bench, 700.0) == ("FAILED", "driver-unreachable")


# ---- a value that one GPU lacks, and one that none has ------------------------------------------


@pytest.mark.parametrize("count", [2, 4])
async def test_ecc_that_is_off_on_one_gpu_is_that_gpus_finding(tmp_path: Path, count: int) -> None:
    gpus = [gpu(0, ecc=NO_ECC), *(gpu(each) for each in range(1, count))]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_ecc.SPEC))
        assert seen.status(uuid_of(0)) == ("DEGRADED", "ecc-off")
        assert all(seen.is_well(uuid_of(each)) for each in range(1, count))
        bench.gpus.write([gpu(0, ecc=NO_ECC, ecc_mode=(0, 1)), *gpus[1:]])
        bench.later(301.0)
        seen = await run_check(bench.build(gpu_ecc.SPEC))
        assert "a reset of the GPU turns it on" in seen.by_component[uuid_of(0)].message


@pytest.mark.parametrize(
    "other", [{"name": "NVIDIA L4"}, {"mig": (1, 1), "links": ()}], ids=["model", "mig"]
)
async def test_a_gpu_that_is_unlike_the_others_by_design_is_no_finding(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    async with Bench(tmp_path, [gpu(0, ecc=NO_ECC, **other), gpu(1), gpu(2)]) as bench:
        seen = await run_check(bench.build(gpu_ecc.SPEC))
    assert seen.by_component.keys() == {uuid_of(1), uuid_of(2)}


@pytest.mark.parametrize(
    ("ecc", "text"), [(NO_ECC, "turns ECC on"), ((0, 0, 0, 0), "turns ECC off")]
)
async def test_a_change_of_ecc_that_waits_for_a_reset_is_degraded(
    tmp_path: Path, ecc: tuple[int, int, int, int], text: str
) -> None:
    mode = (0, 1) if ecc == NO_ECC else (1, 0)
    async with Bench(tmp_path, [gpu(0, ecc=ecc, ecc_mode=mode)]) as bench:
        seen = await run_check(bench.build(gpu_ecc.SPEC))
    assert seen.status(uuid_of(0)) == ("DEGRADED", "ecc-pending")
    assert text in seen.by_component[uuid_of(0)].message


async def test_a_driver_before_r565_leaves_the_node_well(tmp_path: Path) -> None:
    old = {"recovery_action": UNSUPPORTED, "ecc": NO_ECC}
    async with Bench(tmp_path, [gpu(0, **old), gpu(1, **old)]) as bench:
        for spec in (gpu_recovery.SPEC, gpu_ecc.SPEC):
            assert await bench.build(spec).run_check() == gpu_common.NOT_SUPPORTED


async def test_a_recovery_action_that_one_of_three_lacks_is_its_finding(tmp_path: Path) -> None:
    gpus = [gpu(0), gpu(1, recovery_action=UNSUPPORTED), gpu(2)]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_recovery.SPEC))
    assert seen.status(uuid_of(1)) == ("DEGRADED", "unlike-siblings")


async def test_a_value_that_one_of_three_refuses_for_long_is_its_finding(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1), gpu(2)]) as bench:
        bench.gpus.fail("nvmlDeviceGetTemperature", gpu=1, code=999)
        check = bench.build(gpu_thermal.SPEC)
        for seconds in (0.0, 61.0, 200.0):  # the same sample, then later ones
            assert (await next_run(bench, check, seconds)).status(uuid_of(1)) == (
                "UNKNOWN",
                "nvml-error-999",
            )
        seen = await next_run(bench, check, 61.0)
        assert seen.status(uuid_of(1)) == ("DEGRADED", "unlike-siblings")
        assert "gave error 999" in seen.by_component[uuid_of(1)].message
        bench.gpus.fail("nvmlDeviceGetTemperature", gpu=1, code=4)
        assert (await next_run(bench, check)).status(uuid_of(1)) == ("UNKNOWN", "no-permission")


@pytest.mark.parametrize(
    ("call", "spec"),
    [
        ("nvmlDeviceGetRetiredPages_v2", gpu_pages.SPEC),
        ("nvmlDeviceGetNvLinkState", gpu_nvlink.SPEC),
    ],
)
async def test_one_refusal_of_a_value_that_is_read_seldom_is_no_finding(
    tmp_path: Path, call: str, spec: CheckSpec
) -> None:
    gpus = [gpu(each, pages=((), ())) for each in range(3)]
    async with Bench(tmp_path, gpus) as bench:
        bench.gpus.fail(call, gpu=1, code=999)
        check = bench.build(spec)
        assert (await run_check(check)).status(uuid_of(1)) == ("UNKNOWN", "nvml-error-999")
        bench.gpus.heal()
        for _ in range(4):
            seen = await next_run(bench, check)
            assert seen.status(uuid_of(1)) == ("UNKNOWN", "nvml-error-999"), "read once, not twice"
        assert (await next_run(bench, check)).is_well(uuid_of(1))


@pytest.mark.parametrize("single_run", [True, False])
async def test_a_single_run_marks_what_only_counts_if_it_lasts(
    tmp_path: Path, *, single_run: bool
) -> None:
    gpus = [gpu(0), gpu(1, persistence=None), gpu(2)]
    known = {pci_of(index): uuid_of(index) for index in range(3)}
    async with Bench(tmp_path, gpus, boottime=90_000.0, remembered=known) as bench:
        bench.gpus.fail("nvmlDeviceGetTemperature", gpu=1, code=999)
        device = bench.gpus.sys / f"bus/pci/devices/{pci_of(1)}.0"
        (device / "current_link_width").unlink()
        sources = replace(bench.sources, single_run=single_run)
        rows = {}
        for spec in (gpu_thermal.SPEC, gpu_pcie.SPEC, gpu_settings.SPEC):
            check = spec.build(sources, options(spec))
            rows[spec.name] = (await run_check(cast("Check", check))).by_component
    for name, status in (("thermal", "UNKNOWN"), ("pcie", "UNKNOWN"), ("settings", "OK")):
        row = rows[f"gpu-{name}"][uuid_of(1)]
        assert row.status.name == status
        assert row.message.endswith(gpu_common.IF_IT_LASTS) is single_run, name
        assert not rows[f"gpu-{name}"][uuid_of(0)].message.endswith(gpu_common.IF_IT_LASTS)


def test_another_read_is_sure_after_a_sample_of_any_length() -> None:
    deadline = inspect.signature(Nvml).parameters["deadline"].default
    assert SLOW_EVERY + deadline <= gpu_common.ANOTHER_READ


async def test_a_refused_counter_hides_no_verdict_on_the_others(tmp_path: Path) -> None:
    node = Node(tmp_path)
    gpus = [failing(each, ecc=code) for each, code in zip(GPUS, (14, 999, 3), strict=False)]
    counts = EccCounts(corrected=0, uncorrected=7, uncorrected_in_life=None)
    worn, ill, older = (replace(each, ecc=counts) for each in gpus)
    pending = Mode(enabled=True, pending=False)
    well = replace(GPUS[3], ecc=EccCounts(0, 0, 0, 0))
    others = [replace(well, index=each, uuid=f"GPU-{each}", pci="") for each in range(4, 8)]
    node.set_gpus(
        replace(worn, sram_threshold_exceeded=True),
        ill,
        older,
        replace(others[0], ecc_mode=pending, errors={"ecc": 999}),
        well,
        *others[1:],
    )
    check = node.build(gpu_ecc.SPEC)
    for _ in range(8):
        seen = await run_check(check)
        assert seen.status("GPU-0") == ("FAILED", "sram-threshold")
        assert seen.status("GPU-1") == ("DEGRADED", "uncorrectable")
        assert seen.status("GPU-2") == ("DEGRADED", "uncorrectable")
        assert seen.status("GPU-4") == ("DEGRADED", "ecc-pending")
        node.later()
    node.set_gpus(replace(gpus[2], sram_threshold_exceeded=True), well)
    assert (await run_check(check)).status("GPU-2") == ("FAILED", "sram-threshold")


@pytest.mark.parametrize("errors", [{"handle": 15}, {"uuid": 999}, {"rows": 15}])
async def test_a_silent_sibling_gives_no_value(tmp_path: Path, errors: dict[str, int]) -> None:
    node = Node(tmp_path)
    lacking, blind, silent = failing(GPUS[0], ecc=3), failing(GPUS[1], ecc=4), GPUS[2:]
    node.set_gpus(lacking, blind, *(failing(each, **errors) for each in silent))
    assert gpu_common.lacks(node.nvml.answer, lacking, "ecc") == 0
    assert (await run_check(node.build(gpu_ecc.SPEC))).status("GPU-0") == ("UNKNOWN", "unsupported")
    node.set_gpus(failing(GPUS[0], temperature=3), *silent[:1], failing(silent[1], **errors))
    found = await run_check(node.build(gpu_thermal.SPEC))
    assert found.status("GPU-0") == ("UNKNOWN", "unsupported"), "either may be the odd one"
    node.set_gpus(failing(GPUS[0], ecc=3), *silent)
    assert gpu_common.lacks(node.nvml.answer, lacking, "ecc") == 2


# ---- a fabric that is to be there ---------------------------------------------------------------


@pytest.mark.parametrize("fabric", [NO_FABRIC, None])
@pytest.mark.parametrize("name", [GB200, "NVIDIA GB300"])
async def test_gpus_of_a_rack_without_any_fabric_are_degraded(
    tmp_path: Path, fabric: tuple[int, int, int, int, int, int] | None, name: str
) -> None:
    gpus = [gpu(each, name=name, fabric=fabric) for each in range(4)]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_fabric.SPEC))
        assert {seen.status(uuid_of(each)) for each in range(4)} == {("DEGRADED", "no-fabric")}
    async with Bench(tmp_path / "young", gpus, boottime=60.0) as bench:
        seen = await run_check(bench.build(gpu_fabric.SPEC))
        assert seen.status(uuid_of(0)) == ("UNKNOWN", "starting")


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"])
async def test_gpus_that_are_to_have_no_fabric_have_none(tmp_path: Path, name: str) -> None:
    gpus = [gpu(each, name=name, fabric=NO_FABRIC) for each in range(2)]
    async with Bench(tmp_path, gpus) as bench:
        assert await bench.build(gpu_fabric.SPEC).run_check() == gpu_common.NOT_SUPPORTED


async def test_one_gpu_without_the_fabric_of_its_siblings_is_degraded(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, fabric=NO_FABRIC), gpu(1), gpu(2)]) as bench:
        seen = await run_check(bench.build(gpu_fabric.SPEC))
    assert seen.status(uuid_of(0)) == ("DEGRADED", "no-fabric")


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA H20", "NVIDIA H20-3e"])
async def test_nvswitches_say_that_there_is_to_be_a_fabric(tmp_path: Path, name: str) -> None:
    gpus = [gpu(each, name=name, fabric=NO_FABRIC) for each in range(2)]
    async with Bench(tmp_path, gpus) as bench:
        switch = bench.gpus.sys / "bus/pci/devices/0000:c1:00.0"
        switch.mkdir()
        (switch / "vendor").write_text("0x10de\n")
        (switch / "class").write_text("0x068000\n")
        seen = await run_check(bench.build(gpu_fabric.SPEC))
    assert seen.status(uuid_of(0)) == ("DEGRADED", "no-fabric")


# ---- licence, confidential computing, compute mode, excluded GPUs -------------------------------


#: A GPU's settings, and the verdict on it.
SETTINGS: list[tuple[dict[str, int], tuple[str, str]]] = [
    ({"licence": 0, "virtualization": 2}, ("DEGRADED", "unlicensed")),
    ({"licence": 0}, ("DEGRADED", "unlicensed")),
    ({"licence": 1, "virtualization": 2}, ("OK", "")),
    ({"licence": 0, "virtualization": 0}, ("OK", "")),
    ({"licence": 0, "virtualization": 1}, ("OK", "")),
    ({"virtualization": 2}, ("OK", "")),
    ({"compute_mode": 2}, ("DEGRADED", "compute-prohibited")),
    ({"compute_mode": 0}, ("OK", "")),
]


async def test_each_setting_has_its_verdict(tmp_path: Path) -> None:
    gpus = [gpu(n, name=f"model {n}", **values) for n, (values, _) in enumerate(SETTINGS)]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_settings.SPEC))
    found = [(values, seen.status(uuid_of(n))) for n, (values, _) in enumerate(SETTINGS)]
    assert found == SETTINGS


async def test_a_compute_mode_unlike_the_siblings_is_degraded(tmp_path: Path) -> None:
    gpus = [gpu(0, compute_mode=3), *(gpu(each, compute_mode=0) for each in (1, 2))]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_settings.SPEC))
    assert seen.status(uuid_of(0)) == ("DEGRADED", "compute-mode")
    assert seen.is_well(uuid_of(1))


async def test_confidential_gpus_that_are_not_ready_degrade_the_node(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        check = bench.build(gpu_driver.SPEC)
        bench.gpus.confidential(ready=False)
        assert (await run_check(check)).status("") == ("DEGRADED", "cc-not-ready")
        bench.gpus.confidential(ready=True)
        assert (await next_run(bench, check, 301.0)).status("") == ("OK", "")


async def test_a_gpu_that_the_drivers_configuration_excludes_is_a_note(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.gpus.write([gpu(0)], pci=[pci_of(0), pci_of(1)])
        bench.gpus.exclude(pci_of(1))
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert set(seen.by_component) == {"", uuid_of(0)}
    assert f"{pci_of(1)} (excluded" in seen.by_component[""].message
