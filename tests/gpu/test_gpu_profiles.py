"""Active tests on the real GPU: gemm measures it, quick without DCGM has no verdict."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.clock import SystemClock
from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.gpu_users import gpu_users
from nodeagent.sources.host import HostRoots
from tests.gpu.conftest import CudaProgram, take_sample
from tests.gpu.real_agent import RealAgent, host_python, sees_host_processes, wait_for

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(90)]

_PASSED, _NO_VERDICT = 0, 3


@pytest.fixture(scope="session")
def torch_folder() -> str:
    python = host_python()
    if python is None:
        pytest.skip("no python3 on the path imports PyTorch; GPU_TORCH_PYTHON names one")
    return str(Path(python).parent)


@pytest.mark.timeout(180)
def test_gemm_passes_and_measures_each_gpu(
    folder: Path, torch_folder: str, sample: GpuSample
) -> None:
    """An agent runs meanwhile, and has its readings again afterwards."""
    agent = RealAgent(folder, tool_path=[torch_folder, "/usr/bin", "/bin"]).start()
    try:
        agent.up()
        done = agent.command("test", "--profile", "gemm", "--json", limit=150)
        assert done.returncode == _PASSED, done.stdout + done.stderr
        [step] = json.loads(done.stdout)["steps"]
        rates = [each for each in step["measurements"] if each["measure"] == "gemm-rate"]
        print(rates)
        assert len(rates) == len(sample.gpus)
        assert all(each["value"] > 10 for each in rates)
        agent.run_checks("gpu-inventory")
        agent.wait_for_status("gpu-inventory", "ok", within=90.0)
    finally:
        agent.stop()


def test_quick_without_dcgm_has_no_verdict(folder: Path) -> None:
    agent = RealAgent(folder, tool_path=["/nonexistent"])
    done = agent.command("test", "--profile", "quick", "--json")
    assert done.returncode == _NO_VERDICT, done.stdout + done.stderr
    reasons = {each["name"]: each["reason"] for each in json.loads(done.stdout)["steps"]}
    assert reasons == {"dcgm-1": "missing-tool", "fio": "missing-tool"}


def test_a_program_on_the_gpu_is_named_as_its_user(cuda: Callable[..., CudaProgram]) -> None:
    machine = HostRoots(clock=SystemClock())
    own = not sees_host_processes()
    program = cuda("hold", "train, rank 0")
    [found] = [each for each in gpu_users(machine, own_namespace=own) if each.pid == program.pid]
    assert found.name == "train, rank 0"
    assert found.file.startswith("/dev/nvidia")
    program.end()
    assert program.pid not in [each.pid for each in gpu_users(machine, own_namespace=own)]


def test_a_test_is_refused_while_a_program_has_the_gpu_open(
    folder: Path, cuda: Callable[..., CudaProgram]
) -> None:
    program = cuda("hold", "train")
    done = RealAgent(folder).command("test", "--profile", "gemm")
    assert done.returncode == _NO_VERDICT, done.stdout
    assert "a GPU is in use" in done.stderr
    assert f"train (pid {program.pid}) has /dev/nvidia" in done.stderr


def test_an_idle_gpu_has_no_user(folder: Path) -> None:
    """Other programs of this machine would be named here: the test needs a GPU without work."""
    users = gpu_users(
        HostRoots(clock=SystemClock()),
        leave_out=("nvidia-persistenced", "nv-fabricmanager"),
        own_namespace=not sees_host_processes(),
    )
    assert users == []


def test_a_gpu_at_work_is_seen_at_work(cuda: Callable[..., CudaProgram]) -> None:
    cuda("spin")

    def is_busy() -> bool:
        return any((gpu.load or 0) > 50 and not (gpu.clocks or 0) & 1 for gpu in take_sample().gpus)

    wait_for(is_busy, "a load of more than 50 %", within=30.0)
