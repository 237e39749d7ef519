"""The local cluster keeps the protocol's promises, on a real file and with real commands."""

import asyncio
import json
import logging
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest

from aggregator.cli.actions import manual_quarantine
from aggregator.clock import Clocks
from aggregator.cluster.local import cluster as local_module
from aggregator.cluster.local.cluster import Commands, LocalCluster
from aggregator.cluster.local.commands import SiteCommandFailed, run_command
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.node_names import TAINT, is_marked
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Blocker,
    Cluster,
    ClusterError,
    ClusterEvent,
    Conflict,
    Evicted,
    EvidenceItem,
    HookState,
    HookStatus,
    NodeChange,
    NodeUncordoned,
    NotFound,
    Phase,
    Quarantine,
    QuarantineGone,
    QuarantineSeen,
    QuarantineSpec,
    QuarantineStatus,
    RecordSeen,
    Refused,
    RepairAttempt,
    RepairState,
    RepairStatus,
    StopSeen,
    StopText,
    Taint,
    Unreachable,
    WatchLost,
    WatchSynced,
)
from aggregator.health.model import Cleared
from aggregator.quarantine.controller import Controller
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.state.fleet import FleetState
from aggregator.runtime.sqlite_format import LOCAL_CLUSTER
from tests.controlplane.processes import ended
from tests.support.replica import POLICY, SETTINGS, FakeLine, Notes, Turned, fault, hello, snapshot
from tests.support.waiting import until

ITEM = EvidenceItem("xid:79", "GPU-1", "boot-1", "reboot", "gpu-gone", "inc-1", "NVRM: gone")
SPEC = QuarantineSpec(Action.DRAIN, "gpu", "xid:79 on GPU-1", "sickbay", "inc-1", "b", "h", (ITEM,))
OURS = Taint(TAINT, "gpu", "NoSchedule")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cluster.db"


@asynccontextmanager
async def opened(path: Path, commands: Commands | None = None) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(path, commands=commands or Commands(), wall=time.time)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


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
        listening.cancel()
        await asyncio.wait({listening})


async def run_other_process(path: Path, does: str) -> None:
    """Another process that has the file open: ``does`` is Python with a ``store``."""
    program = (
        "import sys, time; from pathlib import Path\n"
        "from aggregator.cluster.local.store import LocalStore as Store\n"
        f"store = Store(Path(sys.argv[1]), wall=time.time)\n{does}\nstore.close()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), cwd=Path(__file__).parents[2]
    )
    assert await process.wait() == 0


# -- compare-and-set -----------------------------------------------------------------------------


Late = Callable[[LocalCluster, LocalCluster], Awaitable[None]]


async def late_record(one: LocalCluster, other: LocalCluster) -> None:
    read = await one.read_record()
    await other.write_record("theirs", (await other.read_record()).version)
    await one.write_record("mine", read.version)


async def record_after_a_stop(one: LocalCluster, other: LocalCluster) -> None:
    read = await one.read_record()
    other._open.set_stop("drill")
    await one.write_record("mine", read.version)


async def late_spec(one: LocalCluster, other: LocalCluster) -> None:
    quarantine = await one.create_quarantine("n1", SPEC)
    await other.write_quarantine_status(quarantine, QuarantineStatus(Phase.RELEASING))
    await one.write_quarantine_spec(quarantine, replace(SPEC, action=Action.CORDON))


async def late_status(one: LocalCluster, other: LocalCluster) -> None:
    quarantine = await one.create_quarantine("n1", SPEC)
    await other.write_quarantine_status(quarantine, QuarantineStatus(Phase.CORDONED))
    await one.write_quarantine_status(quarantine, QuarantineStatus(Phase.CORDONED))


async def status_of_another_object(one: LocalCluster, other: LocalCluster) -> None:
    quarantine = await one.create_quarantine("n1", SPEC)
    await other.drop_quarantine(quarantine)
    await other.create_quarantine("n1", SPEC)
    await one.write_quarantine_status(quarantine, QuarantineStatus(Phase.CORDONED))


