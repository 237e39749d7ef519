"""`sickbay test`, as a process, against a real page and a local cluster's file."""

import json
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from aggregator.cli import active_test
from aggregator.cli.errors import CommandFailed
from aggregator.cluster.local.store import LocalStore
from aggregator.cluster.port import Operation, OperationSpec, OperationStatus, Phase, RepairState
from aggregator.events import EventKind, Transition
from aggregator.quarantine.decide.new_nodes import NewNodeRules
from aggregator.quarantine.decide.node_tests import NodeTest
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.state.fleet import NodeTestView
from tests.support.present import present
from tests.web.cli import in_process, start_on, unwritten
from tests.web.support import NIGHT, REPAIRS, Hands, Served, repaired, serving, small_fleet

HANDS = Hands()
COMMANDS = active_test._Commands(
    show="sickbay node node-1", end="kubectl delete --wait=false operation test-1"
)
TESTING = replace(
    REPAIRS,
    rules=RepairRules(RepairMode.REPAIR, verify="standard"),
    kinds=frozenset({"reboot", "test"}),
)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    fleet = small_fleet(HANDS)
    fleet.repairs = TESTING
    repaired(fleet.node_summaries["node-2"])
    async with serving(fleet, HANDS.clocks()) as one:
        yield one


def request_in(database: Path, node: str = "node-2") -> Operation | None:
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        return next(iter(store.operations.of(node)), None)


def write_end(database: Path, request: Operation, state: RepairState, **more: Any) -> None:
    """As the aggregator ends the test that a person requested."""
    times = {"began_at": HANDS.wall, "deadline_at": HANDS.wall + 9, "ended_at": HANDS.wall}
    status = replace(request.status, phase=state, **{**times, **more})
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        store.operations.write_status(request, status)


def ended(
    node: str, operation: str, outcome: str, value: float, at: float = 0.0, **more: Any
) -> Transition:
    details = {
        "repair": "test",
        "profile": "standard",
        "operation": operation,
        "outcome": outcome,
        "measurements": json.dumps([["disk-write-bandwidth", "", value, "MB/s"]]),
    }
    return Transition(
        HANDS.wall + at, EventKind.REPAIR_ENDED, node, f"{node}: ended", "", {**details, **more}
    )


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (RepairState.SUCCEEDED, 0),
        (RepairState.FAILED, 1),
        (RepairState.INCONCLUSIVE, 3),
        (RepairState.CANCELLED, 3),
    ],
)
async def test_the_verdict_is_waited_for_printed_and_the_exit_code(
    served: Served, database: Path, state: RepairState, code: int
) -> None:
    where = ["--url", served.url, "--local", str(database)]
    process = await start_on(DEVNULL, "test", "node-2", "--yes", *where)
    assert process.stderr is not None
    told = ""
    while "the aggregator has not reported on it yet" not in told:
        line = (await process.stderr.readline()).decode()
        assert line, told
        told += line
    asked = present(request_in(database))
    assert (asked.spec.kind, asked.spec.profile) == ("test", "")
    served.feed.record_event(ended("node-2", "q-1-test", state.value, 1840.0))
    more = {"operation": "q-1-test", "message": "fio: as it was", "profile": "standard"}
    write_end(database, asked, state, **more)
    out, err = await process.communicate()
    assert process.returncode == code, err
    text = out.decode()
    assert f"node-2: test standard {state.value}: fio: as it was\n" in text
    assert "disk-write-bandwidth" in text
    assert "1840" in text


async def test_without_a_wait_the_request_alone_is_written(served: Served, database: Path) -> None:
    where = ["--url", served.url, "--local", str(database)]
    done = await in_process("test", "node-2", "--profile", "long", "--no-wait", "--yes", *where)
    assert done.code == 0, done.err
    asked = present(request_in(database))
    spec = asked.spec
    assert (spec.kind, spec.profile, spec.quarantine) == ("test", "long", "q-node-2")


