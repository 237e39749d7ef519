"""The local cluster keeps the protocol's promises, on a real file and with real commands."""

import asyncio
import json
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.local import cluster as local_module
from aggregator.cluster.local.cluster import LocalCluster
from aggregator.cluster.local.settings import Commands
from aggregator.cluster.local.sqlite_rows import SqliteRows
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Blocker,
    Cluster,
    ClusterError,
    ClusterEvent,
    Conflict,
    HookState,
    HookStatus,
    NodeChange,
    NodeUncordoned,
    NotFound,
    Phase,
    Quarantine,
    QuarantineGone,
    QuarantineSeen,
    QuarantineStatus,
    RecordSeen,
    Refused,
    StopSeen,
    StopText,
    Unreachable,
    WatchLost,
    WatchSynced,
)
from aggregator.runtime.sqlite_format import LOCAL_CLUSTER
from tests.aggregator.local_file import OURS, SPEC, opened, run_other_process
from tests.support.present import of_type, present
from tests.support.tasks import end_tasks
from tests.support.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cluster.db"


@asynccontextmanager
async def collected_events(cluster: Cluster) -> AsyncIterator[list[ClusterEvent]]:
    heard: list[ClusterEvent] = []

    async def listen() -> None:
        async for item in cluster.events():
            heard.append(item)  # noqa: PERF401 - it never ends

    listening = asyncio.create_task(listen())
    try:
        yield heard
    finally:
        await end_tasks(listening)


# -- compare-and-set -----------------------------------------------------------------------------


Late = Callable[[LocalCluster, LocalCluster], Awaitable[None]]


async def late_record(one: LocalCluster, other: LocalCluster) -> None:
    read = await one.read_record()
    await other.write_record("theirs", (await other.read_record()).version, guard=UNGUARDED)
    await one.write_record("mine", read.version, guard=UNGUARDED)


async def record_after_a_stop(one: LocalCluster, other: LocalCluster) -> None:
    read = await one.read_record()
    await other._write(other._open.set_stop, "drill")
    await one.write_record("mine", read.version, guard=UNGUARDED)


async def late_spec(one: LocalCluster, other: LocalCluster) -> None:
    quarantine = await one.create_quarantine("n1", SPEC, guard=UNGUARDED)
    await other.write_quarantine_status(quarantine, QuarantineStatus(Phase.RELEASING))
    await one.write_quarantine_spec(quarantine, replace(SPEC, action=Action.CORDON))


async def late_status(one: LocalCluster, other: LocalCluster) -> None:
    quarantine = await one.create_quarantine("n1", SPEC, guard=UNGUARDED)
    await other.write_quarantine_status(quarantine, QuarantineStatus(Phase.CORDONED))
    await one.write_quarantine_status(quarantine, QuarantineStatus(Phase.CORDONED))


async def status_of_another_object(one: LocalCluster, other: LocalCluster) -> None:
    quarantine = await one.create_quarantine("n1", SPEC, guard=UNGUARDED)
    await other.drop_quarantine(quarantine, guard=UNGUARDED)
    await other.create_quarantine("n1", SPEC, guard=UNGUARDED)
    await one.write_quarantine_status(quarantine, QuarantineStatus(Phase.CORDONED))


async def second_object(one: LocalCluster, other: LocalCluster) -> None:
    await other.create_quarantine("n1", SPEC, guard=UNGUARDED)
    await one.create_quarantine("n1", SPEC, guard=UNGUARDED)


async def late_patch(one: LocalCluster, other: LocalCluster) -> None:
    node = await one.read_node("n1")
    theirs = await other.read_node("n1")
    assert node is not None
    assert theirs is not None
    await other.patch_node(theirs, NodeChange(annotations={"released": "1"}), guard=UNGUARDED)
    await one.patch_node(node, NodeChange(taints=(OURS,)), guard=UNGUARDED)