async def second_object(one: LocalCluster, other: LocalCluster) -> None:
    await other.create_quarantine("n1", SPEC)
    await one.create_quarantine("n1", SPEC)


async def late_patch(one: LocalCluster, other: LocalCluster) -> None:
    node = await one.read_node("n1")
    theirs = await other.read_node("n1")
    assert node is not None
    assert theirs is not None
    await other.patch_node(theirs, NodeChange(annotations={"released": "1"}))
    await one.patch_node(node, NodeChange(taints=(OURS,)))


@pytest.mark.parametrize(
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
async def test_whoever_decided_on_an_older_picture_fails(path: Path, late: Late) -> None:
    async with opened(path) as one, opened(path) as other:
        with pytest.raises(Conflict):
            await late(one, other)


async def test_a_late_patch_runs_no_command(path: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    async with opened(path, Commands(cordon=("touch", str(ran)))) as cluster:
        node = await cluster.read_node("n1")
        assert node is not None
        await cluster.patch_node(node, NodeChange(annotations={"released": "1"}))
        with pytest.raises(Conflict):
            await cluster.patch_node(node, NodeChange(taints=(OURS,)))
        assert not ran.exists()
        again = await cluster.read_node("n1")
        assert again is not None
        await cluster.patch_node(again, NodeChange(taints=(OURS,)))
        assert ran.exists()


async def test_a_patch_that_changes_nothing_leaves_the_version(path: Path) -> None:
    async with opened(path) as cluster:
        node = await cluster.read_node("n1")
        assert node is not None
        assert await cluster.patch_node(node, NodeChange(unschedulable=False)) == node
        other = await cluster.patch_node(node, NodeChange(labels={"a": "1", "b": None}))
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
        quarantine = await cluster.create_quarantine("n1", SPEC)
        written = await cluster.write_quarantine_status(quarantine, status)
        assert (written.spec, written.status, written.has_finalizer) == (SPEC, status, True)
    async with opened(path) as again:
        assert await again.read_quarantine("n1") == written
        assert await again.read_quarantine("n2") is None
        assert (await again.read_record()).text == ""


async def test_dropping_is_by_uid_and_twice_is_no_error(path: Path) -> None:
    async with opened(path) as cluster:
        old = await cluster.create_quarantine("n1", SPEC)
        await cluster.drop_quarantine(old)
        new = await cluster.create_quarantine("n1", SPEC)
        await cluster.drop_quarantine(old)
        assert await cluster.read_quarantine("n1") == new
        with pytest.raises((NotFound, Conflict)):
            await cluster.write_quarantine_status(old, QuarantineStatus())


# -- news ------------------------------------------------------------------------------------------


async def test_news_begin_with_all_there_is_and_go_on_with_what_changes(path: Path) -> None:
    async with opened(path) as cluster:
        first = await cluster.create_quarantine("n1", SPEC)
        async with collected_events(cluster) as heard:
            await until(lambda: len(heard) == 4)
            assert heard[0] == StopSeen(StopText(None, "1"))
            assert isinstance(heard[1], RecordSeen)
            assert heard[2] == QuarantineSeen(first)
            assert heard[3] == WatchSynced(frozenset())
            changed = await cluster.write_quarantine_status(first, QuarantineStatus(Phase.CORDONED))
            await until(lambda: heard[-1] == QuarantineSeen(changed))
            await cluster.drop_quarantine(changed)
            await until(lambda: heard[-1] == QuarantineGone("n1", first.uid))


def stops(heard: Sequence[ClusterEvent]) -> list[str]:
    """The reason in each stop switch that was reported."""
    return [item.stop.reason or "" for item in heard if isinstance(item, StopSeen)]


async def test_what_another_process_writes_is_news_within_a_second(path: Path) -> None:
    async with opened(path) as cluster, collected_events(cluster) as heard:
        await until(lambda: any(isinstance(item, WatchSynced) for item in heard))
        node = await cluster.read_node("n1")
        assert node is not None
        await cluster.patch_node(node, NodeChange(unschedulable=True))
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
        quarantine = await cluster.create_quarantine("n1", SPEC)
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
        quarantine = await cluster.create_quarantine("n1", SPEC)
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
                await cluster.drop_quarantine(quarantine)
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
        cluster._store._db.execute("PRAGMA busy_timeout=50")
        with pytest.raises(Unreachable, match="locked"):
            await cluster.create_quarantine("n1", SPEC)
        other.execute("ROLLBACK")
        other.close()
        await cluster.create_quarantine("n1", SPEC)


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


# -- commands --------------------------------------------------------------------------------------


KEY = "cluster.local.commands.cordon"
VALUES = {"node": "n1", "action": "cordon", "reason": "xid:79; $(reboot) {node}"}


async def test_a_command_gets_its_words_without_a_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = (
        "import json, os, sys; json.dump([sys.argv[1:], os.environ['SICKBAY_NODE'],"
        "os.environ['SICKBAY_REASON'], os.environ['SICKBAY_ACTION']],"
        f" open({str(out)!r}, 'w'))"
    )
    argv = [sys.executable, "-c", program, "NodeName={node}", "Reason={reason}", "{else}"]
    await run_command(argv, key=KEY, values=VALUES, limit=20, guard=UNGUARDED)
    assert json.loads(out.read_text()) == [
        ["NodeName=n1", "Reason=xid:79; $(reboot) {node}", "{else}"],
        "n1",
        "xid:79; $(reboot) {node}",
        "cordon",
    ]


PATTERNS = ("ALL", "default", "n[1-2048]", "n2,n3", "--help", "a\r\nb", "n1\0", "")


@pytest.mark.parametrize("name", PATTERNS)
async def test_a_name_that_a_program_takes_for_other_nodes_runs_no_command(
    path: Path, tmp_path: Path, name: str
) -> None:
    argv = ("touch", str(tmp_path / "ran"))
    with pytest.raises(SiteCommandFailed, match="expected "):
        await run_command(argv, key=KEY, values=VALUES | {"node": name}, limit=20, guard=UNGUARDED)
    async with opened(path, Commands(argv, argv, argv)) as cluster:
        with pytest.raises(Refused, match="expected "):
            await cluster.create_quarantine(name, SPEC)
        node = await cluster.read_node(name)
        assert node is not None
        with pytest.raises(SiteCommandFailed, match="expected "):
            await cluster.patch_node(node, NodeChange(taints=(OURS,)))
    assert not (tmp_path / "ran").exists()


async def test_a_command_gets_the_environment_that_the_aggregator_was_started_with(
    tmp_path: Path,
) -> None:
    """The settings for gRPC in the aggregator would silence gRPC in the command, too."""
    out, database, file = tmp_path / "out", tmp_path / "cluster.db", tmp_path / "aggregator.yaml"
    program = f"import json, os; json.dump(dict(os.environ), open({str(out)!r}, 'w'))"
    settings = {
        "cluster": {
            "kind": "local",
            "local": {
                "database": str(database),
                "commands": {"cordon": [sys.executable, "-c", program]},
            },
        },
        "identity": {"kind": "insecure-trust-hello"},
        "listen": {"grpc": "127.0.0.1:0", "web": "localhost:0"},
        "history": {"database": f"sqlite:///{tmp_path}/history.db"},
        "alerts": {"outbox": f"{tmp_path}/outbox.db"},
    }
    file.write_text(json.dumps(settings))
    with closing(LocalStore(database, wall=time.time)) as store:
        spec = manual_quarantine(Action.CORDON, "to see what it gets", "tests")
        store.create_quarantine("n1", spec, finalizer=False)
    given = {"PATH": os.environ["PATH"], "GRPC_TRACE": "", "SITE": "x"}
    aggregator = await asyncio.create_subprocess_exec(
        sys.executable,
        *(
            "-c",
            "from aggregator.daemon_cli.entry import main; main()",
            "run",
            "--config",
            str(file),
        ),
        env=given,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        await until(lambda: out.exists() and out.read_text().endswith("}"))
    finally:
        aggregator.terminate()
        assert await aggregator.wait() == 0
    got = json.loads(out.read_text())
    assert {name for name in got if name.startswith("GRPC_")} == {"GRPC_TRACE"}
    assert given.items() <= got.items()


def test_grpc_has_read_what_it_is_told_when_that_is_taken_away() -> None:
    program = (
        "import os; from aggregator.ingest import grpc_env;"
        "grpc_env.ENVIRONMENT = {'GRPC_EXPERIMENTS': 'no-such-thing'}\n"
        "with grpc_env.grpc_environment(os.environ): import grpc\n"
        "assert 'GRPC_EXPERIMENTS' not in os.environ"
    )
    environ = {name: text for name, text in os.environ.items() if not name.startswith("GRPC_")}
    words = (sys.executable, "-c", program)
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    assert "no-such-thing" in done.stderr  # gRPC's own complaint


async def test_a_command_that_fails_says_how(tmp_path: Path) -> None:
    with pytest.raises(SiteCommandFailed, match="sh exited with 3: out\nwhy"):
        await run_command(
            ["sh", "-c", "echo out; echo why >&2; exit 3"],
            key=KEY,
            values=VALUES,
            limit=20,
            guard=UNGUARDED,
        )
    with pytest.raises(SiteCommandFailed, match=r"/no/such can't be run: .*No such file"):
        await run_command(["/no/such"], key=KEY, values=VALUES, limit=20, guard=UNGUARDED)
    with pytest.raises(SiteCommandFailed, match=r"exited with 1: .{100,2000}$"):
        await run_command(
            [sys.executable, "-c", "print('x' * 10**6); exit(1)"],
            key=KEY,
            values=VALUES,
            limit=20,
            guard=UNGUARDED,
        )


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (["sh", "-c", ": hunter2"], 20),
        (["sh", "-c", "exit 3", "hunter2"], 20),
        (["sh", "-c", "sleep 300", "hunter2"], 0.3),
        (["sh", "-c", "exec yes", "hunter2"], 60),
        (["/no/such", "--token=hunter2"], 20),
        (["sh", "hunter2" * 30_000], 20),  # more than Linux takes
        (["sh", "-c", "exit 1", "hunter2\ud800"], 20),
    ],
    ids=["done", "failed", "late", "too-much", "missing", "too-long", "no-text"],
)
async def test_the_log_has_the_program_and_its_key_and_no_argument_that_may_be_a_secret(
    words: list[str], limit: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "sickbay")
    told = ""
    try:
        await run_command(words, key=KEY, values=VALUES, limit=limit, guard=UNGUARDED)
    except SiteCommandFailed as error:
        told = str(error)
    (line,) = (vars(record) for record in caplog.records)
    assert (line["command"], line["program"], line["node"]) == (KEY, words[0], "n1")
    assert "hunter2" not in f"{told} {line}"


async def test_a_command_runs_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above all on a full disk: a failed write of its output must hold no cordon and no release."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no-longer-there"))
    with pytest.raises(SiteCommandFailed, match="sh exited with 3: why"):
        await run_command(
            ["sh", "-c", "echo why; exit 3"], key=KEY, values=VALUES, limit=20, guard=UNGUARDED
        )
    await run_command(["sh", "-c", "echo done"], key=KEY, values=VALUES, limit=20, guard=UNGUARDED)


