"""History on real databases: no task waits for it, and a lost event is counted and reported."""

# ruff: noqa: ASYNC240 - a test may wait for its own disk

import asyncio
import random
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from aggregator.clock import EVEN_FOR, Clocks
from aggregator.events import EventKind, EventSink, Transition
from aggregator.history import history as history_module
from aggregator.history.database import Database
from aggregator.history.history import History
from aggregator.history.row_codec import MAX_TEXT, IdGenerator, from_row, to_row
from aggregator.runtime import tasks
from tests.support.histories import Place, happened
from tests.support.waiting import until

DAY = 86_400.0


def url(path: Path) -> str:
    return f"sqlite:///{path}"


@asynccontextmanager
async def open_history(path: Path, **more: Any) -> AsyncIterator[History]:
    async with Place(url(path)).history(**more) as history:
        yield history


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


async def test_what_was_noted_comes_back_newest_first_by_node_and_time(place: Place) -> None:
    now = time.time()
    told = [happened(now - age, node) for age in (300, 200, 100) for node in ("n1", "n2", "")]
    async with place.history() as history:
        event_sink: EventSink = history
        for transition in told:
            event_sink.record_event(transition)
        await until(lambda: history.written == len(told))
        assert await history.recent() == [
            *reversed(told[6:]),
            *reversed(told[3:6]),
            *reversed(told[:3]),
        ]
        assert await history.recent(node="n2") == [told[7], told[4], told[1]]
        assert await history.recent(since=now - 200) == [*reversed(told[6:]), *reversed(told[3:6])]
        assert await history.recent(node="n1", limit=1) == [told[6]]
        assert await history.recent(node="n1", until=now - 200) == [told[3], told[0]]
        assert await history.recent(since=now - 200, until=now - 150) == [*reversed(told[3:6])]
        assert await history.recent(node="nobody") == []
        assert history.problem == ""


async def test_at_an_orderly_close_everything_queued_is_written(place: Place) -> None:
    async with place.history() as history:
        for number in range(3_000):
            history.record_event(happened(1e9 + number))
        assert history.written < 3_000
    assert (history.written, history.lost, history.depth) == (3_000, 0, 0)
    async with place.history() as again:
        assert len(await again.recent(limit=5_000)) == 3_000


async def test_a_bug_is_logged_and_the_writer_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bugs, write = [ValueError("a bug")], Database.write

    def wrong_at_first(*given: Any) -> None:
        if bugs:
            raise bugs[0]
        write(*given)

    monkeypatch.setattr(Database, "write", wrong_at_first)
    monkeypatch.setattr(tasks, "AGAIN_AFTER", 0.05)
    problem = "history is not written: history has failed; report it"
    async with place.history() as history:
        history.record_event(happened(1e9))
        await until(lambda: history.problem == problem)
        bugs.clear()
        await until(lambda: history.written == 1)
        assert history.problem == ""
    assert "history met an unexpected error" in caplog.text


async def test_a_note_after_the_close_is_counted_as_lost(place: Place) -> None:
    async with place.history() as history:
        pass
    history.record_event(happened(1.0))
    assert history.lost == 1


@pytest.mark.parametrize(("since", "limit"), [(0.0, 0), (0.0, -5), (float("nan"), 10)])
async def test_a_limit_or_time_that_makes_no_sense_is_refused(
    place: Place, since: float, limit: int
) -> None:
    async with place.history() as history:
        with pytest.raises(ValueError, match=r"limit|since"):
            await history.recent(since=since, limit=limit)
        assert await history.recent(limit=10**9) == []


