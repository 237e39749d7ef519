"""`sickbay repair`, as a process, against a real page and a local cluster's file."""

import json
import os
import pty
import re
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.port import RepairState
from aggregator.policy.repairs import REPAIRS as KINDS
from aggregator.quarantine.decide.operator_requests import REPAIR
from aggregator.quarantine.decide.repair import (
    RepairMode,
    RepairRequest,
    RepairRules,
    read_request,
)
from tests.web.cli import in_process, sickbay, start_on
from tests.web.support import (
    NIGHT,
    REPAIRS,
    Hands,
    Served,
    quarantine_of,
    reboot_of,
    repaired,
    serving,
    small_fleet,
)

HANDS = Hands()
ORDERED = reboot_of("node-2", HANDS.wall, RepairState.ORDERED, message="asked the BMC")
FAILED = replace(ORDERED, state=RepairState.FAILED, ended_at=HANDS.wall, message="no proof came")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    fleet = small_fleet(HANDS)
    fleet.repairs = REPAIRS
    repaired(fleet.node_summaries["node-2"], FAILED, held="the <rack> is full")
    async with serving(fleet, HANDS.clocks()) as one:
        yield one


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.db"
    LocalStore(path, wall=lambda: NIGHT).close()
    return path


def request_in(database: Path, node: str = "node-2") -> RepairRequest | None:
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        found = store.node_now(node)
        return read_request(found.annotations) if found is not None else None


async def test_a_node_alone_shows_its_ladder_its_attempts_and_what_holds_the_next(
    served: Served,
) -> None:
    done = await sickbay("repair", "node-2", "--url", served.url)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("node-2: Drained: xid:79")
    assert lines[1] == "ladder: reboot, replace (no repairer), ticket; repair.mode repair"
    assert re.fullmatch(r"reboot +Failed .* ladder +no proof came", lines[3])
    assert lines[4] == "next: the <rack> is full"
    told = json.loads((await in_process("repair", "node-2", "-o", "json", "--url", served.url)).out)
    assert told["repair"]["attempts"][0]["operation"] == "q-node-2-1-reboot"
    well = await in_process("repair", "node-1", "--url", served.url)
    assert (well.code, well.out) == (
        (0, "node-1 is not in quarantine: only a node in quarantine is repaired.\n")
    )
    typo = await in_process("repair", "nod-1", "--url", served.url)
    assert (typo.code, 'there is no node "nod-1"' in typo.err) == (1, True)


async def test_the_status_counts_repairs_under_way(served: Served) -> None:
    assert "repairs under way" not in (await in_process("status", "--url", served.url)).out
    repaired(served.fleet.node_summaries["node-2"], ORDERED)
    HANDS.advance(5)
    told = await in_process("status", "--url", served.url)
    assert re.search(r"repairs under way +1 +sickbay repair node-2\n", told.out), told.out


async def test_node_and_explain_name_the_ladder_and_the_attempts(served: Served) -> None:
    node = await in_process("node", "node-2", "--url", served.url)
    assert "  ladder: reboot, replace (no repairer), ticket; repair.mode repair\n" in node.out
    assert "  next: the <rack> is full\n" in node.out
    why = await in_process("explain", "node-2", "--url", served.url)
    assert "Its rules name these repairs, mildest first: reboot, replace, ticket.\n" in why.out
    assert "- reboot Failed: no proof came\n" in why.out
    assert "The next repair waits: the <rack> is full\n" in why.out


async def test_a_kind_is_written_on_the_node_with_an_id_of_its_own(
    served: Served, database: Path
) -> None:
    where = ["--url", served.url, "--local", str(database)]
    done = await in_process("repair", "node-2", "reboot", "--yes", *where)
    assert done.code == 0, done.err
    assert "node-2: reboot is ordered once the node is drained" in done.err
    assert f"To follow it: sickbay repair node-2 --local {database}\n" in done.out
    assert f"To take it back: sickbay repair node-2 --cancel --local {database}\n" in done.out
    first = request_in(database)
    assert first is not None
    assert first.what == "reboot"
    assert first.ident in done.out
    assert first.quarantine == "q-node-2", "a later quarantine does not follow it"
    await in_process("repair", "node-2", "reboot", "--yes", *where)
    second = request_in(database)
    assert second is not None
    assert (second.what, second.ident != first.ident) == ("reboot", True)
    cancel = await in_process("repair", "node-2", "--cancel", "--yes", "-o", "json", *where)
    assert json.loads(cancel.out)["done"] is True
    assert "no repair is under way; none begins by itself" in cancel.err
    third = request_in(database)
    assert third is not None
    assert third.what == "cancel"


