"""SQLite: one file, in this process."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL

from aggregator.history.engine import HistoryError
from aggregator.history.migrate import VERSIONS, is_ready, prepare
from aggregator.history.tables import metadata
from aggregator.runtime.database import reason, sqlite_engine

T = TypeVar("T")

_WRITE = "sickbay_write"
#: These also apply to a read-only connection.
_READING = (
    "busy_timeout=5000",
    "cache_size=-16384",  # 16 MiB: the upper pages of the indexes of ten million rows
)
_COPY = "to a folder that can be written to, and point history.database there"


class Sqlite:
    """An `Engine` for the file that ``url`` names. ``reads``: for a caller that only reads, and
    that may do so where no process can write.
    """

    def __init__(self, url: URL, *, reads: bool = False) -> None:
        self._url = url
        self._path = Path(url.database or "")
        self._reads = reads
        self._settled = False  # opened as a file without writers
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
            if self._settled and self._sibling("-wal").exists():
                raise HistoryError(f"{self.name} was written to while it was read; try again")
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
        if self._engine is not None and self._identity() != self._file:
            self.close()  # the file was replaced: SQLite would write on into nowhere
        if self._engine is None:
            if self._reads:
                self._expect_tables()
            only_read = self._reads and not _can_write(self._path)
            engine = self._for_reading() if only_read else _engine(self._url, self._path)
            try:
                if only_read:
                    self._refuse_older(engine)
                else:
                    self._make_tables(engine)
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine
            self._file = self._identity()
        return self._engine

    def _expect_tables(self) -> None:
        """A file of another program must not get ours from a command that only reads."""
        where = f"file:{quote(str(self._path.absolute()))}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(where, uri=True, timeout=5)) as db:
                found = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        except sqlite3.Error:
            return  # to open it below gives the reason
        if not found & {VERSIONS, *metadata.tables}:
            text = f"{self.name} is no history: it lacks its tables"
            raise HistoryError(f"{text}; expected the aggregator's history.database")

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

    def _for_reading(self) -> sa.Engine:
        """For a folder where SQLite can't make the files next to the database by which readers and
        a writer see each other. It uses existing ones; without them, only a database without
        writers is consistent.
        """
        os.close(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))  # raises why not
        log, shared = self._sibling("-wal"), self._sibling("-shm")
        known = log.exists() and shared.exists()
        if not known and log.exists() and log.stat().st_size:
            raise HistoryError(
                f"{self.name}: its newest rows are in {log}, which can't be read without {shared}"
                f" where that can't be made; copy {self.name} and {log} {_COPY}"
            )
        self._settled = not known
        how = {"uri": "true", "mode": "ro"} | ({} if known else {"immutable": "1"})
        file = self._url.set(database="file:" + quote(str(self._path.absolute())))
        return _settling(file.update_query_dict(how), _READING)

    def _refuse_older(self, engine: sa.Engine) -> None:
        if not _in_transaction(engine, lambda one: is_ready(one, self.name), write=False):
            raise HistoryError(
                f"{self.name} was written by an earlier sickbay, and is brought up to date before "
                f"it is read; here nothing can be written: copy it {_COPY}"
            )

    def _sibling(self, end: str) -> Path:
        return self._path.with_name(self._path.name + end)

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


def _can_write(path: Path) -> bool:
    """Whether SQLite can make its files next to the database."""
    return os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK)


def _settling(url: URL, pragmas: Iterable[str]) -> sa.Engine:
    def begin(connection: sa.Connection) -> str:
        # Lock at once for a write: a transaction that has read can no longer wait for its turn.
        return "BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITE) else "BEGIN"

    return sqlite_engine(url, pragmas, begin, max_overflow=1)
