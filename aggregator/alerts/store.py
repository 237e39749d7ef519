"""Where the outbox's tables are: a SQLite file of their own, or the history's database.

Blocking. Every failure is `DatabaseError`, after which the next call connects again.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from aggregator.alerts.batch import pending_row
from aggregator.alerts.message import alerts_of
from aggregator.alerts.tables import OUTBOX, dead, deliveries, lasting, pending, reported
from aggregator.runtime.database import DatabaseError, Engine
from aggregator.runtime.sqlite import Sqlite

T = TypeVar("T")

#: PostgreSQL's advisory locks are numbers; this is the outbox's ("sickbay" and a number).
_LOCK = 0x7369636B03
#: Seconds that a server may take for one change.
_SECONDS = 15.0


class OutboxStore(Protocol):
    """One change at a time. ``shared``: other replicas use the same tables."""

    @property
    def shared(self) -> bool: ...

    def change(self, work: Callable[[sa.Connection], T]) -> T:
        """The result of ``work``, in a transaction of its own that waits for all others. Raises
        `DatabaseError`; the tables are then unchanged.
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
        url = sa.URL.create("sqlite", database=str(path))
        # FULL: an accepted alert stays on disk even when the machine loses its power.
        self._engine = Sqlite(url, OUTBOX, synchronous="FULL")

    def change(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            return self._engine.call(work, write=True, seconds=_SECONDS)
        except DatabaseError as error:
            cause = getattr(error.__cause__, "orig", None)
            raise DatabaseError(f"{error}{self._put_aside(cause)}") from error

    def close(self) -> None:
        self._engine.close()

    def _put_aside(self, error: BaseException | None) -> str:
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


class SharedStore:
    """Tables in a PostgreSQL that several replicas use, behind one lock."""

    shared = True

    def __init__(self, engine: Engine, own_file: Path | None = None) -> None:
        """``own_file``: the outbox while `alerts.shared` was off, whose alerts are moved."""
        self._engine = engine
        self._own_file = own_file

    def change(self, work: Callable[[sa.Connection], T]) -> T:
        own = self._own_file if self._own_file is not None and self._own_file.exists() else None

        def locked(connection: sa.Connection) -> T:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            if own is not None:
                _move(own, connection)
            return work(connection)

        result = self._engine.call(locked, write=True, seconds=_SECONDS)
        if own is not None:
            with suppress(OSError):  # its alerts are in the database: keep it for people
                own.rename(own.with_name(f"{own.name}.moved"))
        self._own_file = None
        return result

    def close(self) -> None:
        self._engine.close()


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
