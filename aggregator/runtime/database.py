"""How a database is reached: SQLite in this process, or PostgreSQL over a socket.

Both are blocking and called from threads of their user's own, one call at a time.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import sqlalchemy as sa

T = TypeVar("T")


class DatabaseError(OSError):
    """The database can't be used now; the text names the reason, without secrets."""


class Engine(Protocol):
    """Opened by the first call; after a failure the next call opens it again."""

    @property
    def name(self) -> str:
        """For people: the file, or the server and the database on it."""
        ...

    def call(self, work: Callable[[sa.Connection], T], *, write: bool = False, seconds: float) -> T:
        """The result of ``work``, in a transaction of its own. Raises `DatabaseError`, and the
        tables are then unchanged.

        ``write``: the transaction is going to. ``seconds``: a slower server is given up; a file is
        waited for, because no timeout helps against a disk that hangs.
        """
        ...

    def close(self) -> None:
        """Close the database. Never raises, and waits for two seconds at most."""
        ...


def reason(error: Exception) -> str:
    """The driver's own message: SQLAlchemy's includes the statement and its values."""
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        error = error.orig if isinstance(error.orig, Exception) else error
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # SQLAlchemy puts the class before the driver's message: "<class '...'>: message".
    return text.partition("'>: ")[2] or text or type(error).__name__
