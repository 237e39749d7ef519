"""Starts of the product's programs in tests, without an import of their modules at each.

An import takes most of the processor's time of a start, and tests start the aggregator alone a
hundred times. So one process for each program imports its modules once, and forks for each start
(fork_server_main.py). What it forks is a process of its own, with its own pid, command line,
environment and files, which can be killed.

The processes of `make test` share these servers: each takes 0.2 to 1.1 s of a processor to start
(`share_fork_servers`).

Benchmarks start the real programs, and so do the tests of a program's start. Tests of a command's
output and exit code fork (`run_program`).
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
#: A program's main function, which takes its command line.
Main = Callable[[Sequence[str]], object]
#: Variables that the loader, Python and libraries read at their start, which is before a fork. In
#: LD_LIBRARY_PATH the agent itself looks for NVML.
_READ_EARLY = ("GRPC_", "LANG", "LC_", "LD_PRELOAD", "MALLOC_", "OPENSSL_", "PYTHON")
#: The folder of the sockets of servers that another process has started.
SHARED = "SICKBAY_FORK_SERVERS"
#: What a process inherits beside its environment, in its folder in /proc.
_INHERITED = ("cgroup", "limits")
_FACTS = "surroundings"
_MOST_CLIENTS = 100


@dataclass(frozen=True, slots=True)
class Program:
    """A command of a program: ``sickbay-aggregator run``; without a ``command`` any of it.

    ``load``: "module:function" that imports what the command imports, and returns its `Main`.
    """

    load: str
    program: Sequence[str]
    command: str = ""


def start_program(
    what: Program,
    arguments: Sequence[str | Path],
    *,
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    piped: bool = False,
    new_session: bool = False,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> subprocess.Popen[bytes]:
    """Start the program; in tests by a fork, where that makes no difference.

    Output goes to ``output``, and without ``errors`` so do those. ``piped``: its standard input is
    a pipe. ``before``: a command line that runs the program's. ``environment``: instead of this
    process's. ``folder``: where it begins.
    """
    given = [*([what.command] if what.command else []), *map(str, arguments)]
    environment = dict(os.environ if environment is None else environment)
    if _forking and not before:
        with _one_server:
            if what.load not in _servers:
                _servers[what.load] = _shared(what.load) or _ForkServer(what.load)
            server = _servers[what.load]
        if server.can_start(environment):
            start = _Start(given, environment, folder, piped, new_session)
            return server.start(start, output, errors or output)
    return subprocess.Popen(
        [*before, *what.program, *given],
        stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
        stdout=output,
        stderr=errors or subprocess.STDOUT,
        cwd=folder,
        env=environment,
        start_new_session=new_session,
    )


def run_program(
    what: Program,
    arguments: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    limit: float,
) -> "subprocess.CompletedProcess[str]":
    """Run the program in this process's folder to its end, as `subprocess.run` does, without input.

    ``limit``: seconds. Raises TimeoutExpired, and has ended the program then.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start_program(
            what,
            arguments,
            output=output,
            errors=errors,
            environment=environment,
            folder=Path.cwd(),
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess([*what.program, *map(str, arguments)], code, *texts)


def start_programs_by_fork() -> None:
    """From now on, `start_program` forks where it can."""
    _forking.append(True)


@contextlib.contextmanager
def share_fork_servers(loads: Iterable[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Servers with this environment, which processes use that have the value in `SHARED`.

    A process in other namespaces or another cgroup, or with other limits, starts its own.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sickbay-fork-") as folder,
        contextlib.ExitStack() as ends,
    ):
        Path(folder, _FACTS).write_text(_surroundings(environment))
        for load in loads:
            ends.callback(_ForkServer(load, environment, _socket(folder, load)).close)
        yield folder


def end_fork_servers() -> None:
    """End them: the time of their processes is then that of this process's children."""
    while _servers:
        _, server = _servers.popitem()
        server.close()


@dataclass(frozen=True, slots=True)
class _Start:
    """What a fork is to become; the fields of `start_program`."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    piped: bool
    new_session: bool


class _Server:
    """A process that forks for each start of one program, and the way to it."""

    def __init__(self, channel: socket.socket, environment: Mapping[str, str]) -> None:
        self._channel = channel
        self._environment = _read_early(environment)
        self._one_start = threading.Lock()

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork obeys all of this environment, and the server still runs."""
        return _read_early(environment) == self._environment

    def start(self, start: _Start, output: IO[bytes], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        our_end, their_end = os.pipe()
        if start.piped:
            stdin, pipe = os.pipe()
        else:
            stdin, pipe = os.open(os.devnull, os.O_RDONLY), -1
        message = {
            "arguments": start.arguments,
            "cwd": str(start.folder),
            "environment": start.environment,
            "new_session": start.new_session,
        }
        files = [their_end, stdin, output.fileno(), errors.fileno()]
        with self._one_start:
            socket.send_fds(self._channel, [json.dumps(message).encode()], files)
            pid = self._channel.recv(16)
        os.close(their_end)
        os.close(stdin)
        assert pid, "the fork server has ended; its errors are in this process's stderr"
        return _Forked(
            int(pid),
            start.arguments,
            os.fdopen(our_end, "rb", 0),
            os.fdopen(pipe, "wb", 0) if start.piped else None,
        )

    def close(self) -> None:
        self._channel.close()


class _ForkServer(_Server):
    """A server of this process, with which it ends. ``path``: of a socket for other processes."""

    def __init__(
        self, load: str, environment: Mapping[str, str] | None = None, path: str = ""
    ) -> None:
        environment = dict(os.environ if environment is None else environment)
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(channel, environment)
        line = [sys.executable, "-m", "tests.support.fork_server_main", load]
        with theirs, contextlib.ExitStack() as after:
            files = [theirs.fileno()]
            if path:
                # It is there before the server has loaded: whoever connects meanwhile waits.
                listener = after.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                listener.bind(path)
                listener.listen(_MOST_CLIENTS)
                files.append(listener.fileno())
            self._process = subprocess.Popen(
                [*line, *map(str, files[1:])],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                env=environment,
                pass_fds=files[1:],
            )

    def can_start(self, environment: Mapping[str, str]) -> bool:
        return super().can_start(environment) and self._process.poll() is None

    def close(self) -> None:
        super().close()
        self._process.wait()


def _shared(load: str) -> _Server | None:
    """Another process's server of this program, where its forks are as this process's would be."""
    folder = os.environ.get(SHARED)
    if folder is None or _surroundings(os.environ) != _facts_of(folder):
        return None
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.connect(_socket(folder, load))
    except OSError:  # it has none of this program
        channel.close()
        return None
    return _Server(channel, os.environ)


class _Forked(subprocess.Popen[bytes]):
    """A process that a fork server has started: the server waits for it, and tells its end."""

    def __init__(
        self, pid: int, arguments: Sequence[str], end: IO[bytes], stdin: IO[bytes] | None
    ) -> None:
        # Popen's own __init__ would start a process.
        self.pid, self.args = pid, arguments
        self.stdin, self.stdout, self.stderr = stdin, None, None
        self.returncode: int | Any = None
        self._end = end

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._end, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            with self._end:
                told = self._end.read()
            if not told:
                raise ChildProcessError(f"the fork server of process {self.pid} has ended")
            self.returncode = int(told)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _surroundings(environment: Mapping[str, str]) -> str:
    """What a process of this one inherits, as a text to compare."""
    own = Path("/proc/self")
    namespaces = {link.name: str(link.readlink()) for link in sorted((own / "ns").iterdir())}
    files = {name: (own / name).read_text() for name in _INHERITED}
    return json.dumps([_read_early(environment), namespaces, files], sort_keys=True)


def _facts_of(folder: str) -> str:
    try:
        return Path(folder, _FACTS).read_text()
    except FileNotFoundError:  # who shared them has ended
        return ""


def _socket(folder: str, load: str) -> str:
    return f"{folder}/{load}"


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    found = {key: value for key, value in environment.items() if key.startswith(_READ_EARLY)}
    # Python takes an empty one of its own as none, and make can export no other to unset it.
    return {key: value for key, value in found.items() if value or not key.startswith("PYTHON")}


#: By what they have loaded.
_servers: dict[str, _Server] = {}
#: Two threads of a test may start the first process of a program.
_one_server = threading.Lock()
_forking: list[bool] = []
