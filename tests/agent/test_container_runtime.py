"""The container runtime's socket: a real gRPC server, one that is stopped, gone, or none at all."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc.aio
import pytest

from nodeagent.checks import container_runtime
from nodeagent.model import Status
from tests.agent.machines import built, made_up, observations, options, sources, verdicts
from tests.controlplane.processes import stopped
from tests.support.waiting import until

OK = (Status.OK, "")
PATH = "/run/containerd/containerd.sock"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_runtime, "_DEADLINE", 5.0)


def check_of(root: Path, *sockets: str) -> container_runtime.ContainerRuntime:
    settings = options(container_runtime.SPEC, sockets=sockets)
    check: container_runtime.ContainerRuntime = built(
        container_runtime.SPEC, sources(made_up(root)), settings
    )
    return check


def place(root: Path) -> Path:
    path = root / PATH.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


async def test_a_real_grpc_server_answers_and_its_end_is_noticed(tmp_path: Path) -> None:
    server = grpc.aio.server()
    server.add_insecure_port(f"unix:{place(tmp_path)}")
    await server.start()
    check = check_of(tmp_path)
    try:
        assert verdicts(await check.run_check()) == {PATH: OK}
        said = observations(await check.run_check())[PATH]
        assert (said.status, said.reason) == OK
        assert re.fullmatch(r"answers in \d+\.\d ms", said.message)
    finally:
        await server.stop(None)
    found = verdicts(await check.run_check())
    assert found[PATH] in ((Status.FAILED, "missing"), (Status.FAILED, "refused"))


_SERVER = """
import grpc, sys
from concurrent.futures import ThreadPoolExecutor
server = grpc.server(ThreadPoolExecutor(1))
server.add_insecure_port("unix:" + sys.argv[1])
server.start()
print("ready", flush=True)
server.wait_for_termination()
"""


@contextmanager
def server_process(path: Path) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", _SERVER, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


async def test_a_stopped_runtime_takes_connections_and_hangs(tmp_path: Path) -> None:
    check = check_of(tmp_path)
    with server_process(place(tmp_path)) as pid:
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: stopped(pid))
        assert verdicts(await check.run_check()) == {PATH: (Status.FAILED, "timeout")}
        os.kill(pid, signal.SIGCONT)
        assert verdicts(await check.run_check()) == {PATH: OK}
    assert verdicts(await check.run_check()) == {PATH: (Status.FAILED, "refused")}


async def test_a_file_that_a_dead_runtime_left_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place(tmp_path)))
    assert verdicts(await check_of(tmp_path).run_check()) == {PATH: (Status.FAILED, "refused")}


async def test_what_answers_must_be_grpc(tmp_path: Path) -> None:
    path = place(tmp_path)

    def garble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello, who?")
        writer.close()

    server = await asyncio.start_unix_server(garble, path)
    async with server:
        assert verdicts(await check_of(tmp_path).run_check()) == {PATH: (Status.FAILED, "garbled")}
    path.unlink(missing_ok=True)
    path.write_text("no socket")
    assert verdicts(await check_of(tmp_path).run_check()) == {PATH: (Status.FAILED, "refused")}
