"""Ten million transitions: the page's queries and the writes beside them, on each database.

``BENCH_ROWS`` (10,000,000) transitions of 10,000 nodes over 28 days, ten to an incident, made by
the database itself. Then through the aggregator's own code, each on nodes of its own, so that only
the operating system's cache is warm: a node's whole month, the page's 200 rows of it, the fleet's
newest 200, pages far back, the lemon detector's query, a chunk of retention, and batches of 500 as
a burst makes them.

PostgreSQL is Debian's, with fsync, its shipped settings and 512 MB of shared buffers. Needs some
10 GB in the temporary folder, one database after the other. Run by `make bench-history`.
"""

import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from aggregator.events import EventKind, Transition
from aggregator.history.database import Database
from aggregator.history.history import BATCH, CHUNK
from aggregator.history.lemon_detector import MOST_NODES, MOST_ROWS
from aggregator.history.row_codec import IdGenerator, to_row
from tests.bench import small
from tests.bench.figures import percentile, table, write
from tests.bench.small import exit_code, small_or
from tests.support.histories import Place
from tests.support.postgres import NoPostgres, PostgresServer

ROWS = small.number("BENCH_ROWS", 10_000_000, 2_000)
NODES = small_or(20, 10_000)
DAY = 86_400.0
MONTH = 28 * DAY
#: A fixed month, so that two runs ask for the same.
END = 1_800_000_000.0
LOOKS = small_or(2, 100)
BATCHES = small_or(2, 40)
#: The issue's aim, milliseconds.
WANTED_MS = 50.0

#: One incident: opened, admitted, cordoned, drained with four evictions, released, closed.
_KINDS = (
    *(EventKind.INCIDENT_OPENED, EventKind.ADMITTED, EventKind.CORDONED, EventKind.DRAINING),
    *(EventKind.MOVED, EventKind.MOVED, EventKind.MOVED, EventKind.DRAINED),
    *(EventKind.RELEASED, EventKind.INCIDENT_CLOSED),
)
_SUMMARY = "GPU-5f3c has fallen off the bus (xid:79), the driver asks for a restart of the node"
_DETAILS = (
    '{"kind": "gpu", "action": "drain", "evidence": "xid:79 GPU-5f3c (gpu-gone); '
    'nvml-lost GPU-5f3c (gpu-gone)"}'
)


def _select(number: str, text: Callable[[str], str], hexed: Callable[[str], str]) -> str:
    """Rows for INSERT, of a table that counts ``number`` from 0; the hash spreads incidents."""
    spread = f"(({number} / 10) * 2654435761 % 4294967296)"
    at = f"{END - MONTH} + {number} * {MONTH / ROWS!r}"
    kinds = " ".join(f"WHEN {i} THEN '{kind}'" for i, kind in enumerate(_KINDS))
    node = f"'gpu-' || {text(f'{spread} % {NODES}')}"
    return (
        f"SELECT {number} * 4194304, {at}, CASE {number} % 10 {kinds} END, {node}, "
        f"{hexed(spread)}, {node} || ': {_SUMMARY}', '{_DETAILS}'"
    )


_COLUMNS = "transitions (id, at, kind, node, incident, summary, details)"
_INDEXES = {
    "transitions_node_at": "(node, at, id)",
    "transitions_at": "(at, id)",
    "transitions_kind_at": "(kind, at, node)",
}


def _fill(place: Place) -> None:
    """Rows first, indexes afterwards, in one transaction: no row goes through a log."""
    select, rows = "", f"INSERT INTO {_COLUMNS} "
    drop = [f"DROP INDEX {name}" for name in _INDEXES]
    make = [f"CREATE INDEX {name} ON transitions {columns}" for name, columns in _INDEXES.items()]
    if place.server is None:
        select = _select("i", lambda x: f"printf('%05d', {x})", lambda x: f"printf('%016x', {x})")
        series = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT {ROWS}) "
        with closing(sqlite3.connect(place.url.partition("///")[2])) as connection:
            for pragma in ("synchronous=OFF", "journal_mode=OFF", "cache_size=-400000"):
                connection.execute(f"PRAGMA {pragma}").close()
            for statement in (*drop, f"{rows}{series}{select} FROM n", *make, "ANALYZE"):
                connection.execute(statement)
            connection.commit()
            connection.execute("PRAGMA journal_mode=WAL").close()
        return
    select = _select(
        "i", lambda x: f"lpad(({x})::text, 5, '0')", lambda x: f"lpad(to_hex({x}), 16, '0')"
    ).replace(f"'{_DETAILS}'", f"'{_DETAILS}'::json")
    series = f" FROM generate_series(0::bigint, {ROWS - 1}) AS n(i)"
    begin = ("BEGIN", *drop, "TRUNCATE transitions", rows + select + series, *make, "COMMIT")
    place.server.script(";".join(begin), place.url.rpartition("/")[2])
    place.sql("VACUUM (ANALYZE) transitions")


@contextmanager
def _progress(what: str) -> Iterator[None]:
    began = time.perf_counter()
    print(f"  {what} ...", end="", flush=True)
    yield
    print(f" {time.perf_counter() - began:.1f} s", flush=True)


def _timed(ask: Callable[[], Any]) -> float:
    began = time.perf_counter()
    ask()
    return (time.perf_counter() - began) * 1000


