"""The command `sickbay` as a process, against a real server; and its output."""

import asyncio
import datetime as dt
import io
import json
import os
import pty
import random
import re
import signal
import sqlite3
import ssl
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.cli.client import Client
from aggregator.cli.command_line import parser_for
from aggregator.cli.errors import CommandFailed
from aggregator.cli.main import main
from aggregator.cli.options import flags_of
from aggregator.cli.text_table import clean, table
from aggregator.cli.watch import watch
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.port import Action, QuarantineSpec, Taint
from aggregator.events import EventKind, Transition
from aggregator.quarantine.decide.operator_requests import OperatorRequests, read_operator_requests
from aggregator.quarantine.state.decision import NodeHold
from aggregator.quarantine.state.fleet import FleetState
from tests.support.pki import Authority
from tests.support.waiting import PATIENCE, until
from tests.web.support import (
    NIGHT,
    Hands,
    ListHistory,
    Served,
    big_fleet,
    running_clocks,
    serving,
    small_fleet,
    well,
)
from tests.web.test_actions import orders_a_reboot


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


async def sickbay(*arguments: str, **environ: str) -> Done:
    """Run the command to its end."""
    process = await start(*arguments, **environ)
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def in_process(*arguments: str) -> Done:
    """The same without a process of its own, whose imports for a kubeconfig take seconds."""
    out, err = io.StringIO(), io.StringIO()

    def run() -> object:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(arguments)
        return ended.value.code

    async with asyncio.timeout(PATIENCE):
        code = await asyncio.to_thread(run)
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


async def start(*arguments: str, **environ: str) -> asyncio.subprocess.Process:
    return await start_on(asyncio.subprocess.DEVNULL, *arguments, **environ)


async def start_on(stdin: int, *arguments: str, **environ: str) -> asyncio.subprocess.Process:
    program = "from aggregator.cli import main; main()"
    clean_environ = {k: v for k, v in os.environ.items() if not k.startswith("SICKBAY_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        *arguments,
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environ | environ,
    )


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks()) as one:
        yield one


async def test_status_says_how_the_fleet_is(served: Served) -> None:
    served.fleet.stop = "the fabric is being worked on"
    done = await sickbay("status", "--url", served.url)
    assert done.code == 0, done.err
    assert done.out.startswith("2 in quarantine, 1 held back")
    assert "STOPPED BY A PERSON: the fabric is being worked on" in done.out
    assert "FULL: 5% of 8 nodes" in done.out


async def test_status_counts_held_nodes_and_held_drains_apart(served: Served) -> None:
    quarantined = next(
        one for one in served.fleet.node_summaries.values() if one.quarantine is not None
    )
    quarantined.decision.hold = NodeHold("stop", "set", "work on the fabric", 0.0)
    done = await in_process("status", "--url", served.url)
    assert re.search(r"^held back +1 ", done.out, re.MULTILINE), done.out
    assert re.search(r"^drains held +1 ", done.out, re.MULTILINE), done.out
    listed = await in_process("nodes", "--standing", "held", "--url", served.url)
    assert len(listed.out.splitlines()) == 2, listed.out  # the heading, and the node that is held


async def test_status_says_that_the_clock_is_doubted(served: Served) -> None:
    served.fleet.clock_doubt = "it has moved ahead by 3d"
    done = await in_process("status", "--url", served.url)
    assert "ITS CLOCK IS DOUBTED, actions that can't be undone wait: it has moved" in done.out


async def test_status_says_that_the_past_is_not_kept(served: Served) -> None:
    served.history.problem = "history is not written since 03:00: postgresql://...: refused"
    done = await in_process("status", "--url", served.url)
    assert f"THE PAST IS NOT KEPT, all else goes on: {served.history.problem}" in done.out


async def test_status_says_that_alerts_do_not_get_out(served: Served) -> None:
    served.untold.append("webhook alerts.test: can't be reached: refused")
    done = await in_process("status", "--url", served.url)
    assert f"ALERTS DO NOT GET OUT, all else goes on: {served.untold[0]}" in done.out


