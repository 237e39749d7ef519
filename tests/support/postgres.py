"""A PostgreSQL of the tests' own: a cluster in a folder, run by an unprivileged user.

`postgres`: one server a session, shared; each test takes a database of its own on it with
`new_database`. A test that stops or pauses a server starts one of its own, with `start_postgres`.
"""

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from aggregator.demo.ports import free_port
from tests.controlplane.pki import KeyPair
from tests.controlplane.processes import ended, stopped
from tests.controlplane.waiting import PATIENCE

USER, PASSWORD = "sickbay", "not-a-secret-of-anybodys"
#: A test run by root runs the server as this user, because PostgreSQL refuses to run as root.
_UNPRIVILEGED = "nobody"
_SETTINGS = {
    "fsync": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "40",
    "shared_buffers": "64MB",
    "max_wal_size": "2GB",
    "autovacuum_naptime": "20s",
    "log_timezone": "UTC",
    "timezone": "UTC",
}
_RULES = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"

StartPostgres = Callable[..., "PostgresServer"]


class NoPostgres(Exception):
    """There are no programs of a server. The text says what to do."""


def programs() -> Path:
    """The folder of initdb and postgres, as Debian lays them. Raises `NoPostgres`."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not folders:
        raise NoPostgres("there is no PostgreSQL: tests/setup-debian.sh installs it")
    return folders[-1].parent


def _owner() -> dict[str, Any]:
    return (
        {"user": _UNPRIVILEGED, "group": "nogroup", "extra_groups": []} if not os.getuid() else {}
    )


class PostgresServer:
    """One cluster and its server. ``folder`` is made, and removed by `close`."""

    def __init__(self, template: Path | None = None, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sickbay-postgres-"))
        self.data = self.folder / "data"
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.password_file = self.folder / "password"
        self.password_file.write_text(f"{PASSWORD}\n")
        self.password_file.chmod(0o644)
        if not os.getuid():
            shutil.chown(self.folder, _UNPRIVILEGED)
        if template is None:
            self._initdb()
        else:
            subprocess.run(["cp", "-a", template, self.data], check=True)
        lines = {**_SETTINGS, "unix_socket_directories": str(self.folder), **settings}
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in lines.items())
        (self.data / "pg_hba.conf").write_text(_RULES)

    def _initdb(self) -> None:
        command: list[str | Path] = [
            programs() / "initdb",
            *("--encoding=UTF8", "--locale=C", "--no-sync", "--auth=trust"),
            *(f"--username={USER}", f"--pwfile={self.password_file}", f"--pgdata={self.data}"),
        ]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd="/", **_owner()
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> "PostgresServer":
        """Start it, and wait until it answers."""
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [programs() / "postgres", "-D", self.data, "-p", str(self.port)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd="/",
            **_owner(),
        )
        log.close()
        deadline = time.monotonic() + PATIENCE
        while subprocess.run(
            [programs() / "pg_isready", "-q", "-h", self.folder, "-p", str(self.port)], check=False
        ).returncode:
            told = (self.folder / "log").read_text(errors="replace")
            assert self._process.poll() is None, f"postgres has ended:\n{told}"
            assert time.monotonic() < deadline, f"postgres does not answer:\n{told}"
            time.sleep(0.02)
        return self

    def show(self, pair: KeyPair) -> None:
        """Speak TLS with this certificate, from the next start on."""
        for name, file in (("server.crt", pair.certificate), ("server.key", pair.key)):
            (self.data / name).write_bytes(file.read_bytes())
            (self.data / name).chmod(0o600)
            if not os.getuid():
                shutil.chown(self.data / name, _UNPRIVILEGED)
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write("ssl = on\n")

    def new_database(self) -> str:
        """The URL of an empty database, through TCP; it asks for the password."""
        name = f"test_{next(self._names)}"
        self.run(f"CREATE DATABASE {name}", "postgres")
        return self.url(name)

    def url(self, database: str) -> str:
        """A database's URL, as the configuration takes it."""
        return f"postgresql+asyncpg://{USER}@127.0.0.1:{self.port}/{database}"

    def run(self, statement: str, database: str) -> list[Any]:
        """The rows of a statement, by a connection of its own, past the password."""
        return list(self._with(database, lambda connection: connection.fetch(statement)))

    def script(self, statements: str, database: str) -> None:
        """Several statements, with semicolons between."""
        self._with(database, lambda connection: connection.execute(statements))

    def _with(self, database: str, ask: Callable[[Any], Any]) -> Any:
        import asyncpg  # each run of pytest imports this module, and few tests need a server

        async def work() -> Any:
            connection = await asyncpg.connect(
                host=str(self.folder), port=self.port, user=USER, database=database, timeout=300
            )
            try:
                return await ask(connection)
            finally:
                await connection.close()

        # In a thread without a loop, because the caller may have a running loop.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, work()).result()

    def kill(self) -> None:
        """End it as a crash does: no client is told, and unwritten data are lost."""
        self._signal(signal.SIGSTOP)  # so that all of them are known, and none cleans up
        for pid in reversed(self._pids()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Every process of it is stopped: connections stay open, and get no answer."""
        self._signal(signal.SIGSTOP)
        # A process that was just ending stays a zombie, because its parent is stopped.
        while not all(stopped(pid) or ended(pid) for pid in self._pids()):
            time.sleep(0.005)

    def resume(self) -> None:
        """After `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """The postmaster first: it makes no child while the others are told."""
        assert self._process is not None
        os.kill(self._process.pid, number)
        for pid in self._pids()[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """An immediate stop: it waits for no client, and writes no data for a next start."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def close(self) -> None:
        """Stop it and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pids(self) -> list[int]:
        """The postmaster, then its children."""
        assert self._process is not None
        pid = self._process.pid
        return [pid, *(child.pid for child in psutil.Process(pid).children())]


@pytest.fixture(scope="session")
def postgres_template() -> Iterator[Path]:
    """A cluster's files as initdb makes them; skips where there is no PostgreSQL."""
    try:
        programs()
    except NoPostgres as missing:
        if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
            pytest.fail(f"{missing}, and CI is set", pytrace=False)
        pytest.skip(str(missing))
    server = PostgresServer()
    kept = server.folder / "template"
    subprocess.run(["cp", "-a", server.data, kept], check=True)
    yield kept
    server.close()


@pytest.fixture(scope="session")
def postgres(postgres_template: Path) -> Iterator[PostgresServer]:
    """The session's server. Never stop, pause or kill it."""
    server = PostgresServer(postgres_template).start()
    yield server
    server.close()


@pytest.fixture
def start_postgres(postgres_template: Path) -> Iterator[StartPostgres]:
    """Starts servers of a test's own, to break; they end with it."""
    with ExitStack() as ends:

        def start(**settings: str) -> PostgresServer:
            server = PostgresServer(postgres_template, **settings)
            ends.callback(server.close)
            return server.start()

        yield start