each_late_change = pytest.mark.parametrize(
    "late",
    [
        late_record,
        record_after_a_stop,
        late_spec,
        late_status,
        status_of_another_object,
        second_object,
        late_patch,
    ],
    ids=lambda late: late.__name__,
)


@each_late_change
async def test_whoever_decided_on_an_older_picture_fails(path: Path, late: Late) -> None:
    async with opened(path) as one, opened(path) as other:
        with pytest.raises(Conflict):
            await late(one, other)


async def test_a_late_patch_runs_no_command(path: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    async with opened(path, Commands(cordon=("touch", str(ran)))) as cluster:
        node = present(await cluster.read_node("n1"))
        await cluster.patch_node(node, NodeChange(annotations={"released": "1"}), guard=UNGUARDED)
        with pytest.raises(Conflict):
            await cluster.patch_node(node, NodeChange(taints=(OURS,)), guard=UNGUARDED)
        assert not ran.exists()
        again = present(await cluster.read_node("n1"))
        await cluster.patch_node(again, NodeChange(taints=(OURS,)), guard=UNGUARDED)
        assert ran.exists()


async def test_a_patch_that_changes_nothing_leaves_the_version(path: Path) -> None:
    async with opened(path) as cluster:
        node = present(await cluster.read_node("n1"))
        assert (
            await cluster.patch_node(node, NodeChange(unschedulable=False), guard=UNGUARDED) == node
        )
        other = await cluster.patch_node(
            node, NodeChange(labels={"a": "1", "b": None}), guard=UNGUARDED
        )
        assert other.version != node.version
        assert other.labels == {"a": "1"}


async def test_everything_written_comes_back_as_it_was(path: Path) -> None:
    hook = HookStatus(HookState.DONE, 2.5, 2.75, "drained")
    status = QuarantineStatus(
        Phase.DRAINED,
        "done",
        "uid",
        *(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
        pre_evict=hook,
        released_because="x",
        overruled=True,
        blockers=(Blocker("jobs/a", "a budget", 7.0),),
    )
    async with opened(path) as cluster:
        quarantine = await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        written = await cluster.write_quarantine_status(quarantine, status)
        assert (written.spec, written.status, written.has_finalizer) == (SPEC, status, True)
    async with opened(path) as again:
        assert await again.read_quarantine("n1") == written
        assert await again.read_quarantine("n2") is None
        assert (await again.read_record()).text == ""


async def test_dropping_is_by_uid_and_twice_is_no_error(path: Path) -> None:
    async with opened(path) as cluster:
        old = await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        await cluster.drop_quarantine(old, guard=UNGUARDED)
        new = await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        await cluster.drop_quarantine(old, guard=UNGUARDED)
        assert await cluster.read_quarantine("n1") == new
        with pytest.raises((NotFound, Conflict)):
            await cluster.write_quarantine_status(old, QuarantineStatus())


# -- news ------------------------------------------------------------------------------------------


async def test_news_begin_with_all_there_is_and_go_on_with_what_changes(path: Path) -> None:
    async with opened(path) as cluster:
        first = await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        async with collected_events(cluster) as heard:
            await until(lambda: len(heard) == 4)
            assert heard[0] == StopSeen(StopText(None, "1"))
            assert isinstance(heard[1], RecordSeen)
            assert heard[2] == QuarantineSeen(first)
            assert heard[3] == WatchSynced(frozenset())
            changed = await cluster.write_quarantine_status(first, QuarantineStatus(Phase.CORDONED))
            await until(lambda: heard[-1] == QuarantineSeen(changed))
            await cluster.drop_quarantine(changed, guard=UNGUARDED)
            await until(lambda: heard[-1] == QuarantineGone("n1", first.uid))


def stops(heard: Sequence[ClusterEvent]) -> list[str]:
    """The reason in each stop switch that was reported."""
    return [item.stop.reason or "" for item in heard if isinstance(item, StopSeen)]


async def test_what_another_process_writes_is_news_within_a_second(path: Path) -> None:
    async with opened(path) as cluster, collected_events(cluster) as heard:
        await until(lambda: any(isinstance(item, WatchSynced) for item in heard))
        node = present(await cluster.read_node("n1"))
        await cluster.patch_node(node, NodeChange(unschedulable=True), guard=UNGUARDED)
        took: list[float] = []
        while len(took) < 5 and min(took, default=1.0) >= 1.0:  # once may be this machine's doing
            word = f"drill {len(took)}"
            await run_other_process(path, f"store.set_stop({word!r})")
            began = time.monotonic()
            await until(lambda: word in stops(heard))  # noqa: B023 (done with it before the next)
            took.append(time.monotonic() - began)
        assert min(took) < 1.0
        assert not any(isinstance(item, NodeUncordoned) for item in heard)
        await run_other_process(
            path,
            "from dataclasses import replace\n"
            "store.write_node(replace(store.node('n1'), unschedulable=False))",
        )
        await until(lambda: NodeUncordoned("n1") in heard)


async def test_a_file_that_cannot_be_read_loses_the_view_and_brings_all_of_it_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_module, "AGAIN", 0.02)
    async with opened(path) as cluster:
        looks: list[None] = []
        look = cluster.poll_nodes

        def counted() -> AsyncIterator[ClusterEvent]:
            looks.append(None)
            return look()

        monkeypatch.setattr(cluster, "poll_nodes", counted)
        quarantine = await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        async with collected_events(cluster) as heard:
            await until(lambda: any(isinstance(item, WatchSynced) for item in heard))
            heard.clear()
            with sqlite3.connect(path) as other:
                other.execute("ALTER TABLE quarantines RENAME TO hidden")
            await until(lambda: heard)
            tried = len(looks)
            await until(lambda: len(looks) >= tried + 3)  # each in vain, and not reported again
            (lost,) = heard
            assert isinstance(lost, WatchLost)
            assert "no such table" in lost.reason
            with pytest.raises(Unreachable):
                await cluster.read_quarantine("n1")
            other.execute("ALTER TABLE hidden RENAME TO quarantines")
            other.close()
            await until(lambda: any(isinstance(item, WatchSynced) for item in heard))
            assert QuarantineSeen(quarantine) in heard


@pytest.mark.parametrize("instead", ["nothing", "another file"])
async def test_a_file_that_is_taken_away_is_not_gone_on_with_in_secret(
    path: Path, monkeypatch: pytest.MonkeyPatch, instead: str
) -> None:
    monkeypatch.setattr(local_module, "AGAIN", 0.02)
    async with opened(path) as cluster:
        quarantine = await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        async with collected_events(cluster) as heard:
            await until(lambda: any(isinstance(item, WatchSynced) for item in heard))
            heard.clear()
            aside = path.with_name("aside.db")
            await asyncio.to_thread(path.rename, aside)
            if instead == "another file":
                # No replica would see a person's stop in this one.
                await asyncio.to_thread(path.write_bytes, b"")
            await until(lambda: any(isinstance(item, WatchLost) for item in heard))
            (lost,) = heard
            assert isinstance(lost, WatchLost)
            assert str(path) in lost.reason
            assert "restart" in lost.reason
            with pytest.raises(Unreachable, match="restart"):
                await cluster.drop_quarantine(quarantine, guard=UNGUARDED)
            if instead == "nothing":
                await asyncio.to_thread(aside.rename, path)
                await until(lambda: any(isinstance(item, WatchSynced) for item in heard))
                assert QuarantineSeen(quarantine) in heard


@pytest.mark.parametrize("what", ["a folder", "no database", "below a file"])
async def test_a_file_that_cannot_be_opened_is_refused_by_name(tmp_path: Path, what: str) -> None:
    path = tmp_path / "cluster.db"
    if what == "a folder":
        path.mkdir()
    elif what == "no database":
        path.write_bytes(b"a shopping list\n" * 100)
    else:
        path.write_text("")
        path = path / "cluster.db"
    cluster = LocalCluster(path, commands=Commands(), wall=time.time)
    with pytest.raises(Refused, match=str(path)):
        await cluster.start()
    await cluster.close()


async def test_a_file_that_somebody_locks_is_unreachable_and_not_lost(path: Path) -> None:
    async with opened(path) as cluster:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert cluster._store is not None
        rows = of_type(cluster._store._rows, SqliteRows)
        rows._db.execute("PRAGMA busy_timeout=50")
        with pytest.raises(Unreachable, match="locked"):
            await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        other.execute("ROLLBACK")
        other.close()
        await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)


