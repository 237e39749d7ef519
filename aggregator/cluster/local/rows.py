"""The tables of a cluster without Kubernetes, wherever they are: SQLite or PostgreSQL.

The SQL is what both have in common. Values are named (``:node``); a write returns the rows that it
changed, so that no second statement reads them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from aggregator.cluster.port import Conflict

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

#: By column.
Row = dict[str, Any]
#: Runs one statement within a change. Returns the rows that it reads, or changed (RETURNING).
Run = Callable[..., list[Row]]


class Rows(Protocol):
    """Blocking. Raises `Unreachable` where a statement fails, or the answer to a commit is lost."""

    def read(self, query: str, **values: object) -> list[Row]:
        """The rows, as they are committed."""

    def change(self, work: Callable[[Run], T]) -> T:
        """The result of ``work``, in a transaction that no other change overlaps. What it raises
        undoes the transaction.
        """

    def changed_elsewhere(self) -> int:
        """A number that differs after another process's change."""

    def close(self) -> None: ...


# Names of tables and columns are the code's own; values alone come from outside.


def select(run: Run, table: str, **where: object) -> list[Row]:
    """The rows with these values; without any, all."""
    return run(f"SELECT * FROM {table}{_with(where)}", **where)  # noqa: S608


def insert(run: Run, table: str, **values: object) -> list[Row]:
    """The new row; none where there is one with its key."""
    columns, places = ", ".join(values), ", ".join(f":{one}" for one in values)
    return run(
        f"INSERT INTO {table} ({columns}) VALUES ({places}) ON CONFLICT DO NOTHING RETURNING *",  # noqa: S608
        **values,
    )


def update(run: Run, table: str, values: Mapping[str, object], **where: object) -> list[Row]:
    """The rows as they are then, at their next version."""
    changes = ", ".join(f"{one} = :{one}" for one in values)
    return run(
        f"UPDATE {table} SET {changes}, version = version + 1{_with(where)} RETURNING *",  # noqa: S608
        **values,
        **where,
    )


def delete(run: Run, table: str, **where: object) -> list[Row]:
    """The rows that were removed."""
    return run(f"DELETE FROM {table}{_with(where)} RETURNING *", **where)  # noqa: S608


def expect_row(found: list[Row], text: str) -> Row:
    """The one row. Raises Conflict without it: another process has written since."""
    if not found:
        raise Conflict(text)
    return found[0]


def _with(where: Mapping[str, object]) -> str:
    return " WHERE " + " AND ".join(f"{one} = :{one}" for one in where) if where else ""
