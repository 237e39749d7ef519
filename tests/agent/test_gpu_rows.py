"""Row remapping: pending is degraded, a failure is failed, a model without it has no row."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeagent.checks import gpu_rows
from tests.nvml import UNSUPPORTED, gpu, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check

#: Corrected, uncorrected, pending, failure.
STATES = {
    (0, 0, 0, 0): ("OK", ""),
    (9, 3, 0, 0): ("OK", ""),
    (0, 1, 1, 0): ("DEGRADED", "pending"),
    (0, 8, 0, 1): ("FAILED", "failure"),
    (0, 8, 1, 1): ("FAILED", "failure"),
}


async def test_each_state_of_the_rows_has_its_verdict(tmp_path: Path) -> None:
    gpus = [gpu(index, rows=rows) for index, rows in enumerate(STATES)]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_rows.SPEC))
    assert [seen.status(each.uuid) for each in gpus] == [*STATES.values()]
    counts = "rows remapped: 3 uncorrectable, 9 corrected"
    assert seen.by_component[uuid_of(1)].message == counts


@pytest.mark.parametrize("other", [{"name": "Tesla T4"}, {"mig": (1, 1)}])
async def test_a_gpu_that_has_no_rows_by_its_model_or_by_mig_is_not_unknown(
    tmp_path: Path, other: Mapping[str, Any]
) -> None:
    gpus = [gpu(0), gpu(1, rows=(UNSUPPORTED,) * 4, **other)]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_rows.SPEC))
    assert {name: seen.status(name) for name in seen.by_component} == {uuid_of(0): ("OK", "")}


async def test_a_bank_without_a_spare_row_is_told_before_it_needs_one(tmp_path: Path) -> None:
    gpus = [gpu(0, reserve=(2500, 40, 10, 9, 1)), gpu(1, reserve=(0, 0, 0, 2560, 0))]
    async with Bench(tmp_path, [*gpus, gpu(2, reserve=None)]) as bench:
        seen = await run_check(bench.build(gpu_rows.SPEC))
    assert seen.status(uuid_of(0)) == ("DEGRADED", "no-reserve")
    assert "1 memory banks" in seen.by_component[uuid_of(0)].message
    assert seen.status(uuid_of(1)) == ("OK", "")
    assert seen.status(uuid_of(2)) == ("OK", ""), "a driver that does not tell is no fault"


async def test_a_replaced_gpu_is_gone(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = await first_run(bench, gpu_rows.SPEC)
        bench.gpus.write([gpu(0, uuid="GPU-new")])
        seen = await next_run(bench, check)
    assert set(seen.by_component) == {"GPU-new"}
