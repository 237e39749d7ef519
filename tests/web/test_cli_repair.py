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
from aggregator.cluster.operations import begun_status, spec_of
from aggregator.cluster.port import Action, Operation, OperationSpec, QuarantineSpec, RepairState
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
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
SPEC = QuarantineSpec(Action.DRAIN, "gpu", "xid:79")
ORDERED = reboot_of("node-2", HANDS.wall, RepairState.ORDERED, message="asked the BMC")
FAILED = replace(ORDERED, state=RepairState.FAILED, ended_at=HANDS.wall, message="no proof came")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    fleet = small_fleet(HANDS)
    fleet.repairs = REPAIRS
    repaired(fleet.node_summaries["node-2"], FAILED, held="the <rack> is full")
    async with serving(fleet, HANDS.clocks()) as one:
        yield one


def requests_in(database: Path, node: str = "node-2") -> list[Operation]:
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        return store.operations.of(node)


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


async def test_a_kind_is_an_operation_with_a_name_of_its_own_until_it_is_cancelled(
    served: Served, database: Path
) -> None:
    where = ["--url", served.url, "--local", str(database)]
    done = await in_process("repair", "node-2", "reboot", "--yes", *where)
    assert done.code == 0, done.err
    assert "node-2: reboot is ordered once the node is drained" in done.err
    assert f"To follow it: sickbay repair node-2 --local {database}\n" in done.out
    assert f"To cancel it: sickbay repair node-2 --cancel --local {database}\n" in done.out
    [first] = requests_in(database)
    assert (first.spec.kind, bool(first.spec.requester)) == ("reboot", True)
    assert first.name in done.out
    assert first.spec.quarantine == "q-node-2", "a later quarantine does not follow it"
    await in_process("repair", "node-2", "reboot", "--yes", *where)
    assert len(requests_in(database)) == 2
    cancel = await in_process("repair", "node-2", "--cancel", "--yes", "-o", "json", *where)
    assert json.loads(cancel.out)["done"] is True
    assert "the requests that have not begun are withdrawn" in cancel.err
    assert "it has not begun.\\n" in cancel.out
    assert "no further repair" not in cancel.out + cancel.err, "the ladder goes on"
    assert requests_in(database) == []
    again = await in_process("repair", "node-2", "--cancel", "--yes", *where)
    assert (again.code, again.out) == (1, "")
    assert "node-2 has no open operation to cancel" in again.err
    assert "sickbay exempt node-2" in again.err


async def test_a_request_is_confirmed_on_a_terminal_and_refused_without_one(
    served: Served, database: Path
) -> None:
    ask = ["repair", "node-2", "reboot", "--url", served.url, "--local", str(database)]
    refused = await in_process(*ask)
    assert (refused.code, refused.out) == (2, "")
    assert "a repair requires a confirmation, and stdin is no terminal; add --yes" in refused.err
    dry = await in_process(*ask, "--dry-run")
    assert (dry.code, dry.out.startswith("DRY RUN, nothing is written.")) == (0, True)
    ours, theirs = pty.openpty()
    for answer, code in ((b"no\n", 1), (b"yes\n", 0)):
        assert requests_in(database) == []
        os.write(ours, answer)
        process = await start_on(theirs, *ask)
        _, err = await process.communicate()
        assert process.returncode == code, err
        assert b'Go on? Type "yes": ' in err
    assert len(requests_in(database)) == 1
    os.close(ours)
    os.close(theirs)


async def test_the_end_of_a_test_promises_nothing_about_repairs(
    served: Served, database: Path
) -> None:
    """The ladder goes on after it."""
    test = replace(ORDERED, repair="test", operation="q-1-test", profile="quick")
    repaired(served.fleet.node_summaries["node-2"], test)
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        found = store.create_quarantine("node-2", SPEC, finalizer=True)
        made = store.operations.create(test.operation, spec_of(found, test))
        store.operations.write_status(made, begun_status(found, test, 1))
    where = ["--url", served.url, "--local", str(database)]
    cancel = await in_process("repair", "node-2", "--cancel", "--yes", *where)
    assert "node-2: test is cancelled if its repairer still can" in cancel.err
    assert "can't cancel any more runs to its end.\n" in cancel.out
    assert "no further repair" not in cancel.out + cancel.err


async def test_the_effect_on_a_repair_under_way_is_said(served: Served, database: Path) -> None:
    repaired(served.fleet.node_summaries["node-2"], ORDERED)
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        found = store.create_quarantine("node-2", SPEC, finalizer=True)
        made = store.operations.create(ORDERED.operation, spec_of(found, ORDERED))
        store.operations.write_status(made, begun_status(found, ORDERED, 1))
    where = ["--url", served.url, "--local", str(database)]
    cancel = await in_process("repair", "node-2", "--cancel", "--dry-run", *where)
    assert "node-2: reboot is cancelled if its repairer still can" in cancel.err
    assert [one.deleting for one in requests_in(database)] == [False]
    more = await in_process("repair", "node-2", "ticket", "--dry-run", *where)
    assert "reboot is under way, and it follows the end of that" in more.err
    served.fleet.repairs = replace(REPAIRS, rules=RepairRules(RepairMode.OFF))
    off = await in_process("repair", "node-2", "--cancel", "--yes", *where)
    assert off.code == 0, "what is under way can be taken back in any mode"
    assert [one.deleting for one in requests_in(database)] == [True]
    ends = "After a cancelled reboot no further repair begins by itself in this quarantine."
    assert ends in off.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["node-2", "rebot"], "invalid choice: 'rebot' (choose from "),
        (["node-2", "reboot", "--cancel"], "reboot and --cancel; expected one of them"),
        (["node-1", "reboot"], "sickbay node node-1), and no other node is repaired"),
        (["node-1", "reboot"], "first: sickbay quarantine node-1 --action drain --reason"),
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
    assert requests_in(database, words[0]) == []


async def test_a_test_of_a_node_in_service_is_cancelled_by_the_same_command(
    served: Served, database: Path
) -> None:
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        store.operations.create("test-1", OperationSpec(node="node-1", kind="test"))
    where = ["--url", served.url, "--local", str(database)]
    done = await in_process("repair", "node-1", "--cancel", "--yes", *where)
    assert done.code == 0, done.err
    assert "node-1 is not in quarantine: its open requests and tests are cancelled" in done.err
    assert requests_in(database, "node-1") == []
    again = await in_process("repair", "node-1", "--cancel", "--yes", *where)
    assert (again.code, "node-1 has no open operation to cancel" in again.err) == (1, True)


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
