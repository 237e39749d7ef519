"""Samples through the real pynvml in its worker process, on the library of tests/nvml."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from nodeagent.checks import gpu_inventory
from nodeagent.clock import SystemClock
from nodeagent.sources.gpu_sample import EccCounts, RemappedRows, TroubleKind
from nodeagent.sources.nvml import Nvml
from nodeagent.sources.nvml_sampler import SLOW_EVERY
from nodeagent.sources.process_state import read_state
from tests.nvml import UNSUPPORTED, gpu, library, pci_of, uuid_of
from tests.nvml.gpu_bench import Bench, next_run
from tests.support.waiting import until


async def test_a_sample_has_every_gpu_with_all_its_values(tmp_path: Path) -> None:
    sick = gpu(1, ecc=(7, 2, 90, 3), rows=(4, 5, 1, 0), recovery_action=4)
    async with Bench(tmp_path, [gpu(0), sick]) as bench:
        sample = await bench.nvml.sample()
    assert sample.trouble is None
    assert sample.driver == "580.65.06"
    first, second = sample.gpus
    assert (first.uuid, first.pci, first.name) == (uuid_of(0), pci_of(0), "NVIDIA H100 80GB HBM3")
    assert first.recovery_action == 0
    assert second.ecc == EccCounts(7, 2, 90, 3)
    assert second.rows == RemappedRows(4, 5, pending=True, failure=False)
    assert second.recovery_action == 4
    assert second.errors == {"pages": 3}, "not on this GPU"


async def test_values_that_change_seldom_are_kept_from_the_sample_that_had_them(
    tmp_path: Path,
) -> None:
    one = replace(gpu(0), links=(1, 0), mig=(0, 1), thresholds=(92, 88, 95))
    async with Bench(tmp_path, [one, gpu(1)]) as bench:
        first = await bench.sample()
        bench.gpus.write([replace(one, temperature=50, links=(1, 1)), gpu(1)])
        second = await bench.sample()
        bench.clock.wind(SLOW_EVERY)
        third = await bench.sample()
    kept = ("links", "mig", "limits", "fabric", "inforom", "reserve", "c2c")
    for before, after in zip(first.gpus, second.gpus, strict=True):
        assert all(getattr(before, name) == getattr(after, name) for name in kept)
        assert before.links is after.links, "it is not even parsed again"
        assert before.errors == after.errors
    assert second.gpus[0].temperature == 50
    assert second.gpus[0].links is not None
    assert second.gpus[0].links.states == (True, False)
    assert third.gpus[0].links is not None
    assert third.gpus[0].links.states == (True, True)


async def test_a_lost_gpu_has_no_values_of_before(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        assert (await bench.sample()).gpus[0].links is not None
        bench.gpus.fail("nvmlDeviceGetRemappedRows", code=15)
        lost = (await bench.sample()).gpus[0]
        assert (lost.links, lost.fabric, lost.inforom) == (None, None, None)
        bench.gpus.heal()
        assert (await bench.sample()).gpus[0].links is not None


async def test_nvml_is_initialised_once_and_kept(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        for _ in range(5):
            assert (await bench.sample()).trouble is None
        assert bench.gpus.calls("nvmlInitWithFlags") == 1
        assert bench.gpus.calls("nvmlDeviceGetCount_v2") == 5


async def test_a_worker_from_before_a_gpu_came_is_replaced(tmp_path: Path) -> None:
    """NVML counts the GPUs at its start: one that was plugged in later would be missed for ever."""
    async with Bench(tmp_path, [gpu(0)]) as bench:
        check = bench.build(gpu_inventory.SPEC)
        await check.run_check()
        bench.later()
        await check.run_check()
        assert bench.gpus.calls("nvmlInitWithFlags") == 1
        bench.gpus.write([gpu(0), gpu(1)])
        seen = await next_run(bench, check)
        assert bench.gpus.calls("nvmlInitWithFlags") == 2
        assert seen.status(uuid_of(1)) == ("OK", "")
        bench.gpus.write([gpu(0)])
        bench.later()
        await check.run_check()
        assert bench.gpus.calls("nvmlInitWithFlags") == 2


async def test_checks_that_look_together_share_one_round_trip(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        samples = await asyncio.gather(*(bench.nvml.sample() for _ in range(4)))
        assert all(sample is samples[0] for sample in samples)
        assert await bench.nvml.sample() is samples[0]
        assert bench.gpus.calls("nvmlDeviceGetCount_v2") == 1


async def test_a_check_that_is_cancelled_does_not_take_the_sample_from_the_others(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        await bench.sample()
        bench.nvml.deadline_is_far = True
        bench.gpus.fail("nvmlDeviceGetUUID", hang=True)
        bench.later()
        impatient, patient = (asyncio.create_task(bench.nvml.sample()) for _ in range(2))
        await asyncio.sleep(0.05)
        impatient.cancel()
        bench.gpus.heal()
        assert (await patient).trouble is None


@pytest.mark.parametrize("code", [3, 4, 13])
async def test_what_a_gpu_does_not_support_is_none_with_its_code(tmp_path: Path, code: int) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        bench.gpus.fail("nvmlDeviceGetRemappedRows", gpu=0, code=code)
        (only,) = (await bench.sample()).gpus
    assert only.rows is None
    assert only.errors == {"rows": code, "pages": 3}
    assert only.ecc == EccCounts(0, 0, 0, 0)


async def test_a_gpu_of_the_years_before_all_this_still_has_its_name(tmp_path: Path) -> None:
    nothing = (UNSUPPORTED,) * 4
    absent = dict.fromkeys(("clocks", "replays", "reserve", "sram", "fabric"))
    old = gpu(0, ecc=nothing, rows=nothing, recovery_action=UNSUPPORTED, links=(), **absent)
    async with Bench(tmp_path, [old]) as bench:
        (only,) = (await bench.sample()).gpus
    assert only.uuid == uuid_of(0)
    assert (only.ecc, only.rows, only.recovery_action) == (None, None, None)
    assert (only.reserve, only.pages, only.links, only.fabric) == (None,) * 4
    refused = ("recovery", "replays", "rows", "ecc", "clocks")
    seldom = ("reserve", "pages", "sram", "links", "fabric")
    assert only.errors == dict.fromkeys((*refused, *seldom), 3)


async def test_a_field_that_fails_within_a_batch_that_succeeds_is_that_field_s_error(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        bench.gpus.fail("field:230", gpu=0, code=999)
        (only,) = (await bench.sample()).gpus
    assert only.recovery_action is None
    assert only.errors == {"recovery": 999, "pages": 3}


async def test_a_gpu_lost_in_the_middle_of_a_sample_keeps_its_name_and_is_asked_no_more(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1), gpu(2)]) as bench:
        await bench.sample()
        bench.gpus.fail("nvmlDeviceGetRemappedRows", gpu=1, code=15)
        asked_before = bench.gpus.calls("nvmlDeviceGetTotalEccErrors")
        sample = await bench.sample()
        asked = bench.gpus.calls("nvmlDeviceGetTotalEccErrors") - asked_before
    assert sample.trouble is None
    assert sample.gpus[1].uuid == uuid_of(1)
    assert sample.gpus[1].errors == {"rows": 15}
    assert [each.ecc is None for each in sample.gpus] == [False, True, False]
    assert asked == 8, "four counters of each of the two others"


async def test_a_gpu_whose_handle_is_lost_is_known_from_before(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0), gpu(1)]) as bench:
        await bench.sample()
        bench.gpus.fail("nvmlDeviceGetHandleByIndex_v2", gpu=0, code=15)
        sample = await bench.sample()
    assert (sample.gpus[0].uuid, sample.gpus[0].pci) == (uuid_of(0), pci_of(0))
    assert sample.gpus[0].errors == {"handle": 15}
    assert sample.gpus[1].errors == {"pages": 3}


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (9, TroubleKind.DRIVER_NOT_LOADED, "not loaded"),
        (18, TroubleKind.LIBRARY_MISMATCH, "different versions: reload the driver or reboot"),
        (12, TroubleKind.NO_LIBRARY, "nvml.library"),
        (15, TroubleKind.FAILED, "cannot be initialised"),
        (999, TroubleKind.FAILED, "cannot be initialised"),
    ],
)
async def test_each_way_in_which_nvml_refuses_to_start_has_its_own_word(
    tmp_path: Path, code: int, kind: TroubleKind, says: str
) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=code)
        sample = await bench.nvml.sample()
        assert sample.trouble is not None
        assert sample.trouble.kind is kind
        assert says in sample.trouble.message
        assert sample.gpus == ()
        assert bench.nvml.worker_pids == (), "a worker that cannot start does not stay"


async def test_a_driver_that_comes_late_is_found_and_until_then_seldom_asked(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        bench.gpus.fail("nvmlInitWithFlags", code=9)
        for _ in range(40):
            bench.later(5)
            assert (await bench.nvml.sample()).trouble is not None
        tries = bench.gpus.calls("nvmlInitWithFlags")
        assert 3 <= tries <= 6, "10, 20, 40, 80 seconds apart"
        bench.gpus.heal()
        bench.later(301)
        assert (await bench.nvml.sample()).trouble is None


async def test_a_library_that_is_not_there_is_said_with_its_path(tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere/libnvidia-ml.so.1")
    async with Bench(tmp_path, [gpu(0)], library=missing) as bench:
        sample = await bench.nvml.sample()
    assert sample.trouble is not None
    assert sample.trouble.kind is TroubleKind.NO_LIBRARY
    assert missing in sample.trouble.message


async def test_a_count_that_fails_is_trouble_of_the_whole(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        bench.gpus.fail("nvmlDeviceGetCount_v2", code=999)
        sample = await bench.sample()
        assert sample.trouble is not None
        assert sample.trouble.kind is TroubleKind.FAILED
        bench.gpus.heal()
        assert (await bench.sample()).trouble is None


@pytest.mark.parametrize("count", [2**32 - 1, 1025])
async def test_a_count_that_no_machine_has_is_none(tmp_path: Path, count: int) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        bench.gpus.claim(count)
        sample = await bench.nvml.sample()
    assert sample.trouble is not None
    assert sample.trouble.kind is TroubleKind.FAILED
    assert sample.gpus == ()


async def test_a_count_that_is_too_high_costs_nothing_but_its_excess(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        bench.gpus.claim(3)
        sample = await bench.nvml.sample()
    assert sample.trouble is None
    assert [each.uuid for each in sample.gpus] == [uuid_of(0), "", ""]


async def test_a_library_named_in_the_configuration_is_loaded_from_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [gpu(0)])
    environment = {**bench.gpus.env, "LD_LIBRARY_PATH": ""}
    nvml = Nvml(machine=bench.machine, library=str(library()), worker_env=environment)
    assert (await nvml.sample()).trouble is None
    await nvml.close()


async def test_a_library_under_the_host_s_root_is_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [gpu(0)])
    folder = bench.machine.root / f"usr/lib/{os.uname().machine}-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").symlink_to(library())  # absolute: followed inside the root
    nvml = Nvml(machine=bench.machine, worker_env={**bench.gpus.env, "LD_LIBRARY_PATH": ""})
    assert not nvml.has_library()
    (folder / "libnvidia-ml.so.1").unlink()
    (folder / "libnvidia-ml.so.1").write_bytes(library().read_bytes())
    assert nvml.has_library()
    assert (await nvml.sample()).trouble is None
    await nvml.close()


async def test_the_worker_says_what_it_does_in_its_name(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        await bench.sample()
        (pid,) = bench.nvml.worker_pids
        await until(lambda: read_state(pid).name == "nvml idle", "the worker's name")


def _pss_kib(pid: int) -> int:
    return psutil.Process(pid).memory_full_info().pss // 1024


async def test_the_worker_costs_little_memory(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(index) for index in range(8)]) as bench:
        await bench.sample()
        (pid,) = bench.nvml.worker_pids
        assert _pss_kib(pid) < 13 * 1024, "8.6 MiB when this was written"


async def test_the_worker_ends_with_the_agent_even_from_within_a_call(tmp_path: Path) -> None:
    """An orphan would keep the driver open, and a GPU reset would fail."""
    bench = Bench(tmp_path, [gpu(0)])
    bench.gpus.fail("nvmlDeviceGetUUID", hang=True)
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from nodeagent.clock import SystemClock\n"
        "from nodeagent.sources.host import HostRoots\n"
        "from nodeagent.sources.nvml import Nvml\n"
        "async def main():\n"
        "    nvml = Nvml(machine=HostRoots(clock=SystemClock(), root=Path(sys.argv[1])),"
        " deadline=0.5)\n"
        "    await nvml.sample()\n"
        "    print(*nvml.worker_pids, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **bench.gpus.env, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert agent.stdout is not None
    pid = int(await asyncio.wait_for(agent.stdout.readline(), 300))
    await until(lambda: read_state(pid).name == "nvml 0 uuid", "the hang")
    agent.send_signal(signal.SIGKILL)
    await agent.wait()
    await until(lambda: read_state(pid).state in ("", "Z"), "the worker's end")


async def test_closing_ends_the_worker(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [gpu(0)])
    await bench.sample()
    (pid,) = bench.nvml.worker_pids
    await bench.nvml.close()
    assert read_state(pid).state == ""
    assert (await bench.nvml.sample()).trouble is not None


async def test_no_worker_can_be_started_without_pynvml_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.sources.nvml_process.find_spec", lambda _name: None)
    async with Bench(tmp_path, [gpu(0)]) as bench:
        sample = await bench.nvml.sample()
    assert sample.trouble is not None
    assert sample.trouble.kind is TroubleKind.NO_LIBRARY
    assert "nvidia-ml-py" in sample.trouble.message


def test_a_process_that_is_gone_has_no_state() -> None:
    assert str(read_state(2**22 + 1)) == "state ?"
    assert read_state(os.getpid()).state == "R"
    assert SystemClock().boottime() > 0
