"""Keeps transitions: a bounded queue in memory, and one task that writes it in batches.

Losing history loses no evaluation, so a caller here never waits and never fails. Lost rows are
counted and reported.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from aggregator.clock import Clocks
from aggregator.events import EventKind, Transition
from aggregator.history.database import COUNTS, Database
from aggregator.history.engine import DatabaseCredentials
from aggregator.history.reader import Reader, close
from aggregator.history.row_codec import IdGenerator, evidence_row, size_of, to_row
from aggregator.history.row_queue import RowQueue
from aggregator.history.tables import evidence, transitions
from aggregator.rfc3339 import write_time
from aggregator.runtime.backoff import Backoff
from aggregator.runtime.byte_budget import Budgets
from aggregator.runtime.database import DatabaseError
from aggregator.runtime.tasks import keep_up
from aggregator.runtime.text import counted
from aggregator.runtime.worker_thread import WorkerThread

log = logging.getLogger("sickbay.history")

P = ParamSpec("P")
T = TypeVar("T")

#: Transitions that may wait while the database is away; later ones are lost, and counted.
MOST_WAITING = 20_000
#: Rows of evidence that may wait: 10,000 nodes that attach at once are two each.
MOST_EVIDENCE = 40_000
#: Bytes of either kind that may wait: long rows leave room for fewer.
MOST_BYTES = 64 * 1024 * 1024
#: Bytes of one agent's evidence that are kept at once, and then in a second: 94 MB a day.
EVIDENCE_BURST = 2 * 1024 * 1024
EVIDENCE_RATE = 1_092.0
#: Rows up to this size are not counted for their node: its message rate bounds their number.
_SMALL = 2_048
BATCH = 500
#: Rows that one deletion takes: a writer never waits long behind retention.
CHUNK = 1_000
#: Seconds.
LINGER = 0.2
#: Between two deletions of a chunk, while there is more to delete.
BREATH = 0.05
RETENTION_EVERY = 600.0
COUNT_EVERY = 3600.0
_BACKOFF = Backoff(first=1.0, most=30.0)
_SLOW = 10.0
_CLOSE_WITHIN = 5.0
#: Rows of each table. Rows beyond are deleted, the oldest first.
MOST_ROWS = 10_000_000
#: Nodes whose transitions are read at a time, so that a page's read comes between.
_NODES_AT_A_TIME = 20


def _in_reader(
    query: Callable[Concatenate[Database, P], T],
) -> Callable[Concatenate["History", P], Coroutine[Any, Any, T]]:
    """The database's method, called in the reader's thread."""

    @wraps(query)
    async def read(self: "History", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._reader.run(query, self._reader.database, *args, **kwargs)

    return read


class History:
    """An `EventSink` on the database at ``url``; ``keep`` is how many seconds a transition stays.

    ``replica`` is our own name, where several share the database; ``credentials`` are those of a
    server. ``lost`` counts transitions that were never written, ``written`` those that were. The
    agents' evidence is written after them, and ``evidence_lost`` counts its lost rows.
    """

    def __init__(
        self,
        url: str,
        *,
        keep: float,
        clocks: Clocks,
        rng: random.Random,
        most_waiting: int = MOST_WAITING,
        most_rows: int = MOST_ROWS,
        credentials: DatabaseCredentials | None = None,
        replica: str = "",
    ) -> None:
        application = f"sickbay {replica}".strip()
        self._database = Database(url, credentials, application)
        self._reader = Reader(Database(url, credentials, application), clocks.now)
        self._replica = replica
        self._keep = keep
        self._most_rows = most_rows
        self._floors = {table.name: -math.inf for table in (transitions, evidence)}
        self._count_due = -math.inf
        self._clocks = clocks
        self._rng = rng
        self._most = most_waiting
        self._numbers = IdGenerator(rng.getrandbits(22))
        self._queue, self._evidence_rows = RowQueue(), RowQueue()
        self._reported_budgets = Budgets(burst=EVIDENCE_BURST, rate=EVIDENCE_RATE)
        self._some = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._write_thread = WorkerThread("history-writer")
        self._busy_since: float | None = None
        self._failure = self._bug = ""
        self._failing_since: float | None = None
        self._closing = False
        self._reported = 0
        self._evidence_lost_reported = 0
        self._gap_from = 0.0
        self.lost = 0
        self.written = 0
        self.evidence_lost = 0

    def start(self) -> None:
        """Begin to write. Never fails: a database that is away is retried until it is there."""
        self._writer = asyncio.create_task(
            keep_up("history", self._write, self._note_bug), name="history"
        )

    async def close(self) -> None:
        """Write the waiting rows, for a few seconds at most, and close the database."""
        self._closing = True
        self._some.set()
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=_CLOSE_WITHIN)
            if not self._writer.done():
                self._writer.cancel()
                await asyncio.wait({self._writer})
        self.lost += len(self._queue)
        self.evidence_lost += len(self._evidence_rows)
        self._queue.clear()
        self._evidence_rows.clear()
        self._log_losses()
        closing = (close(self._write_thread, self._database), self._reader.close())
        if any(await asyncio.gather(*closing, return_exceptions=True)):
            extra = {"at": self._database.name}
            log.warning("the history's database does not answer", extra=extra)

    def record_event(self, transition: Transition) -> None:
        """Queue it. Never blocks and never raises."""
        if self._closing or len(self._queue) >= self._most or self._queue.bytes >= MOST_BYTES:
            if self.lost == self._reported:
                self._gap_from = transition.at
            self.lost += 1
            return
        self._append(transition)

    def record(self, node: str, kind: str, body: Mapping[str, Any]) -> None:
        """Queue an agent's evidence. Never blocks and never raises."""
        size = size_of(body)
        spared = size <= _SMALL and not self._reported_budgets.used(node, self._clocks.now())
        if (
            self._closing
            or len(self._evidence_rows) >= MOST_EVIDENCE
            or self._evidence_rows.bytes + size > MOST_BYTES
            or not (spared or self._reported_budgets.spend(node, size, self._clocks.now()))
        ):
            self.evidence_lost += 1
            return
        at = self._clocks.wall()
        row = evidence_row(self._numbers.next(at), at, node, kind, body, self._replica)
        self._evidence_rows.append(row, size)
        self._some.set()

    def record_counts(self, counts: Mapping[str, int]) -> None:
        """Queue how many nodes are in each state now, next to the agents' evidence."""
        self.record("", COUNTS, counts)

    @property
    def depth(self) -> int:
        """How many transitions wait to be written."""
        return len(self._queue)

    @property
    def problem(self) -> str:
        """Why history can't be written now; empty when it can. Degraded, not unready."""
        if self._bug:
            return f"history is not written: {self._bug}{self._losses()}"
        waited = self._clocks.now() - self._busy_since if self._busy_since is not None else 0.0
        if not self._failure and waited <= _SLOW:
            return ""
        why = self._failure or f"no answer for {waited:.0f} s"
        since = self._failing_since or self._clocks.wall() - waited
        return f"history is not written since {write_time(since)}: {why}{self._losses()}"

    # Raise `OSError` when the database can't be read now.
    recent = _in_reader(Database.recent)
    of_kinds = _in_reader(Database.of_kinds)
    first_of_kinds = _in_reader(Database.first_of_kinds)
    of_incident = _in_reader(Database.of_incident)
    begins = _in_reader(Database.begins)
    counts = _in_reader(Database.counts)

    async def node_transitions(
        self,
        acted: Iterable[EventKind],
        kinds: Iterable[EventKind],
        since: float,
        nodes: int,
        rows: int,
    ) -> dict[str, list[Transition]]:
        """Of the ``nodes`` with the most transitions of the kinds ``acted``, those of the kinds
        ``kinds``.

        The newest ``rows`` of each, newest first. Raises `OSError` as `recent` does.
        """
        run, database = self._reader.run, self._reader.database
        busiest = await run(database.busiest, [kind.value for kind in acted], since, nodes)
        wanted = [kind.value for kind in kinds]
        found: dict[str, list[Transition]] = {}
        for start in range(0, len(busiest), _NODES_AT_A_TIME):
            few = busiest[start : start + _NODES_AT_A_TIME]
            found |= await run(database.node_transitions, few, wanted, since, rows)
        return found

    # -- writing -------------------------------------------------------------------

    async def _write(self) -> None:
        failures = 0
        retention_due = self._clocks.now()
        while not (self._closing and not self._queue and not self._evidence_rows):
            try:
                if self._queue:
                    await self._linger(await self._write_batch())
                elif self._evidence_rows:
                    await self._linger(await self._write_reported())
                elif self._clocks.now() >= retention_due and not self._closing:
                    retention_due = await self._retain()
                else:
                    await self._wait(retention_due - self._clocks.now())
            except DatabaseError as error:
                failures += 1
                self._fail(error)
                if self._closing:
                    return
                await self._pause(_BACKOFF.pause(failures, self._rng))
            else:
                failures = 0

    async def _write_batch(self) -> int:
        """Write the oldest that wait. They leave the queue when they are written. Returns their
        number.
        """
        batch = self._queue.oldest(BATCH)
        await self._in_thread(self._database.write, batch)
        self._queue.drop(len(batch))
        self.written += len(batch)
        self._well()
        self._log_losses()
        return len(batch)

    async def _write_reported(self) -> int:
        """A transition that comes meanwhile is written before the next batch."""
        batch = self._evidence_rows.oldest(BATCH)
        await self._in_thread(self._database.write, batch, evidence)
        self._evidence_rows.drop(len(batch))
        self._well()
        return len(batch)

    async def _linger(self, written: int) -> None:
        """In a storm some rows always wait: writing a few at a time costs more, just when the load
        is highest. A writer that has fallen behind, or ends, does not linger.
        """
        if written < BATCH and not self._closing:
            await self._pause(LINGER)

    async def _in_thread(self, function: Callable[P, T], /, *args: P.args, **more: P.kwargs) -> T:
        self._busy_since = self._clocks.now()
        try:
            return await self._write_thread.run(function, *args, **more)
        finally:
            self._busy_since = None

    async def _retain(self) -> float:
        """Delete a chunk of the rows that are too old or too many. Returns when to look again
        (monotonic).
        """
        if self._clocks.now() >= self._count_due:
            await self._count()
        cut = self._clocks.earliest() - self._keep
        deleted = 0
        for table in (transitions, evidence):
            oldest = max(cut, self._floors[table.name])
            delete = self._database.delete_before
            deleted = max(deleted, await self._in_thread(delete, oldest, CHUNK, table))
        now = self._clocks.now()
        self._well()
        return now + BREATH if deleted >= CHUNK else now + RETENTION_EVERY

    async def _count(self) -> None:
        """Find the time before which the rows exceed the bound."""
        self._count_due = self._clocks.now() + COUNT_EVERY
        for table in (transitions, evidence):
            found = await self._in_thread(self._database.bound, self._most_rows, table)
            self._floors[table.name] = -math.inf if found is None else found

    async def _wait(self, seconds: float) -> None:
        """Wait for rows to write, and then a moment more, because they seldom come alone."""
        self._some.clear()
        if self._queue or self._evidence_rows or self._closing:
            return
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._some.wait()
        except TimeoutError:
            return
        if not self._closing:
            await self._pause(LINGER)

    async def _pause(self, seconds: float) -> None:
        """Ends early when the writer ends."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self._closing and (left := deadline - asyncio.get_running_loop().time()) > 0:
            self._some.clear()
            try:
                async with asyncio.timeout(left):
                    await self._some.wait()
            except TimeoutError:
                return

    def _fail(self, error: DatabaseError) -> None:
        if not self._failure:
            log.warning(
                "history can't be written",
                extra={"event": "history.unwritable", "error": str(error)},
            )
            self._failing_since = self._clocks.wall()
        self._failure = str(error)

    def _well(self) -> None:
        if self._failure:
            log.info(
                "history is written again", extra={"event": "history.writable", "lost": self.lost}
            )
        self._failure, self._failing_since = "", None

    def _note_bug(self, bug: str) -> None:
        self._bug = bug

    def _append(self, transition: Transition) -> None:
        ident = self._numbers.next(transition.at)
        row = to_row(ident, transition, self._replica)
        self._queue.append(row, size_of(row))
        self._some.set()

    def _losses(self) -> str:
        return f" ({counted(self.lost, 'transition')} lost)" if self.lost else ""

    def _log_losses(self) -> None:
        if self.lost > self._reported:
            lost = self.lost - self._reported
            log.error(
                "history lost transitions",
                extra={"event": "history.transitions_lost", "count": lost},
            )
            self._reported = self.lost
            if not self._closing:
                self._append(self._gap(lost))
        if self.evidence_lost > self._evidence_lost_reported:
            missed = self.evidence_lost - self._evidence_lost_reported
            log.error(
                "history lost reports of agents; a replay lacks them",
                extra={"event": "history.evidence_lost", "count": missed},
            )
            self._evidence_lost_reported = self.evidence_lost

    def _gap(self, lost: int) -> Transition:
        """A transition that marks a gap in the timeline."""
        now = self._clocks.wall()
        return Transition(
            at=now,
            kind=EventKind.HISTORY_LOST,
            node="",
            summary=f"history lost {counted(lost, 'transition')} from "
            f"{write_time(self._gap_from)} on: the database was away for longer than "
            "they could wait",
            details={"count": str(lost), "from": f"{self._gap_from:.3f}", "until": f"{now:.3f}"}
            | ({"replica": self._replica} if self._replica else {}),
        )
