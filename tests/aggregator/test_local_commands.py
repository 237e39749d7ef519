"""The commands that a cluster without Kubernetes runs: cordon, drain and release."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.cli.actions import manual_quarantine
from aggregator.cluster.local.commands import SiteCommandFailed, run_command
from aggregator.cluster.local.settings import Commands
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Evicted,
    NodeChange,
    Refused,
)
from tests.aggregator.local_file import OURS, SPEC, opened
from tests.controlplane.processes import ended
from tests.support.bytecode import BYTECODE
from tests.support.present import present
from tests.support.tasks import end_tasks
from tests.support.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cluster.db"


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
            await cluster.create_quarantine(name, SPEC, guard=UNGUARDED)
        node = present(await cluster.read_node(name))
        with pytest.raises(SiteCommandFailed, match="expected "):
            await cluster.patch_node(node, NodeChange(taints=(OURS,)), guard=UNGUARDED)
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
    given = {"PATH": os.environ["PATH"], "GRPC_TRACE": "", "SITE": "x", **BYTECODE}
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
    with pytest.raises(SiteCommandFailed, match="did not end within 2 s"):
        await run_command(argv, key=KEY, values=VALUES, limit=2.0, guard=UNGUARDED)
    await until(lambda: ended(int(children.read_text())))


async def test_a_command_is_ended_when_the_aggregator_is_told_to_end(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    argv = ["sh", "-c", f"echo $$ > {mine}.new; mv {mine}.new {mine}; sleep 300"]
    running = asyncio.create_task(
        run_command(argv, key=KEY, values=VALUES, limit=100, guard=UNGUARDED)
    )
    await until(mine.exists)
    await end_tasks(running)
    assert ended(int(mine.read_text()))


async def test_what_a_command_leaves_running_does_not_keep_us_waiting(tmp_path: Path) -> None:
    child = tmp_path / "child"
    began = time.monotonic()
    argv = ["sh", "-c", f"setsid sleep 1000 & echo $! > {child}; echo done"]
    await run_command(argv, key=KEY, values=VALUES, limit=300, guard=UNGUARDED)
    assert time.monotonic() - began < 200
    os.kill(int(child.read_text()), signal.SIGKILL)


async def test_the_drain_command_is_tried_until_it_succeeds_and_then_no_more(
    path: Path, tmp_path: Path
) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    drain = ("sh", "-c", f"echo run >> {runs}; test -e {go}")
    async with opened(path, Commands(drain=drain)) as cluster:
        assert await cluster.pods_on("n1") == []
        await cluster.create_quarantine("n1", SPEC, guard=UNGUARDED)
        (pod,) = await cluster.pods_on("n1")
        blocked = await cluster.evict(pod, guard=UNGUARDED)
        assert (blocked.outcome, blocked.message) == (Evicted.BLOCKED, "sh exited with 1")
        go.touch()
        assert (await cluster.evict(pod, guard=UNGUARDED)).outcome is Evicted.ACCEPTED
        assert await cluster.pods_on("n1") == []
        assert runs.read_text() == "run\n" * 2
    async with opened(path, Commands(drain=drain)) as again:
        assert await again.pods_on("n1") == []
        quarantine = present(await again.read_quarantine("n1"))
        await again.drop_quarantine(quarantine, guard=UNGUARDED)
        await again.create_quarantine("n1", SPEC, guard=UNGUARDED)
        assert len(await again.pods_on("n1")) == 1  # another quarantine is another drain
