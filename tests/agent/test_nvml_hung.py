"""A driver that hangs or crashes: the agent lives on, says so, and heals when the driver does."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.sources.gpu_sample import TroubleKind
from nodeagent.sources.process_state import read_state
from tests.agent import real_disks
from tests.nvml import gpu, uuid_of
from tests.nvml.gpu_bench import Bench
from tests.support.present import present
from tests.support.waiting import until

#: The folder, and what thaws it.
Frozen = tuple[Path, Callable[[], None]]

EIGHT = [gpu(index) for index in range(8)]


async def test_a_hung_call_is_named_within_the_deadline_and_the_loop_lives_on(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, EIGHT, deadline=3.0) as bench:
        await bench.sample()
        bench.gpus.fail("nvmlDeviceGetRemappedRows", gpu=3, hang=True)
        bench.nvml.deadline_is_far = True
        began = bench.clock.boottime()
        sampling = asyncio.create_task(bench.sample())
        (pid,) = bench.nvml.worker_pids
        await until(lambda: bench.gpus.has_hung(pid), "the hang")
        assert not sampling.done(), "the loop lives on"
        bench.nvml.deadline_is_far = False
        sample = await sampling
        took = bench.clock.boottime() - began
    assert took == 61.0 + 3.0, "the next look, and the deadline"
    assert sample.trouble is not None
    assert sample.trouble.kind is TroubleKind.HUNG
    assert sample.trouble.call == "nvmlDeviceGetRemappedRows"
    assert "GPU 3" in sample.trouble.message
    assert sample.trouble.where, "where in the kernel it waits"
    assert [each.uuid for each in sample.gpus] == [uuid_of(index) for index in range(3)]


async def test_a_call_that_stalls_and_returns_is_heard_by_the_same_worker(tmp_path: Path) -> None:
    async with Bench(tmp_path, EIGHT, deadline=3.0) as bench:
        await bench.sample()
        pids = bench.nvml.worker_pids
        bench.gpus.fail("nvmlDeviceGetUUID", gpu=0, hang=True)
        assert (await bench.sample()).trouble is not None
        bench.clock.wind(10)
        began = bench.clock.boottime()
        still = await bench.nvml.sample()
        assert still.trouble is not None
        assert still.trouble.kind is TroubleKind.HUNG
        assert bench.clock.boottime() == began, "a known hang costs no further deadline"
        bench.gpus.heal()
        await bench.answered()
        sample = await bench.sample()
        assert sample.trouble is None
        assert len(sample.gpus) == 8
        assert bench.nvml.worker_pids == pids
        assert bench.gpus.calls("nvmlInitWithFlags") == 1


async def test_a_worker_that_hangs_for_long_is_killed_and_replaced_by_one(tmp_path: Path) -> None:
    async with Bench(tmp_path, EIGHT, deadline=1.0, patience=60) as bench:
        await bench.sample()
        (first,) = bench.nvml.worker_pids
        bench.gpus.fail("nvmlDeviceGetUUID", gpu=0, hang=True)
        assert (await bench.sample()).trouble is not None
        bench.clock.wind(59)
        assert first in bench.nvml.worker_pids
        await bench.sample()
        assert not bench.nvml.worker_pids
        assert read_state(first).state == ""
        sample = await bench.sample()
        assert sample.trouble is not None
        assert sample.trouble.kind is TroubleKind.HUNG
        assert len(bench.nvml.worker_pids) == 1
        bench.gpus.heal()
        await bench.answered()
        assert (await bench.sample()).trouble is None


async def test_a_hung_call_is_named_although_the_kernel_cuts_its_name(tmp_path: Path) -> None:
    async with Bench(tmp_path, EIGHT) as bench:
        await bench.sample()
        bench.gpus.fail("nvmlDeviceGetComputeRunningProcesses_v3", gpu=3, hang=True)
        trouble = present((await bench.nvml.sample_processes()).trouble)
        assert "nvmlDeviceGetComputeRunningProcesses of GPU 3 has not" in trouble.message


async def test_an_init_that_takes_long_is_starting_and_then_hung(tmp_path: Path) -> None:
    async with Bench(tmp_path, EIGHT, deadline=0.3, init_deadline=60) as bench:
        bench.gpus.fail("nvmlInitWithFlags", hang=True)
        sample = await bench.nvml.sample()
        assert sample.trouble is not None
        assert sample.trouble.kind is TroubleKind.STARTING
        assert sample.trouble.call == "nvmlInit"
        bench.clock.wind(61)
        sample = await bench.nvml.sample()
        assert sample.trouble is not None
        assert sample.trouble.kind is TroubleKind.HUNG
        assert "nvmlInit" in sample.trouble.message
        bench.gpus.heal()
        await bench.answered()
        assert (await bench.sample()).trouble is None


async def test_a_crash_is_named_by_its_signal_and_the_worker_comes_back_after_a_while(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, EIGHT) as bench:
        await bench.sample()
        bench.gpus.fail("nvmlDeviceGetTotalEccErrors", gpu=2, abort=True)
        sample = await bench.sample()
        assert sample.trouble is not None
        assert sample.trouble.kind is TroubleKind.CRASHED
        assert "SIGABRT" in sample.trouble.message
        assert "2 GPUs had answered" in sample.trouble.message
        assert [each.uuid for each in sample.gpus] == [uuid_of(0), uuid_of(1)]
        bench.gpus.heal()
        assert (await bench.sample()).trouble is None


async def test_a_library_that_crashes_every_time_is_started_ever_more_seldom(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, EIGHT) as bench:
        bench.gpus.fail("nvmlInitWithFlags", abort=True)
        for _ in range(60):
            bench.later(5)
            sample = await bench.nvml.sample()
            assert sample.trouble is not None
            assert sample.trouble.kind is TroubleKind.CRASHED
        starts = bench.gpus.calls("nvmlInitWithFlags")
        assert 5 <= starts <= 9, "1, 2, 4, 8, ... seconds apart, over 300"


async def test_a_worker_killed_between_two_looks_is_replaced_without_a_word(tmp_path: Path) -> None:
    async with Bench(tmp_path, EIGHT) as bench:
        await bench.sample()
        (pid,) = bench.nvml.worker_pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: bench.nvml.worker_pids == (), "the worker's end")
        assert (await bench.sample()).trouble is None


async def test_quiesce_ends_the_worker_and_starts_none_until_its_time_is_over(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, EIGHT) as bench:
        await bench.sample()
        (pid,) = bench.nvml.worker_pids
        assert await bench.nvml.quiesce(1800) is True
        assert read_state(pid).state == "", "an open driver would make a reset fail"
        sample = await bench.sample()
        assert sample.trouble is not None
        assert sample.trouble.kind is TroubleKind.QUIESCED
        assert bench.nvml.worker_pids == ()
        assert bench.nvml.quiesced_for == 1800 - 61
        bench.clock.wind(1800)
        assert (await bench.sample()).trouble is None


async def test_resume_ends_quiesce_early(tmp_path: Path) -> None:
    async with Bench(tmp_path, EIGHT) as bench:
        await bench.nvml.quiesce(1800)
        bench.nvml.resume()
        assert (await bench.sample()).trouble is None


async def test_quiesce_while_a_sample_is_under_way_ends_that_too(tmp_path: Path) -> None:
    async with Bench(tmp_path, EIGHT) as bench:
        await bench.sample()
        bench.nvml.deadline_is_far = True
        bench.gpus.fail("nvmlDeviceGetUUID", gpu=5, hang=True)
        bench.later()
        sampling = asyncio.create_task(bench.nvml.sample())
        (pid,) = bench.nvml.worker_pids
        await until(lambda: read_state(pid).name == "nvml 5 uuid", "the hang")
        assert await bench.nvml.quiesce(60) is True
        sample = await asyncio.wait_for(sampling, 15)
        assert sample.trouble is not None
        assert sample.trouble.kind is TroubleKind.QUIESCED


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Frozen]:
    """A folder on a frozen ext4, and what thaws it."""
    if real_disks.why_not():
        pytest.skip(real_disks.why_not())
    with real_disks.freezer(tmp_path / "frozen") as thaw:
        yield tmp_path / "frozen", thaw


@pytest.mark.root
async def test_a_worker_that_cannot_be_killed_gets_one_replacement_and_no_more(
    tmp_path: Path, frozen: Frozen
) -> None:
    folder, thaw = frozen
    async with Bench(tmp_path / "gpus", EIGHT, deadline=1.0, patience=0.1) as bench:
        await bench.sample()
        (first,) = bench.nvml.worker_pids
        bench.gpus.fail("nvmlDeviceGetUUID", gpu=0, open_path=folder / "hang")
        for _ in range(2):  # hung, killed in vain
            trouble = present((await bench.sample()).trouble)
            assert trouble.kind is TroubleKind.HUNG
            await until(lambda: read_state(first).state == "D", "the hang")
        await bench.sample()  # replaced
        await until(
            lambda: [read_state(p).state for p in bench.nvml.worker_pids] == ["D", "D"],
            "the hang of the replacement",
        )
        trouble = present((await bench.sample()).trouble)
        assert trouble.kind is TroubleKind.HUNG
        assert trouble.where, "where in the kernel it waits"
        for _ in range(5):
            assert (await bench.sample()).trouble is not None
        assert len(bench.nvml.worker_pids) == 2
        assert await bench.nvml.quiesce(0) is False, "the driver is still held, and that is said"
        bench.gpus.heal()
        thaw()
        await until(lambda: bench.nvml.worker_pids == (), "the end of both")
        sample = await bench.sample()
        assert sample.trouble is None
        assert len(sample.gpus) == 8


@pytest.mark.root
async def test_a_replacement_that_works_gives_samples_and_names_the_stuck_one(
    tmp_path: Path, frozen: Frozen
) -> None:
    folder, thaw = frozen
    async with Bench(tmp_path / "gpus", EIGHT, deadline=1.0, patience=0.1) as bench:
        await bench.sample()
        (first,) = bench.nvml.worker_pids
        bench.gpus.fail("nvmlDeviceGetUUID", gpu=0, open_path=folder / "hang")
        await bench.sample()
        await until(lambda: read_state(first).state == "D", "the hang")
        await bench.sample()
        bench.gpus.heal()
        sample = await bench.sample()
        assert sample.trouble is None
        assert str(first) in sample.stuck
        assert "state D" in sample.stuck
        thaw()
        await until(lambda: read_state(first).state == "", "the stuck worker's end")
        assert (await bench.sample()).stuck == ""
