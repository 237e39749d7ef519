"""The recorded past through a changed policy: recorded by the real controller, kept in the real
database, replayed by the real command."""

import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from aggregator.clock import Clocks
from aggregator.daemon_cli.main import main
from aggregator.health.model import ClearedBy, Component, Delta, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.history.evidence_recorder import EvidenceRecorder
from aggregator.history.export_file import ExportFile
from aggregator.history.history import History
from aggregator.history.replay_codec import RecordError, by_node, from_line, since, to_line
from aggregator.policy.evaluate import evaluate
from aggregator.policy.replay import Episode, live
from tests.aggregator.test_windows import FAILED, OK, SITE, Node, happenings, link
from tests.support.memory_cluster import World
from tests.support.replica import FakeLine, Replica, Turned, fault, hello, snapshot


@dataclass
class Tape:
    """The records of a recorder, as rows."""

    clock: Turned
    rows: list[dict[str, Any]] = field(default_factory=list)

    def put(self, node: str, kind: str, body: Mapping[str, Any]) -> None:
        line = to_line({"at": self.clock(), "node": node, "kind": kind, "body": body})
        row = from_line(line, "tape")  # as it comes back from a file
        assert row is not None
        self.rows.append(row)


def replayed(tape: Tape, until: float, policy: object = SITE) -> list[Episode]:
    rows = sorted(tape.rows, key=lambda row: row["node"])
    return [
        one
        for node, events in by_node(rows)
        for one in live(policy, node, events, until)  # type: ignore[arg-type]  # a policy
    ]


# -- the record ------------------------------------------------------------------------------------


def test_what_a_replica_writes_late_of_a_node_that_moved_away_is_not_believed(
    tmp_path: Path,
) -> None:
    """The stream ended there after it had begun at another replica; or that clock is behind."""
    ill: dict[str, Any] = {"components": []}
    rows = [
        {"at": at, "node": "n1", "kind": kind, "body": body, "replica": replica}
        for at, kind, body, replica in (
            (1.0, "hello", {"boot": "b", "epoch": "e"}, "a"),
            (1.0, "base", ill, "a"),
            (5.0, "hello", {"boot": "b", "epoch": "e"}, "b"),
            (5.1, "base", ill, "b"),
            (5.2, "left", {}, "a"),
            (6.0, "change", ill, "b"),
        )
    ]
    [(node, events)] = by_node(rows)
    assert node == "n1"
    assert [event.at for event in events] == [1.0, 1.0, 5.0, 5.1, 6.0]
    assert None not in [event.word for event in events]
    # As it comes back from a file, too.
    file = tmp_path / "record.jsonl"
    file.write_text("\n".join(map(to_line, rows)))
    assert [*by_node(ExportFile(file).rows())] == [(node, events)]


def test_a_record_is_read_a_node_at_a_time_in_any_order_of_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    with file.open("w") as lines:  # of two replicas, one behind the other
        for at in (2.0, 1.0):
            for node in ("n2", "n3", "n1"):
                for kind in ("hello", "base", *["change"] * 1000):
                    body = {"said": "x" * 2000}
                    print(to_line({"at": at, "node": node, "kind": kind, "body": body}), file=lines)
                print(file=lines)
    tracemalloc.start()
    try:
        record = ExportFile(file)
        read = [(row["node"], row["at"], row["kind"]) for row in record.rows()]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read[:3] == [("n1", 1.0, "hello"), ("n1", 1.0, "base"), ("n1", 1.0, "change")]
    assert [one[:2] for one in read] == sorted(one[:2] for one in read)
    assert (len(read), record.last) == (6012, 2.0)
    assert most < file.stat().st_size / 4
    assert {row["node"] for row in ExportFile(file, "n3").rows()} == {"n3"}


def test_a_record_keeps_what_people_write_whole(tmp_path: Path) -> None:
    told = {"said": "a\u2028b\x85c\u00fc\n"}
    file = tmp_path / "record.jsonl"
    row = {"at": 1.0, "node": "n1", "kind": "base", "body": told}
    # As it was written before, and as it is.
    file.write_text(f"{json.dumps(row, ensure_ascii=False)}\n{to_line(row)}\n", "utf-8")
    assert [row["body"] for row in ExportFile(file).rows()] == [told, told]
    assert to_line(row).isascii()


