"""The tables of a cluster without Kubernetes, wherever they are: SQLite or PostgreSQL.

The SQL of `store` is what both have in common. Values are named (``:node``); a write returns the
rows that it changed, so that no second statement reads them.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

#: The tables, with SQLite's names of types.
TABLES = """
CREATE TABLE record (
  id INTEGER PRIMARY KEY CHECK (id = 1), text TEXT NOT NULL, version INTEGER NOT NULL
);
INSERT INTO record VALUES (1, '', 1);
CREATE TABLE stop (
  id INTEGER PRIMARY KEY CHECK (id = 1), reason TEXT, version INTEGER NOT NULL
);
INSERT INTO stop VALUES (1, NULL, 1);
CREATE TABLE nodes (
  name TEXT PRIMARY KEY, uid TEXT NOT NULL, version INTEGER NOT NULL,
  unschedulable INTEGER NOT NULL, taints TEXT NOT NULL, labels TEXT NOT NULL,
  annotations TEXT NOT NULL, drained_for TEXT NOT NULL DEFAULT ''
);
CREATE TABLE drains (
  node TEXT PRIMARY KEY, text TEXT NOT NULL
);
CREATE TABLE quarantines (
  node TEXT PRIMARY KEY, uid TEXT NOT NULL, version INTEGER NOT NULL, spec TEXT NOT NULL,
  status TEXT NOT NULL, created_at REAL NOT NULL, deleting INTEGER NOT NULL,
  finalizer INTEGER NOT NULL
);
CREATE TABLE operations (
  name TEXT PRIMARY KEY, uid TEXT NOT NULL, version INTEGER NOT NULL, node TEXT NOT NULL,
  spec TEXT NOT NULL, status TEXT NOT NULL, created_at REAL NOT NULL,
  deleting INTEGER NOT NULL DEFAULT 0
);
"""

#: Runs one statement within a change. Returns the rows that it reads, or changed (RETURNING).
Run = Callable[..., list[tuple[Any, ...]]]


class Rows(Protocol):
    """Blocking. Raises `Unreachable` where a statement fails, or the answer to a commit is lost."""

    def read(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """The rows, as they are committed."""

    def change(self, work: Callable[[Run], T]) -> T:
        """The result of ``work``, in a transaction that no other change overlaps. What it raises
        undoes the transaction.
        """

    def changed_elsewhere(self) -> int:
        """A number that differs after another process's change."""

    def close(self) -> None: ...
