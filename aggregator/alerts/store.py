"""Where the outbox's tables are: a SQLite file of their own, or the history's database.

Blocking. Every failure is `OutboxError`, after which the next call connects again.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from aggregator.alerts.batch import pending_row
from aggregator.alerts.message import alerts_of
from aggregator.alerts.tables import (
    VERSION,
    dead,
    deliveries,
    lasting,
    metadata,
    pending,
    reported,
    schema,
)
from aggregator.runtime.database import Engine, identity, sqlite_engine
from aggregator.runtime.sqlite_format import OUTBOX, is_of_no_release, of_no_release

T = TypeVar("T")

#: PostgreSQL's advisory locks are numbers; this is the outbox's ("sickbay" and a number).
_LOCK = 0x7369636B03
#: Seconds that a server may take for one change.
_SECONDS = 15.0
#: FULL: an accepted alert stays on disk even when the machine loses its power.
_PRAGMAS = ("page_size=8192", "journal_mode=WAL", "synchronous=FULL")


class OutboxError(OSError):
    """The outbox can't be used now; the text names the reason."""


class OutboxStore(Protocol):
    """One change at a time. ``shared``: other replicas use the same tables."""

    @property
    def shared(self) -> bool: ...

    def change(self, work: Callable[[sa.Connection], T]) -> T:
        """The result of ``work``, in a transaction of its own that waits for all others. Raises
        `OutboxError`; the tables are then unchanged.
        """
        ...

    def close(self) -> None:
        """A later call opens it again."""
        ...


