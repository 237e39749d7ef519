"""Fixtures of several agent tests: a played aggregator, agents, a disk that hangs."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.child_process import ChildProcess
from tests.agent import fuse_server
from tests.agent.agent_process import AgentProcess, Make
from tests.agent.fuse_server import Filer
from tests.controlplane.ports import ReservedPort
from tests.support.fake_aggregator import FakeAggregator


@pytest.fixture(autouse=True)
def _ended_children(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Children that a test's sources have started end with it, read or not.

    A probe answers before its child ends, and most tests end with the answer.
    """
    started: list[ChildProcess] = []
    start = ChildProcess.__init__

    def record(child: ChildProcess, *arguments: Any, **options: Any) -> None:
        start(child, *arguments, **options)
        started.append(child)

    monkeypatch.setattr(ChildProcess, "__init__", record)
    yield
    for child in started:
        process = child._process
        assert process.stdout is not None
        process.stdout.close()
        if process.stdin is not None:
            process.stdin.close()
        process.kill()
        process.wait()


@pytest.fixture
async def aggregator() -> AsyncIterator[FakeAggregator]:
    with ReservedPort() as port:  # a test may stop it, and another one begins in its place
        aggregator = await FakeAggregator().start(f"127.0.0.1:{port.number}")
        yield aggregator
        await aggregator.stop()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes agents, in folders of their own; all end with the test."""
    made: list[AgentProcess] = []

    def make(name: str = "node", **how: object) -> AgentProcess:
        agent = AgentProcess(tmp_path / name, **how)  # type: ignore[arg-type]  # a test's words
        made.append(agent)
        return agent

    yield make
    for agent in made:
        agent.close()


@pytest.fixture
def frozen_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 on a loop device, frozen: writes to it wait in the kernel until it is thawed."""
    image, mount = tmp_path / "image", tmp_path / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(16 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    try:
        subprocess.run(["fsfreeze", "-f", mount], check=True)
        yield mount
    finally:
        subprocess.run(["fsfreeze", "-u", mount], check=False)  # the test may have thawed it
        subprocess.run(["umount", "-l", mount], check=True)


@pytest.fixture
def filer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Filer]:
    """A remote filesystem and its server; while the server is stopped, a read of it waits.

    A parameter is the error of its root.
    """
    if os.geteuid() != 0 or not Path("/dev/fuse").exists() or shutil.which("umount") is None:
        pytest.skip("needs root, /dev/fuse and umount")
    point = tmp_path / "home"
    point.mkdir()
    command = [sys.executable, fuse_server.__file__, str(point), str(getattr(request, "param", 0))]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "mounted\n"
    try:
        yield Filer(point, server)
    finally:
        server.kill()
        server.communicate()
        subprocess.run(["umount", "--lazy", point], check=False)
