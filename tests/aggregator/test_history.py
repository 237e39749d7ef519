"""History on a real SQLite file: nobody waits for it, and what is lost is said."""

# ruff: noqa: ASYNC240 - a test may wait for its own disk

import asyncio
import random
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from aggregator.history import history as history_module
from aggregator.history.database import Database
from aggregator.history.history import History
from aggregator.history.rows import MAX_TEXT, Numbers, from_row, to_row
from aggregator.history.tables import metadata, transitions
from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.ledger import Kind, Ledger, Transition
from tests.support.waiting import CLOCKS, until

DAY = 86_400.0


def happened(at: float, node: str = "n1", kind: Kind = Kind.CORDONED, text: str = "") -> Transition:
    return Transition(at, kind, node, text or f"{node}: {kind} at {at:g}", "inc-1", {"limit": "5%"})


def url(path: Path) -> str:
    return f"sqlite:///{path}"


@asynccontextmanager
async def open_history(
    path: Path, *, keep: float = 1e10, clocks: Clocks = CLOCKS, most_waiting: int = 20_000
) -> AsyncIterator[History]:
    history = History(
        url(path), keep=keep, clocks=clocks, rng=random.Random(1), most_waiting=most_waiting
    )
    history.start()
    try:
        yield history
    finally:
        await history.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


async def test_what_was_noted_comes_back_newest_first_by_node_and_time(path: Path) -> None:
    now = time.time()
    told = [happened(now - age, node) for age in (300, 200, 100) for node in ("n1", "n2", "")]
    async with open_history(path) as history:
        ledger: Ledger = history
        for transition in told:
            ledger.note(transition)
        await until(lambda: history.written == len(told))
        assert await history.recent() == [
            *reversed(told[6:]),
            *reversed(told[3:6]),
            *reversed(told[:3]),
        ]
        assert await history.recent(node="n2") == [told[7], told[4], told[1]]
        assert await history.recent(since=now - 200) == [*reversed(told[6:]), *reversed(told[3:6])]
        assert await history.recent(node="n1", limit=1) == [told[6]]
        assert await history.recent(node="nobody") == []
        assert history.problem == ""


async def test_at_an_orderly_close_everything_queued_is_written(path: Path) -> None:
    async with open_history(path) as history:
        for number in range(3_000):
            history.note(happened(1e9 + number))
        assert history.written < 3_000
    assert (history.written, history.lost, history.depth) == (3_000, 0, 0)
    async with open_history(path) as again:
        assert len(await again.recent(limit=5_000)) == 3_000


async def test_a_note_after_the_close_is_counted_as_lost(path: Path) -> None:
    async with open_history(path) as history:
        pass
    history.note(happened(1.0))
    assert history.lost == 1


@pytest.mark.parametrize(("since", "limit"), [(0.0, 0), (0.0, -5), (float("nan"), 10)])
async def test_a_limit_or_time_that_makes_no_sense_is_refused(
    path: Path, since: float, limit: int
) -> None:
    async with open_history(path) as history:
        with pytest.raises(ValueError, match=r"limit|since"):
            await history.recent(since=since, limit=limit)
        assert await history.recent(limit=10**9) == []


async def test_hostile_text_neither_blocks_nor_grows_the_history(path: Path) -> None:
    hostile = "half \ud800 nul \0 long " + "x" * 100_000
    async with open_history(path) as history:
        history.note(Transition(1.0, Kind.BLOCKED, "n1", hostile, "", {hostile: hostile}))
        await until(lambda: history.written == 1)
        (kept,) = await history.recent()
    assert len(kept.summary) == MAX_TEXT
    assert kept.summary.startswith("half ? nul \ufffd long")
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 200_000


# -- the database is away ------------------------------------------------------------------------


async def test_a_folder_that_comes_late_is_found_and_the_history_catches_up(tmp_path: Path) -> None:
    path = tmp_path / "later" / "history.db"
    async with open_history(path) as history:
        history.note(happened(1.0))
        await until(lambda: history.problem)
        assert "No such file" in history.problem
        assert str(path) in history.problem
        with pytest.raises(OSError, match="No such file"):
            await history.recent()
        path.parent.mkdir()
        await until(lambda: history.written == 1)
        assert history.problem == ""
        assert len(await history.recent()) == 1


