"""A place for a history, on each kind of database, and a history there."""

import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from aggregator.clock import Clocks
from aggregator.events import EventKind, Transition
from tests.support.postgres import PostgresServer
from tests.support.waiting import CLOCKS

if TYPE_CHECKING:  # SQLAlchemy costs each run of pytest half a second, and few tests need it
    from aggregator.history.database import Database
    from aggregator.history.engine import DatabaseCredentials
    from aggregator.history.history import History

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """One database. ``server`` is None for a file."""

    url: str
    server: PostgresServer | None = None

    @property
    def credentials(self) -> "DatabaseCredentials | None":
        from aggregator.history.engine import DatabaseCredentials

        return DatabaseCredentials(self.server.password_file) if self.server is not None else None

    def database(self) -> "Database":
        from aggregator.history.database import Database

        return Database(self.url, self.credentials)

    def ask(self, question: "Callable[[Database], T]") -> T:
        """The answer of a `Database` of its own. Blocks, in a thread without a loop."""
        database = self.database()
        with ThreadPoolExecutor(1) as pool:
            try:
                return pool.submit(question, database).result()
            finally:
                pool.submit(database.close).result()

    def sql(self, statement: str) -> list[Any]:
        """The rows of a statement, by another client than ours. Blocks."""
        if self.server is not None:
            return self.server.run(statement, self.url.rpartition("/")[2])
        with closing(sqlite3.connect(self.url.partition("///")[2])) as connection, connection:
            return connection.execute(statement).fetchall()

    def plan(self, statement: str) -> str:
        """How it would be carried out."""
        explain = "EXPLAIN QUERY PLAN " if self.server is None else "EXPLAIN "
        return "\n".join(str(tuple(row)) for row in self.sql(explain + statement))

    @asynccontextmanager
    async def history(
        self, *, keep: float = 1e10, clocks: Clocks = CLOCKS, **more: Any
    ) -> "AsyncIterator[History]":
        """One that runs, until the end of the block."""
        from aggregator.history.history import History

        history = History(
            self.url,
            keep=keep,
            clocks=clocks,
            rng=random.Random(1),
            credentials=self.credentials,
            **more,
        )
        history.start()
        try:
            yield history
        finally:
            await history.close()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A new database, of each kind in turn."""
    if request.param == "sqlite":
        return Place(f"sqlite:///{tmp_path / 'history.db'}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return Place(server.new_database(), server)


def happened(
    at: float,
    node: str = "n1",
    kind: EventKind = EventKind.CORDONED,
    text: str = "",
    incident: str = "inc-1",
    **details: str,
) -> Transition:
    """A transition."""
    text = text or f"{node}: {kind} at {at:g}"
    return Transition(at, kind, node, text, incident, details or {"limit": "5%"})
