"""The periodic test of idle nodes: which node comes next, when, and the limits of the fleet."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.port import Operation, OperationRequest, OperationSpec, Pod, RepairState
from aggregator.quarantine.decide import reservation
from aggregator.quarantine.decide.admission import FleetSize
from aggregator.quarantine.decide.admission_record import (
    IDLE_TEST,
    NEW_NODE_TEST,
    Record,
    RunningOperation,
    dump_record,
    parse_record,
)
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.idle_nodes import (
    IdleCandidate,
    IdleNodeRules,
    choose,
    in_use,
    next_idle_test,
    refused,
    waits_for,
    why_refused,
)
from aggregator.quarantine.decide.new_nodes import (
    NewNodeRules,
    condition_of,
    next_test,
)
from aggregator.quarantine.decide.node_tests import (
    IDLE,
    NodeTest,
    NodeTestFacts,
    begun_status,
    carried_failure,
    ended,
    has_failed,
    last_test,
    open_failure,
    operation_of,
    reserved_kind,
    verdict_at,
)
from aggregator.quarantine.decide.operation_step import Do
from aggregator.quarantine.decide.reservation import running_of

DAY = 86400.0
RULES = IdleNodeRules(every=7 * DAY, concurrent=2)
NEW = NewNodeRules("sickbay.dev/untested", concurrent=2)
S = RepairState
PAUSE = 900.0


def a_test(state: RepairState = S.ORDERED, **more: Any) -> NodeTest:
    number, boot = more.pop("number", 1), more.pop("boot_id", "b1")
    one = NodeTest(
        number=number,
        operation=operation_of("uid", boot, number),
        profile="quick",
        state=state,
        boot_id=boot,
        node_uid="uid",
        reason=IDLE,
    )
    return replace(one, **{"began_at": 1.0, "deadline_at": 2000.0} | more)


FACTS = NodeTestFacts("uid", "b1", tainted=False)


def ask(name: str, uid: str) -> OperationRequest:
    return OperationRequest(name, "test", uid=uid)


tests = st.builds(
    a_test,
    st.sampled_from(RepairState),
    number=st.integers(1, 50),
    boot_id=st.sampled_from(["b1", "b2"]),
    inconclusive=st.integers(0, 40),
    ended_at=st.floats(0, 30 * DAY),
    verdict_at=st.floats(0, 30 * DAY),
    failed=st.sampled_from(["", "test quick failed"]),
    failed_boot=st.sampled_from(["b1", "b2"]),
    reason=st.sampled_from(["", IDLE]),
    request=st.sampled_from(["", "r1"]),
)


@given(tests)
def test_the_operation_of_an_idle_test_reads_as_it_was_written(test: NodeTest) -> None:
    spec = OperationSpec("n1", "test", profile=test.profile)
    made = Operation(test.name, "o-1", "1", spec, begun_status(test))
    assert last_test([made], "uid") == (test, "")


@pytest.mark.slow
@given(st.lists(st.none() | tests, max_size=20), st.integers(0, 5))
def test_the_longest_untested_of_the_due_nodes_are_chosen(
    found: list[NodeTest | None], most: int
) -> None:
    nodes = [IdleCandidate(f"n{i}", f"uid-{i}", test) for i, test in enumerate(found)]
    chosen = choose(nodes, most)
    assert len(chosen) == min(most, len(nodes))
    newest = max((verdict_at(one.test) for one in chosen), default=0.0)
    assert all(verdict_at(one.test) >= newest for one in nodes if one not in chosen)


def test_nodes_that_were_never_tested_are_not_taken_in_the_order_of_their_names() -> None:
    nodes = [IdleCandidate(f"n{number:02}", f"uid-{number}", None) for number in range(40)]
    first = [one.node for one in choose(nodes, 10)]
    assert first == [one.node for one in choose(nodes[::-1], 10)]
    assert len({name[:2] for name in first}) > 1


@given(st.none() | tests, st.floats(0, 60 * DAY))
def test_no_node_waits_longer_than_the_period(last: NodeTest | None, now: float) -> None:
    assert 0 <= waits_for(last, RULES, pause=PAUSE, now=now) <= RULES.every


@pytest.mark.parametrize(
    ("last", "now", "expected"),
    [
        (None, 5.0, 0.0),
        (a_test(S.SUCCEEDED, ended_at=10.0), 20.0, 7 * DAY - 10),
        (a_test(S.FAILED, ended_at=10.0), 10.0 + 7 * DAY, 0.0),
        (a_test(S.INCONCLUSIVE, ended_at=10.0), 10.0, PAUSE),
        (a_test(S.INCONCLUSIVE, ended_at=10.0, inconclusive=1), 10.0, 2 * PAUSE),
        (a_test(S.INCONCLUSIVE, ended_at=10.0, inconclusive=39), 10.0, DAY),
        (a_test(S.CANCELLED, ended_at=10.0), 10.0 + PAUSE, 0.0),
        (a_test(S.SUCCEEDED, ended_at=9e9), 10.0, 0.0),  # the clock was set back
    ],
)
def test_when_the_next_test_is_due(last: NodeTest | None, now: float, expected: float) -> None:
    assert waits_for(last, RULES, pause=PAUSE, now=now) == expected


@pytest.mark.slow
@given(
    st.none() | tests,
    st.booleans(),
    st.sampled_from(["", "cordoned"]),
    st.booleans(),
    st.none() | st.builds(ask, st.sampled_from(["r1", "r2"]), st.sampled_from(["u1", "u2"])),
    st.floats(0, 40 * DAY),
)
def test_a_test_begins_only_where_it_is_due_or_asked_for_and_nothing_speaks_against_it(
    last: NodeTest | None,
    tainted: bool,  # noqa: FBT001 - drawn
    against: str,
    configured: bool,  # noqa: FBT001 - drawn
    request: OperationRequest | None,
    now: float,
) -> None:
    facts = replace(FACTS, tainted=tainted, against=against, request=request)
    rules = RULES if configured else None
    what = next_idle_test(last, facts, rules, pause=PAUSE, now=now)
    free = not (tainted or against or (last is not None and last.is_busy))
    due = configured and not waits_for(last, RULES, pause=PAUSE, now=now)
    assert (what.do is Do.ORDER) == (free and bool(request or due))
    if what.do is not Do.ORDER:
        return
    assert what.test is not None
    assert what.test.request == (request.name if request is not None else "")
    assert what.test.reason == IDLE
    assert verdict_at(what.test) == verdict_at(last)
    assert open_failure(what.test) == carried_failure(last)


@pytest.mark.slow
@given(tests, st.sampled_from([S.INCONCLUSIVE, S.CANCELLED, S.UNKNOWN]))
def test_an_end_without_a_verdict_changes_nothing_of_what_is_known(
    last: NodeTest, end: RepairState
) -> None:
    last = last if not last.is_busy else ended(last, S.FAILED, "slow", at=5.0)
    now = 100 * DAY
    step = next_idle_test(last, FACTS, RULES, pause=PAUSE, now=now)
    assert step.test is not None
    after = ended(step.test, end, "preempted", at=now)
    assert verdict_at(after) == verdict_at(last)
    assert condition_of(after, tainted=False, rules=NEW) is None
    if last.reason:
        assert has_failed(after, "b1", None, tainted=False) == has_failed(
            last, "b1", None, tainted=False
        )


@pytest.mark.parametrize(
    ("test", "boot", "expected"),
    [
        (a_test(S.FAILED), "b1", True),
        (a_test(S.FAILED), "b2", False),
        (a_test(S.FAILED), "", False),
        (a_test(S.ORDERED, failed="x", failed_boot="b1"), "b1", True),
        (a_test(S.SUCCEEDED, failed="x", failed_boot="b1"), "b1", False),
        (a_test(S.FAILED, reason=""), "b1", False),
        (None, "b1", False),
    ],
)
def test_when_the_failure_of_an_idle_node_stands(
    test: NodeTest | None, boot: str, *, expected: bool
) -> None:
    assert has_failed(test, boot, None, tainted=False) is expected


@pytest.mark.parametrize(
    ("facts", "rules", "expected"),
    [
        (FACTS, RULES, Do.PROVE),
        (replace(FACTS, tainted=True), RULES, Do.CANCEL),
        (FACTS, None, Do.CANCEL),
        (replace(FACTS, ends="the node is in quarantine"), RULES, Do.CANCEL),
        (replace(FACTS, boot_id="b2"), RULES, Do.CANCEL),
        (replace(FACTS, against="evidence"), RULES, Do.PROVE),
    ],
)
def test_the_step_of_a_test_under_way(
    facts: NodeTestFacts, rules: IdleNodeRules | None, expected: Do
) -> None:
    assert next_idle_test(a_test(), facts, rules, pause=PAUSE, now=50.0).do is expected


def test_an_idle_test_counts_for_nothing_of_a_new_node_that_gets_the_taint() -> None:
    facts = replace(FACTS, tainted=True)
    for state in (S.SUCCEEDED, S.FAILED, S.INCONCLUSIVE):
        last = a_test(state, inconclusive=5, ended_at=49.0)
        step = next_test(last, facts, NEW, pause=PAUSE, now=50.0)
        assert step.do is Do.ORDER
        assert step.test is not None
        assert (step.test.reason, step.test.inconclusive) == ("", 0)


# -- work on the node -------------------------------------------------------------------------


def pod(**more: Any) -> Pod:
    one = Pod("jobs", "p", "u", "1", "Running", False, False, "Job", "j", ())
    return replace(one, **more)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([], ""),
        ([pod()], "the node is in use: pod jobs/p"),
        ([pod(deleting=True)], "the node is in use: pod jobs/p"),
        ([pod(phase="Pending", owner_kind="")], "the node is in use: pod jobs/p"),
        ([pod(phase="Succeeded"), pod(owner_kind="DaemonSet"), pod(mirror=True)], ""),
    ],
)
def test_which_pods_make_a_node_one_in_use(pods: list[Pod], expected: str) -> None:
    assert in_use(pods) == expected
    assert in_use([pod(owner_kind="SiteDaemon")], ["SiteDaemon"]) == ""


def test_a_refused_request_names_some_pods_after_the_command_that_drains() -> None:
    pods = [pod(name=f"p{number}") for number in range(5)] + [pod(mirror=True)]
    text = why_refused("n1", pods, "quick", None, how=" --context x")
    assert text == (
        "the node has work, and a test evicts none. First: sickbay quarantine n1 --action drain "
        '--reason "for its test" --context x. '
        "Pods on the node: jobs/p0, jobs/p1, jobs/p2 and 2 others"
    )
    assert why_refused("n1", [pod(mirror=True)], "quick", {"quick"}, how="") == ""
    assert "no profile long; expected one of a, b" in why_refused("n1", [], "long", "ba", how="")


@pytest.mark.slow
@given(st.none() | tests, st.floats(1, 40 * DAY))
def test_a_refused_test_is_over_and_changes_nothing_of_what_is_known(
    last: NodeTest | None, now: float
) -> None:
    facts = replace(FACTS, request=ask("r2", "u2"))
    step = next_idle_test(last, facts, None, pause=PAUSE, now=now)
    if step.test is None or step.do is not Do.ORDER:
        return
    end = refused(step.test, "the node has work", at=now)
    assert (end.is_busy, end.request, end.deadline_at) == (False, "r2", 0.0)
    assert verdict_at(end) == verdict_at(last)
    assert open_failure(end) == carried_failure(last)
    assert end.without_verdict == step.test.inconclusive
    assert (
        next_idle_test(end, replace(facts, request=None), None, pause=PAUSE, now=now).do
        is Do.NOTHING
    )


# -- the limits -------------------------------------------------------------------------------


def wanted(node: str, kind: str, number: int = 1, until: float = 390.0) -> RunningOperation:
    rack = (f"rack={ord(node) % 3}",) if kind == IDLE_TEST else ()
    return RunningOperation(node, f"{node}-{number}-{kind}", kind, 0.0, until, domains=rack)


def reserve(
    record: Record, one: RunningOperation, most: int, *, now: float, stop: str = ""
) -> tuple[Record, Held | None]:
    """By limits that let so many of each kind run at once, whatever the fleet's size."""
    idle = IdleNodeRules(concurrent=most, concurrent_percent=100.0)
    rules = idle if one.kind == IDLE_TEST else NewNodeRules(concurrent=most)
    size = FleetSize(100, 100)
    return reservation.reserve(record, one, rules, size, now=now, stop=stop)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"),
            st.sampled_from([IDLE_TEST, NEW_NODE_TEST]),
            st.integers(1, 2),
            st.sampled_from([1.0, 390.0]),
        ),
        max_size=40,
    )
)
def test_no_order_of_reservations_passes_a_limit_or_meets_in_a_rack(
    asked: list[tuple[str, str, int, float]],
) -> None:
    record = Record()
    for count, (node, kind, number, until) in enumerate(asked):
        one, now = wanted(node, kind, number, until), 10.0 + count / 10
        record, held = reserve(record, one, 2, now=now)
        record = record.without_operations(
            {each.operation for each in record.node_tests.values() if each.until <= now}
        )
        runs = list(record.node_tests.values())
        idle = [each for each in runs if each.kind == IDLE_TEST]
        racks = [domain for each in idle for domain in each.domains]
        assert len(idle) <= 2
        assert len(runs) - len(idle) <= 2
        assert len(racks) == len(set(racks))
        if held is None:
            assert record.node_tests[node].operation == one.operation
        assert parse_record(dump_record(record)) == record


