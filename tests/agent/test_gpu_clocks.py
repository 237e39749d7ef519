"""Clocks that the hardware lowered; idle and power-capped GPUs are as they should be."""

from pathlib import Path

import pytest

from nodeagent.checks import gpu_clocks
from nodeagent.checks.base import Off
from tests.nvml import gpu, uuid_of
from tests.nvml.look import Bench, look


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
        seen = await look(bench.build(gpu_clocks.SPEC))
    assert seen.status(uuid_of(0)) == (status, reason)
    assert f"{bits:#x}" in seen.by_component[uuid_of(0)].message
    assert seen.status(uuid_of(1)) == ("OK", "")


async def test_clocks_are_read_anew_at_every_sample(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_clocks.SPEC)
        assert (await look(check)).status(uuid_of(0)) == ("OK", "")
        bench.gpus.write([gpu(0, clocks=0x40)])
        bench.later()
        assert (await look(check)).status(uuid_of(0)) == ("DEGRADED", "hw-thermal")


async def test_an_old_driver_is_asked_by_the_old_name(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, clocks=0x80)]) as bench:
        bench.gpus.fail("nvmlDeviceGetCurrentClocksEventReasons", code=13)
        seen = await look(bench.build(gpu_clocks.SPEC))
    assert seen.status(uuid_of(0)) == ("DEGRADED", "power-brake")


async def test_gpus_that_do_not_say_are_not_looked_at(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, clocks=None)]) as bench:
        assert await bench.build(gpu_clocks.SPEC).look() == Off("not supported by these GPUs")