@pytest.mark.parametrize(
    ("before", "after"), [(None, 0o600), (0o644, 0o600), (0o600, 0o600), (0o664, 0o660)]
)
def test_the_file_and_what_stands_beside_it_is_for_nobody_else_to_read(
    path: Path, before: int | None, after: int
) -> None:
    """Also a file that others could read; a group that may write is the site's own decision."""
    files = [path, Path(f"{path}-wal"), Path(f"{path}-shm")]
    path.parent.mkdir()
    with closing(sqlite3.connect(":memory:" if before is None else path)) as older:
        if before is not None:
            older.execute("PRAGMA journal_mode=WAL")
            older.execute(f"PRAGMA application_id = {LOCAL_CLUSTER}")
            for file in files:
                file.chmod(before)
        with closing(LocalStore(path, wall=time.time)) as store:
            store.set_stop("a look at the files")
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in files}
    assert modes == {file.name: after for file in files}


def test_every_failure_of_the_file_is_an_error_of_the_protocol(path: Path) -> None:
    store = LocalStore(path, wall=time.time)
    with closing(sqlite3.connect(path)) as other, other:
        for table in ("record", "nodes", "quarantines"):
            other.execute(f"DROP TABLE {table}")
    quarantine = Quarantine("n1", "u", "1", SPEC, QuarantineStatus())
    calls: list[Callable[[], object]] = [
        store.record,
        lambda: store.write_record("", "1"),
        lambda: store.set_stop("x"),
        store.quarantines,
        lambda: store.quarantine("n1"),
        lambda: store.create_quarantine("n1", SPEC, finalizer=True),
        lambda: store.write_quarantine(quarantine),
        lambda: store.delete_quarantine("n1"),
        lambda: store.drop_quarantine(quarantine),
        store.nodes,
        lambda: store.node("n1"),
        lambda: store.drained_for("n1"),
        lambda: store.set_drained_for("n1", "u"),
    ]
    for call in calls:
        with pytest.raises(ClusterError):
            call()
    store.close()


