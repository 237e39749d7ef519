"""Clocks that the hardware lowered; idle and power-capped GPUs are as they should be."""

from pathlib import Path

import pytest

from nodeagent.checks import gpu_clocks
from nodeagent.checks.base import Off
from tests.nvml import gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, run_check


@pytest.mark.parametrize(
    ("bits", "status", "reason"),
    [
        (0x0, "OK", ""),
        (0x1, "OK", ""),
        (0x4, "OK", ""),
        (0x20, "OK", ""),
        (0x8, "DEGRADED", "hw-slowdown"),
        (0x48, "DEGRADED", "hw-thermal"),
        (0x88, "DEGRADED", "power-brake"),
        (0xC8, "DEGRADED", "hw-thermal"),
        (2**63 | 0x1, "OK", ""),
    ],
)
async def test_each_reason_has_its_verdict(
    tmp_path: Path, bits: int, status: str, reason: str
) -> None:
    async with Bench(tmp_path, [gpu(0, clocks=bits), gpu(1)]) as bench:
        seen = await run_check(bench.build(gpu_clocks.SPEC))
    assert seen.status(uuid_of(0)) == (status, reason)
    assert f"{bits:#x}" in seen.by_component[uuid_of(0)].message
    assert seen.status(uuid_of(1)) == ("OK", "")


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, "0x0 (none)"),
        (0x4, "0x4 (SW Power Cap)"),
        (0x48, "0x48 (HW Slowdown, HW Thermal Slowdown)"),
        (2**63, "0x8000000000000000 (none known)"),
    ],
)
async def test_the_reasons_have_the_words_of_nvidia_smi(
    tmp_path: Path, bits: int, words: str
) -> None:
    async with Bench(tmp_path, [gpu(0, clocks=bits)]) as bench:
        seen = await run_check(bench.build(gpu_clocks.SPEC))
    assert seen.by_component[uuid_of(0)].message.endswith(f"clock event reasons {words}")


async def test_clocks_are_read_anew_at_every_sample(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_clocks.SPEC)
        assert (await run_check(check)).status(uuid_of(0)) == ("OK", "")
        bench.gpus.write([gpu(0, clocks=0x40)])
        bench.later()
        assert (await run_check(check)).status(uuid_of(0)) == ("DEGRADED", "hw-thermal")


async def test_an_old_driver_is_asked_by_the_old_name(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, clocks=0x80)]) as bench:
        bench.gpus.fail("nvmlDeviceGetCurrentClocksEventReasons", code=13)
        seen = await run_check(bench.build(gpu_clocks.SPEC))
    assert seen.status(uuid_of(0)) == ("DEGRADED", "power-brake")


async def test_gpus_that_do_not_say_are_not_looked_at(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, clocks=None)]) as bench:
        assert await bench.build(gpu_clocks.SPEC).run_check() == Off("not supported by these GPUs")


# -- how few rows it takes ---------------------------------------------------------------------


async def test_gpus_that_are_well_share_one_row_after_their_first_look(tmp_path: Path) -> None:
    known = {pci_of(index): uuid_of(index) for index in range(3)}
    async with Bench(tmp_path, [gpu(i) for i in range(3)], remembered=known) as bench:
        check = bench.build(gpu_clocks.SPEC)
        first = await run_check(check)
        assert set(first.by_component) == {"", *known.values()}, "an earlier agent's word ends"
        bench.later()
        second = await run_check(check)
        assert set(second.by_component) == {""}
        shared = "3 of 3 GPUs are healthy: clock event reasons 0x1 (Idle)"
        assert second.by_component[""].message == shared
        bench.gpus.write([gpu(0), gpu(1, clocks=0x40), gpu(2)])
        bench.later()
        third = await run_check(check)
        assert third.status(uuid_of(1)) == ("DEGRADED", "hw-thermal")
        assert third.by_component[""].message.startswith("2 of 3 GPUs are healthy")
        bench.gpus.write([gpu(0), gpu(1), gpu(2)])
        bench.later()
        assert (await run_check(check)).status(uuid_of(1)) == ("OK", ""), (
            "it is said to be well again"
        )


async def test_an_nvml_that_is_in_trouble_takes_one_row_and_those_that_were_ill(
    tmp_path: Path,
) -> None:
    known = {pci_of(index): uuid_of(index) for index in range(3)}
    gpus = [gpu(0), gpu(1, clocks=0x40), gpu(2)]
    async with Bench(tmp_path, gpus, remembered=known) as bench:
        check = bench.build(gpu_clocks.SPEC)
        await run_check(check)
        bench.gpus.fail("nvmlDeviceGetCount_v2", abort=True)
        bench.later()
        seen = await run_check(check)
    rows = {name: seen.status(name) for name in seen.by_component}
    assert rows == dict.fromkeys(("", uuid_of(1)), ("UNKNOWN", "crashed"))


async def test_a_gpu_that_nvml_no_longer_lists_is_not_among_the_well(tmp_path: Path) -> None:
    known = {pci_of(index): uuid_of(index) for index in range(2)}
    async with Bench(tmp_path, [gpu(0), gpu(1)], remembered=known) as bench:
        check = bench.build(gpu_clocks.SPEC)
        await run_check(check)
        bench.gpus.write([gpu(0)])
        bench.later()
        seen = await run_check(check)
    assert seen.status(uuid_of(1)) == ("UNKNOWN", "missing")
    assert seen.by_component[""].message.startswith("1 of 2")