class FileStore:
    """The SQLite file at ``path``, made by the first change."""

    shared = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine: sa.Engine | None = None
        self._file: tuple[int, int] | None = None

    def change(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            with self._open().connect() as connection, connection.begin():
                return work(connection)
        except (sa.exc.SQLAlchemyError, sqlite3.Error) as error:
            self.close()
            cause = getattr(error, "orig", None) or error
            raise OutboxError(f"{self.path}: {cause}{self._put_aside(cause)}") from error

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            with suppress(sa.exc.SQLAlchemyError):
                engine.dispose()

    def _put_aside(self, error: BaseException) -> str:
        """A broken file must not keep the next alert from going out."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return ""
        aside = self.path.with_name(f"{self.path.name}.broken")
        try:
            self.path.rename(aside)
            for name in ("-wal", "-shm"):
                self.path.with_name(self.path.name + name).unlink(missing_ok=True)
        except OSError as failure:
            return f"; and it can't be put aside: {failure.strerror}"
        return f"; put aside as {aside}, with the alerts that waited in it"

    def _open(self) -> sa.Engine:
        if self._engine is not None:
            if identity(self.path) == self._file:
                return self._engine
            self.close()
        try:
            self.path.touch(mode=0o600)
        except OSError as error:
            raise OutboxError(f"{self.path}: {error.strerror}") from error
        found = _file_version(self.path)
        if found is None:
            raise OutboxError(of_no_release(self.path, "an outbox", "alerts.outbox"))
        if found > VERSION:
            raise OutboxError(
                f"{self.path} was written by a newer sickbay (version {found}); "
                "upgrade, or point alerts.outbox elsewhere"
            )
        url = sa.URL.create("sqlite", database=str(self.path))
        wait = {"timeout": 5}
        engine = sqlite_engine(url, _PRAGMAS, lambda _: "BEGIN IMMEDIATE", connect_args=wait)
        try:
            with engine.connect() as connection, connection.begin():
                metadata.create_all(connection)
                connection.exec_driver_sql(f"PRAGMA application_id={OUTBOX}")
                connection.exec_driver_sql(f"PRAGMA user_version={VERSION}")
        except BaseException:
            engine.dispose()
            raise
        self._engine, self._file = engine, identity(self.path)
        return engine


def _file_version(path: Path) -> int | None:
    """The version of the file's tables; 0 in an empty one, None where no release wrote them."""
    with closing(sqlite3.connect(path, timeout=5)) as db:
        (found,) = db.execute("PRAGMA user_version").fetchone()
        unreleased = is_of_no_release(db, OUTBOX)
    return None if unreleased else int(found)


class SharedStore:
    """Tables in a PostgreSQL that several replicas use, behind one lock."""

    shared = True

    def __init__(self, engine: Engine, own_file: Path | None = None) -> None:
        """``own_file``: the outbox while `alerts.shared` was off, whose alerts are moved."""
        self._engine = engine
        self._own_file = own_file
        self._ready = False

    def change(self, work: Callable[[sa.Connection], T]) -> T:
        def locked(connection: sa.Connection) -> T:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            if not self._ready:
                self._prepare(connection)
            return work(connection)

        try:
            result = self._engine.call(locked, write=True, seconds=_SECONDS)
        except OSError as error:
            self._ready = False
            raise OutboxError(str(error)) from error
        if not self._ready and self._own_file is not None:
            _put_away(self._own_file)
        self._ready = True
        return result

    def close(self) -> None:
        self._engine.close()

    def _prepare(self, connection: sa.Connection) -> None:
        metadata.create_all(connection)
        found = connection.execute(sa.select(sa.func.max(schema.c.version))).scalar()
        if found is None:
            connection.execute(sa.insert(schema).values(version=VERSION))
        elif found > VERSION:
            raise OutboxError(
                f"{self._engine.name}: the alerts' tables were written by a newer sickbay "
                f"(version {found}); upgrade, or set alerts.shared: false"
            )
        if self._own_file is not None and self._own_file.exists():
            _move(self._own_file, connection)


#: Tables whose rows are moved: the times of groups' last deliveries are of no use elsewhere.
_MOVED = (pending, deliveries, dead, reported, lasting)


def _move(file: Path, connection: sa.Connection) -> None:
    """Copy all of a file's rows.

    Of a copy that was made before, and whose file was not renamed, the alerts that wait are there
    twice: they are sent again rather than lost.
    """
    # The import of this database's dialect is not for those who have files.
    from sqlalchemy.dialects import postgresql

    store = FileStore(file)
    try:
        rows = store.change(
            lambda db: {
                table.name: [dict(row) for row in db.execute(sa.select(table)).mappings()]
                for table in _MOVED
            }
        )
    finally:
        store.close()
    _return_to_pending(rows, connection)
    for table in _MOVED:
        # The numbers of the file may be taken; the database gives others.
        new = [
            {key: value for key, value in row.items() if key != "seq"} for row in rows[table.name]
        ]
        if new:
            connection.execute(postgresql.insert(table).on_conflict_do_nothing(), new)


def _return_to_pending(rows: dict[str, list[dict[str, Any]]], connection: sa.Connection) -> None:
    """Alerts of open deliveries wait again where another delivery of the route is open: a route
    works on one.
    """
    open_ones = {
        row.route: row.id
        for row in connection.execute(sa.select(deliveries.c.route, deliveries.c.id))
    }
    waiting: list[dict[str, Any]] = []
    kept = []
    for row in rows[deliveries.name]:
        if open_ones.get(row["route"], row["id"]) == row["id"]:
            kept.append(row)
            continue
        try:
            waiting += [
                pending_row(row["route"], row["grp"], alert, row["first_at"], alert.id)
                for alert in alerts_of(row["alerts"])
            ]
        except (ValueError, KeyError, TypeError) as error:
            letter = {key: row[key] for key in ("route", "id", "alerts", "size")}
            because = f"its row can't be read: {error!r}"
            rows[dead.name].append(letter | {"because": because, "at": row["first_at"]})
    rows[deliveries.name] = kept
    rows[pending.name] = [*waiting, *rows[pending.name]]  # the older ones first


def _put_away(file: Path) -> None:
    """The file's alerts are in the database: keep it for people, under another name."""
    with suppress(OSError):
        file.rename(file.with_name(f"{file.name}.moved"))
