"""The history's database through SQLAlchemy Core: plain SQL that SQLite and PostgreSQL share.

Blocking; `History` calls it in threads of its own. Every failure is `HistoryError`, after which the
next call connects anew: a database that was moved away, mended or restarted is found again.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.schema import CreateIndex, CreateTable

from aggregator.history.rows import from_row
from aggregator.history.tables import VERSION, evidence, metadata, schema, transitions
from aggregator.quarantine.ledger import Kind, Transition

#: Rows of evidence that are read at a time.
_AT_ONCE = 500


class HistoryError(OSError):
    """The database can't be used now; the text says why, without the URL's secrets."""


class Database:
    """The database at ``url`` (an SQLAlchemy URL). Opened by the first call that needs it."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._engine: sa.Engine | None = None
        self._file: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """For people: the file, or the URL without its password."""
        return self._url.database or "" if self._sqlite else self._url.render_as_string()

    def write(self, rows: Sequence[dict[str, Any]], into: sa.Table = transitions) -> None:
        """Write rows in one transaction. Those that stand there already are left as they are."""
        with self._use() as engine:
            try:
                with engine.begin() as connection:
                    connection.execute(sa.insert(into), list(rows))
            except sa.exc.IntegrityError:
                # A first try went through although it seemed not to.
                with engine.begin() as connection:
                    _insert_missing(connection, rows, into)

    def recent(self, node: str, since: float, limit: int) -> list[Transition]:
        """The newest ``limit`` at or after ``since``, newest first; an empty ``node`` is all."""
        table = transitions.c
        query = (
            sa.select(transitions)
            .where(table.at >= since, table.kind.in_([kind.value for kind in Kind]))
            .order_by(table.at.desc(), table.id.desc())
            .limit(limit)
        )
        if node:
            query = query.where(table.node == node)
        with self._use() as engine, engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        found = (from_row(dict(row)) for row in rows)
        return [transition for transition in found if transition is not None]

    def evidence(self, node: str = "") -> Iterator[dict[str, Any]]:
        """Every row of what agents told, by node and then by time; an empty ``node`` is all."""
        query = sa.select(evidence).order_by(evidence.c.node, evidence.c.at, evidence.c.id)
        if node:
            query = query.where(evidence.c.node == node)
        with self._use() as engine, engine.connect() as connection:
            found = connection.execution_options(yield_per=_AT_ONCE).execute(query)
            for row in found.mappings():
                yield dict(row)

    def busiest(self, kinds: Sequence[str], since: float, most: int) -> list[str]:
        """The ``most`` nodes with the most transitions of these kinds at or after ``since``."""
        table = transitions.c
        query = (
            sa.select(table.node)
            .where(table.kind.in_(kinds), table.at >= since, table.node != "")
            .group_by(table.node)
            .order_by(sa.func.count().desc(), table.node)
            .limit(most)
        )
        with self._use() as engine, engine.connect() as connection:
            return [str(node) for node in connection.execute(query).scalars()]

    def stories(
        self, nodes: Sequence[str], kinds: Sequence[str], since: float, rows: int
    ) -> dict[str, list[Transition]]:
        """Of each node the newest ``rows`` transitions of these kinds at or after ``since``."""
        table = transitions.c
        found: dict[str, list[Transition]] = {}
        with self._use() as engine, engine.connect() as connection:
            for node in nodes:
                query = (
                    sa.select(transitions)
                    .where(table.node == node, table.at >= since, table.kind.in_(kinds))
                    .order_by(table.at.desc(), table.id.desc())
                    .limit(rows)
                )
                told = (from_row(dict(row)) for row in connection.execute(query).mappings())
                found[node] = [one for one in told if one is not None]
        return found

    def delete_before(self, cut: float, most: int, of: sa.Table = transitions) -> int:
        """Delete up to ``most`` of the oldest rows from before ``cut``. Returns how many."""
        old = sa.select(of.c.id).where(of.c.at < cut).order_by(of.c.at).limit(most)
        with self._use() as engine, engine.begin() as connection:
            done = connection.execute(sa.delete(of).where(of.c.id.in_(old)))
            return done.rowcount

    def close(self) -> None:
        """Let go of the database; a later call opens it again."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @property
    def _sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    @contextlib.contextmanager
    def _use(self) -> Iterator[sa.Engine]:
        try:
            yield self._open()
        # ImportError: no driver for this kind of database; ValueError: a row that holds no JSON.
        except (sa.exc.SQLAlchemyError, OSError, ImportError, ValueError) as error:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                self.close()
            self._engine = None
            if isinstance(error, HistoryError):
                raise
            raise HistoryError(f"{self.name}: {_reason(error)}") from error

    def _open(self) -> sa.Engine:
        if self._engine is not None and self._moved():
            self.close()
        if self._engine is None:
            engine = _engine(self._url, sqlite=self._sqlite)
            try:
                self._make_tables(engine)
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine
            self._file = self._identity()
        return self._engine

    def _make_tables(self, engine: sa.Engine) -> None:
        """Twice where it fails: two that make them at the same time get in each other's way."""
        try:
            with engine.begin() as connection:
                _prepare(connection, self.name)
        except sa.exc.DBAPIError:
            with engine.begin() as connection:
                _prepare(connection, self.name)

    def _moved(self) -> bool:
        """Whether the file was taken away under us: SQLite would write on into nowhere."""
        return self._sqlite and self._identity() != self._file

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = Path(self._url.database or "").stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _engine(url: URL, *, sqlite: bool) -> sa.Engine:
    if not sqlite:
        return sa.create_engine(url, pool_size=1, max_overflow=1, pool_pre_ping=True)
    path = Path(url.database or "")
    # Made here, so that it is nobody else's to read.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    engine = sa.create_engine(url, pool_size=1, max_overflow=1)

    @event.listens_for(engine, "connect")
    def _settle(connection: Any, _: object) -> None:
        for pragma in (
            "busy_timeout=5000",
            "page_size=8192",  # holds for a new file alone
            "journal_mode=WAL",
            "synchronous=NORMAL",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    return engine


def _prepare(connection: sa.Connection, name: str) -> None:
    """Make the tables where there are none. A schema from the future is refused."""
    found = _version(connection)
    if found is None or found <= VERSION:
        for table in metadata.sorted_tables:
            connection.execute(CreateTable(table, if_not_exists=True))
            for index in table.indexes:
                connection.execute(CreateIndex(index, if_not_exists=True))
    if found is None:
        none_yet = ~sa.exists().select_from(schema)
        first = sa.select(sa.literal(VERSION)).where(none_yet)
        connection.execute(sa.insert(schema).from_select(["version"], first))
    elif found > VERSION:
        raise HistoryError(
            f"{name} was written by a newer sickbay (schema {found}, this one knows {VERSION}); "
            "upgrade, or point history.database elsewhere"
        )


def _version(connection: sa.Connection) -> int | None:
    """Written last when the tables are made: None is none, or half of them."""
    if not sa.inspect(connection).has_table(schema.name):
        return None
    return connection.execute(sa.select(sa.func.max(schema.c.version))).scalar()


def _insert_missing(
    connection: sa.Connection, rows: Sequence[dict[str, Any]], into: sa.Table
) -> None:
    ids = [row["id"] for row in rows]
    known = set(connection.execute(sa.select(into.c.id).where(into.c.id.in_(ids))).scalars())
    missing = [row for row in rows if row["id"] not in known]
    if missing:
        connection.execute(sa.insert(into), missing)


def _reason(error: Exception) -> str:
    """The driver's own words: SQLAlchemy's hold the statement and its values too."""
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        return str(error.orig)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