async def test_hostile_text_neither_blocks_nor_grows_the_history(place: Place) -> None:
    hostile = "half \ud800 nul \0 long " + "x" * 100_000
    async with place.history() as history:
        history.record_event(
            Transition(1.0, EventKind.BLOCKED, "n1", hostile, "", {hostile: hostile})
        )
        await until(lambda: history.written == 1)
        (kept,) = await history.recent()
        for asked in ("\0", "\ud800", hostile):  # of readers, by the address of a page
            assert await history.of_incident(asked) == []
            assert await history.recent(asked) == []
        assert not history.problem
    assert len(kept.summary) == MAX_TEXT
    assert kept.summary.startswith("half ? nul \ufffd long")
    assert sum(len(name) + len(text) for name, text in kept.details.items()) < 2 * MAX_TEXT


# -- the database is away ------------------------------------------------------------------------


async def test_a_folder_that_comes_late_is_found_and_the_history_catches_up(tmp_path: Path) -> None:
    path = tmp_path / "later" / "history.db"
    async with open_history(path) as history:
        history.record_event(happened(1.0))
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
        history.record_event(happened(1.0))
        await until(lambda: "not a database" in history.problem, what=lambda: history.problem)
        path.rename(path.with_suffix(".broken"))
        await until(lambda: history.written == 1)
        assert history.problem == ""


async def test_a_file_that_is_taken_away_while_it_is_open_is_made_anew(path: Path) -> None:
    async with open_history(path) as history:
        history.record_event(happened(1.0))
        await until(lambda: history.written == 1)
        for file in path.parent.iterdir():
            file.unlink()
        history.record_event(happened(2.0))
        await until(lambda: history.written == 2)
        assert [one.at for one in await history.recent()] == [2.0]


async def test_a_full_disk_loses_what_does_not_fit_in_memory_and_says_how_many(path: Path) -> None:
    # A page limit is SQLite's own "disk is full"; it holds for the writer's connection alone.
    async with open_history(path, most_waiting=50) as history:
        history.record_event(happened(1.0))
        await until(lambda: history.written == 1)
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
                history.record_event(happened(2.0 + number))
            await until(lambda: "disk is full" in history.problem)
            assert history.lost == 30
            assert "(30 transitions lost)" in history.problem
            full.clear()
            await until(lambda: history.written == 52)
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", refuse)
        assert history.problem == ""
        # The oldest events were kept, because the beginning of an outage says most about it.
        gap, *kept = await history.recent()
        assert {one.at for one in kept} == {1.0, *(2.0 + n for n in range(50))}
        assert gap.kind is EventKind.HISTORY_LOST
        assert gap.details["count"] == "30"
        assert "lost 30 transitions from 1970-01-01T00:00:52Z on" in gap.summary