async def test_no_end_within_the_time_is_no_verdict(served: Served, database: Path) -> None:
    where = ["--url", served.url, "--local", str(database)]
    done = await in_process("test", "node-2", "--yes", "--timeout", "1s", *where)
    assert done.code == 3
    assert "no end within 1 s; the test has not begun: the aggregator has not rep" in done.err
    assert "The request stays, and the test may begin later: sickbay repair node-2" in done.err
    cancel = f"withdraw the request: sickbay repair node-2 --cancel --local {database}\n"
    assert done.err.endswith(cancel)


def operation(phase: RepairState, message: str = "") -> Operation:
    status = OperationStatus(phase, message, deadline_at=NIGHT)
    return Operation("mine", "u-1", "1", OperationSpec("node-1", "test"), status)


def waited(
    found: list[Operation | CommandFailed | None], timeout: float = 60
) -> dict[str, Any] | None:
    """The end of a wait whose reads find these, and the last one from then on."""

    def read() -> Operation | None:
        one = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(one, CommandFailed):
            raise one
        return one

    times = iter(range(0, 100_000, 5))
    return active_test._wait(read, "node-1", timeout, COMMANDS, lambda: float(next(times)))


PENDING, ORDERED = RepairState.PENDING, RepairState.ORDERED


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (
            operation(ORDERED),
            (
                "the test has begun, and goes on: sickbay node node-1. To end it without a "
                "verdict: kubectl delete --wait=false operation test-1"
            ),
        ),
        (
            operation(PENDING, "2 nodes are tested"),
            (
                "the test has not begun: 2 nodes are tested. The request stays, and the test may "
                "begin later: sickbay node node-1. To withdraw the request: "
                "kubectl delete --wait=false operation test-1"
            ),
        ),
        (
            CommandFailed("no connection"),
            (
                "the cluster gave no answer, so that the test may have begun or not: "
                "sickbay node node-1"
            ),
        ),
    ],
)
def test_the_end_of_the_wait_tells_a_test_that_runs_from_one_that_waits(
    last: Operation | CommandFailed,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(active_test, "_EVERY", 0.0)
    assert waited([last]) is None
    assert capsys.readouterr().err.splitlines()[-1] == f"node-1: no end within 60 s; {text}"


def test_the_wait_prints_each_reason_once_and_outlives_a_lost_connection(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_test, "_EVERY", 0.0)
    held = operation(PENDING, "2 nodes are tested")
    lost = CommandFailed("no connection")
    found = waited([operation(PENDING), held, held, lost, operation(RepairState.SUCCEEDED, "fio")])
    assert found is not None
    assert (found["state"], found["message"], found["repair"]) == ("Succeeded", "fio", "test")
    assert capsys.readouterr().err.splitlines() == [
        f"node-1: the test has not begun: {active_test._UNSEEN}",
        "node-1: the test has not begun: 2 nodes are tested",
        "node-1: no connection; trying again",
    ]


@pytest.mark.parametrize(
    ("then", "text"), [(None, "the request is gone"), (CommandFailed("forbidden"), "forbidden")]
)
def test_a_request_that_is_gone_and_a_lasting_error_end_the_wait_without_a_verdict(
    then: CommandFailed | None,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(active_test, "_EVERY", 0.0)
    assert waited([operation(PENDING), then], timeout=7200) is None
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"node-1: {text}")
    assert "trying again" not in last


async def test_a_request_that_ends_before_it_begins_has_its_reason_and_no_verdict(
    served: Served, database: Path
) -> None:
    """The aggregator ends it, for example because the node came into quarantine in between."""
    where = ["--url", served.url, "--local", str(database)]
    process = await start_on(DEVNULL, "test", "node-2", "--yes", *where)
    assert process.stderr is not None
    while b"has not reported" not in (line := await process.stderr.readline()):
        assert line
    request = present(request_in(database))
    write_end(database, request, RepairState.CANCELLED, message="it came into quarantine")
    out, err = await process.communicate()
    assert process.returncode == 3, err
    assert out.decode() == "node-2: test Cancelled: it came into quarantine\n"


async def test_a_reader_that_has_gone_is_no_pass(served: Served, database: Path) -> None:
    where = ["--url", served.url, "--local", str(database)]
    argv = ["test", "node-2", "--yes", "--timeout", "1s", *where]
    assert (await unwritten(*argv, full=False))[0] == 3


async def test_a_node_that_can_not_be_tested_is_refused_with_the_next_step(
    served: Served, database: Path
) -> None:
    where = ["--yes", "--url", served.url, "--local", str(database)]
    well = await in_process("test", "node-1", *where)
    assert well.code == 2
    assert "sickbay quarantine node-1 --action drain" in well.err
    assert "node-1: it is not in quarantine (sickbay node node-1)" in well.err
    other = await in_process("test", "node-1", "--yes", "--url", served.url, "--context", "lab")
    assert "(sickbay node node-1 --context lab)" in other.err
    assert "first: sickbay quarantine node-1 --context lab --action drain" in other.err
    view = served.fleet.node_summaries["node-2"].quarantine_view
    assert view.quarantine is not None
    going = replace(view.quarantine.status, phase=Phase.DRAINING)
    view.quarantine = replace(view.quarantine, status=going)
    HANDS.advance(5)
    busy = await in_process("test", "node-2", *where)
    assert busy.code == 2
    assert busy.err.endswith("sickbay wait node-2 --for drained\n"), "it has no option --local"
    assert request_in(database) is None


async def test_without_a_profile_or_a_repairer_nothing_is_asked_for(
    served: Served, database: Path
) -> None:
    where = ["--yes", "--url", served.url, "--local", str(database)]
    served.fleet.repairs = replace(TESTING, rules=RepairRules(RepairMode.REPAIR))
    HANDS.advance(5)
    done = await in_process("test", "node-2", *where)
    assert (done.code, "expected --profile" in done.err) == (2, True)
    served.fleet.repairs = REPAIRS
    HANDS.advance(5)
    done = await in_process("test", "node-2", "--profile", "quick", *where)
    assert (done.code, "has no test; expected a repairer of this kind" in done.err) == (2, True)
    served.fleet.repairs = TESTING
    HANDS.advance(5)
    done = await in_process("repair", "node-2", "gpu-reset", *where)
    assert (done.code, "gpu-reset; expected one of: reboot\n" in done.err) == (2, True), done.err
    bad = await in_process("test", "node-2", "--profile", "../x", *where)
    assert bad.code == 2
    assert request_in(database) is None


async def test_the_history_shows_the_nodes_tests_beside_those_of_its_pool(served: Served) -> None:
    tell = served.feed.record_event
    for number, value in enumerate((1000.0, 1100.0, 2000.0)):
        tell(ended("node-1", f"q-9-{number}", "Succeeded", value, number))
    tell(ended("node-2", "q-1-test", "Failed", 300.0, 10))
    tell(ended("node-2", "q-2-reboot", "Succeeded", 9.0, 11, repair="reboot"))
    done = await in_process("test", "node-2", "--history", "--url", served.url)
    assert done.code == 0, done.err
    (line,) = [one for one in done.out.splitlines() if "disk-write" in one]
    assert "Failed" in line
    assert line.endswith("1100 +- 100")
    told = await in_process("test", "node-2", "--history", "-o", "json", "--url", served.url)
    found = json.loads(told.out)
    assert [one["operation"] for one in found["tests"]] == ["q-1-test"]
    assert found["tests"][0]["measurements"] == [["disk-write-bandwidth", "", 300.0, "MB/s"]]
    assert found["of_pool"] == [
        {
            "measure": "disk-write-bandwidth",
            "unit": "MB/s",
            "values": 3,
            "median": 1100.0,
            "mad": 100.0,
        }
    ]
    served.history.items += [
        Transition(HANDS.wall + 20 + n / 8, EventKind.MOVED, "node-2", f"pod {n}")
        for n in range(1100)
    ]
    told = await in_process("test", "node-2", "--history", "-o", "json", "--url", served.url)
    assert [one["operation"] for one in json.loads(told.out)["tests"]] == ["q-1-test"]
    none = await in_process("test", "node-1", "--history", "--profile", "x", "--url", served.url)
    assert none.code == 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--history", "--no-wait"], "--no-wait is about a new test"),
        (["--history", "--timeout", "1m"], "--timeout is about a new test"),
        (["--history", "--dry-run"], "--dry-run is about a new test"),
        (["--history", "--yes"], "--yes is about a new test"),
        (["--no-wait", "--yes", "--timeout", "1m"], "--no-wait does not wait"),
        (["--dry-run", "--timeout", "1m"], "--dry-run does not wait"),
    ],
)
async def test_an_option_without_effect_is_refused(
    served: Served, database: Path, given: list[str], text: str
) -> None:
    where = ["--url", served.url, "--local", str(database)] if "--history" not in given else []
    done = await in_process("test", "node-2", *given, *(where or ["--url", served.url]))
    assert (done.code, done.out) == (2, "")
    assert text in done.err
    assert request_in(database) is None