async def test_a_status_of_a_later_version_is_read_in_part_and_kept_in_the_file(path: Path) -> None:
    async with opened(path) as cluster:
        made = await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        hook = HookStatus(HookState.RUNNING, started_at=1.0)
        status = QuarantineStatus(Phase.DRAINED, pre_evict=hook)
        await cluster.write_quarantine_status(made, status)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE quarantines SET status = replace(status, '\"Running\"', '\"Paused\"')")
        db.commit()

    def stored() -> dict[str, Any]:
        with closing(sqlite3.connect(path)) as db:
            ((text,),) = db.execute("SELECT status FROM quarantines").fetchall()
        found: dict[str, Any] = json.loads(text)
        return found

    async with opened(path) as cluster:
        found = present(await cluster.read_quarantine("n1"))
        assert (set(found.unread_fields), found.status.phase) == ({"pre_evict"}, Phase.DRAINED)
        assert "Paused" in found.unread
        with pytest.raises(Conflict, match="can't read in whole"):
            await cluster.write_quarantine_status(
                found, replace(found.status, phase=Phase.CORDONED)
            )
        found = await cluster.write_quarantine_spec(found, replace(SPEC, action=Action.CORDON))
        releasing = replace(found.status, phase=Phase.RELEASING, message="by a person")
        await cluster.write_quarantine_status(found, releasing)
    assert stored()["pre_evict"]["state"] == "Paused"
    assert (stored()["phase"], stored()["message"]) == ("Releasing", "by a person")
