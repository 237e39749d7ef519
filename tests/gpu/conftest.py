"""Skips without a GPU; an agent on this machine, and programs on its GPU."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent import factory
from nodeagent.clock import SystemClock
from nodeagent.config.settings import default
from nodeagent.sources.gpu_sample import GpuSample
from tests.gpu import cuda_program
from tests.gpu.real_agent import RealAgent

DEVICE = Path("/dev/nvidiactl")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not DEVICE.exists():
        pytest.skip(f"needs an NVIDIA GPU with its driver: there is no {DEVICE}")


def take_sample() -> GpuSample:
    """One sample by the agent's own sources, as the default configuration wants them."""

    async def sample() -> GpuSample:
        config = default({"NODE_NAME": "gpu-node"})
        sources = factory.sources(config, factory.machine(config, SystemClock()), None)
        try:
            return await sources.nvml.sample()
        finally:
            await sources.nvml.close()

    return asyncio.run(sample())


@pytest.fixture(scope="session")
def sample() -> GpuSample:
    """One sample of this machine."""
    taken = take_sample()
    assert taken.trouble is None, taken.trouble
    return taken


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, as a unix socket's must be."""
    with tempfile.TemporaryDirectory(prefix="sickbay-gpu-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture
def agent(folder: Path) -> Iterator[RealAgent]:
    """A running agent that has had its first answer from NVML."""
    agent = RealAgent(folder)
    try:
        yield agent.start().up()
    finally:
        agent.stop()


class CudaProgram:
    """A running cuda_program, which has the GPU."""

    def __init__(self, kind: str, name: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, cuda_program.__file__, kind, *([name] if name else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            _, why = self.process.communicate()
            if self.process.returncode == cuda_program.MISSING:
                pytest.skip(why.strip())
            raise AssertionError(why)

    def end(self) -> dict[str, object]:
        """Let it end; CUDA's result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        # Not communicate: it leaves out lines that have come with "ready".
        out, err = self.process.stdout.read(), self.process.stderr.read()
        assert self.process.wait() == 0, err
        found: dict[str, object] = json.loads(out)
        return found


@pytest.fixture
def cuda() -> Iterator[Callable[..., CudaProgram]]:
    """Starts a program on the GPU; all end with the test."""
    started: list[CudaProgram] = []

    def start(kind: str, name: str = "") -> CudaProgram:
        started.append(CudaProgram(kind, name))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        for pipe in (each.process.stdin, each.process.stdout, each.process.stderr):
            if pipe is not None:
                pipe.close()
