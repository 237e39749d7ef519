"""The tables of a cluster without Kubernetes, wherever they are: SQLite or PostgreSQL.

The SQL of `store` is what both have in common. Values are named (``:node``); a write returns the
rows that it changed, so that no second statement reads them.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

#: Runs one statement within a change. Returns the rows that it reads, or changed (RETURNING).
Run = Callable[..., list[tuple[Any, ...]]]


class Rows(Protocol):
    """Blocking. Raises `Unreachable` where a statement fails, or the answer to a commit is lost."""

    def read(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """The rows, as they are committed."""
        ...

    def change(self, work: Callable[[Run], T]) -> T:
        """The result of ``work``, in a transaction that no other change overlaps. What it raises
        undoes the transaction.
        """
        ...

    def changed_elsewhere(self) -> int:
        """A number that differs after another process's change."""
        ...

    def close(self) -> None: ...