async def test_a_file_that_is_no_database_is_a_problem_until_it_is_moved_away(path: Path) -> None:
    path.write_bytes(b"this is a shopping list, and no database at all\n" * 400)
    async with open_history(path) as history:
        history.note(happened(1.0))
        await until(lambda: "not a database" in history.problem, what=lambda: history.problem)
        path.rename(path.with_suffix(".broken"))
        await until(lambda: history.written == 1)
        assert history.problem == ""


async def test_a_file_that_is_taken_away_while_it_is_open_is_made_anew(path: Path) -> None:
    async with open_history(path) as history:
        history.note(happened(1.0))
        await until(lambda: history.written == 1)
        for file in path.parent.iterdir():
            file.unlink()
        history.note(happened(2.0))
        await until(lambda: history.written == 2)
        assert [one.at for one in await history.recent()] == [2.0]


async def test_a_full_disk_loses_what_does_not_fit_in_memory_and_says_how_many(path: Path) -> None:
    # A page limit is SQLite's own "disk is full"; it holds for the writer's connection alone.
    async with open_history(path, most_waiting=50) as history:
        history.note(happened(1.0))
        await until(lambda: history.written == 1)
        engine = history._database._engine
        assert engine is not None
        full = threading.Event()
        full.set()

        @sa.event.listens_for(sa.Engine, "before_cursor_execute")
        def refuse(_c: object, _u: object, statement: str, *_: object) -> None:
            if full.is_set() and statement.startswith("INSERT INTO transitions"):
                raise sa.exc.OperationalError(
                    statement, {}, sqlite3.OperationalError("database or disk is full")
                )

        try:
            for number in range(80):
                history.note(happened(2.0 + number))
            await until(lambda: "disk is full" in history.problem)
            assert history.lost == 30
            assert "(30 transitions lost)" in history.problem
            full.clear()
            await until(lambda: history.written == 51)
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", refuse)
        assert history.problem == ""
        # The beginning of an outage tells most about it: the oldest were kept.
        assert {one.at for one in await history.recent()} == {1.0, *(2.0 + n for n in range(50))}


async def test_noting_and_reading_go_on_while_somebody_else_locks_the_file(path: Path) -> None:
    async with open_history(path) as history:
        history.note(happened(1.0))
        await until(lambda: history.written == 1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        for number in range(1_000):
            history.note(happened(2.0 + number))
        assert len(await history.recent()) == 1
        assert time.monotonic() - began < 2
        assert history.written == 1
        other.execute("ROLLBACK")
        other.close()
        await until(lambda: history.written == 1_001)


async def test_a_database_that_never_answers_is_a_problem_and_does_not_hold_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()
    now = 0.0
    clocks = Clocks(lambda: now, time.time)
    monkeypatch.setattr(Database, "write", lambda *_: hung.wait(60))
    monkeypatch.setattr(history_module, "_CLOSE_WITHIN", 0.2)
    history = History(url(path), keep=DAY, clocks=clocks, rng=random.Random(1))
    history.start()
    history.note(happened(1.0))
    await until(lambda: history._busy_since is not None)
    assert history.problem == ""
    now = 40.0
    assert "no answer for 40 s" in history.problem
    began = time.monotonic()
    await history.close()
    assert time.monotonic() - began < 3
    assert history.lost == 1
    hung.set()


async def test_a_schema_from_the_future_is_left_alone(path: Path) -> None:
    async with open_history(path) as history:
        history.note(happened(1.0))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE sickbay_history_schema SET version = 99")
    other.close()
    async with open_history(path) as history:
        history.note(happened(2.0))
        await until(lambda: "written by a newer sickbay" in history.problem)
        with pytest.raises(OSError, match="upgrade"):
            await history.recent()


async def test_a_kind_of_a_newer_version_is_passed_over(path: Path) -> None:
    async with open_history(path) as history:
        history.note(happened(1.0))
        history.note(happened(2.0))
        await until(lambda: history.written == 2)
        with sqlite3.connect(path) as other:
            other.execute("UPDATE transitions SET kind = 'node.levitates' WHERE at = 2")
        other.close()
        assert [one.at for one in await history.recent(limit=1)] == [1.0]


async def test_a_batch_that_is_written_twice_stands_once(path: Path) -> None:
    database = Database(url(path))
    numbers = Numbers(5)
    rows = [to_row(numbers.next(at), happened(at)) for at in (1.0, 2.0, 3.0)]
    database.write(rows[:2])
    database.write(rows)
    assert [one.at for one in database.recent("", 0.0, 10)] == [3.0, 2.0, 1.0]
    database.close()


# -- retention ---------------------------------------------------------------------------------


async def test_what_is_older_than_keep_is_deleted_in_chunks_and_the_rest_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "CHUNK", 100)
    now = time.time()
    async with open_history(path, keep=1e6) as history:
        for number in range(1_050):
            history.note(happened(now - 10 * DAY - number))
        history.note(happened(now - 5 * DAY))
    async with open_history(path, keep=7 * DAY) as history:
        with sqlite3.connect(path) as other:

            def left() -> int:
                return int(other.execute("SELECT count(*) FROM transitions").fetchone()[0])

            await until(lambda: left() == 1)
        other.close()
        assert [one.at for one in await history.recent()] == [now - 5 * DAY]


