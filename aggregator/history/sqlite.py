"""SQLite: one file, in this process."""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL

from aggregator.history.engine import HistoryError
from aggregator.history.revision import is_ready, prepare
from aggregator.runtime.database import identity, reason, sqlite_engine

T = TypeVar("T")

_WRITE = "sickbay_write"
#: These also apply to a read-only connection.
_READING = (
    "busy_timeout=5000",
    "cache_size=-16384",  # 16 MiB: the upper pages of the indexes of ten million rows
)


class Sqlite:
    """An `Engine` for the file that ``url`` names. ``reads``: for a caller that only reads."""

    def __init__(self, url: URL, *, reads: bool = False) -> None:
        self._url = url
        self._path = Path(url.database or "")
        self._reads = reads
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
            if isinstance(error, HistoryError):
                raise
            raise HistoryError(f"{self.name}: {reason(error)}") from error
        return found

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                engine.dispose()

    def _open(self) -> sa.Engine:
        if self._engine is not None and identity(self._path) != self._file:
            self.close()
        if self._engine is None:
            engine = self._for_reading() if self._reads else _engine(self._url, self._path)
            try:
                (self._expect_tables if self._reads else self._make_tables)(engine)
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine
            self._file = identity(self._path)
        return self._engine

    def _for_reading(self) -> sa.Engine:
        file = self._url.set(database="file:" + quote(str(self._path.absolute())))
        return _settling(file.update_query_dict({"uri": "true", "mode": "ro"}), _READING)

    def _expect_tables(self, engine: sa.Engine) -> None:
        """A file of another program must not get ours from a command that only reads."""
        if not _in_transaction(engine, lambda one: is_ready(one, self.name), write=False):
            raise HistoryError(
                f"{self.name} has no tables of this version of sickbay; expected the "
                "history.database of an aggregator that has run"
            )

    def _make_tables(self, engine: sa.Engine) -> None:
        """Tried twice: two processes that switch to WAL at the same time conflict with each
        other.
        """
        try:
            self._prepare(engine)
        except sa.exc.DBAPIError:
            self._prepare(engine)

    def _prepare(self, engine: sa.Engine) -> None:
        """A connection that only reads waits for no writer's lock."""
        if not _in_transaction(engine, lambda one: is_ready(one, self.name), write=False):
            _in_transaction(engine, lambda one: prepare(one, self.name), write=True)


def _in_transaction(engine: sa.Engine, work: Callable[[sa.Connection], T], *, write: bool) -> T:
    with engine.connect().execution_options(**{_WRITE: write}) as connection, connection.begin():
        return work(connection)


def _engine(url: URL, path: Path) -> sa.Engine:
    # Created here, so that no other user can read it.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return _settling(
        url,
        (
            *_READING,
            "page_size=8192",  # applies only to a new file
            "journal_mode=WAL",
            "synchronous=NORMAL",
        ),
    )


def _settling(url: URL, pragmas: Iterable[str]) -> sa.Engine:
    def begin(connection: sa.Connection) -> str:
        # Lock at once for a write: a transaction that has read can no longer wait for its turn.
        return "BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITE) else "BEGIN"

    return sqlite_engine(url, pragmas, begin, max_overflow=1)