async def test_a_page_that_tls_does_not_believe_is_told_with_what_to_set(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)
    ca, hands = str(authority.certificate), Hands()
    for lasts, host, options, what in (
        (
            dt.timedelta(1),
            "localhost",
            (),
            "Set --ca-file or SICKBAY_CA_FILE to the CA that signed it",
        ),
        (dt.timedelta(1), "127.0.0.1", ("--ca-file", ca), "Ask by a name that is in its cert"),
        (dt.timedelta(-0.01), "localhost", ("--ca-file", ca), "has expired\n  The aggregator's m"),
        (dt.timedelta(1), "localhost", ("--ca-file", ca), ""),
    ):
        pair = authority.server("page", ["localhost"], lasts=lasts)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.certificate, pair.key)
        async with serving(small_fleet(hands), hands.clocks(), ssl=context) as served:
            port = served.url.rpartition(":")[2]
            done = await in_process("status", "--url", f"https://{host}:{port}", *options)
            plain = await in_process("status", "--url", f"http://{host}:{port}")
        assert (done.code, what in done.err) == (1 if what else 0, True), done.err
        if what:
            said = f"sickbay: the aggregator at https://{host}:{port} is not believed: "
            assert done.err.startswith(said)
            assert "SSL" not in done.err
        assert "the server there does not speak HTTP; is it https?" in plain.err


async def test_the_address_may_come_from_the_environment(served: Served) -> None:
    done = await sickbay("status", "-o", "json", SICKBAY_URL=served.url + "/")
    assert done.code == 0, done.err
    assert json.loads(done.out)["counts"]["quarantined"] == 2


async def test_a_proxy_of_the_environment_does_not_stand_before_loopback(served: Served) -> None:
    done = await sickbay("status", "--url", served.url, http_proxy="http://127.0.0.1:9")
    assert done.code == 0, done.err


async def test_nodes_by_standing(served: Served) -> None:
    done = await in_process("nodes", "--standing", "held", "--url", served.url)
    lines = done.out.splitlines()
    assert lines[0].split() == ["NODE", "STANDING", "AGENT", "HEARD", "WHY"]
    assert len(lines) == 2
    assert lines[1].startswith("node-3  held")


async def test_all_pages_of_nodes_come() -> None:
    hands = Hands()
    async with serving(big_fleet(hands, 2345), hands.clocks()) as served:
        done = await in_process("nodes", "--url", served.url)
        assert len(done.out.splitlines()) == 2346
        done = await in_process("incidents", "--limit", "2", "--url", served.url)
        assert "more (--limit)" in done.out


async def test_one_nodes_story(served: Served) -> None:
    done = await in_process("node", "node-2", "--url", served.url)
    assert done.code == 0, done.err
    for said in (
        "QUARANTINE (drain, Draining): xid:79",
        "4 pods left",
        "training/llm-worker-17: disruption budget llm allows 0 more",
        "its drain should end by ",
        "drain.pre_evict: Done: told Slurm",
        "[missing, in force] row remapping",
        "[earlier boot] MMU fault",
        "to do:",
        "quarantine.cordoned",
    ):
        assert said in done.out


async def test_quarantines_incidents_and_history(served: Served) -> None:
    listed = await in_process("quarantines", "--url", served.url)
    assert "blocked by training/llm-worker-17" in listed.out
    assert "hall-2" in listed.out
    wrong = await in_process("incidents", "--url", served.url)
    assert "held by limits.concurrent" in wrong.out
    none = await in_process("incidents", "--rule", "drift", "--url", served.url)
    assert none.out == "No incident is open.\n"
    named = await in_process("incidents", "--rule", "gpu-off-bus", "--url", served.url)
    assert named.out == wrong.out
    empty = await in_process("history", "--since", "1s", "--url", served.url)
    assert (empty.code, empty.err) == (0, "")
    assert "node-2" not in empty.out
    never = await in_process("history", "--since", "999999d", "--url", served.url)
    assert (never.code, never.out) == (2, "")
    past = await in_process("history", "--node", "node-2", "--limit", "3", "--url", served.url)
    lines = past.out.splitlines()
    assert len(lines) == 3
    assert "pod.blocked" in lines[-1], "the latest comes last"


async def test_lemons_are_listed_with_what_they_did(served: Served) -> None:
    done = await in_process("lemons", "--url", served.url)
    line = done.out.splitlines()[1].split()
    assert (line[:5], line[-2:]) == (["node-2", "5", "2", "4", "1"], ["xid:48", "xid:79"])
    told = json.loads((await in_process("lemons", "-o", "json", "--url", served.url)).out)
    assert told["items"][0]["strikes"] == ["5 quarantines", "4 days with an incident"]


