"""A running agent lets go of the real driver, and takes it up again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.conftest import CudaProgram
from tests.gpu.real_agent import RealAgent, device_files, wait_for
from tests.support.present import present

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(90)]


def test_only_the_nvml_worker_has_the_driver_open(agent: RealAgent) -> None:
    [(pid, files)] = agent.device_files().items()
    assert "/dev/nvidiactl" in files
    assert b"nvml_worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_quiesced_agent_has_no_device_file_of_a_gpu_open(agent: RealAgent) -> None:
    done = agent.command("quiesce", "--for", "10m")
    assert done.returncode == 0, done.stderr
    assert agent.device_files() == {}
    found = present(agent.result("gpu-inventory"))
    assert (found["status"], found["reason"]) == ("unknown", "quiesced")


def test_an_agent_whose_quiesce_has_ended_uses_the_driver_again(agent: RealAgent) -> None:
    agent.command("quiesce", "--for", "10m")
    assert agent.device_files() == {}
    done = agent.command("quiesce", "--end")
    assert done.returncode == 0, done.stderr
    agent.run_checks("gpu-inventory")
    agent.wait_for_status("gpu-inventory", "ok", within=90.0)
    assert agent.device_files()


def test_an_agent_that_is_killed_leaves_no_process_at_the_driver(agent: RealAgent) -> None:
    workers = list(agent.device_files())
    assert agent.process is not None
    agent.process.kill()
    agent.process.wait()
    wait_for(lambda: not any(list(device_files(pid)) for pid in workers), "the worker's end")


def test_the_driver_is_let_go_of_while_a_program_works_on_the_gpu(
    agent: RealAgent, cuda: Callable[..., CudaProgram]
) -> None:
    program = cuda("spin")
    assert agent.command("quiesce", "--for", "10m").returncode == 0
    assert agent.device_files() == {}
    assert program.end()["result"] == 0
