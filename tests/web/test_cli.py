"""The command `sickbay` as a process, against a real server; and its output."""

import asyncio
import datetime as dt
import json
import random
import re
import signal
import ssl
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.cli.client import Client
from aggregator.cli.errors import CommandFailed
from aggregator.cli.text_table import clean, table
from aggregator.cli.watch import watch
from aggregator.cluster.port import Phase
from aggregator.demo.ports import free_port
from aggregator.events import EventKind, Transition
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.state.fleet import FleetState
from tests.support.aggregator_program import SICKBAY
from tests.support.pki import Authority
from tests.support.present import present
from tests.support.waiting import PATIENCE, until
from tests.web.cli import in_process, sickbay, start, unwritten
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

#: JSON that no reader ends.
DEEP = 100_000 * b"["


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
    quarantined.decision.hold = Held("stop", "set", "work on the fabric", since=0.0)
    done = await in_process("status", "--url", served.url)
    assert re.search(r"^held back +1 ", done.out, re.MULTILINE), done.out
    assert re.search(r"^drains held +1 ", done.out, re.MULTILINE), done.out
    listed = await in_process("nodes", "--state", "held", "--url", served.url)
    assert len(listed.out.splitlines()) == 2, listed.out  # the heading, and the node that is held


async def test_a_node_that_awaits_its_marks_is_held_and_no_drain_of_it_is(served: Served) -> None:
    quarantined = served.fleet.node_summaries["node-2"]
    quarantine = present(quarantined.quarantine)
    admitted = replace(quarantine, status=replace(quarantine.status, phase=Phase.ADMITTED))
    quarantined.quarantine_view.quarantine = admitted
    quarantined.cluster.marked = False
    unmarked = await in_process("status", "--url", served.url)
    assert re.search(r"^held back +2 ", unmarked.out, re.MULTILINE), unmarked.out
    assert re.search(r"^drains held +0 ", unmarked.out, re.MULTILINE), unmarked.out


async def test_status_says_what_the_aggregator_itself_lacks(served: Served) -> None:
    served.fleet.clock_doubt = "it has moved ahead by 3d"
    served.history.problem = "history is not written since 03:00: postgresql://...: refused"
    served.untold.append("webhook alerts.test: can't be reached: refused")
    done = await in_process("status", "--url", served.url)
    assert "ITS CLOCK IS DOUBTED, actions that can't be undone wait: it has moved" in done.out
    assert f"THE PAST IS NOT KEPT, all else goes on: {served.history.problem}" in done.out
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
        (dt.timedelta(1), "127.0.0.1", ("--ca-file", ca), "Use a name that is in its cert"),
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
        assert "the server there does not use HTTP; is it https?" in plain.err


async def test_the_address_may_come_from_the_environment(served: Served) -> None:
    done = await sickbay("status", "-o", "json", SICKBAY_URL=served.url + "/")
    assert done.code == 0, done.err
    assert json.loads(done.out)["counts"]["quarantined"] == 2


async def test_a_proxy_of_the_environment_does_not_stand_before_loopback(served: Served) -> None:
    done = await sickbay("status", "--url", served.url, http_proxy="http://127.0.0.1:9")
    assert done.code == 0, done.err


async def test_nodes_by_state(served: Served) -> None:
    done = await in_process("nodes", "--state", "held", "--url", served.url)
    lines = done.out.splitlines()
    assert lines[0].split() == ["NODE", "STATE", "AGENT", "SEEN", "WHY"]
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


async def test_a_nodes_components_that_are_ok_are_a_number_unless_all_are_requested(
    served: Served,
) -> None:
    found = (await served.json("/api/v1/nodes/node-2"))["components"]
    ok = [one["message"] for one in found if one["status"] == "ok"]
    assert 0 < len(ok) < len(found)
    short = (await in_process("node", "node-2", "--url", served.url)).out
    assert f"components that are ok: {len(ok)} (-o wide shows them)" in short
    assert not [one for one in ok if one in short]
    wide = (await in_process("node", "node-2", "-o", "wide", "--url", served.url)).out
    assert not [one for one in ok if one not in wide]
    assert "components that are ok" not in wide


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
    assert "work.blocked" in lines[-1], "the latest comes last"


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
    assert "missing: Kubernetes' objects: with --url no cluster is read" in done.out
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
    nowhere = await in_process("bundle", "node-2", "--url", served.url, "--file", "/nowhere/x.gz")
    assert nowhere.code == 2
    assert "--file: /nowhere/x.gz can't be written: No such file" in nowhere.err


async def test_a_part_of_an_archive_is_removed(served: Served, tmp_path: Path) -> None:
    words = ("bundle", "node-2", "--url", served.url, "--file", str(tmp_path / "rma.tar.gz"))
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", 'ulimit -f 1; exec "$0" "$@"', *SICKBAY.program, *words),
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert (process.returncode, "can't be written: File too large" in err.decode()) == (2, True)
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - a local folder


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
        (["nodes", "--state", "sick"], "invalid choice"),
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