async def test_a_node_is_explained_and_bundled(served: Served, tmp_path: Path) -> None:
    explained = await in_process("explain", "node-2", "--url", served.url)
    assert explained.code == 0, explained.err
    assert explained.out.startswith("node-2 is quarantined.\n\nWHY\n")
    file = tmp_path / "rma.tar.gz"
    done = await in_process("bundle", "node-2", "--url", served.url, "--file", str(file))
    assert done.code == 0, done.err
    assert "missing: Kubernetes' objects: with --url no cluster is asked" in done.out
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        past = json.load(tar.extractfile("sickbay-node-2/history.json"))  # type: ignore[arg-type]
    assert names == {
        *("README.txt", "node.json", "history.json"),
        *("kernel-lines.txt", "versions.json"),
    }
    assert {one["node"] for one in past} == {"node-2"}
    again = await in_process("bundle", "node-2", "--url", served.url, "--file", str(file))
    assert (again.code, "is there already" in again.err) == (2, True)


async def test_an_unknown_node_is_said_with_what_to_do(served: Served) -> None:
    done = await in_process("node", "node-99", "--url", served.url)
    assert (done.code, done.out) == (1, "")
    assert 'there is no node "node-99"' in done.err
    assert "kubectl get nodes" in done.err


async def test_an_aggregator_out_of_reach_is_exit_1_and_says_what_to_do() -> None:
    for command in ("status", "watch"):
        done = await sickbay(command, "--url", "http://127.0.0.1:9")
        assert done.code == 1
        assert "http://127.0.0.1:9 can't be reached" in done.err
        assert "SICKBAY_URL" in done.err
        assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["status", "--url", "aggregator:8080"], "expected http://HOST:PORT"),
        (["status", "--url", "http://x:port"], "is no address"),
        (["nodes", "--standing", "sick"], "invalid choice"),
        (["stop"], "--reason"),
        (["stop", "--reason", " ", "--local", "/none"], "there is no database at /none"),
        (["quarantine", "node-1", "--reason", "x"], "--action"),
        (["incidents", "--limit", "0"], "expected a whole number from 1 on"),
        (["status", "--ca-file", "/none", "--url", "https://x"], "/none can't be read"),
        (["status", "--ca-file", __file__, "--url", "https://x"], "holds no certificate; expected"),
        (["status", "--ca-file", "/dev/zero", "--url", "https://x"], "it is a device and no reg"),
        (["release", ""], "'': expected a node's name"),
        (["release", "/", "--local", "/none"], "'/': expected a node's name"),
        (["unexempt", ""], "'': expected a node's name"),
        (["unpin", ""], "'': expected a node's name"),
        (["node", ""], "'': expected a node's name"),
        (["resume", "--namespace", ""], "'': expected a namespace's name"),
        (["-o", "json"], "COMMAND"),
    ],
)
async def test_a_bad_command_line_is_exit_2(arguments: list[str], says: str) -> None:
    done = await in_process(*arguments)
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err


async def test_another_servers_answer_is_said_to_be_none() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        done = await in_process("status", "--url", f"http://127.0.0.1:{port}")
    assert done.code == 1
    assert "can't be read" in done.err