@pytest.mark.parametrize(("state", "code"), [(RepairState.SUCCEEDED, 0), (RepairState.FAILED, 1)])
async def test_a_new_node_is_tested_by_hand_without_a_quarantine(
    served: Served, database: Path, state: RepairState, code: int
) -> None:
    served.fleet.repairs = replace(
        TESTING, rules=RepairRules(RepairMode.REPAIR, new_nodes=NewNodeRules("k", "quick"))
    )
    failed = NodeTest(
        number=1,
        operation="u-b-1-test",
        profile="quick",
        state=RepairState.FAILED,
        boot_id="b",
        message="fio: slow",
    )
    served.fleet.node_tests = {
        "node-3": NodeTestView(failed, tainted=True, held="it failed", needs_person=True)
    }
    shown = await in_process("node", "node-3", "--url", served.url)
    assert "NEW NODE: it keeps its taint k until it has passed its test" in shown.out
    assert "to do: repair and reboot it, or: sickbay test node-3" in shown.out
    where = ["--url", served.url, "--local", str(database)]
    process = await start_on(DEVNULL, "test", "node-3", "--profile", "quick", "--yes", *where)
    assert process.stderr is not None
    told = ""
    while "the test has not begun" not in told:
        line = (await process.stderr.readline()).decode()
        assert line, told
        told += line
    assert "Its pass removes the taint k" in told
    asked = present(request_in(database, "node-3"))
    spec = asked.spec
    assert (spec.kind, spec.profile, spec.quarantine) == ("test", "quick", "")
    assert "To follow it: sickbay node node-3\n" in told
    assert f"To cancel it: sickbay repair node-3 --cancel --local {database}\n" in told
    served.feed.record_event(ended("node-3", "u-b-2-test", state.value, 1840.0))
    more = {"operation": "u-b-2-test", "message": "done", "profile": "quick"}
    write_end(database, asked, state, **more)
    out, err = await process.communicate()
    assert process.returncode == code, err
    assert f"node-3: test quick {state.value}: done" in out.decode()
    assert "1840" in out.decode()


