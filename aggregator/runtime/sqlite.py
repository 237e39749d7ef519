"""SQLite: one file, in this process."""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event

from aggregator.runtime.database import DatabaseError, reason
from aggregator.runtime.tables import Tables

T = TypeVar("T")

_WRITE = "sickbay_write"
#: These also apply to a read-only connection.
_READING = (
    "busy_timeout=5000",
    "cache_size=-16384",  # 16 MiB: the upper pages of the indexes of ten million rows
)


class Sqlite:
    """An `Engine` for the file that ``url`` names.

    ``reads``: for a caller that only reads. ``synchronous``: FULL keeps what was written on disk
    even when the machine loses its power.
    """

    def __init__(
        self, url: sa.URL, tables: Tables, *, reads: bool = False, synchronous: str = "NORMAL"
    ) -> None:
        self._url = url
        self._tables = tables
        self._path = Path(url.database or "")
        self._reads = reads
        self._synchronous = synchronous
        self._engine: sa.Engine | None = None
        self._file: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        return str(self._path)

    def call(
        self,
        work: Callable[[sa.Connection], T],
        *,
        write: bool = False,
        seconds: float,  # noqa: ARG002 - a disk that hangs can't be given up
    ) -> T:
        try:
            found = _in_transaction(self._open(), work, write=write)
        # ValueError: a row that holds no JSON.
        except (sa.exc.SQLAlchemyError, OSError, ValueError) as error:
            self.close()
            if isinstance(error, DatabaseError):
                raise
            raise DatabaseError(f"{self.name}: {reason(error)}") from error
        return found

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                engine.dispose()

    def _open(self) -> sa.Engine:
        if self._engine is not None and _identity(self._path) != self._file:
            self.close()
        if self._engine is None:
            engine = self._for_reading() if self._reads else self._for_writing()
            with contextlib.ExitStack() as undo:
                undo.callback(engine.dispose)
                try:
                    self._prepare(engine)
                except sa.exc.DBAPIError:
                    # Two processes that switch to WAL at the same time conflict with each other.
                    self._prepare(engine)
                undo.pop_all()
            self._engine = engine
            self._file = _identity(self._path)
        return self._engine

    def _for_reading(self) -> sa.Engine:
        file = self._url.set(database="file:" + quote(str(self._path.absolute())))
        return _engine(file.update_query_dict({"uri": "true", "mode": "ro"}), _READING)

    def _for_writing(self) -> sa.Engine:
        # Created here, so that no other user can read it.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        pragmas = (
            *_READING,
            "page_size=8192",  # applies only to a new file
            "journal_mode=WAL",
            f"synchronous={self._synchronous}",
        )
        return _engine(self._url, pragmas)

    def _prepare(self, engine: sa.Engine) -> None:
        """A connection that only reads waits for no writer's lock."""
        if _in_transaction(engine, lambda one: self._tables.is_ready(one, self.name), write=False):
            return
        # A file of another program must not get ours from a command that only reads.
        if self._reads:
            raise DatabaseError(
                f"{self.name} has no tables of this version of sickbay; expected "
                f"{self._tables.what} of an aggregator that has run"
            )
        _in_transaction(engine, lambda one: self._tables.prepare(one, self.name), write=True)


def _in_transaction(engine: sa.Engine, work: Callable[[sa.Connection], T], *, write: bool) -> T:
    with engine.connect().execution_options(**{_WRITE: write}) as connection, connection.begin():
        return work(connection)


def _engine(url: sa.URL, pragmas: Iterable[str]) -> sa.Engine:
    engine = sa.create_engine(url, pool_size=1, max_overflow=1)

    @event.listens_for(engine, "connect")
    def _settle(connection: Any, _: object) -> None:
        connection.isolation_level = None  # explicit transactions: DDL is in them too
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # Lock at once for a write: a transaction that has read can no longer wait for its turn.
        write = connection.get_execution_options().get(_WRITE)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _identity(path: Path) -> tuple[int, int] | None:
    """The file at the path; None: there is none. SQLite would go on writing to one that was taken
    away.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
