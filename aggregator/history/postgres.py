"""PostgreSQL through asyncpg and SQLAlchemy's async engine, on an event loop of its own.

That loop runs in the history's threads, a call at a time, and never in the one that evaluates: a
server that hangs, a name that does not resolve or a batch that takes long to encode delays no
evaluation. docs/decisions/0008-history-in-postgresql.md has the figures.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import asyncpg
import sqlalchemy as sa
from attrs import define, field
from sqlalchemy import event
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from aggregator.history.engine import DatabaseCredentials
from aggregator.runtime.database import DatabaseError, reason
from aggregator.runtime.interning import EMPTY
from aggregator.runtime.secret_file import SecretError, read_password
from aggregator.tls.client_context import CaFileError, client_context

T = TypeVar("T")

#: Seconds. The server itself ends a statement that no caller waits for any more.
_CONNECT = 5.0
_STATEMENT = 120
_CLOSE = 2.0
#: Of replicas that start together one makes the tables, and the others wait for it.
_PREPARATION = 60.0


class Preparing(Protocol):
    """The tables that a connection needs: `Tables`, or a module."""

    def is_ready(self, connection: sa.Connection, name: str) -> bool: ...

    def prepare(self, connection: sa.Connection, name: str) -> None: ...


@define(eq=False, repr=False, slots=False)
class Postgres:
    """An `Engine` for the database that ``url`` names.

    ``section`` of the configuration has the credentials. ``settings``: further ones of each
    session.
    """

    _url: URL
    _credentials: DatabaseCredentials
    _application: str
    _tables: Preparing
    _section: str = "history"
    _settings: Mapping[str, str] = EMPTY
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _engine: AsyncEngine | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        shown = self._url.set(drivername="postgresql", password=None, query={})
        folder = self._url.query.get("host")
        return f"{shown.render_as_string()}{f' in {folder}' if folder else ''}"

    def call(self, work: Callable[[sa.Connection], T], *, write: bool = False, seconds: float) -> T:
        del write  # every transaction here can write
        try:
            if self._engine is None:
                self._open(seconds)
            return self._run(self._query(work), seconds)
        except TimeoutError as error:
            self.close()
            raise DatabaseError(f"{self.name}: no answer in {seconds:g} s") from error
        except (
            sa.exc.SQLAlchemyError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            OSError,
            ValueError,  # a row that holds no JSON
        ) as error:
            self.close()
            if isinstance(error, DatabaseError):
                raise
            raise DatabaseError(f"{self.name}: {reason(error)}") from error

    def close(self) -> None:
        engine, self._engine = self._engine, None
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if engine is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError, asyncpg.PostgresError, OSError):
                loop.run_until_complete(_within(engine.dispose(), _CLOSE))
        left = asyncio.all_tasks(loop)  # the driver's own, such as one that cancels a statement
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_CLOSE))
        loop.close()

    def _open(self, seconds: float) -> None:
        self._loop = self._loop or _OwnLoop()
        self._engine = self._made()
        if not self._run(self._query(lambda one: self._tables.is_ready(one, self.name)), seconds):
            self._run(self._query(lambda one: self._tables.prepare(one, self.name)), _PREPARATION)

    async def _query(self, work: Callable[[sa.Connection], T]) -> T:
        assert self._engine is not None
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        assert self._loop is not None
        return self._loop.run_until_complete(_within(work, seconds))

    def _made(self) -> AsyncEngine:
        engine = create_async_engine(
            self._url,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            connect_args={
                "timeout": _CONNECT,
                "server_settings": {
                    "application_name": self._application,
                    "statement_timeout": f"{_STATEMENT}s",
                    "idle_in_transaction_session_timeout": f"{_STATEMENT}s",
                    **self._settings,
                },
            },
        )

        @event.listens_for(engine.sync_engine, "do_connect")
        def _prove(_d: object, _r: object, _a: object, options: dict[str, Any]) -> None:
            options["ssl"] = self._tls()
            if self._credentials.password_file is not None:
                name = f"{self._section}.password_file"
                try:
                    options["password"] = read_password(self._credentials.password_file, name)
                except SecretError as error:
                    raise DatabaseError(str(error)) from error

        return engine

    def _tls(self) -> ssl.SSLContext | str:
        if self._credentials.ca_file is not None:
            try:
                return client_context(self._credentials.ca_file)
            except CaFileError as error:
                raise DatabaseError(f"{self._section}.ca_file: {error}") from error
        return "prefer" if self._is_near or self._credentials.insecure_plaintext else "require"

    @property
    def _is_near(self) -> bool:
        """Whether the server is reached without a network."""
        host = self._url.host or ""
        if "host" in self._url.query or host in {"", "localhost"}:
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


class _OwnLoop(asyncio.SelectorEventLoop):
    """Looks names up by itself: an executor's threads would be joined when the process ends."""

    async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> Any:
        return socket.getaddrinfo(host, port, **how)


async def _within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The result of ``work``. Raises TimeoutError, even where ``work`` ignores its cancellation.

    A driver that is cleaning up may take a cancellation for its own and keep waiting, which is why
    this is no `asyncio.timeout`.
    """
    task = asyncio.ensure_future(work)
    if not (await asyncio.wait({task}, timeout=seconds))[0]:
        task.cancel()
        await asyncio.wait({task}, timeout=2 * _CLOSE)
        if not task.done() or task.cancelled():
            raise TimeoutError
    return task.result()
