"""Reads the history in a thread of its own, so that no caller waits behind a database that
hangs.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from aggregator.history.database import Database
from aggregator.runtime.database import DatabaseError
from aggregator.runtime.worker_thread import WorkerThread

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds. While one read has taken longer, further ones fail at once.
SLOW = 3.0
#: Reads that may wait for their turn.
MOST_WAITING = 64


class Reader:
    """``now`` gives monotonic seconds."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self.database = database
        self._now = now
        self._thread = WorkerThread("history-reader")
        self._waiting = 0
        self._began: float | None = None

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``function`` (of the database). Raises `DatabaseError`."""
        began = self._began
        if began is not None and self._now() - began > SLOW:
            waited = self._now() - began
            raise DatabaseError(f"{self.database.name}: no answer for {waited:.0f} s")
        if self._waiting >= MOST_WAITING:
            raise DatabaseError(f"{self.database.name}: {self._waiting} readings wait already")

        def read() -> T:
            self._began = self._now()
            try:
                return function(*args, **kwargs)
            finally:
                self._began = None

        self._waiting += 1
        try:
            return await self._thread.run_if_wanted(read)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Close the database. Raises TimeoutError where it does not answer."""
        await close(self._thread, self.database)


async def close(thread: WorkerThread, database: Database) -> None:
    """Close the database in its thread. Raises TimeoutError where that takes over a second."""
    try:
        async with asyncio.timeout(1):
            await thread.run(database.close)
    finally:
        thread.stop()