async def test_a_request_is_confirmed_on_a_terminal_and_refused_without_one(
    served: Served, database: Path
) -> None:
    ask = ["repair", "node-2", "reboot", "--url", served.url, "--local", str(database)]
    refused = await in_process(*ask)
    assert (refused.code, refused.out) == (2, "")
    assert "a repair asks for confirmation, and stdin is no terminal; add --yes" in refused.err
    dry = await in_process(*ask, "--dry-run")
    assert (dry.code, dry.out.startswith("DRY RUN, nothing is written.")) == (0, True)
    ours, theirs = pty.openpty()
    for answer, code in ((b"no\n", 1), (b"yes\n", 0)):
        assert request_in(database) is None
        os.write(ours, answer)
        process = await start_on(theirs, *ask)
        _, err = await process.communicate()
        assert process.returncode == code, err
        assert b'Go on? Type "yes": ' in err
    assert request_in(database) is not None
    os.close(ours)
    os.close(theirs)


async def test_the_effect_on_a_repair_under_way_is_said(served: Served, database: Path) -> None:
    repaired(served.fleet.node_summaries["node-2"], ORDERED)
    where = ["--dry-run", "--url", served.url, "--local", str(database)]
    cancel = await in_process("repair", "node-2", "--cancel", *where)
    assert "node-2: reboot is taken back, where its repairer still can" in cancel.err
    more = await in_process("repair", "node-2", "ticket", *where)
    assert "reboot is under way, and it follows the end of that" in more.err
    served.fleet.repairs = replace(REPAIRS, rules=RepairRules(RepairMode.OFF))
    off = await in_process("repair", "node-2", "--cancel", *where)
    assert off.code == 0, "what is under way can be taken back in any mode"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["node-2", "rebot"], "invalid choice: 'rebot' (choose from "),
        (["node-2", "reboot", "--cancel"], "reboot and --cancel; expected one of them"),
        (["node-1", "reboot"], "node-1 is not in quarantine, and no other node is repaired"),
        (["node-1", "--cancel"], "First: sickbay quarantine node-1 --action drain --reason"),
        (
            ["node-2", "replace"],
            "repair.repairers of the aggregator has no replace; expected one of: reboot, ticket",
        ),
        (["node-2", "reboot", "-o", "wide"], "expected table or json"),
    ],
)
async def test_a_request_without_sense_names_what_is_expected(
    served: Served, database: Path, words: list[str], said: str
) -> None:
    where = ["--yes", "--url", served.url, "--local", str(database)]
    done = await in_process("repair", *words, *where)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert request_in(database, words[0]) is None


@pytest.mark.parametrize("mode", [RepairMode.OFF, RepairMode.OBSERVE])
async def test_a_mode_that_orders_nothing_refuses_a_request(
    served: Served, database: Path, mode: RepairMode
) -> None:
    served.fleet.repairs = replace(REPAIRS, rules=RepairRules(mode))
    where = ["--yes", "--url", served.url, "--local", str(database)]
    done = await in_process("repair", "node-2", "reboot", *where)
    assert (done.code, done.out) == (2, "")
    assert f"repair.mode of the aggregator is {mode}, so no repair is ordered" in done.err
    # A node that never had a repair: an aggregator with mode off sends none.
    quarantine_of(served.fleet.node_summaries["node-8"], NIGHT)
    shown = await in_process("repair", "node-8", "--url", served.url)
    expected = "repair.mode is off" if mode is RepairMode.OFF else "repair.mode observe"
    assert expected in shown.out


async def test_a_ladder_that_has_ended_can_not_be_cancelled(served: Served, database: Path) -> None:
    summary = served.fleet.node_summaries["node-2"]
    repaired(summary, FAILED, exhausted="no further repair is on its ladder")
    where = ["--yes", "--url", served.url, "--local", str(database)]
    done = await in_process("repair", "node-2", "--cancel", *where)
    assert (done.code, done.out) == (2, "")
    assert "expected a kind of repair in place of --cancel" in done.err


def test_each_kind_makes_an_annotation_that_is_understood() -> None:
    for what in (*KINDS, "cancel"):
        assert read_request({REPAIR: f"{what} 20261125T210000Z-0a1b2c3d"}) is not None