async def test_what_speaks_no_http_is_said_in_words() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\x00\x18\x04\x00\x1b[31m\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        done = await in_process("status", "--url", f"http://127.0.0.1:{port}")
    assert done.code == 1
    assert "can't be reached: the server there does not speak HTTP; is it https?\n" in done.err


async def test_an_answer_that_cannot_be_written_is_said_without_a_traceback(
    served: Served,
) -> None:
    with Path("/dev/full").open("wb") as full:  # noqa: ASYNC230 - a device: nothing waits
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from aggregator.cli import main; main()"),
            *("status", "--url", served.url),
            stdout=full,
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
    assert process.returncode == 1
    assert err.decode().startswith("sickbay: the answer can't be written: ")
    assert "Traceback" not in err.decode()


async def test_watch_tells_what_happens_and_finds_its_way_back() -> None:
    fleet = small_fleet(Hands())
    lines: list[str] = []
    async with serving(fleet, running_clocks()) as served:
        address = served.url.removeprefix("http://")
        process = await start("watch", "--url", served.url)
        assert process.stdout is not None

        async def read() -> None:
            assert process.stdout is not None
            async for line in process.stdout:
                lines.append(line.decode())  # noqa: PERF401 - others look at it meanwhile

        reading = asyncio.create_task(read())
        await until(lambda: any("2 in quarantine" in line for line in lines))
        served.feed.record_event(
            Transition(NIGHT, EventKind.HELD, "node-1", "node-1: held, the first")
        )
        await until(lambda: any("the first" in line for line in lines))
    async with serving(fleet, running_clocks(), address=address) as served:
        await until(lambda: served.feed.streams == 1)
        served.feed.record_event(
            Transition(NIGHT, EventKind.HELD, "node-1", "node-1: held, the second")
        )
        await until(lambda: any("the second" in line for line in lines))
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 130
        await reading
    assert process.stderr is not None
    said = (await process.stderr.read()).decode()
    assert "connection lost" in said
    assert "the connection is back\n" in said
    assert "Traceback" not in said


def test_a_lost_connection_is_said_once_however_often_it_is_tried_and_its_return_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = CommandFailed("nobody is there\n  Where is it?")
    script: list[list[str] | CommandFailed] = [["a"], away, away, away, ["b"], [], ["c"]]

    class Gone(Exception):
        """The script is over."""

    class Played(Client):
        def events(self, node: str = "") -> Iterator[tuple[str, Any]]:
            if not script:
                raise Gone
            now = script.pop(0)
            if isinstance(now, CommandFailed):
                raise now
            yield from ((name, None) for name in now)

    told: list[str] = []
    waits: list[float] = []
    with pytest.raises(Gone):
        watch(
            Played("http://127.0.0.1:1"),
            "",
            lambda name, _: told.append(name),
            sleep=waits.append,
            rng=random.Random(1),
        )
    assert told == ["a", "b", "c"]
    lost, back = "sickbay: connection lost (the stream ended); trying again", "is back"
    said = capsys.readouterr().err.splitlines()
    assert [line == lost for line in said] == [True, False, True, False, True]
    assert [line.endswith(back) for line in said] == [False, True, False, True, False]
    assert max(waits) > 2, "it does not ask all the time"


async def test_a_reader_that_has_seen_enough_ends_it_quietly(served: Served) -> None:
    read, write = os.pipe()
    os.close(read)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from aggregator.cli import main; main()",
        "nodes",
        "--url",
        served.url,
        stdout=write,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(write)
    _, err = await process.communicate()
    assert err == b""


# -- acting on a local cluster ---------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.db"
    LocalStore(path, wall=lambda: NIGHT).close()
    return path


async def test_a_misspelt_name_is_forgotten_once_nothing_stands_on_it(database: Path) -> None:
    where = ["--local", str(database)]

    async def refused() -> str:
        done = await in_process("forget", "nod-1", *where)
        assert (done.code, done.out) == (1, "")
        return done.err

    assert "this file has no node nod-1" in await refused()
    await in_process("quarantine", "nod-1", "--action", "cordon", "--reason", "fan", *where)
    first = f"it is not forgotten\n  First: sickbay release nod-1 --local {database}"
    assert first in await refused()
    await in_process("exempt", "nod-1", "--for", "1h", "--reason", "test", *where)
    await in_process("release", "nod-1", *where)
    assert "nod-1 is exempt: it is not forgotten\n  First: sickbay unexempt" in await refused()
    await in_process("unexempt", "nod-1", *where)
    await in_process("pin", "nod-1", "--reason", "test", *where)
    assert "nod-1 is pinned: it is not forgotten\n  First: sickbay unpin" in await refused()
    await in_process("unpin", "nod-1", *where)
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        taint = Taint("sickbay.dev/quarantine", "manual", "NoSchedule")
        store.write_node(replace(store.node("nod-1"), taints=(taint,)))
        assert "marked as quarantined" in await refused()
        store.write_node(replace(store.node("nod-1"), taints=()))
        done = await in_process("forget", "nod-1", *where)
        assert (done.code, done.out.splitlines()[0][:17]) == (0, "nod-1: forgotten.")
        assert store.nodes() == []
    done = await in_process("forget", "nod-1")
    assert (done.code, "expected --local DATABASE" in done.err) == (2, True)


async def test_stop_and_resume_on_a_local_cluster(database: Path) -> None:
    done = await sickbay("stop", "fabric work", "--local", str(database))
    assert done.code == 0, done.err
    assert f"sickbay resume --local {database}" in done.out
    store = LocalStore(database, wall=lambda: NIGHT)
    assert store.stopped() == "fabric work"
    again = await sickbay("stop", "--reason", "more of it", "--local", str(database))
    assert 'stopped already: "fabric work"' in again.out
    assert "it was stopped" in (await sickbay("resume", "--local", str(database))).out
    assert store.stopped() == ""
    assert "It was not stopped." in (await sickbay("resume", "--local", str(database))).out
    store.close()


async def test_what_others_wrote_is_one_line_of_printable_text(database: Path) -> None:
    where = ["--local", str(database)]
    store = LocalStore(database, wall=lambda: NIGHT)
    store.set_stop("no\n\x1b[2Jwork")
    spec = QuarantineSpec(Action.CORDON, "manual", "a\nb", "me\x1b[31m")
    store.create_quarantine("node-1", spec, finalizer=False)
    store.close()
    ask = ["quarantine", "node-1", "--action", "drain", "--reason", "fan", "--yes", *where]
    said = [
        (await in_process(*ask)).err,
        (await in_process("stop", "--reason", "fabric work", *where)).out,
    ]
    store = LocalStore(database, wall=lambda: NIGHT)
    store.set_stop("no\n\x1b[2Jwork")
    store.close()
    said.append((await in_process("resume", *where)).out)
    assert "(cordon, by me?[31m: a b)" in said[0]
    assert 'stopped already: "no ?[2Jwork"' in said[1]
    assert 'it was stopped: "no ?[2Jwork"' in said[2]


@pytest.mark.parametrize(
    "words",
    [
        ["stop"],
        ["exempt", "node-1", "--for", "1h"],
        ["pin", "node-1"],
        ["quarantine", "node-1", "--action", "cordon", "--requester", "me\x1b[2J\udcff"],
    ],
    ids=lambda words: words[0],
)
async def test_what_a_person_pastes_as_a_reason_is_taken_and_said_as_one_short_line(
    database: Path, words: list[str]
) -> None:
    reason = "see\x1b[2J\r\nDone: all\udcff is well" + "x" * 100_000
    done = await in_process(*words, "--reason", reason, "--local", str(database))
    assert done.code == 0, done.err
    assert "see?[2J Done: all? is wellxxx" in done.out
    assert "xxx… (100,026 characters)\n" in done.out
    assert done.out.replace("\n", "").isprintable()


async def test_a_terminal_that_has_not_every_letter_shows_the_rest(database: Path) -> None:
    words = ["stop", "--reason", "Lüfter…", "--local", str(database)]
    done = await sickbay(*words, PYTHONIOENCODING="ascii")
    assert (done.code, done.out.splitlines()[0]) == (0, "Stopped: L?fter?")


async def test_a_refusal_that_quotes_the_command_line_moves_no_cursor(database: Path) -> None:
    where = ["--local", f"{database}\x1b[2J\udcff"]
    done = await in_process("resume", *where)
    assert (done.code, "there is no database at" in done.err) == (2, True)
    assert done.err.replace("\n", "").isprintable()


async def test_a_quarantine_while_stopped_says_that_nothing_begins(database: Path) -> None:
    where = ["--local", str(database)]
    ask = ["--yes", "--action", "drain", "--reason", "fan 3 is dead", *where]
    await in_process("stop", "--reason", "fabric work", *where)
    done = await in_process("quarantine", "node-1", *ask)
    assert done.code == 0, done.err
    assert "BUT: sickbay is stopped: fabric work\nNo quarantine begins until the stop" in done.out
    assert f"sickbay resume --local {database}\n" in done.out
    await in_process("resume", *where)
    assert "No quarantine begins" not in (await in_process("quarantine", "node-2", *ask)).out


async def test_quarantine_and_release_on_a_local_cluster(database: Path) -> None:
    ask = ["--yes", "--action", "drain", "--reason", "fan 3 is dead", "--local", str(database)]
    done = await in_process("quarantine", "node-1", *ask, "--requester", "sickbay")
    assert done.code == 0, done.err
    store = LocalStore(database, wall=lambda: NIGHT)
    found = store.quarantine("node-1")
    assert found is not None
    assert f"sickbay release node-1 --local {database}" in done.out
    assert found.spec == QuarantineSpec(Action.DRAIN, "manual", "fan 3 is dead", "a person")
    again = await in_process("quarantine", "node-1", *ask)
    assert again.code == 1
    assert "in quarantine already (drain, by a person: fan 3 is dead)" in again.err
    done = await in_process("release", "node-1", "--local", str(database), "-o", "json")
    assert json.loads(done.out)["done"]
    assert "evidence" not in done.out, "it was made by hand, and rests on none"
    assert store.quarantine("node-1") is None
    done = await in_process("release", "node-1", "--local", str(database))
    assert done.code == 1
    assert "no quarantine to release" in done.err
    store.close()


async def test_a_drain_is_confirmed_on_a_terminal_and_refused_without_one(database: Path) -> None:
    ask = ["--action", "drain", "--reason", "fan 3 is dead", "--local", str(database)]
    refused = await in_process("quarantine", "node-1", *ask)
    assert (refused.code, refused.out) == (2, "")
    assert "stdin is no terminal; add --yes, or --dry-run" in refused.err
    dry = await in_process("quarantine", "node-1", "--dry-run", *ask)
    assert dry.code == 0, dry.err
    assert dry.out.startswith("DRY RUN, nothing is written.")
    ours, theirs = pty.openpty()
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        assert store.quarantines() == []
        for answer, code in ((b"no\n", 1), (b"yes\n", 0)):
            os.write(ours, answer)
            process = await start_on(theirs, "quarantine", "node-1", *ask)
            _, err = await process.communicate()
            assert process.returncode == code, err
            assert b'Its reason: fan 3 is dead\nGo on? Type "yes": ' in err
            assert len(store.quarantines()) == 1 - code
    os.close(ours)
    os.close(theirs)


async def test_a_drain_by_hand_warns_where_the_mode_evicts_no_pod(
    served: Served, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ["--dry-run", "--action", "drain", "--reason", "x", "--local", str(database)]
    unknown = await in_process("quarantine", "node-1", *ask)
    assert "the mode is not known" in unknown.err
    monkeypatch.setenv("SICKBAY_URL", served.url)
    for mode, warns in (("observe", True), ("cordon", True), ("drain", False)):
        served.fleet.mode = mode
        done = await in_process("quarantine", "node-1", *ask)
        assert done.code == 0, done.err
        assert (f"WARNING: mode {mode}: the node is cordoned" in done.err) == warns
        assert "the mode is not known" not in done.err
    cordon = [*ask[:1], "--action", "cordon", *ask[3:]]
    served.fleet.mode = "observe"
    assert "WARNING" not in (await in_process("quarantine", "node-1", *cordon)).err


async def test_a_release_with_an_open_order_is_confirmed_on_a_terminal_and_refused_without_one(
    database: Path,
) -> None:
    def order() -> None:
        spec = QuarantineSpec(Action.DRAIN, "gpu", "xid:79", requester="sickbay")
        with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
            store.create_quarantine("node-1", spec, finalizer=False)
            orders_a_reboot(store, "node-1")

    def stands() -> bool:
        with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
            return store.quarantine("node-1") is not None

    ask = ["release", "node-1", "--local", str(database)]
    order()
    refused = await in_process(*ask)
    assert (refused.code, refused.out) == (2, "")
    assert "an order is open asks for confirmation, and stdin is no terminal" in refused.err
    dry = await in_process(*ask, "--dry-run")
    assert (dry.code, "node-1: reboot was ordered at 2027-01-15" in dry.err) == (0, True)
    assert stands()
    ours, theirs = pty.openpty()
    for answer, code in ((b"no\n", 1), (b"yes\n", 0)):
        os.write(ours, answer)
        process = await start_on(theirs, *ask)
        _, err = await process.communicate()
        assert process.returncode == code, err
        assert b"(operation q-1-reboot).\nThe release cancels it first" in err
        assert stands() is bool(code)
    os.close(ours)
    os.close(theirs)
    order()
    done = await in_process(*ask, "--yes")
    assert (done.code, "reboot was ordered" in done.err) == (0, True)
    assert not stands()


async def test_a_name_that_nobody_has_spoken_of_is_pointed_out(database: Path) -> None:
    where = ["--local", str(database)]
    ask = ["exempt", "nod-1", "--for", "8h", "--reason", "firmware test", *where]
    unknown = "this file has no node nod-1: no action and no request"
    done = await in_process("unexempt", "nod-1", *where)
    assert (done.code, done.out) == (1, "")
    assert unknown in done.err
    done = await in_process(*ask)
    assert done.code == 0, done.err
    assert f"BUT: {unknown}" in done.out
    again = await in_process(*ask)
    assert "BUT" not in again.out, "it is known by now"
    ask = ["--yes", "--action", "drain", "--reason", "x", *where]
    done = await in_process("quarantine", "nod-2", *ask)
    assert (done.code, "BUT: this file has no node nod-2" in done.out) == (0, True)


async def test_a_node_of_a_local_cluster_is_exempted_and_pinned_and_let_go(database: Path) -> None:
    where = ["--local", str(database)]
    done = await in_process("exempt", "node-1", "--for", "8h", "--reason", "firmware test", *where)
    assert done.code == 0, done.err
    assert f"Sooner: sickbay unexempt node-1 --local {database}\n" in done.out
    assert (await in_process("pin", "node-1", "--reason", "RMA 12345", *where)).code == 0
    store = LocalStore(database, wall=lambda: NIGHT)
    found = read_operator_requests(store.node("node-1").annotations)
    assert found.exempt_reason == "firmware test"
    assert found.exempt_until == pytest.approx(time.time() + 8 * 3600, abs=120)
    assert (found.pinned, found.pin_reason) == (True, "RMA 12345")
    assert "no longer exempt" in (await in_process("unexempt", "node-1", *where)).out
    assert "was not exempt" in (await in_process("unexempt", "node-1", *where)).out
    assert "no longer pinned" in (await in_process("unpin", "node-1", *where)).out
    assert read_operator_requests(store.node("node-1").annotations) == OperatorRequests()
    store.close()


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (["pin"], ""),
        (["exempt", "--for", "1h"], "../x"),
        (["quarantine", "--action", "cordon"], "node-1\n"),
    ],
)
async def test_nothing_is_asked_of_what_can_be_no_node(
    database: Path, ask: list[str], name: str
) -> None:
    done = await in_process(*ask, "--reason", "x", "--local", str(database), "--", name)
    assert done.code == 2
    assert "expected a node's name" in done.err
    store = LocalStore(database, wall=lambda: NIGHT)
    assert (store.nodes(), store.quarantines()) == ([], [])
    store.close()


