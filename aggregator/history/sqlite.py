"""SQLite: one file, in this process."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL

from aggregator.history.doors import HistoryError, reason
from aggregator.history.migrating import is_ready, prepare

T = TypeVar("T")

_WRITE = "sickbay_write"


class Sqlite:
    """A `Door` to the file that ``url`` names."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._path = Path(url.database or "")
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
            return _in_transaction(self._open(), work, write=write)
        # ValueError: a row that holds no JSON.
        except (sa.exc.SQLAlchemyError, OSError, ValueError) as error:
            self.close()
            if isinstance(error, HistoryError):
                raise
            raise HistoryError(f"{self.name}: {reason(error)}") from error

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                engine.dispose()

    def _open(self) -> sa.Engine:
        if self._engine is not None and self._identity() != self._file:
            self.close()  # taken away under us: SQLite would write on into nowhere
        if self._engine is None:
            engine = _engine(self._url, self._path)
            try:
                self._make_tables(engine)
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine
            self._file = self._identity()
        return self._engine

    def _make_tables(self, engine: sa.Engine) -> None:
        """Twice where it fails: two that turn to WAL at the same time get in each other's way."""
        try:
            self._prepare(engine)
        except sa.exc.DBAPIError:
            self._prepare(engine)

    def _prepare(self, engine: sa.Engine) -> None:
        """Who only reads waits for no writer's lock."""
        if not _in_transaction(engine, lambda one: is_ready(one, self.name), write=False):
            _in_transaction(engine, lambda one: prepare(one, self.name), write=True)

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _in_transaction(engine: sa.Engine, work: Callable[[sa.Connection], T], *, write: bool) -> T:
    with engine.connect().execution_options(**{_WRITE: write}) as connection, connection.begin():
        return work(connection)


def _engine(url: URL, path: Path) -> sa.Engine:
    # Made here, so that it is nobody else's to read.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    engine = sa.create_engine(url, pool_size=1, max_overflow=1)

    @event.listens_for(engine, "connect")
    def _settle(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say: DDL is in them too
        for pragma in (
            "busy_timeout=5000",
            "page_size=8192",  # holds for a new file alone
            "cache_size=-16384",  # 16 MiB: the upper pages of the indexes of ten million rows
            "journal_mode=WAL",
            "synchronous=NORMAL",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # At once where it is going to write: one that has read can no longer wait for its turn.
        write = connection.get_execution_options().get(_WRITE)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