def _burst(rng: random.Random) -> Iterator[list[dict[str, Any]]]:
    """Batches as a burst makes them: new incidents, which are looked up, and their transitions."""
    numbers = IdGenerator(rng.getrandbits(22))
    for batch in range(BATCHES):
        rows = []
        for number in range(BATCH):
            node, kind = f"gpu-{rng.randrange(NODES):05d}", _KINDS[number % len(_KINDS)]
            incident = f"burst-{batch}-{number // len(_KINDS)}"
            details = {"kind": "gpu", "action": "drain", "evidence": "xid:79 GPU-5f3c (gpu-gone)"}
            told = Transition(END + batch, kind, node, f"{node}: {_SUMMARY}", incident, details)
            rows.append(to_row(numbers.next(told.at), told, "sickbay-aggregator-0"))
        yield rows


def _measure(place: Place, rng: random.Random) -> dict[str, float]:
    names = [f"gpu-{number:05d}" for number in rng.sample(range(NODES), 2 * LOOKS)]
    since = END - MONTH
    acted = [EventKind.CORDONED.value, EventKind.SUPPRESSED.value]
    told = [EventKind.INCIDENT_OPENED.value, EventKind.CORDONED.value, EventKind.RELEASED.value]

    def ask(database: Database) -> dict[str, float]:
        opened = _timed(lambda: database.recent(names[0], since, 1))

        def each(nodes: list[str], limit: int) -> list[float]:
            return [_timed(partial(database.recent, node, since, limit)) for node in nodes]

        before = time.thread_time()
        months = each(names[:LOOKS], 10_000)
        own = (time.thread_time() - before) * 1000 / LOOKS
        pages = each(names[LOOKS:], 200)
        feed = [_timed(lambda: database.recent("", 0.0, 200)) for _ in range(LOOKS)]
        rows = len(database.recent(names[0], since, 10_000))
        places = [rng.uniform(since + DAY, END) for _ in range(LOOKS)]
        back = [_timed(partial(database.recent, "", since, 200, until)) for until in places]
        busiest: list[str] = []
        lemons = _timed(lambda: busiest.extend(database.busiest(acted, since, MOST_NODES)))
        stories = _timed(lambda: database.node_transitions(busiest, told, since, MOST_ROWS))
        batches = [_timed(partial(database.write, batch)) for batch in _burst(rng)]
        bound = _timed(lambda: database.bound(ROWS))
        cut = since + MONTH / 2
        deleted = [_timed(lambda: database.delete_before(cut, CHUNK)) for _ in range(20)]
        return {
            "open_ms": opened,
            "node_month_rows": rows,
            "node_month_ms": percentile(months, 99),
            "node_month_p50_ms": percentile(months, 50),
            "node_month_cpu_ms": own,  # of our own thread: other programs can't slow it
            "node_page_ms": percentile(pages, 99),
            "feed_ms": percentile(feed, 99),
            "back_ms": percentile(back, 99),
            "busiest_ms": lemons,
            "stories_ms": stories,
            "insert_per_s": BATCH * len(batches) / (sum(batches) / 1000),
            "batch_p99_ms": percentile(batches, 99),
            "bound_ms": bound,
            "retain_ms": percentile(deleted, 50),
        }

    return place.ask(ask)


def _size_mib(place: Place) -> float:
    if place.server is None:
        return Path(place.url.partition("///")[2]).stat().st_size / 2**20
    return float(place.sql("SELECT pg_total_relation_size('transitions')")[0][0]) / 2**20


def _of(place: Place, kind: str) -> dict[str, float]:
    print(kind, flush=True)
    rng = random.Random(7)  # the same nodes on both
    place.ask(lambda one: one.recent("", 0.0, 1))  # makes the tables
    began = time.perf_counter()
    with _progress(f"{ROWS:,} rows and their indexes"):
        _fill(place)
    figures = {"fill_s": time.perf_counter() - began}
    with _progress("until the disk has all of it"):
        os.sync()  # or the queries would include the writes of these rows
    figures["mib"] = _size_mib(place)
    with _progress("what is asked"):
        figures |= _measure(place, rng)
    return {f"{kind}_{name}": round(value, 2) for name, value in figures.items()}


def main() -> int:
    figures: dict[str, float | int | str] = {"rows": ROWS, "sqlalchemy": sa.__version__}
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as folder:
        figures |= _of(Place(f"sqlite:///{folder}/history.db"), "sqlite")
    try:
        server = PostgresServer(
            fsync="on",
            shared_buffers="512MB",
            maintenance_work_mem="256MB",
            wal_level="minimal",
            max_wal_senders="0",
        )
    except NoPostgres as missing:
        print(f"postgres: left out: {missing}")
    else:
        with closing(server):
            server.start()
            figures |= _of(Place(server.new_database(), server), "postgres")
    path = write("history", figures)
    print(table(f"{ROWS:,} transitions", list(_rows(figures))))
    print(f"written to {path}")
    slow = [
        name
        for name in ("sqlite_node_month_ms", "postgres_node_month_ms")
        if float(figures.get(name, 0)) > WANTED_MS
    ]
    return exit_code(failed=bool(slow))


def _rows(figures: dict[str, float | int | str]) -> Iterator[tuple[str, str, str]]:
    for kind in ("sqlite", "postgres"):
        for name, value in figures.items():
            if name.startswith(f"{kind}_"):
                wanted = f"< {WANTED_MS:g}" if name.endswith("node_month_ms") else ""
                yield name, f"{float(value):,.1f}", wanted


if __name__ == "__main__":
    sys.exit(main())