def test_a_file_that_is_no_record_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    file.touch()
    os.truncate(file, 1 << 40)
    with pytest.raises(RecordError, match="jsonl:1: longer than 32 MiB, which no line of ours is"):
        ExportFile(file)
    for text in ("[" * 20_000, "\xff", "{", "\0"):
        file.write_text(text, "latin-1")
        with pytest.raises(RecordError, match="jsonl:1: no JSON; expected a line of 'sickbay-aggr"):
            ExportFile(file)
    with pytest.raises(RecordError, match="gone can't be read: No such file"):
        ExportFile(tmp_path / "gone")


def test_what_is_well_and_stays_so_is_no_row() -> None:
    clock = Turned()
    tape = Tape(clock)
    recorder = EvidenceRecorder(tape.put)
    recorder.record_hello(hello("n1"))
    fine = Component("disk-space", "/", Status.OK, "", "", 900.0, ((900.0, Status.OK),))
    recorder.record_message("n1", snapshot(fine), clock())
    for turn in range(100):
        clock.time += 60
        recorder.record_message("n1", Delta((replace(fine, message=f"{turn} %"),)), clock())
    recorder.record_disconnect("n1")
    assert [(row["kind"], row["body"]) for row in tape.rows] == [
        ("hello", {"boot": "boot-1", "epoch": "epoch", "driver": ""}),
        ("base", {}),
    ]


def test_a_storm_of_one_fault_is_few_rows() -> None:
    clock = Turned()
    tape = Tape(clock)
    recorder = EvidenceRecorder(tape.put)
    recorder.record_hello(hello("n1"))
    for count in range(1, 3000):
        clock.time += 0.1
        recorder.record_message("n1", Delta(faults=(fault("xid:95", count=count),)), clock())
    assert len(tape.rows) < 40
    assert tape.rows[-1]["body"]["faults"][0]["count"] > 1900


def test_what_is_exported_since_a_time_begins_with_what_was_known_then() -> None:
    def row(at: float, kind: str, node: str = "a") -> dict[str, Any]:
        return {"at": at, "node": node, "kind": kind, "body": {}}

    story = [
        row(1, "hello"),
        row(1, "base"),
        row(5, "change"),
        row(9, "hello"),
        row(9, "base"),
        row(12, "change"),
        row(30, "change"),
        row(2, "hello", "b"),
        row(2, "base", "b"),
    ]
    assert list(since(story, 20.0)) == story[3:7]
    assert list(since(story, 0.0)) == story


@settings(max_examples=60, deadline=None)
@given(happenings)
def test_a_replay_of_the_same_policy_evaluates_as_was_evaluated(
    many: list[tuple[tuple[str, ...], int, set[str]]],
) -> None:
    """Acting incidents: the same, beginning and ending at the same time, whichever events came."""
    clock, node = Turned(), Node()
    tape = Tape(clock)
    recorder = EvidenceRecorder(tape.put)
    health = NodeHealth(replace(hello("n1"), spool_epoch="e"))
    recorder.record_hello(replace(hello("n1"), spool_epoch="e"))
    incidents: Mapping[str, Any] = {}
    lives: list[tuple[str, float, str]] = []
    closings: list[tuple[str, float]] = []
    again: float | None = None

    def evaluate_at(now: float) -> None:
        nonlocal incidents, again
        evaluated = evaluate(SITE, health, incidents, now)
        for ident, one in evaluated.incidents.items():
            if ident not in incidents and one.action != "observe":
                lives.append((one.kind, round(one.since, 2), one.id))
        closings.extend((one.kind, now) for one in evaluated.closed if one.action != "observe")
        incidents, again = evaluated.incidents, evaluated.evaluate_again

    def wait(until: float) -> None:
        while again is not None and again <= until:
            clock.time = again
            evaluate_at(again)
        clock.time = until

    def fold(told: Snapshot | Delta) -> None:
        if isinstance(told, Snapshot):
            health.snapshot(told)
        else:
            health.delta(told)
        evaluate_at(clock())
        recorder.record_message("n1", told, clock())

    fold(node.snapshot(clock()))
    for step, passed, _ in many:
        wait(clock() + passed)
        node.sees(step, clock())
        told = node.delta(clock())
        if told != Delta():
            fold(told)
    wait(clock() + 2 * 86400)
    episodes = [one for one in replayed(tape, clock()) if one.acts]
    assert [(one.kind, round(one.began, 2)) for one in episodes] == [
        (kind, began) for kind, began, _ in lives
    ]
    ended = sorted((one.kind, one.ended) for one in episodes if one.ended is not None)
    assert [kind for kind, _ in ended] == [kind for kind, _ in sorted(closings)]
    for (_, at), (_, then) in zip(ended, sorted(closings), strict=True):
        assert at == pytest.approx(then, abs=0.1)


