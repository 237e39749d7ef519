"""Every GPU is there, or the missing one is named: by NVML, by PCI, by memory, by expectation."""

import os
import signal
from pathlib import Path

import pytest

from nodeagent.checks import gpu_inventory
from nodeagent.checks.base import Off
from nodeagent.model import Clearing
from nodeagent.sources.gpu_sample import TroubleKind
from tests.nvml import fake_pci, gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, run_check
from tests.support.waiting import until

TWO = [gpu(0), gpu(1)]


async def test_all_gpus_there_is_ok_for_each_and_for_the_node(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, expected=2) as bench:
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert {name: seen.status(name) for name in seen.by_component} == {
        "": ("OK", ""),
        uuid_of(0): ("OK", ""),
        uuid_of(1): ("OK", ""),
    }
    assert "driver 580.65.06" in seen.by_component[""].message
    assert seen.clearings == []


async def test_the_map_learns_which_gpu_sits_where(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        await run_check(bench.build(gpu_inventory.SPEC))
        assert bench.sources.gpus.remembered() == {
            pci_of(0): uuid_of(0),
            pci_of(1): uuid_of(1),
        }


async def test_a_machine_without_a_gpu_and_library_is_off_and_has_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    async with Bench(tmp_path) as bench:
        bench.nvml._worker_env.pop("LD_LIBRARY_PATH")
        assert await bench.build(gpu_inventory.SPEC).run_check() == Off("no GPU")
        assert bench.nvml.worker_pids == ()
        assert bench.gpus.calls("nvmlInitWithFlags") == 0


async def test_gpus_that_say_neither_who_nor_where_they_are_are_named_by_their_index(
    tmp_path: Path,
) -> None:
    """Where an address is left over the missing GPU has that one's name, and only that one."""
    async with Bench(tmp_path, TWO) as bench:
        bench.gpus.write(TWO, pci=[pci_of(0)])
        bench.gpus.fail("nvmlDeviceGetHandleByIndex_v2", gpu=1, code=15)
        seen = await run_check(bench.build(gpu_inventory.SPEC))
        assert {name for name in seen.by_component if name} == {uuid_of(0), "index:1"}
        bench.gpus.write(TWO, pci=[pci_of(0), pci_of(1)])
        bench.gpus.fail("nvmlDeviceGetHandleByIndex_v2", gpu=1, code=15)
        bench.later()
        seen = await run_check(bench.build(gpu_inventory.SPEC))
        assert {name for name in seen.by_component if name} == {uuid_of(0), f"pci:{pci_of(1)}"}
        assert seen.status(f"pci:{pci_of(1)}") == ("FAILED", "lost")


@pytest.mark.parametrize("code", [0, 9])
async def test_a_library_without_a_gpu_is_no_gpu(tmp_path: Path, code: int) -> None:
    async with Bench(tmp_path) as bench:
        if code:
            bench.gpus.fail("nvmlInitWithFlags", code=code)
        assert await bench.build(gpu_inventory.SPEC).run_check() == Off("no GPU")


async def test_eight_expected_and_none_there_is_a_failure(tmp_path: Path) -> None:
    async with Bench(tmp_path, expected=8, library=str(tmp_path / "none.so")) as bench:
        fake_pci(bench.gpus.sys, ["0000:01:00"], driver="vfio-pci")
        (bench.gpus.sys / "bus/pci/devices/0000:01:00.0/vendor").write_text("0x8086\n")
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status("") == ("FAILED", "missing")
    assert "0 of 8" in seen.by_component[""].message


async def test_a_gpu_fewer_than_expected_fails_the_node(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, expected=3) as bench:
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status("") == ("FAILED", "missing")
    assert "2 of 3" in seen.by_component[""].message


async def test_a_gpu_that_vanishes_without_a_word_is_named(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        check = bench.build(gpu_inventory.SPEC)
        await run_check(check)
        bench.gpus.write([gpu(0)])
        bench.later()
        seen = await run_check(check)
        assert seen.status(uuid_of(1)) == ("FAILED", "missing")
        assert pci_of(1) in seen.by_component[uuid_of(1)].message
        assert seen.status(uuid_of(0)) == ("OK", "")
        bench.gpus.write(TWO)
        bench.later()
        assert (await run_check(check)).status(uuid_of(1)) == ("OK", "")


async def test_a_gpu_that_an_earlier_agent_knew_is_missed_by_this_one(tmp_path: Path) -> None:
    remembered = {pci_of(0): uuid_of(0), pci_of(5): uuid_of(5)}
    async with Bench(tmp_path, [gpu(0)], remembered=remembered) as bench:
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status(uuid_of(5)) == ("FAILED", "missing")


async def test_a_gpu_on_the_bus_that_nvml_does_not_offer_is_missing(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.gpus.write([gpu(0)], pci=[pci_of(0), pci_of(1)])
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status(f"pci:{pci_of(1)}") == ("FAILED", "missing")
    assert "on the PCI bus" in seen.by_component[f"pci:{pci_of(1)}"].message


async def test_a_gpu_passed_through_to_a_virtual_machine_is_nobody_s_loss(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        fake_pci(bench.gpus.sys, [pci_of(0), pci_of(1)], driver="vfio-pci")
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert set(seen.by_component) == {"", uuid_of(0)}


async def test_a_gpu_lost_in_the_middle_of_a_sample_is_failed_under_its_name(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, TWO, expected=2) as bench:
        check = bench.build(gpu_inventory.SPEC)
        await run_check(check)
        bench.gpus.fail("nvmlDeviceGetRemappedRows", gpu=1, code=15)
        bench.later()
        seen = await run_check(check)
    assert seen.status(uuid_of(1)) == ("FAILED", "lost")
    assert seen.status(uuid_of(0)) == ("OK", "")
    assert seen.status("") == ("FAILED", "missing")


async def test_a_gpu_lost_before_the_worker_began_is_named_by_what_is_left_over(
    tmp_path: Path,
) -> None:
    remembered = {pci_of(0): uuid_of(0), pci_of(1): uuid_of(1)}
    async with Bench(tmp_path, TWO, remembered=remembered) as bench:
        bench.gpus.fail("nvmlDeviceGetHandleByIndex_v2", gpu=1, code=15)
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status(uuid_of(1)) == ("FAILED", "lost")
    assert set(seen.by_component) == {"", uuid_of(0), uuid_of(1)}


@pytest.mark.parametrize(
    ("call", "code", "verdict"),
    [
        ("nvmlDeviceGetTotalEccErrors", 16, ("FAILED", "reset-required")),
        ("nvmlDeviceGetName", 14, ("DEGRADED", "corrupted-inforom")),
        ("nvmlDeviceGetHandleByIndex_v2", 4, ("UNKNOWN", "no-permission")),
        ("nvmlDeviceGetUUID", 999, ("UNKNOWN", "nvml-error-999")),
        ("nvmlDeviceGetRemappedRows", 3, ("OK", "")),
        ("nvmlDeviceGetRemappedRows", 13, ("OK", "")),
    ],
)
async def test_each_error_of_a_gpu_has_its_verdict(
    tmp_path: Path, call: str, code: int, verdict: tuple[str, str]
) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        if call != "nvmlDeviceGetName":  # which is asked once, as a GPU's name does not change
            await bench.sample()
        bench.gpus.fail(call, gpu=0, code=code)
        bench.later()
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status(uuid_of(0)) == verdict


async def test_a_replaced_gpu_closes_what_was_known_of_the_old_one(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        check = bench.build(gpu_inventory.SPEC)
        await run_check(check)
        bench.gpus.write([gpu(0), gpu(1, uuid="GPU-new")])
        bench.later()
        seen = await run_check(check)
    assert seen.clearings == [Clearing(component=uuid_of(1), how="replaced")]
    assert seen.status("GPU-new") == ("OK", "")
    assert set(seen.by_component) == {"", uuid_of(0), "GPU-new"}


async def test_gpus_that_swapped_slots_are_not_replaced(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        check = bench.build(gpu_inventory.SPEC)
        await run_check(check)
        bench.gpus.write([gpu(0, uuid=uuid_of(1)), gpu(1, uuid=uuid_of(0))])
        bench.later()
        seen = await run_check(check)
    assert seen.clearings == []


async def test_a_gpu_taken_out_on_purpose_is_gone_when_the_number_is_as_expected(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, TWO, expected=1) as bench:
        check = bench.build(gpu_inventory.SPEC)
        await run_check(check)
        bench.gpus.write([gpu(0)])
        bench.later()
        seen = await run_check(check)
    assert seen.status("") == ("OK", "")
    assert uuid_of(1) not in seen.by_component


async def test_a_hung_driver_makes_its_gpus_unknown_and_never_failed(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, expected=2, deadline=0.3) as bench:
        check = bench.build(gpu_inventory.SPEC)
        await run_check(check)
        bench.gpus.fail("nvmlDeviceGetRemappedRows", gpu=1, hang=True)
        bench.later()
        seen = await run_check(check)
    assert seen.status("") == ("UNKNOWN", "hung")
    assert "nvmlDeviceGetRemappedRows of GPU 1" in seen.by_component[""].message
    assert seen.status(uuid_of(0)) == ("OK", ""), "it had answered"
    assert seen.status(uuid_of(1)) == ("UNKNOWN", "hung")


async def test_a_gpu_that_left_the_bus_is_failed_while_nvml_hangs(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, deadline=0.3) as bench:
        check = bench.build(gpu_inventory.SPEC)
        await run_check(check)
        bench.gpus.fail("nvmlDeviceGetUUID", hang=True)
        fake_pci(bench.gpus.sys, [pci_of(0)])
        bench.later()
        seen = await run_check(check)
    assert seen.status("") == ("UNKNOWN", "hung")
    assert seen.status(uuid_of(0)) == ("UNKNOWN", "hung")
    assert seen.status(uuid_of(1)) == ("FAILED", "missing")


async def test_without_a_view_of_the_bus_nothing_is_missing_from_it(tmp_path: Path) -> None:
    remembered = {pci_of(0): uuid_of(0)}
    async with Bench(tmp_path, remembered=remembered, expected=1) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=999)
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status("") == ("UNKNOWN", "nvml-failed")
    assert seen.status(uuid_of(0)) == ("UNKNOWN", "nvml-failed")


async def test_a_crashed_library_makes_its_gpus_unknown(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        check = bench.build(gpu_inventory.SPEC)
        await run_check(check)
        bench.gpus.fail("nvmlDeviceGetHandleByIndex_v2", gpu=0, abort=True)
        bench.later()
        seen = await run_check(check)
    assert {seen.status(name) for name in seen.by_component} == {("UNKNOWN", "crashed")}


async def test_a_mismatch_is_software_and_unknown(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=18)
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert {seen.status(name) for name in seen.by_component} == {("UNKNOWN", "library-mismatch")}
    assert "reload the driver or reboot" in seen.by_component[""].message


async def test_a_driver_that_is_not_loaded_fails_a_node_that_is_to_have_gpus(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, TWO, expected=2) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=9)
        (bench.gpus.sys / "module/nvidia").rmdir()
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status("") == ("FAILED", "driver-not-loaded")
    assert seen.status(f"pci:{pci_of(0)}") == ("UNKNOWN", "driver-not-loaded")


async def test_a_driver_that_nobody_asked_for_is_unknown_when_it_is_not_loaded(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, TWO) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=9)
        (bench.gpus.sys / "module/nvidia").rmdir()
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status("") == ("UNKNOWN", "driver-not-loaded")


async def test_a_loaded_driver_that_the_agent_may_not_open_is_not_called_absent(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, TWO, expected=2) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=9)
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status("") == ("UNKNOWN", "driver-unreachable")
    assert "/dev/nvidiactl" in seen.by_component[""].message


async def test_after_a_boot_an_absent_driver_is_starting_until_the_grace_is_over(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, TWO, expected=2, boottime=60.0) as bench:
        check = bench.build(gpu_inventory.SPEC)
        bench.gpus.fail("nvmlInitWithFlags", code=9)
        (bench.gpus.sys / "module/nvidia").rmdir()
        seen = await run_check(check)
        assert {seen.status(name) for name in seen.by_component} == {("UNKNOWN", "starting")}
        bench.later(1200)
        assert (await run_check(check)).status("") == ("FAILED", "driver-not-loaded")


async def test_a_driver_that_goes_after_it_was_there_is_not_starting(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, boottime=60.0) as bench:
        check = bench.build(gpu_inventory.SPEC)
        assert (await run_check(check)).status("") == ("OK", "")
        (pid,) = bench.nvml.worker_pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: bench.nvml.worker_pids == (), "the worker's end")
        bench.gpus.fail("nvmlInitWithFlags", code=9)
        (bench.gpus.sys / "module/nvidia").rmdir()
        bench.later()
        assert (await run_check(check)).status("") == ("FAILED", "driver-not-loaded")


async def test_a_driver_that_was_loaded_lately_may_be_starting_again(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, expected=2) as bench:
        check = bench.build(gpu_inventory.SPEC)
        assert (await run_check(check)).status("") == ("OK", "")
        bench.sources.driver_log.loaded(bench.clock.boottime())
        (pid,) = bench.nvml.worker_pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: bench.nvml.worker_pids == (), "the worker's end")
        bench.gpus.fail("nvmlInitWithFlags", code=18)
        bench.later()
        assert (await run_check(check)).status("") == ("UNKNOWN", "starting")
        bench.later(1200)
        assert (await run_check(check)).status("") == ("UNKNOWN", "library-mismatch")


async def test_a_quiesced_node_accuses_nobody(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, expected=2) as bench:
        check = bench.build(gpu_inventory.SPEC)
        await run_check(check)
        await bench.nvml.quiesce(600)
        fake_pci(bench.gpus.sys, [pci_of(0)])
        bench.later()
        seen = await run_check(check)
    assert {seen.status(name) for name in seen.by_component} == {
        ("UNKNOWN", TroubleKind.QUIESCED.value)
    }