def test_idle_tests_and_tests_of_new_nodes_do_not_hold_each_other() -> None:
    record, _ = reserve(Record(), wanted("a", IDLE_TEST), 1, now=10.0)
    record, held = reserve(record, wanted("b", NEW_NODE_TEST), 1, now=10.0)
    assert held is None
    _, held = reserve(record, wanted("c", NEW_NODE_TEST), 1, now=10.0)
    assert held is not None
    assert held.limit == "repair.new_nodes.concurrent"
    _, held = reserve(record, wanted("c", IDLE_TEST), 1, now=10.0)
    assert held is not None
    assert held.limit == "repair.idle_nodes.concurrent"


@pytest.mark.parametrize(
    ("concurrent", "percent", "nodes", "most", "limit"),
    [
        (2, 5.0, 1000, 2, "repair.idle_nodes.concurrent"),
        (50, 5.0, 100, 5, "repair.idle_nodes.concurrent_percent"),
        (2, 5.0, 3, 1, "repair.idle_nodes.concurrent_percent"),
        (2, 0.0, 1000, 0, "repair.idle_nodes.concurrent_percent"),
        (2, 5.0, 0, 0, "repair.idle_nodes.concurrent_percent"),
    ],
)
def test_the_count_or_the_share_of_the_fleet_whichever_is_less_bounds_idle_tests(
    concurrent: int, percent: float, nodes: int, most: int, limit: str
) -> None:
    rules = IdleNodeRules(concurrent=concurrent, concurrent_percent=percent)
    record, begun = Record(), 0
    for number in range(concurrent + 1):
        one = RunningOperation(f"n{number}", f"o{number}", IDLE_TEST, 0.0, 390.0)
        size = FleetSize(nodes, nodes)
        record, held = reservation.reserve(record, one, rules, size, now=10.0)
        begun += held is None
    assert begun == most
    assert held is not None
    assert held.limit == limit
    assert held.reason == f"{most} idle {'node is' if most == 1 else 'nodes are'} being tested"