# -- what would have been different ----------------------------------------------------------------


async def test_what_two_agents_of_one_node_say_in_turn_is_not_recorded_and_then_begun_anew() -> (
    None
):
    clock = Turned(1000.0)
    tape = Tape(clock)
    replica = Replica(World(), clock=clock, evidence_recording=EvidenceRecorder(tape.put))
    controller, latched = replica.controller, fault("xid:63")

    def down() -> Component:
        return link((clock(), FAILED))

    replica.agent("n1", snapshot(latched))
    begun = len(tape.rows)
    for number in range(50):
        line = FakeLine()
        controller.on_conflict("n1", f"two live agents: {number}")
        replica.agent("n1", snapshot(), line=line, boot_id=f"boot-{number % 2}")
        replica.agent("n1", Delta((down(),), (latched,)))
        assert replica.fleet.node_summaries["n1"].agent.health is not None
        assert replica.fleet.node_summaries["n1"].agent.health.failed(), (
            "what they say is heard all the same"
        )
        controller.on_disconnect("n1", line, "a newer stream")
    assert len(tape.rows) == begun
    replica.agent("n1", snapshot(latched, down()))
    controller.on_conflict("n1", "")
    greeted, base = tape.rows[begun:]
    assert (greeted["kind"], greeted["body"]["boot"], base["kind"]) == ("hello", "boot-1", "base")
    assert [one["check"] for one in base["body"]["components"]] == ["nic-link"]
    assert [one["code"] for one in base["body"]["faults"]] == ["xid:63"]
    replica.agent("n1", Delta((link((clock(), OK)),)))
    assert tape.rows[-1]["kind"] == "change"
    # A conflict that is over before the snapshot: there is no fact yet that a base could rest on.
    controller.on_conflict("n1", "two live agents")
    controller.on_connect(hello("n1", "boot-2"), FakeLine())
    begun = len(tape.rows)
    controller.on_conflict("n1", "")
    assert len(tape.rows) == begun
    controller.on_evidence("n1", snapshot(latched, down()), clock())
    assert [one["kind"] for one in tape.rows[begun:]] == ["hello", "base"]
    assert [one["check"] for one in tape.rows[-1]["body"]["components"]] == ["nic-link"]
    # A conflict that is over while no agent is attached, and one whose end is never reported.
    for end in ("", None):
        controller.on_conflict("n1", "two live agents")
        replica.agent("n1", snapshot(down()))
        controller.on_disconnect("n1", controller.parts.agent_events._lines["n1"], "gone")
        if end is not None:
            controller.on_conflict("n1", end)
        else:
            replica.fleet.node_summaries[
                "n1"
            ].agent.conflict = ""  # as when its node moves to another replica
        begun = len(tape.rows)
        replica.agent("n1", snapshot(latched))
        assert [one["kind"] for one in tape.rows[begun:]] == ["hello", "base"]


# -- the whole way ---------------------------------------------------------------------------------