async def test_noting_and_reading_go_on_while_somebody_else_locks_the_file(path: Path) -> None:
    async with open_history(path) as history:
        history.record_event(happened(1.0))
        await until(lambda: history.written == 1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        for number in range(1_000):
            history.record_event(happened(2.0 + number))
        assert len(await history.recent()) == 1  # while it is locked
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
    monkeypatch.setattr(Database, "write", lambda *_: hung.wait(1000))
    monkeypatch.setattr(history_module, "_CLOSE_WITHIN", 0.2)
    history = History(url(path), keep=DAY, clocks=clocks, rng=random.Random(1))
    history.start()
    history.record_event(happened(1.0))
    await until(lambda: history._busy_since is not None)
    assert history.problem == ""
    now = 40.0
    assert "no answer for 40 s" in history.problem
    await history.close()  # while it hangs
    assert history.lost == 1
    hung.set()


async def test_a_kind_of_a_newer_version_is_passed_over(place: Place) -> None:
    async with place.history() as history:
        history.record_event(happened(1.0))
        history.record_event(happened(2.0))
        await until(lambda: history.written == 2)
        place.sql("UPDATE transitions SET kind = 'node.levitates' WHERE at = 2")
        assert [one.at for one in await history.recent()] == [1.0]


def test_a_batch_that_is_written_twice_is_once(place: Place) -> None:
    numbers = IdGenerator(5)
    rows = [to_row(numbers.next(at), happened(at)) for at in (1.0, 2.0, 3.0)]
    database = place.database()
    database.write(rows[:2])
    database.write(rows)
    assert [one.at for one in database.recent("", 0.0, 10)] == [3.0, 2.0, 1.0]
    database.close()


def test_rows_of_two_replicas_with_the_same_numbers_all_stand(place: Place) -> None:
    database = place.database()
    ours, theirs = (
        [to_row(number << 22, happened(1.0 + number, node), node) for number in range(5)]
        for node in ("n1", "n2")
    )
    database.write(ours)
    database.write(theirs)
    database.write(theirs[:2])  # an unknown end of the first try
    for node in ("n1", "n2"):
        found = database.recent(node, 0.0, 10)
        assert [one.at for one in found][-5:] == [5.0, 4.0, 3.0, 2.0, 1.0]
    database.close()
    assert {(*row,) for row in place.sql("SELECT DISTINCT node, replica FROM transitions")} == {
        ("n1", "n1"),
        ("n2", "n2"),
    }


# -- retention ---------------------------------------------------------------------------------


async def test_what_is_older_than_keep_is_deleted_in_chunks_and_the_rest_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "CHUNK", 100)
    now = time.time()
    async with place.history(keep=1e6) as history:
        for number in range(1_050):
            history.record_event(happened(now - 10 * DAY - number))
        history.record_event(happened(now - 5 * DAY))
    async with place.history(keep=7 * DAY) as history:

        def left() -> int:
            return int(place.sql("SELECT count(*) FROM transitions")[0][0])

        await until(lambda: left() == 1)
        assert [one.at for one in await history.recent()] == [now - 5 * DAY]


def test_retention_never_deletes_more_than_a_chunk_at_once(place: Place) -> None:
    database = place.database()
    numbers = IdGenerator(5)
    database.write([to_row(numbers.next(at), happened(at)) for at in map(float, range(10))])
    assert database.delete_before(8.0, 5) == 5
    assert database.delete_before(8.0, 5) == 3
    assert database.delete_before(8.0, 5) == 0
    assert [one.at for one in database.recent("", 0.0, 10)] == [9.0, 8.0]
    database.close()


async def test_there_are_never_many_more_rows_than_may_be(place: Place) -> None:
    now = time.time()
    async with place.history() as history:
        for number in range(200):
            history.record_event(happened(now - number))
            history.record("n1", "change", {"number": number})
        await until(lambda: len(reported_of(place)) == 200)
    async with place.history(most_rows=50) as history:
        await until(lambda: len(reported_of(place)) <= 51)
        assert 50 <= len(await history.recent(limit=1000)) <= 51
        assert (await history.recent())[0].at == now


# -- shape ---------------------------------------------------------------------------------------


async def test_the_file_is_settled_as_measured_and_private(path: Path) -> None:
    async with open_history(path) as history:
        history.record_event(happened(1.0))
        await until(lambda: history.written == 1)
        with closing(sqlite3.connect(path)) as other, other:
            assert other.execute("PRAGMA page_size").fetchone() == (8192,)
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        other.close()
        assert path.stat().st_mode & 0o777 == 0o600


def test_what_the_page_asks_is_found_by_an_index_and_fast(place: Place) -> None:
    database = place.database()
    numbers = IdGenerator(5)
    for start in range(0, 20_000, 5_000):
        database.write(
            [
                to_row(numbers.next(1e9 + n), happened(1e9 + n, f"n{n % 250}"))
                for n in range(start, start + 5_000)
            ]
        )
    if place.server is not None:
        place.sql("ANALYZE transitions")
    database.recent("n7", 1e9, 200)
    took = []  # the best of some: the others may be this machine's doing
    for _ in range(10):
        began = time.perf_counter()
        found = database.recent("n7", 1e9 + 5_000, 200)
        took.append(time.perf_counter() - began)
    database.close()
    assert len(found) == 60
    assert min(took) < 0.25
    order = "ORDER BY at DESC, id DESC LIMIT 50"
    for index, where in (
        ("transitions_node_at", "node = 'n7' AND at >= 1e9"),
        ("transitions_node_at", "node = 'n7' AND at <= 1000049999 AND (at, id) < (1000049999, 3)"),
        ("transitions_at", "at >= 0 AND at <= 1000049999 AND (at, id) < (1000049999, 3)"),
    ):
        plan = place.plan(f"SELECT * FROM transitions WHERE {where} {order}")
        assert index in plan
        assert "TEMP B-TREE" not in plan
        assert "Sort" not in plan


