"""Clocks that the hardware lowered; idle and power-capped GPUs are as they should be."""

from pathlib import Path

from nodeagent.checks import gpu_clocks
from nodeagent.checks.base import Off
from tests.nvml import gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, next_run, run_check

#: The verdict on each event reason, and its words as nvidia-smi has them.
REASONS = {
    0x0: ("OK", "", "none"),
    0x1: ("OK", "", "Idle"),
    0x4: ("OK", "", "SW Power Cap"),
    0x20: ("OK", "", "SW Thermal Slowdown"),
    0x8: ("DEGRADED", "hw-slowdown", "HW Slowdown"),
    0x48: ("DEGRADED", "hw-thermal", "HW Slowdown, HW Thermal Slowdown"),
    0x88: ("DEGRADED", "power-brake", "HW Slowdown, HW Power Brake Slowdown"),
    0xC8: ("DEGRADED", "hw-thermal", "HW Slowdown, HW Thermal Slowdown, HW Power Brake Slowdown"),
    2**63: ("OK", "", "none known"),
    2**63 | 0x1: ("OK", "", "Idle"),
}


async def test_each_reason_has_its_verdict_and_the_words_of_nvidia_smi(tmp_path: Path) -> None:
    gpus = [gpu(index, clocks=bits) for index, bits in enumerate(REASONS)]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_clocks.SPEC))
    for each, (bits, (status, reason, words)) in zip(gpus, REASONS.items(), strict=True):
        assert seen.status(each.uuid) == (status, reason)
        message = seen.by_component[each.uuid].message
        assert message.endswith(f"clock event reasons {bits:#x} ({words})")


async def test_clocks_are_read_anew_at_every_sample(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_clocks.SPEC)
        assert (await run_check(check)).status(uuid_of(0)) == ("OK", "")
        bench.gpus.write([gpu(0, clocks=0x40)])
        assert (await next_run(bench, check)).status(uuid_of(0)) == ("DEGRADED", "hw-thermal")


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
        second = await next_run(bench, check)
        assert set(second.by_component) == {""}
        shared = "3 of 3 GPUs are healthy: clock event reasons 0x1 (Idle)"
        assert second.by_component[""].message == shared
        bench.gpus.write([gpu(0), gpu(1, clocks=0x40), gpu(2)])
        third = await next_run(bench, check)
        assert third.status(uuid_of(1)) == ("DEGRADED", "hw-thermal")
        assert third.by_component[""].message.startswith("2 of 3 GPUs are healthy")
        bench.gpus.write([gpu(0), gpu(1), gpu(2)])
        assert (await next_run(bench, check)).status(uuid_of(1)) == ("OK", ""), (
            "it is said to be well again"
        )