def by_a_job(*profiles: str, in_service: bool = True) -> RepairPlan:
    known = frozenset(profiles) if profiles else None
    return replace(TESTING, test_profiles=known, tests_in_service=in_service)


@pytest.mark.parametrize(
    ("plan", "mode", "text"),
    [
        (replace(TESTING, rules=RepairRules(RepairMode.OBSERVE)), "drain", "repair.mode of the"),
        (REPAIRS, "drain", "repair.repairers of the aggregator has no test"),
        (TESTING, "drain", "preempts, by a repairer with job and gpus: all"),
        (by_a_job("quick"), "observe", "no node in service is tested in mode observe"),
    ],
)
async def test_why_no_test_of_a_node_in_service_begins(
    served: Served, plan: RepairPlan, mode: str, text: str
) -> None:
    served.fleet.repairs, served.fleet.mode = plan, mode
    HANDS.advance(5)
    done = await in_process("test", "node-1", "--yes", "--url", served.url)
    assert done.code == 2
    assert text in done.err
    offered = "sickbay quarantine node-1 --action drain --reason 'for its test'\n" in done.err
    assert offered == (plan is TESTING), "only where such a quarantine would be tested"


async def test_without_kubernetes_no_test_of_a_node_in_service_begins(
    served: Served, database: Path
) -> None:
    """The scheduler of the site does not know the test, and could begin a job next to it."""
    served.fleet.repairs = by_a_job("quick", in_service=False)
    served.fleet.mode = "drain"
    served.fleet.how = f" --local {database}"
    HANDS.advance(5)
    where = ["--yes", "--url", served.url, "--local", str(database)]
    done = await in_process("test", "node-1", *where)
    assert (done.code, "a job could start next to the test" in done.err) == (2, True)
    first = f"sickbay quarantine node-1 --action drain --reason 'for its test' --local {database}\n"
    assert done.err.endswith(first)
    with closing(LocalStore(database, wall=lambda: NIGHT)) as store:
        assert store.node_now("node-1") is None