@given(st.integers(1, 50), st.floats(0, 100), st.integers(0, 20_000))
def test_no_share_is_passed_and_a_share_above_none_is_at_least_one_node(
    concurrent: int, percent: float, nodes: int
) -> None:
    most, _, _ = IdleNodeRules(concurrent=concurrent, concurrent_percent=percent).most(nodes)
    assert most <= concurrent
    assert most <= max(1, nodes * percent / 100 + 1e-6)
    assert (most == 0) == (nodes == 0 or percent == 0)


def test_no_idle_test_begins_beside_a_repair_of_its_domain() -> None:
    repair = RunningOperation("z", "z-1", "reboot", 1.0, 400.0, domains=("rack=1",))
    record = Record(operations={"z-1": repair})
    near, far = wanted("a", IDLE_TEST), wanted("b", IDLE_TEST)
    assert (near.domains, far.domains) == (("rack=1",), ("rack=2",))
    _, held = reserve(record, near, 2, now=10.0)
    assert held is not None
    assert held.limit == "repair.domain"
    assert reserve(record, far, 2, now=10.0)[1] is None
    over = record.without_operations({"z-1"})
    assert reserve(over, near, 2, now=10.0)[1] is None


def test_the_stop_switch_holds_the_beginning_of_an_idle_test() -> None:
    one = wanted("a", IDLE_TEST)
    assert reserve(Record(), one, 2, now=10.0, stop="maintenance")[1] is not None


def test_the_reservation_names_the_kind_and_the_domains() -> None:
    test = a_test(domains=("rack=1",))
    found = running_of("n", test, reserved_kind(test))
    assert (found.kind, found.domains) == (IDLE_TEST, ("rack=1",))
    assert reserved_kind(a_test(reason="")) == NEW_NODE_TEST


def test_a_refused_request_does_not_delay_the_periodic_test() -> None:
    now = 100 * DAY
    last = a_test(S.INCONCLUSIVE, reason=IDLE, inconclusive=9, ended_at=now - DAY, deadline_at=1.0)
    assert waits_for(last, RULES, pause=PAUSE, now=now) == 0.0
    facts = NodeTestFacts(node_uid="u1", boot_id="b1", tainted=False, request=ask("r1", "u1"))
    step = next_idle_test(last, facts, RULES, pause=PAUSE, now=now)
    assert step.test is not None
    assert waits_for(refused(step.test, "work", at=now), RULES, pause=PAUSE, now=now + 1) == 0.0
