"""A wedged driver takes two witnesses: NVML that hangs, and one that does not ask NVML."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import gpu_driver
from nodeagent.checks.base import Off
from nodeagent.clock import SystemClock
from nodeagent.model import Status
from nodeagent.sources.driver_waiters import DriverWaiter, DriverWaiters
from nodeagent.sources.gpu_sample import NvmlTrouble, TroubleKind
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kubelet_devices import CHECKPOINT, healthy_devices
from tests.agent.kernel_log import HandClock
from tests.nvml import gpu
from tests.nvml.gpu_bench import Bench, next_run, run_check
from tests.support.proc_tree import ProcTree

HANG = "nvmlDeviceGetRemappedRows"

#: The kubelet's file as Alibaba Cloud's guide on GPU nodes prints it, then the same after the
#: plugin has gone: the kubelet keeps the resource's name with an empty list.
WELL = (
    '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":'
    '["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}},"Checksum":3952659280}'
)
GONE = WELL.replace('"GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"', "")


def kubelet_says(bench: Bench, text: str) -> None:
    path = bench.machine.host(CHECKPOINT)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def hung(bench: Bench) -> gpu_driver.GpuDriver:
    """A check that has seen NVML answer, then hang for an hour."""
    check = bench.build(gpu_driver.SPEC)
    assert (await run_check(check)).status("") == ("OK", "")
    bench.gpus.fail(HANG, hang=True)
    assert (await next_run(bench, check)).status("") == ("UNKNOWN", "hung"), (
        "a moment is no evidence"
    )
    bench.later(3600)
    return check  # type: ignore[return-value]


def made_up(tmp_path: Path) -> tuple[ProcTree, Bench]:
    tree = ProcTree(tmp_path / "proc")
    bench = Bench(tmp_path / "gpus", [gpu(0)], proc=tree.folder, deadline=0.5, patience=1e9)
    return tree, bench


async def test_nvml_that_hangs_alone_is_degraded_and_never_wedged(tmp_path: Path) -> None:
    tree, bench = made_up(tmp_path)
    async with bench:
        tree.add(4711, "python3", state="D", wchan="folio_wait_bit_common")
        kubelet_says(bench, WELL)
        check = await hung(bench)
        for _ in range(3):
            assert (await run_check(check)).status("") == ("DEGRADED", "hung")
            bench.later()


async def test_a_program_that_waits_in_the_driver_is_the_second_witness(tmp_path: Path) -> None:
    # The function is that of https://github.com/rwth-i6/returnn/issues/1480 (driver 525, D state).
    tree, bench = made_up(tmp_path)
    async with bench:
        tree.add(15277, "python3.11", state="D", wchan="uvm_page_tree_get_ptes_async")
        check = await hung(bench)
        seen = await run_check(check)
        assert seen.status("") == ("FAILED", "wedged")
        message = seen.by_component[""].message
        assert "python3.11 (pid 15277) in uvm_page_tree_get_ptes_async" in message
        bench.gpus.heal()
        await bench.answered()
        assert (await next_run(bench, check)).status("") == ("OK", "")


async def test_a_kubelet_without_gpus_is_the_second_witness(tmp_path: Path) -> None:
    _, bench = made_up(tmp_path)
    async with bench:
        check = await hung(bench)
        kubelet_says(bench, GONE)
        seen = await run_check(check)
        assert seen.status("") == ("FAILED", "wedged")
        assert "no healthy device of nvidia.com/gpu" in seen.by_component[""].message
        kubelet_says(bench, WELL)
        assert (await next_run(bench, check)).status("") == ("DEGRADED", "hung")


async def test_a_kubelet_without_gpus_proves_nothing_while_nvml_answers(tmp_path: Path) -> None:
    tree, bench = made_up(tmp_path)
    async with bench:
        kubelet_says(bench, GONE)
        tree.add(15277, "python3.11", state="D", wchan="uvm_page_tree_get_ptes_async")
        check = bench.build(gpu_driver.SPEC)
        for _ in range(3):
            assert (await run_check(check)).status("") == ("OK", "")
            bench.later(600)


async def test_the_time_of_a_hang_goes_on_with_a_new_worker_that_hangs_too(tmp_path: Path) -> None:
    _, bench = made_up(tmp_path)
    async with bench:
        bench.nvml._patience = 60.0
        check = await hung(bench)
        bench.gpus.fail("nvmlInitWithFlags", hang=True)
        assert (await run_check(check)).status("") == ("DEGRADED", "hung"), (
            "this look ends the worker"
        )
        assert (await next_run(bench, check)).status("") == ("DEGRADED", "hung"), (
            "the next one starts"
        )
        assert bench.gpus.calls("nvmlInitWithFlags") == 2


async def test_a_quiesce_ends_the_time_of_a_hang(tmp_path: Path) -> None:
    _, bench = made_up(tmp_path)
    async with bench:
        check = await hung(bench)
        kubelet_says(bench, GONE)
        await bench.nvml.quiesce(600)
        assert (await run_check(check)).status("") == ("UNKNOWN", "quiesced")
        assert (await next_run(bench, check, 601)).status("")[0] == "UNKNOWN", (
            "the hang is as old as this look"
        )


async def test_a_machine_without_a_gpu_has_no_driver_to_watch(tmp_path: Path) -> None:
    async with Bench(tmp_path, library="/nonexistent/libnvidia-ml.so.1") as bench:
        assert isinstance(await bench.build(gpu_driver.SPEC).run_check(), Off)


# -- who waits in the driver ---------------------------------------------------------------------


async def waiters(tmp_path: Path, *, skip: tuple[int, ...] = ()) -> list[tuple[int, str]]:
    clock = HandClock(1000.0)
    found = DriverWaiters(HostRoots(clock=clock, proc=tmp_path))
    assert await found.sample(skip) == [], "the first look has no duration"
    clock.now += 60
    return [(each.pid, each.where) for each in await found.sample(skip)]


@pytest.mark.parametrize(
    ("wchan", "opened", "counts"),
    [
        ("os_acquire_rwlock_write", (), True),
        ("_nv035874rm", (), True),
        ("uvm_page_tree_get_ptes_async", (), True),
        ("nvkms_ioctl_from_kapi_try_pmlock", (), True),
        # As ps shows it in https://github.com/gpustack/gpustack/issues/3908 (kernel 6.8).
        ("rwsem_down_read_slowpath", ("/dev/null", "/dev/nvidiactl"), True),
        ("rwsem_down_read_slowpath", ("/dev/null", "/data/model"), False),
        ("msleep", ("/dev/nvidia0",), True),
        ("nvme_submit_sync_cmd", ("/dev/nvidia0",), False),
        ("folio_wait_bit_common", ("/dev/nvidia0",), False),
        ("", ("/dev/nvidia0",), False),
        ("0", ("/dev/nvidia0",), False),
    ],
)
async def test_only_a_wait_in_the_driver_counts(
    tmp_path: Path,
    wchan: str,
    opened: tuple[str, ...],
    counts: bool,  # noqa: FBT001  # pytest gives it by name
) -> None:
    ProcTree(tmp_path).add(77, "python3", state="D", wchan=wchan, opened=opened)
    assert await waiters(tmp_path) == ([(77, wchan)] if counts else [])


async def test_a_thread_waits_for_its_process(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.add(77, "python3", state="Z")
    tree.add(77, "python3", state="D", wchan="os_acquire_mutex", thread=78)
    tree.add(77, "python3", state="D", wchan="os_acquire_mutex", thread=79)
    assert await waiters(tmp_path) == [(77, "os_acquire_mutex")]


async def test_the_agents_own_workers_are_no_witness(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.add(77, "python3", state="D", wchan="os_acquire_mutex")
    tree.add(78, "nvml 3 rows", state="D", wchan="os_acquire_mutex")
    assert await waiters(tmp_path, skip=(77,)) == []


@pytest.mark.parametrize("groups", [2, 60_000])
async def test_a_thread_that_moved_between_two_looks_does_not_wait(
    tmp_path: Path, groups: int
) -> None:
    clock = HandClock(1000.0)
    tree = ProcTree(tmp_path)
    found = DriverWaiters(HostRoots(clock=clock, proc=tmp_path))
    for switches in range(5, 9):
        tree.add(
            77, "python3", state="D", wchan="os_acquire_mutex", switches=switches, groups=groups
        )
        assert await found.sample(()) == []
        clock.now += 60
    assert len(await found.sample(())) == 1, "it has not moved since the last of them"


@pytest.mark.parametrize("status", [None, "Name:\tpython3\n"])
async def test_a_thread_whose_switches_are_unknown_does_not_wait(
    tmp_path: Path, status: str | None
) -> None:
    ProcTree(tmp_path).add(77, "python3", state="D", wchan="os_acquire_mutex")
    path = tmp_path / "77/task/77/status"
    path.unlink()
    if status is not None:
        path.write_text(status)
    assert await waiters(tmp_path) == []


async def test_a_machine_of_many_threads_is_read_up_to_a_bound(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    for pid in range(100, 120):
        tree.add(pid, "python3", state="D", wchan="os_acquire_mutex")
    clock = HandClock(1000.0)
    found = DriverWaiters(HostRoots(clock=clock, proc=tmp_path), most=12)
    await found.sample(())
    clock.now += 60
    assert len(await found.sample(())) == 10, "12 less the host's first two"


# -- the kubelet's record ------------------------------------------------------------------------


@given(
    st.one_of(
        st.binary(max_size=64),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=4),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["Data", "RegisteredDevices", "nvidia.com/gpu"]), inner
                )
            ),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_a_record_that_cannot_be_understood_is_no_witness(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    machine = HostRoots(clock=SystemClock(), root=tmp_path_factory.getbasetemp() / "kubelet")
    machine.host(CHECKPOINT).parent.mkdir(parents=True, exist_ok=True)
    machine.host(CHECKPOINT).write_bytes(raw)
    found = healthy_devices(machine, "nvidia.com")
    assert all(count >= 0 for count in found.values())


@pytest.mark.parametrize("gpu", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-7g"])
def test_network_adapters_of_the_vendor_are_no_gpus(tmp_path: Path, gpu: str) -> None:
    machine = HostRoots(clock=SystemClock(), root=tmp_path)
    machine.host(CHECKPOINT).parent.mkdir(parents=True)
    registered = {gpu: [], "nvidia.com/hostdev": ["0000:3b:00.0"]}
    machine.host(CHECKPOINT).write_text(json.dumps({"Data": {"RegisteredDevices": registered}}))
    assert healthy_devices(machine, "nvidia.com") == {gpu: 0}


def test_only_the_vendors_devices_are_counted(tmp_path: Path) -> None:
    machine = HostRoots(clock=SystemClock(), root=tmp_path)
    assert healthy_devices(machine, "nvidia.com") == {}
    machine.host(CHECKPOINT).parent.mkdir(parents=True)
    registered = {"nvidia.com/gpu": [], "nvidia.com/mig-1g.10gb": ["a", "b"], "rdma/hca": ["1"]}
    machine.host(CHECKPOINT).write_text(json.dumps({"Data": {"RegisteredDevices": registered}}))
    assert healthy_devices(machine, "nvidia.com") == {
        "nvidia.com/gpu": 0,
        "nvidia.com/mig-1g.10gb": 2,
    }


# -- the verdict alone ---------------------------------------------------------------------------


@given(
    seconds=st.floats(0, 1e6),
    waiting=st.integers(0, 3),
    devices=st.dictionaries(
        st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig"]), st.integers(0, 8)
    ),
)
def test_no_single_witness_is_ever_failed(
    seconds: float, waiting: int, devices: dict[str, int]
) -> None:
    waits = [DriverWaiter(pid, "python3", "os_acquire_mutex", 60.0) for pid in range(waiting)]
    trouble = NvmlTrouble(TroubleKind.HUNG, "nvmlInit has not returned")
    seen = gpu_driver.evaluate(trouble, seconds, waits, devices, hung_for=180)
    second = bool(waits) or (bool(devices) and sum(devices.values()) == 0)
    assert (seen.status is Status.FAILED) == (seconds >= 180 and second)
    assert (seen.status is Status.UNKNOWN) == (seconds < 180)