kinds = st.sampled_from(list(EventKind))
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    at=st.floats(0, 4e9),
    kind=kinds,
    node=texts,
    summary=texts,
    details=st.dictionaries(texts, texts, max_size=5),
)
def test_a_transition_survives_its_row(
    at: float, kind: EventKind, node: str, summary: str, details: dict[str, str]
) -> None:
    before = Transition(at, kind, node[:200], summary, "inc", details)
    assert from_row(to_row(1, before)) == before


@given(st.lists(st.floats(0, 1e10, allow_nan=False), max_size=50), st.integers(0, 2**70))
def test_row_ids_differ_and_fit_what_a_database_calls_big(times: list[float], start: int) -> None:
    numbers = IdGenerator(start)
    ids = [numbers.next(at) for at in times]
    assert len(set(ids)) == len(ids)
    assert all(0 <= ident < 2**63 for ident in ids)


async def test_noting_costs_the_loop_next_to_nothing(path: Path) -> None:
    async with open_history(path) as history:
        began = time.perf_counter()
        for number in range(10_000):
            history.record_event(happened(float(number)))
        took = time.perf_counter() - began
        await asyncio.sleep(0)
        assert took / 10_000 < 0.0005
    assert history.written == 10_000


# -- what agents told ------------------------------------------------------------------------------


def reported_of(place: Place) -> list[tuple[str, str, object]]:
    rows = place.ask(lambda database: list(database.evidence()))
    return [(row["node"], row["kind"], row["body"]) for row in rows]


async def test_the_fleets_counts_are_read_since_a_time_and_are_no_evidence(place: Place) -> None:
    turned = [time.time()]
    clocks = Clocks(time.monotonic, lambda: turned[0])
    async with place.history(clocks=clocks) as history:
        for number in range(3):
            turned[0] += 300
            history.record_counts({"nodes": number})
        history.record("node-1", "hello", {})
        await until(lambda: len(reported_of(place)) == 1)
        found = await history.counts(turned[0] - 400)
        assert [(at <= turned[0], body) for at, body in found] == [
            (True, {"nodes": 1}),
            (True, {"nodes": 2}),
        ]


async def test_what_agents_told_is_kept_by_node_and_time_and_no_longer_than_the_rest(
    place: Place,
) -> None:
    turned = [time.time() - 10 * DAY]
    clocks = Clocks(time.monotonic, lambda: turned[0])
    async with place.history(keep=3 * DAY, clocks=clocks) as history:
        history.record("n2", "base", {"old": True})
        await until(lambda: reported_of(place))
    turned[0] += 10 * DAY
    async with place.history(keep=3 * DAY, clocks=clocks) as history:
        await until(lambda: not reported_of(place))
        history.record("n2", "hello", {"text": "a\0b"})
        history.record("n1", "base", {"components": [{"age": 1.5}]})
        history.record("n2", "base", {})
        await until(lambda: len(reported_of(place)) == 3)
        assert history.problem == ""
    assert reported_of(place) == [
        ("n1", "base", {"components": [{"age": 1.5}]}),
        ("n2", "hello", {"text": "a\ufffdb"}),
        ("n2", "base", {}),
    ]