async def record(url: str) -> None:
    """A controller that hears of a fault, with history as its witness."""
    clocks = Clocks(time.monotonic, time.time)
    history = History(url, keep=86400, clocks=clocks, rng=random.Random(1))
    history.start()
    replica = Replica(
        World(), clock=Turned(1000.0), evidence_recording=EvidenceRecorder(history.record)
    )
    replica.agent("n1", snapshot())
    replica.agent("n1", Delta(faults=(fault("xid:54", cleared_by=ClearedBy.OPERATOR),)))
    await asyncio.sleep(0)
    await replica.stop()
    await history.close()
    assert history.evidence_lost == 0


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_an_owner_replays_the_aggregators_own_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    config, policy = tmp_path / "aggregator.yaml", tmp_path / "policy.yaml"
    config.write_text(
        f"cluster: {{kind: local}}\nidentity: {{kind: insecure-trust-hello}}\n"
        f"listen: {{grpc: '127.0.0.1:0', web: '127.0.0.1:0'}}\nhistory: {{database: '{url}'}}\n"
    )
    policy.write_text("rules:\n  - {name: gpu-person, action: drain, repair: [reboot, ticket]}\n")
    source = ("--config", str(config))

    code, _, err = command(capsys, "policy", "replay", str(policy), *source)
    assert (code, err.strip()[-46:]) == (2, "there is no history; expected the aggregator's")

    asyncio.run(record(url))
    code, out, _ = command(capsys, "policy", "replay", str(policy), *source)
    assert code == 1
    assert "changes   n1  drain  xid:54" in out
    assert "cordon becomes drain" in out
    assert "repairs: reboot, then ticket, where repair.mode allows it" in out
    code, out, _ = command(capsys, "policy", "replay", str(policy), *source, "-o", "json")
    with Path("/dev/full").open("wb") as full:
        program = "from aggregator.daemon_cli.entry import main; main()"
        words = (sys.executable, "-c", program, "policy", "replay", str(policy), *source)
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    # 1 would read as "something would have been different".
    assert (done.returncode, done.stderr.partition(" be ")[0]) == (
        2,
        "sickbay-aggregator: the answer can't",
    )
    told = json.loads(out)
    assert [one["how"] for one in told["differences"]] == ["cordon becomes drain"]
    [changes] = told["differences"]
    shipped = ["ticket"]
    assert (changes["before"]["repair"], changes["after"]["repair"]) == (
        (shipped, ["reboot", "ticket"])
    )
    assert (told["before"]["by_action"], told["after"]["by_action"]) == (
        {"cordon": 1},
        {"drain": 1},
    )

    policy.write_text("rules:\n  - {name: disk-full, action: drain}\n")
    code, out, _ = command(capsys, "policy", "replay", str(policy), *source, "--since", "1h")
    assert code == 0
    assert "no incident would have been different on 1 nodes" in out

    code, out, _ = command(capsys, "history", "export", *source)
    assert code == 0
    record_file = tmp_path / "record.jsonl"
    record_file.write_text(out)
    policy.write_text("rules:\n  - {name: gpu-person, action: observe}\n")
    carried = ("policy", "replay", str(policy), "--record", str(record_file))
    code, out, _ = command(capsys, *carried)
    assert code == 1
    assert "cordon becomes observe" in out
    code, _, err = command(capsys, *carried, "--node", "elsewhere")
    assert (code, err) == (
        2,
        f"sickbay-aggregator: {record_file} has no recorded evidence to replay\n",
    )
    record_file.write_text('{"at": 1, "node": "a", "kind": "hello", "body": {}}\nnonsense\n')
    code, _, err = command(capsys, *carried)
    assert code == 2
    assert f"{record_file}:2: " in err
    record_file.write_text('{"at": 1, "node": "a", "kind": "hello", "body": {}}\n')
    code, _, err = command(capsys, *carried)
    assert code == 2
    assert "a at 1.0: KeyError" in err


@pytest.mark.parametrize("statement", ["CREATE TABLE mine (a)", ""])
def test_a_command_that_reads_makes_no_tables_in_another_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    file = tmp_path / "other.db"
    file.touch()
    with closing(sqlite3.connect(file)) as database:
        database.execute(statement)
    before = file.read_bytes()
    config = tmp_path / "aggregator.yaml"
    config.write_text(
        f'identity: {{kind: insecure-trust-hello}}\nhistory: {{database: "sqlite:///{file}"}}\n'
        'listen: {grpc: "127.0.0.1:0", web: "127.0.0.1:0"}\n'
    )
    code, _, err = command(capsys, "history", "export", "--config", str(config))
    assert (code, f"{file} is no history: it lacks its tables; expected" in err) == (2, True)
    assert file.read_bytes() == before