async def test_a_command_that_does_not_stop_talking_is_ended(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    argv = ["sh", "-c", f"echo $$ > {mine}; exec yes"]
    with pytest.raises(SiteCommandFailed, match="sh was ended: it wrote more than 16 MiB"):
        await run_command(argv, key=KEY, values=VALUES, limit=60, guard=UNGUARDED)
    assert ended(int(mine.read_text()))


async def test_a_reason_of_any_length_keeps_no_command_from_running(tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = ["sh", "-c", f'printf %s "$1" > {out}', "sh", "reason={reason}"]
    await run_command(
        argv, key=KEY, values={**VALUES, "reason": "x" * 200_000}, limit=20, guard=UNGUARDED
    )
    mark = "… (200,000 characters)"
    assert out.read_text() == f"reason={'x' * (4000 - len(mark))}{mark}"


async def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    children = tmp_path / "children"
    argv = ["sh", "-c", f"sleep 300 & echo $! > {children}; wait"]
    with pytest.raises(SiteCommandFailed, match=r"did not end within 0\.5 s"):
        await run_command(argv, key=KEY, values=VALUES, limit=0.5, guard=UNGUARDED)
    await until(lambda: ended(int(children.read_text())))


async def test_a_command_is_ended_when_the_aggregator_is_told_to_end(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    argv = ["sh", "-c", f"echo $$ > {mine}.new; mv {mine}.new {mine}; sleep 300"]
    running = asyncio.create_task(
        run_command(argv, key=KEY, values=VALUES, limit=100, guard=UNGUARDED)
    )
    await until(mine.exists)
    running.cancel()
    await asyncio.wait({running})
    assert ended(int(mine.read_text()))


async def test_what_a_command_leaves_running_does_not_keep_us_waiting(tmp_path: Path) -> None:
    child = tmp_path / "child"
    began = time.monotonic()
    argv = ["sh", "-c", f"setsid sleep 30 & echo $! > {child}; echo done"]
    await run_command(argv, key=KEY, values=VALUES, limit=20, guard=UNGUARDED)
    assert time.monotonic() - began < 10
    os.kill(int(child.read_text()), signal.SIGKILL)


async def test_the_drain_command_is_tried_until_it_succeeds_and_then_no_more(
    path: Path, tmp_path: Path
) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    drain = ("sh", "-c", f"echo run >> {runs}; test -e {go}")
    async with opened(path, Commands(drain=drain)) as cluster:
        assert await cluster.pods_on("n1") == []
        await cluster.create_quarantine("n1", SPEC)
        (pod,) = await cluster.pods_on("n1")
        blocked = await cluster.evict(pod)
        assert (blocked.outcome, blocked.message) == (Evicted.BLOCKED, "sh exited with 1")
        go.touch()
        assert (await cluster.evict(pod)).outcome is Evicted.ACCEPTED
        assert await cluster.pods_on("n1") == []
        assert runs.read_text() == "run\n" * 2
    async with opened(path, Commands(drain=drain)) as again:
        assert await again.pods_on("n1") == []
        quarantine = await again.read_quarantine("n1")
        assert quarantine is not None
        await again.drop_quarantine(quarantine)
        await again.create_quarantine("n1", SPEC)
        assert len(await again.pods_on("n1")) == 1  # another quarantine is another drain


# -- the real controller on it ------------------------------------------------------------


@dataclass
class Site:
    """A site's commands, each a line in ``journal``; those that `breaks` names fail."""

    folder: Path

    @property
    def journal(self) -> list[str]:
        file = self.folder / "journal"
        return file.read_text().splitlines() if file.exists() else []

    def breaks(self, *names: str) -> None:
        for name in ("cordon", "drain", "release"):
            (self.folder / name).unlink(missing_ok=True)
        for name in names:
            (self.folder / name).touch()

    @property
    def commands(self) -> Commands:
        def argv(name: str) -> tuple[str, ...]:
            script = f"test ! -e {self.folder / name} && echo {name} $1 >> {self.folder}/journal"
            return ("sh", "-c", script, "sh", "{node}")

        return Commands(argv("cordon"), argv("drain"), argv("release"))


class Aggregator:
    """A running controller on a local cluster."""

    def __init__(self, path: Path, site: Site, clock: Turned) -> None:
        self.cluster = LocalCluster(path, commands=site.commands, wall=clock)
        self.fleet = FleetState()
        self.notes = Notes()
        self.clock = clock
        self.controller = Controller(
            cluster=self.cluster,
            policy=POLICY,
            settings=SETTINGS,
            fleet=self.fleet,
            event_sink=self.notes,
            clocks=Clocks(clock, clock),
            rng=random.Random(7),
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.cluster.start()
        self._task = asyncio.create_task(self.controller.run())
        await until(lambda: not self.fleet.view_lost)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})
        await self.cluster.close()

    def ill(self, node: str = "n1") -> None:
        self.controller.on_connect(hello(node), FakeLine())
        self.controller.on_evidence(node, snapshot(fault()), self.clock())

    def well(self) -> None:
        """The fault is cleared, and the node stays well for the rule's time."""
        sign = snapshot(cleared=(Cleared("xid:79", "GPU-1", "operator"),))
        self.controller.on_evidence("n1", sign, self.clock())
        self.clock.time += 700
        self.controller.on_evidence("n1", snapshot(), self.clock())

    def phase(self) -> Phase | None:
        quarantine = self.fleet.node_summary("n1").quarantine
        return quarantine.status.phase if quarantine is not None else None

    async def quarantine(self) -> Quarantine | None:
        return await self.cluster.read_quarantine("n1")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_fatal_fault_runs_cordon_and_drain_and_its_end_runs_release(
    path: Path, site: Site
) -> None:
    async with Aggregator(path, site, Turned()) as sickbay:
        sickbay.ill()
        await until(lambda: sickbay.phase() is Phase.DRAINED)
        assert site.journal == ["cordon n1", "drain n1"]
        node = await sickbay.cluster.read_node("n1")
        assert node is not None
        assert is_marked(node)
        assert node.unschedulable
        sickbay.well()
        await until(lambda: "release n1" in site.journal)
        await until(lambda: sickbay.phase() is None)
        assert await sickbay.quarantine() is None
        node = await sickbay.cluster.read_node("n1")
        assert node is not None
        assert not is_marked(node)
        assert not node.unschedulable
        assert parse_record((await sickbay.cluster.read_record()).text).entries == {}
        assert site.journal == ["cordon n1", "drain n1", "release n1"]


async def test_a_drain_command_that_fails_is_a_blocker_that_people_see(
    path: Path, site: Site
) -> None:
    site.breaks("drain")
    async with Aggregator(path, site, Turned()) as sickbay:
        sickbay.ill()
        await until(lambda: "pod.blocked" in sickbay.notes.kinds("n1"))
        await until(
            lambda: (
                (q := sickbay.fleet.node_summary("n1").quarantine) is not None
                and bool(q.status.blockers)
            )
        )
        assert sickbay.phase() is Phase.DRAINING
        sickbay.clock.time += 20
        site.breaks()
        await until(lambda: sickbay.phase() is Phase.DRAINED, within=20)
        assert site.journal == ["cordon n1", "drain n1"]


async def test_a_cordon_command_that_fails_is_tried_again_and_nothing_is_drained_before(
    path: Path, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.breaks("cordon")
    async with Aggregator(path, site, Turned()) as sickbay:
        sickbay.ill()
        await until(lambda: "exited with 1" in sickbay.fleet.node_summary("n1").work.last_error)
        await until(lambda: any(line.message == "step of a node failed" for line in caplog.records))
        assert site.journal == []
        node = await sickbay.cluster.read_node("n1")
        assert node is not None
        assert not is_marked(node)
        site.breaks()
        await until(lambda: sickbay.phase() is Phase.DRAINED, within=30)
        assert site.journal == ["cordon n1", "drain n1"]


async def test_a_fault_of_an_agent_that_is_named_all_reaches_no_command(
    path: Path, site: Site
) -> None:
    async with Aggregator(path, site, Turned()) as sickbay:
        sickbay.ill("ALL")
        sickbay.ill()
        await until(lambda: sickbay.phase() is Phase.DRAINED)
        named = sickbay.fleet.node_summary("ALL")
        await until(lambda: "'ALL' means every node to Slurm" in named.work.last_error)
        assert await sickbay.cluster.read_quarantine("ALL") is None
        assert site.journal == ["cordon n1", "drain n1"]


@pytest.mark.parametrize("stuck", ["cordon", "drain", "release"])
async def test_a_restart_in_the_middle_finishes_what_was_begun(
    path: Path, site: Site, stuck: str
) -> None:
    clock = Turned()
    site.breaks(stuck)
    async with Aggregator(path, site, clock) as first:
        first.ill()
        if stuck == "release":
            await until(lambda: first.phase() is Phase.DRAINED)
            first.well()
            await until(lambda: first.phase() is Phase.RELEASING)
        elif stuck == "drain":
            await until(lambda: first.phase() is Phase.DRAINING)
        else:
            await until(lambda: first.fleet.node_summary("n1").work.last_error)
    site.breaks()
    async with Aggregator(path, site, clock) as second:
        if stuck == "release":
            await until(lambda: second.phase() is None and "release n1" in site.journal)
            assert site.journal == ["cordon n1", "drain n1", "release n1"]
            return
        second.ill()
        await until(lambda: second.phase() is Phase.DRAINED)
        # A command whose end the first did not see is run again, and may have done its work.
        assert list(dict.fromkeys(site.journal)) == ["cordon n1", "drain n1"]
        second.well()
        await until(lambda: site.journal[-1] == "release n1")


async def test_a_person_stops_and_releases_through_the_file(path: Path, site: Site) -> None:
    async with Aggregator(path, site, Turned()) as sickbay:
        await run_other_process(path, "store.set_stop('drill')")
        await until(lambda: sickbay.fleet.stop == "drill")
        sickbay.ill()
        await until(lambda: sickbay.fleet.node_summary("n1").decision.hold is not None)
        assert site.journal == []
        await run_other_process(path, "store.set_stop('')")
        await until(lambda: sickbay.phase() is Phase.DRAINED)
        await run_other_process(path, "store.delete_quarantine('n1')")
        await until(lambda: site.journal[-1] == "release n1")
        await until(lambda: sickbay.phase() is None)
        sickbay.ill()  # the fault is still there, and a person has spoken
        # Another node's is acted on, so there was time enough to act on this one's.
        sickbay.ill("n2")
        await until(lambda: "drain n2" in site.journal)
        mine = [line for line in site.journal if line.endswith(" n1")]
        assert mine == ["cordon n1", "drain n1", "release n1"]


def test_every_failure_of_the_file_is_an_error_of_the_protocol(path: Path) -> None:
    store = LocalStore(path, wall=time.time)
    with sqlite3.connect(path) as other:
        for table in ("record", "nodes", "quarantines"):
            other.execute(f"DROP TABLE {table}")
    other.close()
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
        made = await cluster.create_quarantine("n1", SPEC)
        attempt = RepairAttempt("q-1", "reboot", RepairState.ORDERED, began_at=1.0)
        status = QuarantineStatus(Phase.DRAINED, repair=RepairStatus((attempt,)))
        await cluster.write_quarantine_status(made, status)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE quarantines SET status = replace(status, '\"Ordered\"', '\"Paused\"')")
        db.commit()

    def stored() -> dict[str, Any]:
        with closing(sqlite3.connect(path)) as db:
            ((text,),) = db.execute("SELECT status FROM quarantines").fetchall()
        found: dict[str, Any] = json.loads(text)
        return found

    async with opened(path) as cluster:
        found = await cluster.read_quarantine("n1")
        assert found is not None
        assert (set(found.unread_fields), found.status.phase) == ({"repair"}, Phase.DRAINED)
        assert "Paused" in found.unread
        with pytest.raises(Conflict, match="can't read in whole"):
            await cluster.write_quarantine_status(
                found, replace(found.status, phase=Phase.CORDONED)
            )
        found = await cluster.write_quarantine_spec(found, replace(SPEC, action=Action.CORDON))
        releasing = replace(found.status, phase=Phase.RELEASING, message="by a person")
        await cluster.write_quarantine_status(found, releasing)
    assert stored()["repair"]["attempts"][0]["state"] == "Paused"
    assert (stored()["phase"], stored()["message"]) == ("Releasing", "by a person")