@pytest.mark.parametrize("how_long", ["8", "8 hours", "0h", "400d", "-1h", "", "1w"])
async def test_an_exemption_without_a_sensible_end_is_refused(
    database: Path, how_long: str
) -> None:
    ask = ["exempt", "node-1", f"--for={how_long}", "--reason", "x", "--local", str(database)]
    done = await in_process(*ask)
    assert done.code == 2
    assert "--for" in done.err
    assert "expected" in done.err


@pytest.mark.parametrize(
    ("given", "again"),
    [
        ([], ""),
        (["--namespace", "sickbay"], ""),
        (["--namespace", "health"], " --namespace health"),
        (
            ["--context", "prod & test", "--kubeconfig", "kc", "--namespace", "health"],
            " --kubeconfig kc --context 'prod & test' --namespace health",
        ),
        (["--local", "a b.db", "--context", "prod"], " --local 'a b.db'"),
    ],
)
def test_what_takes_a_wish_back_is_told_with_what_leads_to_the_same_cluster(
    given: list[str], again: str
) -> None:
    assert flags_of(parser_for("sickbay", {}).parse_args(["resume", *given])) == again


async def test_without_a_kubeconfig_it_says_so(tmp_path: Path) -> None:
    done = await sickbay("resume", HOME=str(tmp_path), KUBECONFIG="")
    assert done.code == 2
    assert f"no kubeconfig at {tmp_path}/.kube/config" in done.err
    assert "expected --kubeconfig FILE, or --local DATABASE" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("more", [[], ["--context", "nosuch"]])
