"""The pod network, seen from it: a real prober in a namespace of its own, asked from this one."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.checks import pod_network
from nodeagent.clock import SystemClock
from nodeagent.model import Status
from nodeagent.pod_prober import LARGEST, MOST, start
from tests.agent.machines import built, made_up, options, sources, verdicts
from tests.agent.test_network_real import Wire, why_not, wire  # noqa: F401 - a fixture
from tests.controlplane.processes import stopped
from tests.support.text_files import text_file
from tests.support.waiting import until

OK = (Status.OK, "")


def place(root: Path) -> Path:
    path = root / pod_network.SOCKET.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def check_of(root: Path, **settings: object) -> pod_network.PodNetwork:
    chosen = options(pod_network.SPEC, **({"names": ("localhost",)} | settings))
    check: pod_network.PodNetwork = built(pod_network.SPEC, sources(made_up(root)), chosen)
    return check


@contextmanager
def prober(path: Path, *within: str) -> Iterator[subprocess.Popen[bytes]]:
    """The real command, in a namespace if one is named."""
    command = [sys.executable, "-m", "nodeagent.cli", "pod-prober", "--socket", str(path)]
    process = subprocess.Popen([*within, *command], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["message"] == "pod prober ready"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.root
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
async def test_it_says_what_pods_reach_and_not_what_the_host_does(
    wire: Wire,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    wire.serve(8443)
    wire.in_node("ip", "route", "add", "unreachable", "192.0.2.0/24")
    with socket.create_server(("127.0.0.1", 0)) as hosts_own:
        targets = ("10.77.0.1:8443", "10.77.0.1:8444", "192.0.2.1:80")
        own = f"127.0.0.1:{hosts_own.getsockname()[1]}"
        check = check_of(tmp_path, names=("localhost", "no.such.invalid"), targets=(*targets, own))
        with prober(place(tmp_path), "ip", "netns", "exec", wire.node):
            assert verdicts(await check.run_check()) == {
                "": OK,
                "dns://localhost": OK,
                "dns://no.such.invalid": (Status.FAILED, "unresolved"),
                "tcp://10.77.0.1:8443": OK,
                "tcp://10.77.0.1:8444": (Status.FAILED, "refused"),
                "tcp://192.0.2.1:80": (Status.FAILED, "unreachable"),
                f"tcp://{own}": (Status.FAILED, "refused"),  # loopback is another one there
            }
            wire.in_node("ip", "link", "set", "nic", "down")
            assert verdicts(await check.run_check())["tcp://10.77.0.1:8443"] == (
                Status.FAILED,
                "unreachable",
            )
            wire.in_node("ip", "link", "set", "nic", "up")
            await until_well(check, "tcp://10.77.0.1:8443")


async def until_well(check: pod_network.PodNetwork, component: str) -> None:
    for _ in range(20):
        if verdicts(await check.run_check())[component] == OK:
            return
    raise AssertionError(f"{component} did not come back")


async def test_a_stopped_prober_is_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_network, "_DEADLINE", 1.0)
    with prober(place(tmp_path)) as process:
        os.kill(process.pid, signal.SIGSTOP)
        await until(lambda: stopped(process.pid))
        assert verdicts(await check_of(tmp_path).run_check()) == {"": (Status.UNKNOWN, "hung")}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "garbled"),
        (b"\xff\xfe\n", "garbled"),
        (b"[]\n", "garbled"),
        (b'{"names": {}, "targets": {}}\n', "garbled"),  # not the answer to the request
        (b'{"names": {"localhost": "x"}, "targets": {}}\n', "garbled"),
        (b'{"error": "too many requests at once"}\n', "error"),
        (b"x" * 10**6, "error"),
    ],
)
async def test_a_prober_that_makes_no_sense_is_unknown(
    said: bytes, reason: str, tmp_path: Path
) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(said)
        writer.close()

    async with await asyncio.start_unix_server(speak, place(tmp_path)):
        assert verdicts(await check_of(tmp_path).run_check()) == {"": (Status.UNKNOWN, reason)}


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    path = tmp_path / "prober.sock"
    server = await start(path, SystemClock())
    assert path.stat().st_mode & 0o777 == 0o600

    async def question(line: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(line)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer

    yield question
    server.close()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\xff\n",
        b"7\n",
        5_000 * b"[" + b"\n",
        b'{"names": "localhost"}\n',
        b'{"targets": ["no-port"]}\n',
        b'{"targets": [7]}\n',
        json.dumps({"names": [f"n{n}.invalid" for n in range(MOST + 1)]}).encode() + b"\n",
    ],
)
async def test_the_prober_refuses_what_is_no_question(
    line: bytes, ask: Callable[[bytes], Awaitable[bytes]]
) -> None:
    assert "error" in json.loads(await ask(line))
    assert json.loads(await ask(b"{}\n")) == {"names": {}, "targets": {}}  # and lives on


async def test_the_prober_survives_an_endless_line(
    ask: Callable[[bytes], Awaitable[bytes]],
) -> None:
    assert await ask(b"x" * (LARGEST * 3)) == b""
    assert json.loads(await ask(b"{}\n")) == {"names": {}, "targets": {}}


def test_a_socket_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    file = text_file(tmp_path / "file", "somebody's")
    command = [sys.executable, "-m", "nodeagent.cli", "pod-prober", "--socket"]
    for path, why in ((file / "s", ""), (file, "the path exists and is no socket")):
        done = subprocess.run([*command, path], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert f"{path}: can't be listened on: {why}" in done.stderr
        assert "Traceback" not in done.stderr
    assert file.read_text() == "somebody's"


def test_a_prober_that_stops_takes_its_socket_away(tmp_path: Path) -> None:
    path = tmp_path / "prober.sock"
    with prober(path) as process:
        process.terminate()
        assert process.communicate(timeout=300)[0] == b""
        assert process.returncode == 0
    assert not path.exists()


def test_a_prober_that_stops_leaves_what_has_come_to_its_sockets_place(tmp_path: Path) -> None:
    path = tmp_path / "prober.sock"
    with prober(path) as first:
        path.unlink()
        path.write_text("somebody's")
        first.terminate()
        said = json.loads(first.communicate(timeout=300)[0])
        assert first.returncode == 0
    assert (said["level"], said["socket"]) == ("warning", str(path))
    assert said["message"] == "the prober's socket was not removed: another file has its place"
    assert path.read_text() == "somebody's"
    path.unlink()
    with prober(path) as first, prober(path):
        first.terminate()
        assert b"was not removed" in first.communicate(timeout=300)[0]
        with socket.socket(socket.AF_UNIX) as asker:  # its successor's
            asker.connect(str(path))


def test_a_prober_whose_socket_has_gone_stops_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "prober.sock"
    with prober(path) as process:
        path.unlink()
        process.terminate()
        assert process.communicate(timeout=300)[0] == b""
        assert process.returncode == 0
