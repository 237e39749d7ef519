"""A program that the fork server starts is like one that a shell starts."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.waiting import wait_until
from tests.support import fork_server
from tests.support.fork_server import (
    ROOT,
    SHARED,
    run_program,
    share_fork_servers,
    start_program,
)
from tests.support.shown_process import SHOWN

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def start(log: Path) -> Start:
    def start(*arguments: str, **how: Any) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return start_program(SHOWN, arguments or ("0", "HOME"), output=output, **how)

    return start


def read_line(log: Path) -> dict[str, Any]:
    """The first line of the process."""
    line = wait_until(lambda: "\n" in (text := log.read_text()) and text, what="its line")
    found: dict[str, Any] = json.loads(str(line).splitlines()[0])
    return found


def test_a_process_has_the_arguments_files_and_environment_of_its_start(
    start: Start, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start().wait(300)  # the server runs now, with another environment
    monkeypatch.setenv("SICKBAY_TEST", "of this start")
    process = start("7", "SICKBAY_TEST", piped=True)
    assert process.stdin is not None
    assert read_line(log) == {
        "command": "show",
        "cwd": str(ROOT),
        "files": [0, 1, 2],
        "interruptible": True,
        "leads_session": False,
        "pid": process.pid,
        "variable": "of this start",
    }
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(300) == 7
    assert process.poll() == process.returncode == 7
    assert "the end\n" in log.read_text()


def test_a_process_is_forked_by_a_server_and_a_real_start_tells_the_same(
    start: Start, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parent(process: subprocess.Popen[bytes]) -> int:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    shown = []
    for forking in (True, False):
        if not forking:
            monkeypatch.setattr(fork_server, "_forking", [])
        process = start(piped=True)
        assert process.stdin is not None
        shown.append({**read_line(log), "pid": 0})
        assert (parent(process) == os.getpid()) is not forking
        process.stdin.close()
        assert process.wait(300) == 0
    assert shown[0] == shown[1]


@pytest.mark.parametrize("forking", [True, False])
def test_a_program_that_is_run_to_its_end_gives_its_code_and_both_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, forking: bool
) -> None:
    monkeypatch.setattr(fork_server, "_forking", [True] if forking else [])
    monkeypatch.chdir(tmp_path)
    environ = {**os.environ, "SICKBAY_TEST": "of this run"}
    done = run_program(SHOWN, ["7", "SICKBAY_TEST"], environment=environ, limit=300)
    line, *more = done.stdout.splitlines()
    shown = json.loads(line)
    assert more == ["at exit"]
    assert (shown["cwd"], shown["variable"]) == (str(tmp_path), "of this run")
    assert (done.returncode, done.stderr) == (7, "the end\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_a_process_and_its_code_says_so(
    start: Start, log: Path, number: signal.Signals
) -> None:
    process = start(piped=True, new_session=True)
    assert read_line(log)["leads_session"]
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(number)
    assert process.wait(300) == -number
    process.kill()  # of a process that has ended: no other one is killed
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LC_ALL", "PYTHONHASHSEED"])
def test_a_process_whose_loader_or_python_differs_is_no_fork(
    start: Start, log: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, {"LD_PRELOAD": "", "LC_ALL": "C"}.get(name, "1"))
    process = start("0", name)
    assert read_line(log)["variable"] == os.environ[name]
    assert process.wait(300) == 0
    assert type(process) is subprocess.Popen


@pytest.mark.parametrize("end", ["fork_server.end_fork_servers()", "os._exit(0)"])
def test_a_server_ends_with_the_process_that_started_it(end: str) -> None:
    code = f"""
import os, sys
from tests.support import fork_server
from tests.support.shown_process import SHOWN
fork_server.start_programs_by_fork()
fork_server.start_program(SHOWN, ["0", "HOME"], output=sys.stderr.buffer).wait()
print(fork_server._servers[SHOWN.load]._process.pid, flush=True)
{end}
"""
    own = {key: value for key, value in os.environ.items() if key != SHARED}
    server = int(printed_by(code, own))
    wait_until(lambda: not Path(f"/proc/{server}").exists(), what="the server to end")


def printed_by(code: str, environment: Mapping[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def test_processes_share_a_server_unless_a_fork_would_inherit_something_else() -> None:
    code = """
import resource, subprocess, sys
from tests.support import fork_server
from tests.support.shown_process import SHOWN
if False:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
fork_server.start_programs_by_fork()
process = fork_server.start_program(SHOWN, ["0", "HOME"], output=sys.stderr.buffer, piped=True)
print(open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()[1], flush=True)
process.stdin.close()
process.wait(300)
"""
    environment = dict(os.environ)
    with share_fork_servers([SHOWN.load], environment) as folder:
        environment[SHARED] = folder
        servers = {printed_by(code, environment) for _ in range(2)}
        assert len(servers) == 1
        for changed in (
            {SHARED: f"{folder}-that-has-ended"},
            {"GRPC_VERBOSITY": "DEBUG"},
            {"PYTHONOPTIMIZE": "1"},
        ):
            assert printed_by(code, environment | changed) not in servers, changed
        assert printed_by(code, environment | {"PYTHONSAFEPATH": ""}) in servers
        limited = code.replace("if False", "if True")
        assert printed_by(limited, environment) not in servers


def test_a_shared_server_serves_others_when_a_process_has_ended_before_its_answer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    with share_fork_servers([SHOWN.load], os.environ) as folder:
        monkeypatch.setenv(SHARED, folder)
        monkeypatch.setattr(fork_server, "_servers", {})
        message = {"arguments": ["show", "0", "HOME"], "cwd": "/", "environment": {}}
        text = json.dumps(message | {"new_session": False}).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ended:
            ended.connect(f"{folder}/{SHOWN.load}")
            with Path(os.devnull).open("r+b") as file:
                socket.send_fds(ended, [text], [file.fileno()] * 4)
                wait_until(lambda: select.select([ended], [], [], 0)[0], what="the answer")
        assert start().wait(300) == 0
        fork_server.end_fork_servers()


def test_a_run_that_ctrl_c_ends_can_still_kill_what_it_has_started(tmp_path: Path) -> None:
    (tmp_path / "test_interrupted.py").write_text(
        """
import os, signal
from pathlib import Path
import pytest
from tests.support.fork_server import start_program
from tests.support.shown_process import SHOWN

@pytest.fixture
def process(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        started = start_program(SHOWN, ["0", "HOME"], output=log, piped=True)
    yield started
    started.kill()
    Path("code").write_text(str(started.wait(300)))

def test_is_interrupted(process):
    os.kill(os.getpid(), signal.SIGINT)
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--rootdir", tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert (tmp_path / "code").read_text() == "-9", done.stdout + done.stderr