async def test_a_kubeconfig_that_is_none_is_the_command_lines_mistake(
    tmp_path: Path, more: list[str]
) -> None:
    file = tmp_path / "config"
    file.write_text("root:x:0:0:root:/root:/bin/bash\n")
    done = await in_process("resume", "--kubeconfig", str(file), *more)
    assert done.code == 2
    assert f"sickbay: the kubeconfig {file} can't be used: it has no keys; expected cl" in done.err
    assert "Another one: --kubeconfig FILE, --context NAME" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("among", ["", "/gone:"])
async def test_an_empty_kubeconfig_is_said_to_be_empty(tmp_path: Path, among: str) -> None:
    file = tmp_path / "config"
    file.touch()
    done = await sickbay("resume", KUBECONFIG=f"{among}{file}")
    assert done.code == 2
    assert f"the kubeconfig {file} can't be used: it is empty; expected clusters" in done.err
    assert "Traceback" not in done.err


async def test_another_database_is_not_taken_for_the_local_cluster(tmp_path: Path) -> None:
    other = tmp_path / "history.db"
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE transitions (at REAL)")
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"no database" * 100)
    for path in (other, noise):
        before = path.read_bytes()
        done = await in_process("stop", "--reason", "x", "--local", str(path))
        assert done.code == 2
        assert f"{path} is no local cluster's database" in done.err
        assert path.read_bytes() == before