@pytest.mark.parametrize("node", ["node-1", "node-2", "node-3"])
async def test_a_profile_that_the_job_does_not_have_is_refused_at_once(
    served: Served, database: Path, node: str
) -> None:
    """Of a node in service, in quarantine, and of a new one."""
    served.fleet.repairs, served.fleet.mode = by_a_job("quick", "short"), "drain"
    served.fleet.node_tests = {"node-3": NodeTestView(None, tainted=True)}
    HANDS.advance(5)
    where = ["--yes", "--no-wait", "--url", served.url]
    done = await in_process("test", node, "--profile", "long", *where)
    assert done.code == 2
    assert "has no profile long; expected --profile, one of: quick, short" in done.err
    if node != "node-1":  # without Kubernetes a node in service has no test at all
        known = await in_process(
            "test", node, "--profile", "short", *where, "--local", str(database)
        )
        assert known.code == 0, known.err


async def test_the_default_profile_is_checked_too(served: Served) -> None:
    served.fleet.repairs, served.fleet.mode = by_a_job("thorough"), "drain"
    HANDS.advance(5)
    where = ["--yes", "--no-wait", "--url", served.url]
    for node, profile in (("node-1", "quick"), ("node-2", "standard")):
        done = await in_process("test", node, *where)
        assert done.code == 2
        assert f"has no profile {profile}; expected --profile, one of: thorough" in done.err


async def test_the_new_nodes_that_are_not_tested_are_counted_and_listed(served: Served) -> None:
    where = ["--url", served.url]
    none = await in_process("status", *where)
    assert "new, not tested" not in none.out
    text = "new node, awaits its test: 4 new nodes are being tested"
    served.fleet.node_summaries["node-8"].cluster.untested = text
    HANDS.advance(5)
    told = await in_process("status", *where)
    [line] = [one for one in told.out.splitlines() if one.startswith("new, not tested")]
    assert line.split() == ["new,", "not", "tested", "1", "sickbay", "nodes", "--untested"]
    assert "1 node is new, and not tested yet" in told.out
    listed = await in_process("nodes", "--untested", *where)
    assert "node-8" in listed.out
    assert text in listed.out
    assert "node-1" not in listed.out


async def test_a_pass_is_not_promised_to_remove_a_taint_that_another_controller_removes(
    served: Served, database: Path
) -> None:
    rules = NewNodeRules("k", "quick", remove_taint=False)
    served.fleet.repairs = replace(TESTING, rules=RepairRules(RepairMode.REPAIR, new_nodes=rules))
    served.fleet.node_tests = {"node-3": NodeTestView(None, tainted=True)}
    HANDS.advance(5)
    where = ["--yes", "--dry-run", "--url", served.url, "--local", str(database)]
    done = await in_process("test", "node-3", *where)
    assert done.code == 0, done.err
    text = "Its pass sets the condition SickbayTestPassed, by which another controller removes"
    assert f"{text} the taint k." in done.err
