"""The queries of the history's database: plain SQL that SQLite and PostgreSQL share.

Blocking: `History` calls it in threads of its own. Every failure is `DatabaseError`, after which
the next call connects again: a database that was moved away, repaired or restarted is found again.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from aggregator.events import EventKind, Transition
from aggregator.history.dedup import DECIDING, Reported, is_level, without_repeats
from aggregator.history.engine import DatabaseCredentials
from aggregator.history.row_codec import SPREAD, from_row, incident_text, node_text
from aggregator.history.tables import HISTORY, evidence, transitions
from aggregator.runtime.database import DatabaseError, Engine
from aggregator.runtime.sqlite import Sqlite

#: The kind of the rows of evidence that hold the fleet's counts; of no node.
COUNTS = "counts"
#: Rows of evidence that are read at a time.
_AT_ONCE = 500
#: The most rows of one incident that are read to find its present state.
_OF_ONE = 8
#: Rows that `recent` returns at most.
MOST_READ = 10_000
#: Rows that `of_kinds` returns at most.
MOST_OF_KINDS = 50_000
#: The most rows of one kind among which the busiest nodes are counted, newest first.
MOST_COUNTED = 200_000
#: The most rows of one node among which its story is searched, newest first.
MOST_PASSED = 20_000
#: PostgreSQL's advisory lock of the replica that deletes old rows ("sickbay" and a number).
RETAINING = 0x7369636B02

#: Seconds that a server may take. A page waits for a read; a batch only fills a queue.
READING = 5.0
COUNTING = 30.0
WRITING = 15.0


_NEWEST = sa.select(transitions).order_by(transitions.c.at.desc(), transitions.c.id.desc())


class Database:
    """The database at ``url`` (an SQLAlchemy URL). Opened by the first call that needs it.

    ``application`` is the client name that a server is given; ``reads``: the caller never writes.
    """

    def __init__(
        self,
        url: str,
        credentials: DatabaseCredentials | None = None,
        application: str = "sickbay",
        *,
        reads: bool = False,
    ) -> None:
        self._engine = _engine(
            make_url(url), credentials or DatabaseCredentials(), application, reads=reads
        )

    @property
    def name(self) -> str:
        """For people: the file, or the URL without its password."""
        return self._engine.name

    def write(self, rows: Sequence[dict[str, Any]], into: sa.Table = transitions) -> None:
        """Write rows in one transaction. Rows that exist already are left as they are, and a row
        that repeats the last state of its incident is not written.
        """

        def work(connection: sa.Connection) -> None:
            news = _news(connection, rows) if into is transitions else list(rows)
            if news:
                connection.execute(sa.insert(into), news)

        try:
            self._engine.call(work, write=True, seconds=WRITING)
        except DatabaseError as error:
            if not isinstance(error.__cause__, sa.exc.IntegrityError):
                raise
            # The first try may have been committed although it seemed to fail.
            self._engine.call(
                lambda connection: _insert_missing(connection, rows, into),
                write=True,
                seconds=WRITING,
            )

    def recent(
        self, node: str = "", since: float = 0.0, limit: int = 200, until: float = math.inf
    ) -> list[Transition]:
        """The newest ``limit`` from ``since`` to ``until`` (wall clock seconds, both included),
        newest first.

        An empty ``node`` means all, including the fleet's own; ``limit`` is at most 10,000.
        Transitions of the last moment may still be missing. Raises `ValueError` for a limit below 1
        or a time that is no number.
        """
        if limit < 1:
            raise ValueError(f"limit {limit}; expected 1 or more")
        if math.isnan(since) or math.isnan(until):
            raise ValueError("since or until is not a number")
        at = transitions.c.at
        query = _NEWEST.where(at >= since).limit(min(limit, MOST_READ))
        if node:
            query = query.where(transitions.c.node == node_text(node))
        if until != math.inf:
            query = query.where(at <= until)
        return _known(self._read(query))

    def counts(self, since: float) -> list[tuple[float, Mapping[str, Any]]]:
        """The fleet's counts at or after ``since``, oldest first."""
        table = evidence.c
        query = (
            sa.select(table.at, table.body)
            .where(table.node == "", table.kind == COUNTS, table.at >= since)
            .order_by(table.at)
        )
        return [(row["at"], row["body"]) for row in self._read(query)]

    def evidence(self, node: str = "") -> Iterator[dict[str, Any]]:
        """Every row of agents' evidence, by node and then by time; an empty ``node`` means all."""
        table = evidence.c
        order = (table.node, table.at, table.id)
        query = sa.select(evidence).order_by(*order).limit(_AT_ONCE)
        query = query.where(table.node == node_text(node) if node else table.node != "")
        rows = self._read(query)
        while rows:
            yield from rows
            place = [sa.literal(rows[-1][column.name], column.type) for column in order]
            rows = self._read(query.where(sa.tuple_(*order) > sa.tuple_(*place)))

    def busiest(self, kinds: Sequence[str], since: float, most: int) -> list[str]:
        """The ``most`` nodes with the most transitions of these kinds at or after ``since``.

        Of each kind the newest 200,000 are counted.
        """
        table = transitions.c
        counted = [
            sa.select(table.node)
            .where(table.kind == kind, table.at >= since)
            .order_by(table.at.desc())
            .limit(MOST_COUNTED)
            .subquery()
            for kind in kinds
        ]
        nodes = sa.union_all(*(sa.select(one.c.node) for one in counted)).subquery()
        query = (
            sa.select(nodes.c.node)
            .where(nodes.c.node != "")
            .group_by(nodes.c.node)
            .order_by(sa.func.count().desc(), nodes.c.node)
            .limit(most)
        )
        return [str(row["node"]) for row in self._read(query, seconds=COUNTING)]

    def node_transitions(
        self, nodes: Sequence[str], kinds: Sequence[str], since: float, rows: int
    ) -> dict[str, list[Transition]]:
        """The newest ``rows`` transitions of these kinds of each node, at or after ``since``.

        They are searched among its newest 20,000.
        """
        table = transitions.c
        newest = (
            _NEWEST.where(table.node == sa.bindparam("its_node"), table.at >= since)
            .limit(MOST_PASSED)
            .subquery()
        )
        # Built once: to build it takes longer than the database does to answer it.
        query = (
            sa.select(newest)
            .where(newest.c.kind.in_(kinds))
            .order_by(newest.c.at.desc(), newest.c.id.desc())
            .limit(rows)
        )

        def work(connection: sa.Connection) -> dict[str, list[Transition]]:
            found = {}
            for node in nodes:
                passed = connection.execute(query, {"its_node": node}).mappings()
                found[node] = _known(map(dict, passed))
            return found

        return self._engine.call(work, seconds=COUNTING)

    def of_kinds(self, kinds: Iterable[EventKind], since: float, until: float) -> list[Transition]:
        """The newest 50,000 of these kinds from ``since`` to ``until``, newest first."""
        at = transitions.c.at
        found: list[Transition] = []
        for kind in kinds:
            query = (
                sa.select(transitions)
                .where(transitions.c.kind == kind.value, at >= since, at <= until)
                .order_by(at.desc())
                .limit(MOST_OF_KINDS)
            )
            found += _known(self._read(query, seconds=COUNTING))
        found.sort(key=lambda one: one.at, reverse=True)
        return found[:MOST_OF_KINDS]

    def first_of_kinds(self, kinds: Iterable[EventKind], since: float) -> list[Transition]:
        """The first transition of these kinds of each node, at or after ``since``."""
        table = transitions.c
        wanted = table.kind.in_([kind.value for kind in kinds])
        first = (
            sa.select(table.node, sa.func.min(table.at).label("at"))
            .where(wanted, table.at >= since)
            .group_by(table.node)
            .subquery()
        )
        its = sa.and_(table.node == first.c.node, table.at == first.c.at, wanted)
        return _known(self._read(sa.select(transitions).join(first, its), seconds=COUNTING))

    def begins(self) -> list[float]:
        """The time of the oldest row, if there is one."""
        oldest = [sa.select(sa.func.min(one.c.at).label("at")) for one in (transitions, evidence)]
        found = [row["at"] for query in oldest for row in self._read(query)]
        return sorted(at for at in found if at is not None)[:1]

    def of_incident(self, incident: str, limit: int = 200) -> list[Transition]:
        """The newest ``limit`` of this incident, newest first."""
        query = _NEWEST.where(transitions.c.incident == incident_text(incident))
        return _known(self._read(query.limit(min(limit, MOST_READ))))

    def delete_before(self, cut: float, most: int, of: sa.Table = transitions) -> int:
        """Delete up to ``most`` of the oldest rows from before ``cut``. Returns how many.

        One replica at a time deletes: while another one does, the call returns 0.
        """
        old = sa.select(of.c.id).where(of.c.at < cut).order_by(of.c.at).limit(most)

        def work(connection: sa.Connection) -> int:
            if (
                connection.dialect.name == "postgresql"
                and not connection.execute(
                    sa.select(sa.func.pg_try_advisory_xact_lock(RETAINING))
                ).scalar()
            ):
                return 0
            return connection.execute(sa.delete(of).where(of.c.id.in_(old))).rowcount

        return self._engine.call(work, write=True, seconds=WRITING)

    def bound(self, rows: int, of: sa.Table = transitions) -> float | None:
        """The time of the newest row beyond the ``rows`` that may stay, or None if there are
        fewer.
        """
        query = sa.select(of.c.at).order_by(of.c.at.desc(), of.c.id.desc()).offset(rows).limit(1)

        def work(connection: sa.Connection) -> float | None:
            if connection.dialect.name == "postgresql":
                guess = "SELECT reltuples FROM pg_class WHERE oid = CAST(:name AS regclass)"
                about = connection.execute(sa.text(guess), {"name": of.name}).scalar()
                if about is not None and 0 <= about < 0.8 * rows:
                    return None  # the estimate: counting ten million rows takes seconds
            return connection.execute(query).scalar()

        return self._engine.call(work, seconds=COUNTING)

    def close(self) -> None:
        """Close the database; a later call opens it again."""
        self._engine.close()

    def _read(self, query: sa.Select[Any], *, seconds: float = READING) -> list[dict[str, Any]]:
        def work(connection: sa.Connection) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(query).mappings()]

        return self._engine.call(work, seconds=seconds)


