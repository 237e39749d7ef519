"""Row remapping: pending is degraded, a failure is failed, a GPU without it is unknown."""

from pathlib import Path

import pytest

from nodeagent.checks import gpu_rows
from tests.nvml import UNSUPPORTED, gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, run_check


@pytest.mark.parametrize(
    ("rows", "status", "reason"),
    [
        ((0, 0, 0, 0), "OK", ""),
        ((9, 3, 0, 0), "OK", ""),
        ((0, 1, 1, 0), "DEGRADED", "pending"),
        ((0, 8, 0, 1), "FAILED", "failure"),
        ((0, 8, 1, 1), "FAILED", "failure"),
        ((UNSUPPORTED,) * 4, "UNKNOWN", "unsupported"),
    ],
)
async def test_each_state_of_the_rows_has_its_verdict(
    tmp_path: Path, rows: tuple[int, int, int, int], status: str, reason: str
) -> None:
    async with Bench(tmp_path, [gpu(0, rows=rows), gpu(1)]) as bench:
        seen = await run_check(bench.build(gpu_rows.SPEC))
    assert seen.status(uuid_of(0)) == (status, reason)
    assert seen.status(uuid_of(1)) == ("OK", "")


async def test_a_bank_without_a_spare_row_is_told_before_it_needs_one(tmp_path: Path) -> None:
    gpus = [gpu(0, reserve=(2500, 40, 10, 9, 1)), gpu(1, reserve=(0, 0, 0, 2560, 0))]
    async with Bench(tmp_path, [*gpus, gpu(2, reserve=None)]) as bench:
        seen = await run_check(bench.build(gpu_rows.SPEC))
    assert seen.status(uuid_of(0)) == ("DEGRADED", "no-reserve")
    assert "1 memory banks" in seen.by_component[uuid_of(0)].message
    assert seen.status(uuid_of(1)) == ("OK", "")
    assert seen.status(uuid_of(2)) == ("OK", ""), "a driver that does not tell is no fault"


async def test_the_message_has_the_counts(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, rows=(9, 3, 0, 0))]) as bench:
        seen = await run_check(bench.build(gpu_rows.SPEC))
    assert "3 uncorrectable" in seen.by_component[uuid_of(0)].message
    assert "9 corrected" in seen.by_component[uuid_of(0)].message


async def test_a_lost_gpu_s_rows_are_unknown_since_the_inventory_speaks_of_it(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        await bench.sample()
        bench.gpus.fail("nvmlDeviceGetUUID", gpu=0, code=15)
        bench.later()
        seen = await run_check(bench.build(gpu_rows.SPEC))
    assert seen.status(uuid_of(0)) == ("UNKNOWN", "lost")
    assert "nvmlDeviceGetUUID" in seen.by_component[uuid_of(0)].message


async def test_a_gpu_that_is_not_heard_of_any_more_does_not_stay_ok(tmp_path: Path) -> None:
    known = {pci_of(0): uuid_of(0), pci_of(1): uuid_of(1)}
    async with Bench(tmp_path, [gpu(0), gpu(1)], remembered=known) as bench:
        check = bench.build(gpu_rows.SPEC)
        assert (await run_check(check)).status(uuid_of(1)) == ("OK", "")
        bench.gpus.write([gpu(0)])
        bench.later()
        assert (await run_check(check)).status(uuid_of(1)) == ("UNKNOWN", "missing")
        bench.gpus.fail("nvmlDeviceGetCount_v2", abort=True)
        bench.later()
        seen = await run_check(check)
    assert seen.status(uuid_of(0)) == ("UNKNOWN", "crashed")
    assert seen.status(uuid_of(1)) == ("UNKNOWN", "crashed")


async def test_a_replaced_gpu_is_gone(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_rows.SPEC)
        await run_check(check)
        bench.gpus.write([gpu(0, uuid="GPU-new")])
        bench.later()
        seen = await run_check(check)
    assert set(seen.by_component) == {"GPU-new"}