async def test_a_query_that_makes_no_sense_is_exit_2(served: Served) -> None:
    done = await in_process("history", "--since", "yesterday", "--url", served.url)
    assert done.code == 2
    assert "expected seconds since the epoch, or RFC 3339" in done.err


# -- text --------------------------------------------------------------------------------------


def test_nothing_that_a_node_writes_moves_the_cursor() -> None:
    assert clean("a\x1b[2J\x07b\nc\td\u202e\u2028e") == "a?[2J?b c d? e"


async def test_hostile_text_is_cleaned_on_every_screen() -> None:
    hands = Hands()
    fleet = small_fleet(hands)
    evil = "\x1b]0;pwned\x07"
    node_summary = fleet.node_summaries["node-2"]
    node_summary.work.last_error = node_summary.agent.conflict = evil
    fleet.stop = evil
    past = [Transition(NIGHT, EventKind.HELD, "node-2", evil)]
    async with serving(fleet, hands.clocks()) as served:
        served.history.items = past
        for command in (["status"], ["nodes"], ["node", "node-2"], ["quarantines"], ["history"]):
            done = await in_process(*command, "--url", served.url)
            assert done.code == 0
            assert "\x1b" not in done.out
            assert "\x07" not in done.out


def test_columns_line_up_and_the_last_is_cut() -> None:
    text = table(["A", "B"], [("long name", "x" * 50), ("b", "")], 20)
    assert text.splitlines() == ["A          B", "long name  xxxxxx...", "b          -"]


