"""Every GPU is there, or the missing one is named: by NVML, by PCI, by memory, by expectation."""

from pathlib import Path

import pytest

from nodeagent.checks import gpu_inventory
from nodeagent.checks.base import Off
from nodeagent.model import Clearing
from tests.nvml import fake_pci, gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check

TWO = [gpu(0), gpu(1)]


async def test_all_gpus_there_is_ok_for_each_and_for_the_node(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, expected=2) as bench:
        seen = await run_check(bench.build(gpu_inventory.SPEC))
        learned = bench.sources.gpus.remembered()
    assert learned == {pci_of(0): uuid_of(0), pci_of(1): uuid_of(1)}
    assert {name: seen.status(name) for name in seen.by_component} == {
        "": ("OK", ""),
        uuid_of(0): ("OK", ""),
        uuid_of(1): ("OK", ""),
    }
    assert "driver 580.65.06" in seen.by_component[""].message
    assert seen.clearings == [Clearing(f"pci:{pci_of(n)}", "named") for n in (0, 1)]


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


async def test_a_gpu_that_an_earlier_agent_knew_is_missed_by_this_one(tmp_path: Path) -> None:
    remembered = {pci_of(0): uuid_of(0), pci_of(5): uuid_of(5)}
    async with Bench(tmp_path, [gpu(0)], remembered=remembered) as bench:
        seen = await run_check(bench.build(gpu_inventory.SPEC))
    assert seen.status(uuid_of(5)) == ("FAILED", "missing")


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


async def test_gpus_that_swapped_slots_are_not_replaced(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO) as bench:
        check = await first_run(bench, gpu_inventory.SPEC)
        bench.gpus.write([gpu(0, uuid=uuid_of(1)), gpu(1, uuid=uuid_of(0))])
        seen = await next_run(bench, check)
    assert "replaced" not in {sign.how for sign in seen.clearings}


async def test_a_hung_driver_makes_its_gpus_unknown_and_never_failed(tmp_path: Path) -> None:
    async with Bench(tmp_path, TWO, expected=2, deadline=2.0) as bench:
        check = await first_run(bench, gpu_inventory.SPEC)
        bench.gpus.fail("nvmlDeviceGetRemappedRows", gpu=1, hang=True)
        seen = await next_run(bench, check)
    assert seen.status("") == ("UNKNOWN", "hung")
    assert "nvmlDeviceGetRemappedRows of GPU 1" in seen.by_component[""].message
    assert seen.status(uuid_of(0)) == ("OK", ""), "it had answered"
    assert seen.status(uuid_of(1)) == ("UNKNOWN", "hung")