async def test_retention_never_deletes_more_than_a_chunk_at_once(path: Path) -> None:
    database = Database(url(path))
    numbers = Numbers(5)
    database.write([to_row(numbers.next(at), happened(at)) for at in map(float, range(10))])
    assert database.delete_before(8.0, 5) == 5
    assert database.delete_before(8.0, 5) == 3
    assert database.delete_before(8.0, 5) == 0
    assert [one.at for one in database.recent("", 0.0, 10)] == [9.0, 8.0]
    database.close()


# -- shape ---------------------------------------------------------------------------------------


async def test_the_file_is_settled_as_measured_and_private(path: Path) -> None:
    async with open_history(path) as history:
        history.note(happened(1.0))
        await until(lambda: history.written == 1)
        with sqlite3.connect(path) as other:
            assert other.execute("PRAGMA page_size").fetchone() == (8192,)
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        other.close()
        assert path.stat().st_mode & 0o777 == 0o600


async def test_a_nodes_last_month_is_found_by_its_index_and_fast(path: Path) -> None:
    database = Database(url(path))
    numbers = Numbers(5)
    for start in range(0, 100_000, 5_000):
        database.write(
            [
                to_row(numbers.next(1e9 + n), happened(1e9 + n, f"n{n % 500}"))
                for n in range(start, start + 5_000)
            ]
        )
    database.recent("n7", 1e9, 200)
    began = time.perf_counter()
    found = database.recent("n7", 1e9 + 10_000, 200)
    took = time.perf_counter() - began
    assert len(found) == 180
    assert took < 0.05
    engine = database._engine
    assert engine is not None
    with engine.connect() as connection:
        plan = connection.exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT * FROM transitions WHERE node = 'n7' AND at >= 1e9 "
            "ORDER BY at DESC, id DESC LIMIT 200"
        ).all()
    assert "transitions_node_at" in str(plan)
    assert "TEMP B-TREE" not in str(plan)
    database.close()


def test_nothing_in_the_tables_is_sqlites_alone() -> None:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateIndex, CreateTable

    postgres = postgresql.dialect()  # type: ignore[no-untyped-call]
    text = "".join(
        str(CreateTable(table).compile(dialect=postgres)) for table in metadata.sorted_tables
    )
    assert "id BIGINT NOT NULL" in text
    assert "details JSON NOT NULL" in text
    for index in transitions.indexes:
        assert "CREATE INDEX" in str(CreateIndex(index).compile(dialect=postgres))


kinds = st.sampled_from(list(Kind))
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    at=st.floats(0, 4e9),
    kind=kinds,
    node=texts,
    summary=texts,
    details=st.dictionaries(texts, texts, max_size=5),
)
def test_a_transition_survives_its_row(
    at: float, kind: Kind, node: str, summary: str, details: dict[str, str]
) -> None:
    before = Transition(at, kind, node[:200], summary, "inc", details)
    assert from_row(to_row(1, before)) == before