async def test_a_clock_that_jumps_ahead_deletes_nothing_before_it_has_run_evenly(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "RETENTION_EVERY", 0.0)
    passed, ahead, retained = [0.0], [0.0], 0
    clocks = Clocks(
        lambda: time.monotonic() + passed[0], lambda: time.time() + passed[0] + ahead[0]
    )
    delete = Database.delete_before

    def counted(database: Database, *arguments: Any) -> int:
        nonlocal retained
        retained += 1
        return delete(database, *arguments)

    async def polled_at() -> None:
        before = retained
        await until(lambda: retained > before + 4)

    monkeypatch.setattr(Database, "delete_before", counted)
    async with place.history(keep=3 * DAY, clocks=clocks) as history:
        history.record_event(happened(time.time()))
        await until(lambda: history.written == 1)
        await polled_at()
        ahead[0] = 30 * DAY
        await polled_at()
        passed[0] += EVEN_FOR - 60
        await polled_at()
        assert len(await history.recent()) == 1
        passed[0] += 120
        await until(lambda: place.sql("SELECT count(*) FROM transitions")[0][0] == 0)


async def test_under_load_it_is_what_agents_told_that_is_lost_and_said(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history_module, "MOST_EVIDENCE", 10)
    async with place.history() as history:
        for number in range(30):
            history.record("n1", "change", {"number": number})
        history.record_event(happened(time.time()))
        await until(lambda: history.written == 1)
        await until(lambda: len(reported_of(place)) == 10)
        assert (history.lost, history.evidence_lost) == (0, 20)
    assert "history lost reports of agents; a replay lacks them" in caplog.text


async def test_the_busiest_nodes_are_found_by_an_index_alone(place: Place) -> None:
    now = time.time()
    async with place.history() as history:
        for node, times in (("n1", 3), ("n2", 5), ("n3", 1), ("", 9)):
            for turn in range(times):
                history.record_event(happened(now - turn, node))
        history.record_event(happened(now - 9 * DAY, "n9"))
        await until(lambda: history.written == 19)
    kinds = [EventKind.CORDONED.value, EventKind.SUPPRESSED.value]
    assert place.ask(lambda database: database.busiest(kinds, now - DAY, 2)) == ["n2", "n1"]
    counted = "SELECT node FROM transitions WHERE kind = 'a' AND at >= 1 ORDER BY at DESC LIMIT 99"
    if place.server is None:
        assert "COVERING INDEX transitions_kind_at" in place.plan(counted)


async def test_while_one_reading_hangs_the_next_fail_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, now = threading.Event(), 0.0
    monkeypatch.setattr(Database, "_read", lambda *_: hung.wait(60) and [])
    async with open_history(path, clocks=Clocks(lambda: now, time.time)) as history:
        first = asyncio.create_task(history.recent())
        await until(lambda: history._reader._began is not None)
        now = 5.0
        with pytest.raises(OSError, match="no answer for 5 s"):
            await history.recent()
        hung.set()
        assert await first == []


async def test_transitions_of_some_kinds_come_back_within_their_time(place: Place) -> None:
    now = time.time()
    kinds = (EventKind.JOB_STOPPED, EventKind.CORDONED, EventKind.HELD)
    made = [
        Transition(now - age, kind, "n1", f"{kind} {age}", f"i{age}", {"key": "ml/job/a"})
        for age in (300, 200, 100)
        for kind in kinds
    ]
    async with place.history() as history:
        for transition in made:
            history.record_event(transition)
        await until(lambda: history.written == len(made))
        found = await history.of_kinds(kinds[:2], now - 250, now - 50)
        assert await history.begins() == [now - 300]
        later = await history.first_of_kinds(kinds[1:2], now - 250)
        assert [(one.kind, one.node, one.at) for one in later] == [(kinds[1], "n1", now - 200)]
    assert {(one.kind, one.at) for one in found} == {
        (kind, now - age) for kind in kinds[:2] for age in (200, 100)
    }
    assert found[0].at == now - 100
    assert found[0].details["key"] == "ml/job/a"
