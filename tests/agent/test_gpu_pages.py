"""Page retirement of GPUs before Ampere, by NVIDIA's terms for a replacement."""

import time
from collections.abc import Sequence
from pathlib import Path

from nodeagent.checks import gpu_pages
from nodeagent.checks.base import Off
from tests.nvml import gpu, uuid_of
from tests.nvml.gpu_bench import Bench, run_check

_DAY = 86_400.0


def days_ago(*days: float) -> list[float]:
    return [time.time() - each * _DAY for each in days]


#: The days since each page was retired for single-bit and for double-bit errors; whether one is
#: pending; and the verdict.
RETIRED: list[tuple[Sequence[float], Sequence[float], bool, tuple[str, str]]] = [
    ([], [], False, ("OK", "")),
    ([40.0] * 40, [50.0] * 22, False, ("OK", "")),
    ([40.0] * 40, [50.0] * 23, False, ("FAILED", "too-many")),
    ([], [30.0] * 14 + [1.0, 2.0], False, ("FAILED", "too-many")),
    ([], [30.0] * 15 + [1.0], False, ("OK", "")),
    ([], [30.0] * 13 + [1.0, 2.0], False, ("OK", "")),
    ([3.0], [], True, ("DEGRADED", "pending")),
]


async def test_63_pages_or_16_that_still_come_are_too_many(tmp_path: Path) -> None:
    old = {"name": "Tesla V100", "rows": (-1,) * 4}
    gpus = [
        gpu(index, pages=(days_ago(*single), days_ago(*double)), pages_pending=pending, **old)
        for index, (single, double, pending, _) in enumerate(RETIRED)
    ]
    async with Bench(tmp_path, gpus) as bench:
        seen = await run_check(bench.build(gpu_pages.SPEC))
    for each, (single, _, _, verdict) in zip(gpus, RETIRED, strict=True):
        assert seen.status(each.uuid) == verdict
        assert f"{len(single)} for single-bit" in seen.by_component[each.uuid].message


async def test_gpus_that_remap_rows_have_no_pages_and_the_check_is_off(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1)]) as bench:
        assert await bench.build(gpu_pages.SPEC).run_check() == Off("not supported by these GPUs")


async def test_beside_an_old_gpu_a_new_one_is_unknown(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, pages=([], [])), gpu(1)]) as bench:
        seen = await run_check(bench.build(gpu_pages.SPEC))
    assert seen.status(uuid_of(0)) == ("OK", "")
    assert seen.status(uuid_of(1)) == ("UNKNOWN", "unsupported")