async def test_what_is_known_of_quarantines_is_said_to_be_old_while_the_cluster_cant_be_seen(
    served: Served,
) -> None:
    served.fleet.view_lost = "no answer in 10 s"
    async with serving(served.fleet, Hands().clocks()) as other:
        said = (await in_process("quarantines", "--url", other.url)).out.splitlines()
    assert said[0] == (
        "THE CLUSTER CAN'T BE SEEN, the state shown here may be old: no answer in 10 s"
    )
    assert said[1].startswith("NODE")


async def test_an_aggregator_that_never_saw_the_cluster_denies_no_quarantine() -> None:
    fleet = FleetState(view_lost="the API server is out of reach")
    async with serving(fleet, Hands().clocks()) as served:
        said = (await in_process("quarantines", "--url", served.url)).out.splitlines()
        told = json.loads((await in_process("quarantines", "-o", "json", "--url", served.url)).out)
    assert said[0].endswith("the API server is out of reach")
    assert said[1:] == ["No node is known to be in quarantine."]
    assert told["view_lost"] == "the API server is out of reach"


async def test_a_time_that_ends_before_it_begins_is_refused_and_not_taken_for_a_quiet_one(
    served: Served,
) -> None:
    window = ("--since", "2026-01-31T05:00:00Z", "--until", "2026-01-31T03:00:00Z")
    done = await in_process("history", *window, "--url", served.url)
    assert (done.code, done.out) == (2, "")
    assert "until is before since" in done.err


async def test_an_empty_fleet_is_no_error() -> None:
    nothing = Transition(NIGHT, EventKind.HELD, "elsewhere", "")
    async with serving(FleetState(), Hands().clocks(), history=ListHistory([nothing])) as served:
        served.history.items.clear()
        served.feed.prime(())
        for command, says in (
            ("nodes", "No node is known yet."),
            ("nodes --standing held", "No node stands so."),
            ("quarantines", "No node is in quarantine."),
            ("incidents", "No incident is open."),
            ("history", "No transition is recorded."),
            ("status", "No node is known yet."),
        ):
            done = await in_process(*command.split(), "--url", served.url)
            assert (done.code, done.out.splitlines()[0]) == (0, says)


async def test_marked_nodes_without_a_known_quarantine_are_no_empty_list() -> None:
    fleet = FleetState()
    well(fleet, "node-4", Hands().now)
    fleet.node_summaries["node-4"].cluster.marked = True
    async with serving(fleet, Hands().clocks()) as served:
        served.feed.prime(())
        done = await in_process("quarantines", "--url", served.url)
        assert "1 marked by sickbay, without a Quarantine that is known: node-4." in done.out
        assert "No node is" not in done.out
        page = await in_process("quarantines", "--url", served.url, "-o", "json")
        assert json.loads(page.out)["marked_only"] == ["node-4"]
