"""Xids by NVML alone: reported when the kernel log does not report them, and never twice."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from nodeagent.checks import gpu_events, xid
from nodeagent.checks.base import LogCheck
from nodeagent.model import ClearedBy
from nodeagent.sources.nvml_sampler import _MOST_EVENTS
from tests.agent.kernel_log import record
from tests.nvml import gpu, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, first_run, next_run, run_check


def log_line(bench: Bench, code: int, index: int = 0) -> None:
    """The kernel log reports the Xid now."""
    text = f"NVRM: Xid (PCI:{pci_of(index)}): {code}, pid=1, name=x, text".encode()
    log = cast("LogCheck", xid.SPEC.build(bench.sources, {}))
    assert log.read(replace(record(text), at=bench.clock.boottime()))


async def test_an_xid_without_a_line_in_the_log_is_told_a_look_later(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1)]) as bench:
        check = bench.build(gpu_events.SPEC)
        assert (await run_check(check)).status("") == ("OK", "")
        bench.gpus.xid(1, 95)
        assert (await next_run(bench, check)).faults == [], "its line may be on its way"
        at = bench.clock.boottime()
        bench.later()
        [fault] = (await run_check(check)).faults
        assert (fault.code, fault.component) == ("xid:95", uuid_of(1))
        assert fault.cleared_by is ClearedBy.GPU_RESET
        assert fault.at == pytest.approx(at, abs=5)
        assert fault.details == {"pci": pci_of(1), "reported_by": "nvml"}
        assert (await next_run(bench, check)).faults == []


async def test_what_the_log_has_told_is_not_told_again(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1)]) as bench:
        check = await first_run(bench, gpu_events.SPEC)
        bench.later(30)
        for code in (79, 31, 31, 31):
            bench.gpus.xid(0, code)
        bench.gpus.xid(1, 79)
        log_line(bench, 79)
        await next_run(bench, check, 31)
        log_line(bench, 31)
        bench.later()
        faults = (await run_check(check)).faults
    assert [(each.code, each.component) for each in faults] == [("xid:79", uuid_of(1))]


async def test_events_that_another_check_s_sample_brought_are_not_lost(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = await first_run(bench, gpu_events.SPEC)
        bench.gpus.xid(0, 62)
        await bench.sample()
        await bench.sample()
        await next_run(bench, check)
        bench.later()
        assert [each.code for each in (await run_check(check)).faults] == ["xid:62"]


async def test_a_storm_is_taken_in_portions(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = await first_run(bench, gpu_events.SPEC)
        for code in range(100):
            bench.gpus.xid(0, 1000 + code)
        told = []
        for _ in range(5):
            bench.later()
            told.append([each.code for each in (await run_check(check)).faults])
    # The next look reports the events that a look takes. All events are reported, each once.
    assert [len(codes) for codes in told] == [0, _MOST_EVENTS, 100 - _MOST_EVENTS, 0, 0]
    assert [one for codes in told for one in codes] == [f"xid:{1000 + n}" for n in range(100)]


async def test_what_was_before_the_worker_is_not_known(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        bench.gpus.xid(0, 79)
        check = bench.build(gpu_events.SPEC)
        for _ in range(3):
            assert (await run_check(check)).faults == []
            bench.later()


async def test_gpus_that_give_no_events(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1)]) as bench:
        bench.gpus.fail("nvmlDeviceRegisterEvents", gpu=1, code=3)
        check = bench.build(gpu_events.SPEC)
        assert (await run_check(check)).status("") == ("UNKNOWN", "no-events")
        bench.gpus.xid(0, 94)
        await next_run(bench, check)
        bench.later()
        assert [each.code for each in (await run_check(check)).faults] == ["xid:94"]


async def test_a_worker_that_crashed_is_listening_again(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = await first_run(bench, gpu_events.SPEC)
        bench.gpus.fail("nvmlDeviceGetCount_v2", abort=True)
        assert (await next_run(bench, check)).status("") == ("UNKNOWN", "crashed")
        bench.gpus.heal()
        await next_run(bench, check)
        bench.gpus.xid(0, 119)
        await next_run(bench, check)
        bench.later()
        assert [each.code for each in (await run_check(check)).faults] == ["xid:119"]
