"""The InfoROM is validated at the start and once a day, and at no other time."""

from pathlib import Path

from nodeagent.checks import gpu_inforom, gpu_inventory
from tests.nvml import gpu, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check

CALL = "nvmlDeviceValidateInforom"


async def test_a_corrupted_inforom_is_degraded(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1)]) as bench:
        bench.gpus.fail(CALL, gpu=1, code=14)
        seen = await run_check(bench.build(gpu_inforom.SPEC))
        assert seen.status(uuid_of(0)) == ("OK", "")
        assert seen.status(uuid_of(1)) == ("DEGRADED", "corrupted")
        inventory = await run_check(bench.build(gpu_inventory.SPEC))
    assert inventory.status(uuid_of(1)) == ("OK", ""), "one fault is told once"


async def test_it_is_validated_once_a_day(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_inforom.SPEC)
        for _ in range(4):
            await run_check(check)
            bench.later(6 * 3600)
        assert bench.gpus.calls(CALL) == 1
        bench.gpus.fail(CALL, code=14)
        assert (await next_run(bench, check, 601)).status(uuid_of(0)) == ("DEGRADED", "corrupted")
        assert bench.gpus.calls(CALL) == 2


async def test_a_gpu_that_takes_another_s_place_is_validated(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = await first_run(bench, gpu_inforom.SPEC)
        bench.gpus.write([gpu(0, uuid="GPU-new")])
        bench.gpus.fail(CALL, code=14)
        assert (await next_run(bench, check)).status("GPU-new") == ("DEGRADED", "corrupted")