def _known(rows: Iterable[Mapping[str, Any]]) -> list[Transition]:
    """The transitions, without those of a kind that this version does not know."""
    return [one for one in map(from_row, rows) if one is not None]


def _engine(url: URL, credentials: DatabaseCredentials, application: str, *, reads: bool) -> Engine:
    if url.get_backend_name() == "sqlite":
        return Sqlite(url, HISTORY, reads=reads)
    # The import takes half a second, which the user of a file need not spend.
    from aggregator.history.postgres import Postgres

    return Postgres(url, credentials, application, HISTORY)


def _news(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, without those that repeat an existing row or one that precedes them."""
    read = [from_row(row) for row in rows]
    incidents = {one.incident for one in read if one is not None and is_level(one)}
    if not incidents:
        return list(rows)
    states = _recent_states(connection, sorted(incidents))
    return [
        row
        for row, one in zip(rows, read, strict=True)
        if one is None or without_repeats([one], states)
    ]


def _recent_states(connection: sa.Connection, incidents: Sequence[str]) -> Reported:
    """The recent states of these incidents, oldest first."""
    table = transitions.c
    query = (
        sa.select(transitions)
        .where(table.incident.in_(incidents), table.kind.in_([kind.value for kind in DECIDING]))
        .order_by(table.at.desc(), table.id.desc())
        .limit(_OF_ONE * len(incidents))
    )
    states: Reported = defaultdict(list)
    for row in reversed(connection.execute(query).mappings().all()):
        one = from_row(dict(row))
        if one is not None:
            states[one.node, one.incident].append(one)
    return states


def _insert_missing(
    connection: sa.Connection, rows: Sequence[dict[str, Any]], into: sa.Table
) -> None:
    """Insert the rows that do not exist. Where another replica's row has a number, ours gets
    another.
    """
    table, missing = into.c, list(rows)
    for bit in range(SPREAD - 1, 0, -1):
        query = sa.select(table.id, table.at, table.kind, table.node, table.replica)
        query = query.where(table.id.in_([row["id"] for row in missing]))
        taken = {row["id"]: row for row in connection.execute(query).mappings()}
        if not taken:
            break
        missing = [
            row if row["id"] not in taken else row | {"id": row["id"] ^ (1 << bit)}
            for row in missing
            if row["id"] not in taken or not _is_same(row, taken[row["id"]])
        ]
    if missing:
        connection.execute(sa.insert(into), missing)


def _is_same(row: Mapping[str, Any], known: Mapping[Any, Any]) -> bool:
    return all(row[name] == known[name] for name in ("at", "kind", "node", "replica"))
