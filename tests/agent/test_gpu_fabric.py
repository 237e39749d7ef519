"""The NVLink fabric: a manager that is down is a fault, although no log line reports it."""

from pathlib import Path

import pytest

from nodeagent.checks import gpu_fabric
from nodeagent.checks.base import Off
from tests.nvml import gpu, uuid_of
from tests.nvml.gpu_bench import Bench, run_check

#: state, status, health mask, summary, clique, newest version.
WELL = (3, 0, 0, 1, 7, 3)
STARTING = (2, 0, 0, 0, 0, 3)


@pytest.mark.parametrize(
    ("fabric", "status", "reason"),
    [
        (WELL, "OK", ""),
        ((3, 0, 0b10_10_10_10, 1, 7, 3), "OK", ""),
        ((3, 999, 0, 0, 7, 3), "FAILED", "registration-failed"),
        ((2, 0, 0, 0, 0, 3), "FAILED", "not-registered"),
        ((1, 0, 0, 0, 0, 3), "DEGRADED", "not-started"),
        ((4, 0, 0, 0, 0, 3), "UNKNOWN", "unknown-state"),
        ((3, 0, 0x1, 1, 7, 3), "DEGRADED", "degraded-bandwidth"),
        ((3, 0, 0x1 << 2, 1, 7, 3), "DEGRADED", "recovering"),
        ((3, 0, 0x1 << 4, 1, 7, 3), "FAILED", "route-unhealthy"),
        ((3, 0, 0x1 << 6, 1, 7, 3), "DEGRADED", "recovering"),
        ((3, 0, 0x1 << 8, 1, 7, 3), "OK", ""),
        ((3, 0, 0x5 << 8, 1, 7, 3), "FAILED", "misconfigured"),
        ((3, 0, 0x2 << 14, 1, 7, 3), "DEGRADED", "manager-disconnected"),
        ((3, 0, 0, 2, 7, 3), "FAILED", "unhealthy"),
        ((3, 0, 0, 3, 7, 3), "DEGRADED", "limited-capacity"),
        ((3, 0, 0x1, 0, 7, 2), "DEGRADED", "degraded-bandwidth"),
    ],
)
async def test_each_state_of_the_fabric_has_its_verdict(
    tmp_path: Path, fabric: tuple[int, ...], status: str, reason: str
) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1, fabric=fabric)]) as bench:
        seen = await run_check(bench.build(gpu_fabric.SPEC))
    assert seen.status(uuid_of(1)) == (status, reason)
    assert seen.status(uuid_of(0)) == ("OK", "")
    assert "clique 7 of cluster c1c1" in seen.by_component[uuid_of(0)].message


async def test_after_a_boot_the_manager_may_take_its_time(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, fabric=STARTING)], boottime=60.0) as bench:
        check = bench.build(gpu_fabric.SPEC)
        assert (await run_check(check)).status(uuid_of(0)) == ("UNKNOWN", "starting")
        bench.later(1200)
        assert (await run_check(check)).status(uuid_of(0)) == ("FAILED", "not-registered")


async def test_one_that_was_registered_is_not_starting(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)], boottime=60.0) as bench:
        check = bench.build(gpu_fabric.SPEC)
        assert (await run_check(check)).status(uuid_of(0)) == ("OK", "")
        bench.gpus.write([gpu(0, fabric=STARTING)])
        bench.later(301)
        assert (await run_check(check)).status(uuid_of(0)) == ("FAILED", "not-registered")


async def test_a_driver_that_was_loaded_anew_may_take_its_time(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_fabric.SPEC)
        await run_check(check)
        bench.gpus.write([gpu(0, fabric=STARTING)])
        bench.gpus.fail("nvmlDeviceGetCount_v2", abort=True)
        bench.later(301)
        seen = await run_check(check)
        assert seen.status("") == ("UNKNOWN", "crashed")
        assert uuid_of(0) not in seen.by_component, "the node's row speaks for those that were well"
        bench.gpus.heal()
        bench.later()
        assert (await run_check(check)).status(uuid_of(0)) == ("UNKNOWN", "starting")
        bench.later(1200)
        assert (await run_check(check)).status(uuid_of(0)) == ("FAILED", "not-registered")


async def test_a_load_in_the_kernel_log_begins_its_time_anew(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_fabric.SPEC)
        await run_check(check)
        bench.gpus.write([gpu(0, fabric=STARTING)])
        bench.sources.driver_log.loaded(bench.clock.boottime())
        bench.later(301)
        assert (await run_check(check)).status(uuid_of(0)) == ("UNKNOWN", "starting")
        bench.later(900)
        assert (await run_check(check)).status(uuid_of(0)) == ("FAILED", "not-registered")


@pytest.mark.parametrize("fabric", [None, (0, 0, 0, 0, 0, 3)])
async def test_gpus_that_are_part_of_no_fabric_are_not_looked_at(
    tmp_path: Path, fabric: tuple[int, ...] | None
) -> None:
    async with Bench(tmp_path, [gpu(0, fabric=fabric), gpu(1, fabric=fabric)]) as bench:
        assert await bench.build(gpu_fabric.SPEC).run_check() == Off("not supported by these GPUs")
