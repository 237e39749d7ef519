"""The Lease that the replicas share, as a row of PostgreSQL.

It has a connection of its own, which waits behind no other statement. Its version is the row's uid
and a number, so that a row that was deleted and made anew is at no earlier version. The times are
for people: each replica measures by its own monotonic clock.
"""

import asyncio
import uuid
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from aggregator.cluster.local.postgres_rows import run_statement
from aggregator.cluster.local.rows import Row
from aggregator.leader.lease import (
    Candidate,
    Draft,
    Lease,
    LeaseConflict,
    LeaseNotFound,
    LeaseStoreError,
)
from aggregator.runtime.database import Engine
from aggregator.runtime.worker_thread import WorkerThread

T = TypeVar("T")

_READ = "SELECT * FROM lease"
_CREATE = (
    "INSERT INTO lease VALUES (1, :uid, 1, :holder, :epoch, :address, :page, :version,"
    " :transitions, now(), now()) ON CONFLICT DO NOTHING RETURNING *"
)
_RENEW = (
    "UPDATE lease SET number = number + 1, holder = :holder, epoch = :epoch, address = :address,"
    " page = :page, version = :version, transitions = :transitions, renewed_at = now(),"
    " acquired_at = CASE WHEN :acquires = 1 THEN now() ELSE acquired_at END"
    " WHERE uid = :uid AND number = :number RETURNING *"
)
#: The columns with the facts about its holder, next to its name.
_FACTS = ("epoch", "address", "page", "version")


class PostgresLease:
    """Implements `LeaseStore`. ``engine`` makes a connection of the Lease's own. ``deadline``:
    seconds for one request.
    """

    def __init__(self, engine: Callable[[], Engine], *, deadline: float) -> None:
        self._engine = engine
        self._deadline = deadline
        self._line: _Line | None = None

    async def read(self) -> Lease | None:
        """See the protocol."""
        rows = await self._query(lambda connection: run_statement(connection, _READ))
        return _lease(rows[0]) if rows else None

    async def write(self, draft: Draft) -> Lease:
        """See the protocol."""
        holder = draft.holder or Candidate("")
        values = {name: getattr(holder, name) for name in _FACTS}
        values |= {"holder": holder.name, "transitions": draft.transitions}

        def create(connection: sa.Connection) -> Lease:
            made = run_statement(connection, _CREATE, uid=str(uuid.uuid4()), **values)
            if not made:
                raise LeaseConflict("the Lease exists already")
            return _lease(made[0])

        def renew(connection: sa.Connection) -> Lease:
            uid, _, number = draft.version.rpartition(".")
            values.update(uid=uid, number=int(number), acquires=int(draft.acquires))
            written = run_statement(connection, _RENEW, **values)
            if written:
                return _lease(written[0])
            if run_statement(connection, _READ):
                raise LeaseConflict(f"the Lease is no longer at version {draft.version}")
            raise LeaseNotFound("the Lease is gone")

        return await self._query(renew if draft.version else create)

    async def close(self) -> None:
        """A later request connects again."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def _query(self, work: Callable[[sa.Connection], T]) -> T:
        line = self._line = self._line or _Line(self._engine())
        try:
            async with asyncio.timeout(self._deadline):
                return await line.call(work, self._deadline)
        except TimeoutError as error:
            # The next request uses a connection of its own: this one may hang for longer.
            line.abandon()
            self._line = None
            raise LeaseStoreError(f"no answer within {self._deadline:g} s") from error
        except OSError as error:
            raise LeaseStoreError(str(error)) from error


class _Line:
    """One connection, and the thread that waits for its answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = WorkerThread("lease")
        self._abandoned = False

    async def call(self, work: Callable[[sa.Connection], T], seconds: float) -> T:
        return await self._thread.run(self._call, work, seconds)

    def _call(self, work: Callable[[sa.Connection], T], seconds: float) -> T:
        try:
            return self._engine.call(work, write=True, seconds=seconds)
        finally:
            if self._abandoned:
                self._engine.close()

    async def close(self) -> None:
        await self._thread.run(self._engine.close)
        self._thread.stop()

    def abandon(self) -> None:
        """Nobody waits any more: the call that hangs closes the connection at its end."""
        self._abandoned = True
        self._thread.stop()


def _lease(row: Row) -> Lease:
    holder = Candidate(row["holder"], *(row[name] for name in _FACTS))
    return Lease(
        holder if holder.name else None,
        version=f"{row['uid']}.{row['number']}",
        uid=row["uid"],
        transitions=row["transitions"],
    )
