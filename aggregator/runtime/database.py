"""How a database is reached: SQLite in this process, or PostgreSQL over a socket.

Both are blocking and called from threads of their user's own, one call at a time.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy import event

T = TypeVar("T")
Begin = Callable[[sa.Connection], str]


class Engine(Protocol):
    """Opened by the first call; after a failure the next call opens it again."""

    @property
    def name(self) -> str:
        """For people: the file, or the server and the database on it."""
        ...

    def call(self, work: Callable[[sa.Connection], T], *, write: bool = False, seconds: float) -> T:
        """The result of ``work``, in a transaction of its own. Raises OSError.

        ``write``: the transaction is going to. ``seconds``: a slower server is given up; a file is
        waited for, because no timeout helps against a disk that hangs.
        """
        ...

    def close(self) -> None:
        """Close the database. Never raises, and waits for two seconds at most."""
        ...


def sqlite_engine(url: sa.URL, pragmas: Iterable[str], begin: Begin, **pool: Any) -> sa.Engine:
    """A file's connections with these pragmas. ``begin``: the statement that begins each
    transaction.
    """
    engine = sa.create_engine(url, pool_size=1, **pool)

    @event.listens_for(engine, "connect")
    def _settle(connection: Any, _: object) -> None:
        connection.isolation_level = None  # explicit transactions: DDL is in them too
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin(connection))

    return engine


def identity(path: Path) -> tuple[int, int] | None:
    """The file at the path; None: there is none. SQLite would go on writing to one that was taken
    away.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def reason(error: Exception) -> str:
    """The driver's own message: SQLAlchemy's includes the statement and its values."""
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        error = error.orig if isinstance(error.orig, Exception) else error
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # SQLAlchemy puts the class before the driver's message: "<class '...'>: message".
    return text.partition("'>: ")[2] or text or type(error).__name__