@given(st.lists(st.floats(0, 1e10, allow_nan=False), max_size=50), st.integers(0, 2**70))
def test_row_ids_differ_and_fit_what_a_database_calls_big(times: list[float], start: int) -> None:
    numbers = Numbers(start)
    ids = [numbers.next(at) for at in times]
    assert len(set(ids)) == len(ids)
    assert all(0 <= ident < 2**63 for ident in ids)


async def test_noting_costs_the_loop_next_to_nothing(path: Path) -> None:
    async with open_history(path) as history:
        began = time.perf_counter()
        for number in range(10_000):
            history.note(happened(float(number)))
        took = time.perf_counter() - began
        await asyncio.sleep(0)
        assert took / 10_000 < 0.0005
    assert history.written == 10_000


async def test_two_that_make_the_tables_at_the_same_time_both_get_them(tmp_path: Path) -> None:
    for number in range(30):
        path = tmp_path / f"{number}.db"
        both = [Database(url(path)) for _ in range(2)]
        await asyncio.gather(
            *(
                asyncio.to_thread(one.write, [to_row(n, happened(1.0))])
                for n, one in enumerate(both)
            )
        )
        assert len(both[0].recent("", 0.0, 10)) == 2
        for one in both:
            one.close()


# -- what agents told ------------------------------------------------------------------------------


def told_of(path: Path) -> list[tuple[str, str, object]]:
    return [(row["node"], row["kind"], row["body"]) for row in Database(url(path)).evidence()]


async def test_what_agents_told_is_kept_by_node_and_time_and_no_longer_than_the_rest(
    path: Path,
) -> None:
    turned = [time.time() - 10 * DAY]
    clocks = Clocks(time.monotonic, lambda: turned[0])
    async with open_history(path, keep=3 * DAY, clocks=clocks) as history:
        history.record("n2", "base", {"old": True})
        await until(lambda: told_of(path))
    turned[0] += 10 * DAY
    async with open_history(path, keep=3 * DAY, clocks=clocks) as history:
        await until(lambda: not told_of(path))
        history.record("n2", "hello", {"text": "a\0b"})
        history.record("n1", "base", {"components": [{"age": 1.5}]})
        history.record("n2", "base", {})
        await until(lambda: len(told_of(path)) == 3)
        assert history.problem == ""
    assert told_of(path) == [
        ("n1", "base", {"components": [{"age": 1.5}]}),
        ("n2", "hello", {"text": "a\ufffdb"}),
        ("n2", "base", {}),
    ]


async def test_under_load_it_is_what_agents_told_that_is_lost_and_said(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_module, "MOST_TOLD", 10)
    async with open_history(path) as history:
        for number in range(30):
            history.record("n1", "change", {"number": number})
        history.note(happened(time.time()))
        await until(lambda: history.written == 1)
        await until(lambda: len(told_of(path)) == 10)
        assert (history.lost, history.untold) == (0, 20)
    assert "history lost what agents told; a replay lacks it" in caplog.text


async def test_a_database_of_before_the_record_gets_its_table(path: Path) -> None:
    async with open_history(path) as history:
        history.note(happened(time.time()))
        await until(lambda: history.written == 1)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE evidence")
        connection.execute("DROP INDEX transitions_kind_at")
    async with open_history(path) as history:
        history.record("n1", "base", {})
        await until(lambda: told_of(path))
        assert len(await history.recent()) == 1


async def test_the_busiest_nodes_are_found_by_an_index_alone(path: Path) -> None:
    now = time.time()
    async with open_history(path) as history:
        for node, times in (("n1", 3), ("n2", 5), ("n3", 1), ("", 9)):
            for turn in range(times):
                history.note(happened(now - turn, node))
        history.note(happened(now - 9 * DAY, "n9"))
        await until(lambda: history.written == 19)
    database = Database(url(path))
    assert database.busiest([Kind.CORDONED.value], now - DAY, 2) == ["n2", "n1"]
    database.close()
    with sqlite3.connect(path) as connection:
        (plan,) = connection.execute(
            "EXPLAIN QUERY PLAN SELECT node FROM transitions WHERE kind IN ('a', 'b') AND at >= 1 "
            "AND node != '' GROUP BY node ORDER BY count(*) DESC LIMIT 5"
        ).fetchall()[:1]
    assert "COVERING INDEX transitions_kind_at" in plan[3]
