"""The real ``sickbay-agent`` as a process, and a stand-in for an agent on a unix socket."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nodeagent.local.findings import Findings, Latched, Result
from nodeagent.model import ClearedBy, Status
from tests.agent.agent_process import QUIET
from tests.agent.kernel_log import pci_device
from tests.support.agent_programs import AGENT_COMMANDS
from tests.support.fork_server import run_program
from tests.support.text_files import text_file

PROGRAM = Path(sys.executable).with_name("sickbay-agent")


@dataclass(frozen=True)
class Done:
    """How a command ended, and after how many seconds."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def row(self, word: str) -> str:
        """The only line of the output that has ``word``."""
        [line] = [line for line in self.out.splitlines() if word in line]
        return line


def agent(*arguments: str | Path, env: Mapping[str, str] | None = None, limit: float = 300) -> Done:
    began = time.monotonic()
    done = run_program(
        AGENT_COMMANDS, arguments, environment={**os.environ, **(env or {})}, limit=limit
    )
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def configured(folder: Path, more: str = QUIET, *, top: str = "") -> Path:
    """The configuration of a machine without a GPU whose files are in ``folder``."""
    pci_device(folder / "sys", "0000:00:00.0", "0x060000", vendor="0x8086")
    (folder / "root/etc").mkdir(parents=True, exist_ok=True)
    log = folder / "kmsg.log"
    log.touch()
    return text_file(
        folder / "agent.toml",
        f'node = "n1"\nhost_root = "{folder}/root"\nsys = "{folder}/sys"\n'
        f'run_dir = "{folder}/run"\nstate_dir = "{folder}/state"\n{top}\n'
        f'[kernel_log]\npath = "{log}"\n{more}',
    )


def answer(*results: Result, faults: Sequence[Latched] = ()) -> bytes:
    """The answer of an agent with these findings."""
    body = json.dumps(Findings("n1", "agent", results, faults).as_json()).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def result(status: Status, component: str = "/") -> Result:
    return Result("disk-space", component, status, "full", "so and so full", 12.0)


def fault(cleared_by: ClearedBy = ClearedBy.REBOOT, *, historical: bool = False) -> Latched:
    return Latched(
        code="xid:79",
        check="xid",
        component="GPU-5a2f",
        message="fallen off",
        count=3,
        first_age_seconds=60.0,
        last_age_seconds=5.0,
        cleared_by=cleared_by,
        historical=historical,
        details={"pid": "1"},
    )


class StandIn:
    """Listens on a unix socket and does ``serve`` with each connection."""

    def __init__(self, path: Path, serve: Callable[[socket.socket], None] | bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._serve = _sender(serve) if isinstance(serve, bytes) else serve
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)
        for connection in self._open:
            connection.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._open.append(connection)
            try:
                self._serve(connection)
            except OSError:
                continue  # the command has hung up


def _sender(raw: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_RDWR)

    return serve
