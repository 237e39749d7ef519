"""ECC counters: existing errors degrade, new errors are a fault, a lower count was a reset."""

from pathlib import Path

from nodeagent.checks import gpu_common, gpu_ecc
from nodeagent.model import ClearedBy
from tests.nvml import UNSUPPORTED, FakeGpu, gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check


def with_ecc(corrected: int, uncorrected: int) -> list[FakeGpu]:
    return [gpu(0, ecc=(corrected, uncorrected, 50 + corrected, 5 + uncorrected))]


async def test_uncorrectable_errors_degrade_and_corrected_ones_do_not(tmp_path: Path) -> None:
    gpus = [gpu(0, ecc=(12, 0, 12, 0)), gpu(1, ecc=(0, 1, 0, 4)), gpu(2)]
    async with Bench(tmp_path, [*gpus, gpu(3, sram=True), gpu(4, sram=None)]) as bench:
        seen = await run_check(bench.build(gpu_ecc.SPEC))
    assert seen.status(uuid_of(0)) == ("OK", "")
    assert seen.status(uuid_of(1)) == ("DEGRADED", "uncorrectable")
    assert "in its life 4" in seen.by_component[uuid_of(1)].message
    assert seen.status(uuid_of(2)) == ("OK", "")
    assert seen.faults == [], "they are of unknown age"
    assert seen.status(uuid_of(3)) == ("FAILED", "sram-threshold")
    assert seen.status(uuid_of(4)) == ("OK", ""), "before Ampere nobody knows"


async def test_a_rise_of_the_uncorrectable_count_is_a_fault(tmp_path: Path) -> None:
    async with Bench(tmp_path, with_ecc(0, 1)) as bench:
        check = await first_run(bench, gpu_ecc.SPEC)
        bench.gpus.write(with_ecc(0, 3))
        seen = await next_run(bench, check)
        (fault,) = seen.faults
        assert (fault.code, fault.component) == ("ecc-uncorrectable", uuid_of(0))
        assert fault.cleared_by is ClearedBy.GPU_RESET
        assert fault.details == {"new": "2", "pci": pci_of(0)}
        assert abs(fault.at - bench.clock.boottime()) < 5
        assert not fault.historical
        assert (await next_run(bench, check)).faults == [], "the same count is nothing new"
        bench.gpus.write(with_ecc(0, 4))
        bench.later()
        (second,) = (await run_check(check)).faults
        assert second.source == fault.source
        assert second.source_seq > fault.source_seq


async def test_where_no_gpu_has_ecc_the_check_is_off(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0, ecc=(UNSUPPORTED,) * 4)]) as bench:
        assert await bench.build(gpu_ecc.SPEC).run_check() == gpu_common.NOT_SUPPORTED
