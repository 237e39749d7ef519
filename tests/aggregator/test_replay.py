"""The recorded past through a changed policy: recorded by the real controller, kept in the real
database, replayed by the real command."""

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
import time
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
from aggregator.history.database import Database
from aggregator.history.evidence_recorder import EvidenceRecorder
from aggregator.history.history import History
from aggregator.history.replay_codec import by_node
from aggregator.history.tables import evidence
from aggregator.policy.evaluate import evaluate
from aggregator.policy.replay import Episode, live
from aggregator.runtime.database import DatabaseError
from tests.aggregator.test_windows import FAILED, OK, SITE, Node, happenings, link
from tests.support.histories import Place
from tests.support.memory_cluster import World
from tests.support.replica import FakeLine, Replica, Turned, fault, hello, snapshot
from tests.support.text_files import text_file


@dataclass
class Tape:
    """The records of a recorder, as rows."""

    clock: Turned
    rows: list[dict[str, Any]] = field(default_factory=list)

    def put(self, node: str, kind: str, body: Mapping[str, Any]) -> None:
        row = {"at": self.clock(), "node": node, "kind": kind, "body": body}
        self.rows.append(json.loads(json.dumps(row)))  # as it comes back from the database


def replayed(tape: Tape, until: float, policy: object = SITE) -> list[Episode]:
    rows = sorted(tape.rows, key=lambda row: row["node"])
    return [
        one
        for node, events in by_node(rows)
        for one in live(policy, node, events, until)  # type: ignore[arg-type]  # a policy
    ]


# -- the record ------------------------------------------------------------------------------------


def test_what_a_replica_writes_late_of_a_node_that_moved_away_is_not_believed() -> None:
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
    assert "no incident would have been different on 1 node" in out

    code, _, err = command(capsys, "policy", "replay", str(policy), *source, "--node", "elsewhere")
    assert (code, err) == (
        2,
        "sickbay-aggregator: that database has no recorded evidence to replay\n",
    )
    with closing(sqlite3.connect(tmp_path / "history.db")) as database:
        database.execute("UPDATE evidence SET body = '{}' WHERE kind = 'hello'")
        database.commit()
    code, _, err = command(capsys, "policy", "replay", str(policy), *source)
    assert (code, "KeyError: 'boot'; expected a record that" in err) == (2, True)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE TABLE mine (a)", "has tables of another program, or of an"),
        ("", "has no tables of this version of sickbay; expected the history of an aggregator"),
    ],
)
def test_a_command_that_reads_makes_no_tables_in_another_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], statement: str, why: str
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
    policy = text_file(tmp_path / "policy.yaml", "rules: []\n")
    code, _, err = command(capsys, "policy", "replay", str(policy), "--config", str(config))
    assert (code, str(file) in err, why in err) == (2, True, True)
    assert file.read_bytes() == before


def test_tables_of_an_earlier_version_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    place = Place(f"sqlite:///{tmp_path / 'history.db'}")
    place.ask(lambda database: database.recent("", 0.0, 1))
    place.sql("UPDATE sickbay_history_version SET version_num = '0.9'")
    reading = Database(f"sqlite:///{tmp_path / 'history.db'}", reads=True)
    with pytest.raises(DatabaseError, match=r"another sickbay \(tables 0\.9"):
        list(reading.evidence())
    assert place.sql("SELECT version_num FROM sickbay_history_version") == [("0.9",)]


def test_a_history_is_read_while_it_is_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'history.db'}"
    writing, reading = Database(url), Database(url, reads=True)
    for number, node in enumerate(("older", "newer"), 1):
        row = {"id": number, "at": 1.0, "node": node, "kind": "hello", "body": {}, "replica": ""}
        writing.write([row], evidence)
        assert len(list(reading.evidence())) == number
    reading.close()
    writing.close()