@pytest.mark.parametrize(
    ("command", "raw", "text"),
    [
        ("status", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "can't be read"),
        ("status", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "answered no object: is"),
        ("status", b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\n{", "answered 500 No: is this"),
        ("status", b"HTTP/1.0 200 OK\r\n\r\n" + DEEP, "can't be read: it is nested too deep"),
        ("status", b"HTTP/1.0 500 No\r\n\r\n" + DEEP, "answered 500 No: is this"),
        ("watch", b"HTTP/1.0 200 OK\r\n\r\ndata: " + DEEP + b"\n", "broke: it is nested too deep"),
        (
            "status",
            b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"headline": "ok"}',
            'the answer has no "mode": is the aggregator older than this program, ',
        ),
        (
            "status",
            b"\x00\x00\x18\x04\x00\x1b[31m\r\n",
            "can't be reached: the server there does not use HTTP; is it https?\n",
        ),
        ("watch", b'HTTP/1.0 200 OK\r\n\r\nevent: hello\ndata: {"at', "the stream broke: "),
    ],
)
async def test_an_answer_that_is_none_is_said_in_words(command: str, raw: bytes, text: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        done = await in_process(command, "--url", f"http://127.0.0.1:{port}")
    assert (done.code, text in done.err) == (1, True), done.err


async def test_a_field_that_this_program_lacks_is_no_older_aggregator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: object) -> None:
        raise KeyError("own")

    monkeypatch.setattr("aggregator.cli.read_commands.open_source", broken)
    with pytest.raises(KeyError, match="own"):
        await in_process("status")


async def test_no_redirect_is_followed_with_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0p-secret")
    asked = list[bytes]()

    async def lead_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        where = f"http://localhost:{port}/login\x1b[31m".encode()
        writer.write(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + where + b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(lead_on, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        where = ("--url", f"http://127.0.0.1:{port}", "--token-file", str(tmp_path / "token"))
        done = await in_process("status", *where)
    assert (done.code, len(asked)) == (1, 1)
    assert f"/api/v1/fleet leads to http://localhost:{port}/login?[31m, which is not" in done.err


async def test_an_aggregator_that_is_away_is_said_in_words() -> None:
    done = await in_process("status", "--url", f"http://127.0.0.1:{free_port()}")
    assert done.code == 1
    assert "can't be reached: Connection refused\n" in done.err


async def test_an_address_of_http_is_said_in_words_where_it_is_called_https(
    served: Served,
) -> None:
    done = await in_process("status", "--url", served.url.replace("http:", "https:"))
    assert done.code == 1
    assert "can't be reached: the server there does not use TLS; is it http?\n" in done.err


async def test_an_answer_that_cannot_be_written_is_said_without_a_traceback(served: Served) -> None:
    code, err = await unwritten("status", "--url", served.url, full=True)
    assert (code, err.count("\n")) == (1, 1), err
    assert err.startswith("sickbay: the answer can't be written: ")


async def test_watch_tells_what_happens_and_finds_its_way_back(address: str) -> None:
    fleet = small_fleet(Hands())
    lines: list[str] = []
    async with serving(fleet, running_clocks(), address=address) as served:
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
    assert "the connection is back\nsickbay: events may be missing: sickbay history\n" in said
    assert "Traceback" not in said


async def test_a_stream_goes_on_after_the_event_that_was_read_last() -> None:
    async with serving(small_fleet(Hands()), running_clocks()) as served:
        client = Client(served.url, timeout=PATIENCE)

        def happens(summary: str) -> None:
            served.feed.record_event(Transition(NIGHT, EventKind.HELD, "node-1", summary))

        def read() -> list[tuple[str, Any]]:
            found = list[tuple[str, Any]]()
            for event in client.events("node-1"):
                found.append(event)
                if event[0] == "transition":
                    break
            return found

        first = asyncio.create_task(asyncio.to_thread(read))
        await until(lambda: served.feed.streams == 1)
        happens("the first")
        assert (await first)[-1][1]["summary"] == "the first"
        happens("the second")
        happens("the third")
        hello, again, *_ = await asyncio.to_thread(read)
        assert hello[1]["resumed"]
        assert again[1]["summary"] == "the second"


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
    assert await unwritten("nodes", "--url", served.url, full=False) == (0, "")


# -- acting on a local cluster ---------------------------------------------------------------


async def test_a_query_that_makes_no_sense_is_exit_2(served: Served) -> None:
    done = await in_process("history", "--since", "yesterday", "--url", served.url)
    assert done.code == 2
    assert '--since: "yesterday" is no time; expected one such as 1h, 7d, 2026-01-31 or' in done.err
    for number in ("24", "0.5", "20260131"):
        done = await in_process("history", "--since", number, "--url", served.url)
        assert (done.code, f'--since: "{number}" is no time' in done.err) == (2, True)
    for known in ("7d", "2026-01-31", "2026-01-31T03:14:00Z", "1769829240.5"):
        done = await in_process("history", "--since", known, "--url", served.url)
        assert (done.code, done.err) == (0, "")


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
    text = table(["A", "B"], [("long name", "x" * 50), ("b", "")], 60)
    assert text.splitlines() == ["A          B", f"long name  {'x' * 46}...", "b          -"]
    text = table(["A", "B"], [("long name", "x" * 50), ("b", "")], 20)
    own = [f"    {'x' * 16}", f"    {'x' * 16}", f"    {'x' * 13}..."]
    assert text.splitlines() == ["A          B", "long name", *own, "b          -"]


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
            ("nodes --state held", "There is no such node."),
            (
                "nodes --exempt",
                "No such node is exempt. A new exemption is shown within three minutes.",
            ),
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
