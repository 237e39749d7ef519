"""The test of a new node: what is done next, whatever the node and its Operations say."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.operations import unknown_outcome
from aggregator.cluster.port import (
    Node,
    Operation,
    OperationRequest,
    OperationSpec,
    OperationStatus,
    RepairState,
    Taint,
)
from aggregator.quarantine.decide.admission import FleetSize
from aggregator.quarantine.decide.admission_record import (
    NEW_NODE_TEST,
    Record,
    RunningOperation,
    dump_record,
    parse_record,
)
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.new_nodes import (
    NewNodeRules,
    condition_of,
    needs_a_person,
    next_test,
    why_untested,
    without_taint,
)
from aggregator.quarantine.decide.node_tests import (
    NodeTest,
    NodeTestFacts,
    begun_status,
    ended,
    last_test,
    node_test_of,
    not_ready,
    operation_of,
    status_of,
)
from aggregator.quarantine.decide.operation_step import Do
from aggregator.quarantine.decide.reservation import reserve, running_of
from tests.support.present import present

KEY = "sickbay.dev/untested"
RULES = NewNodeRules(KEY, "quick", attempts=3, concurrent=2)
S = RepairState
NODE = Node("n", "uid", "1", False, (), {}, {}, "b1", True)


def a_test(*, number: int = 1, state: RepairState = S.ORDERED, **more: Any) -> NodeTest:
    boot = more.pop("boot_id", "b1")
    one = NodeTest(
        number=number,
        operation=operation_of("uid", boot, number),
        profile="quick",
        state=state,
        boot_id=boot,
        node_uid="uid",
        began_at=1.0,
    )
    return replace(one, deadline_at=100.0, **more)


def facts(**more: Any) -> NodeTestFacts:
    return replace(NodeTestFacts("uid", "b1", tainted=True), **more)


def step(last: NodeTest | None, now: float = 50.0, **more: Any) -> Do:
    return next_test(last, facts(**more), RULES, pause=10.0, now=now).do


R1 = OperationRequest("r1", "test", uid="u1")
tests = st.builds(
    a_test,
    number=st.integers(1, 50),
    state=st.sampled_from(RepairState),
    boot_id=st.sampled_from(["b1", "b2", ""]),
    boot_after=st.sampled_from(["", "b2", "b3"]),
    inconclusive=st.integers(0, 5),
    request=st.sampled_from(["", "r1"]),
    ended_at=st.floats(0, 1000),
    message=st.text(max_size=30),
)
any_facts = st.builds(
    facts,
    boot_id=st.sampled_from(["b1", "b2", ""]),
    tainted=st.booleans(),
    against=st.sampled_from(["", "no"]),
    ends=st.sampled_from(["", "over"]),
    request=st.none()
    | st.builds(
        OperationRequest,
        st.sampled_from(["r1", "r2"]),
        st.just("test"),
        st.sampled_from(["", "standard"]),
        st.sampled_from(["u1", "u2"]),
    ),
)


def operation(test: NodeTest) -> Operation:
    """The object that the test is; a person's where that requested it."""
    requester = "ann" if test.request else "sickbay"
    spec = OperationSpec("n1", "test", profile=test.profile, requester=requester)
    status = begun_status(test)
    return Operation(test.name, "o-1", "1", spec, status, deleting=test.deleted)


@pytest.mark.slow
@given(tests)
def test_the_operation_reads_as_it_was_written(test: NodeTest) -> None:
    if test.is_busy and not test.deadline_at:
        test = replace(test, deadline_at=1.0)
    assert last_test([operation(test)], "uid") == (test, "")
    passed = replace(
        test, state=S.SUCCEEDED, message="since", passed="since", ended_at=9.0, passed_at=9.0
    )
    written = status_of(passed, operation(test).status)
    assert written.phase is test.state
    assert node_test_of(replace(operation(test), status=written)) == passed


def test_beside_one_that_can_not_be_read_the_node_has_no_last_test_until_that_is_deleted() -> None:
    known = operation(a_test(state=S.SUCCEEDED))
    broken = unknown_outcome("o", known.spec, OperationStatus(), ValueError("phase"))
    unread = replace(known, name="o", status=broken)
    test, problem = last_test([known, unread], "uid")
    assert test is None
    assert problem == "operation o: its status can't be read: phase; delete it to go on"
    assert last_test([known, replace(unread, deleting=True)], "uid") == (
        a_test(state=S.SUCCEEDED),
        "",
    )
    endless = operation(replace(a_test(), deadline_at=0.0))
    assert "under way without a deadline" in last_test([endless], "uid")[1]


@pytest.mark.slow
@given(tests)
def test_the_test_of_another_node_of_the_name_does_not_count(test: NodeTest) -> None:
    assert last_test([operation(test)], "another uid") == (None, "")


@given(st.lists(st.integers(1, 9), unique=True, min_size=1))
def test_the_last_test_is_the_one_of_the_highest_number(numbers: list[int]) -> None:
    found = [operation(a_test(state=S.FAILED, number=one)) for one in numbers]
    last, _ = last_test(found, "uid")
    assert last is not None
    assert last.number == max(numbers)


@pytest.mark.slow
@given(st.none() | tests, any_facts, st.floats(0, 2000))
def test_a_test_begins_only_on_a_tainted_node_that_nothing_speaks_against(
    last: NodeTest | None, found: NodeTestFacts, now: float
) -> None:
    what = next_test(last, found, RULES, pause=10.0, now=now)
    if what.do is not Do.ORDER:
        return
    assert found.tainted
    assert not found.against
    assert what.test is not None
    assert what.test.number == (last.number + 1 if last is not None else 1)
    asked = found.request.uid if found.request is not None else ""
    assert what.test.operation == operation_of("uid", found.boot_id, what.test.number, asked)
    assert last is None or not last.is_busy
    if not what.test.request and last is not None and last.is_of_boot(found.boot_id):
        assert last.state is not S.FAILED
        assert last.without_verdict < RULES.attempts


@pytest.mark.slow
@given(st.lists(st.sampled_from([S.INCONCLUSIVE, S.UNKNOWN, S.FAILED]), min_size=20))
def test_without_a_person_the_tests_of_a_boot_end(ends: list[RepairState]) -> None:
    last: NodeTest | None = None
    begun = 0
    for number, end in enumerate(ends):
        what = next_test(last, facts(), RULES, pause=0.0, now=1000.0 * number)
        if what.do is not Do.ORDER:
            break
        assert what.test is not None
        begun += 1
        last = ended(replace(what.test, deadline_at=1.0), end, "", at=1000.0 * number)
    assert begun <= RULES.attempts
    assert needs_a_person(last, "b1", RULES)


@pytest.mark.parametrize(
    ("last", "more", "expected"),
    [
        (None, {}, Do.ORDER),
        (None, {"tainted": False}, Do.NOTHING),
        (None, {"against": "cordoned"}, Do.NOTHING),
        (a_test(state=S.ORDERING), {}, Do.RESEND),
        (a_test(state=S.ORDERED), {}, Do.PROVE),
        (a_test(state=S.ORDERED), {"now": 100.0}, Do.END),
        (a_test(state=S.ORDERED), {"boot_id": "b2"}, Do.CANCEL),
        (a_test(state=S.ORDERED), {"boot_id": ""}, Do.PROVE),
        (a_test(state=S.ORDERED), {"tainted": False}, Do.CANCEL),
        (a_test(state=S.ORDERED), {"ends": "quarantine"}, Do.CANCEL),
        (a_test(state=S.ORDERED), {"against": "evidence"}, Do.PROVE),
        (a_test(state=S.FAILED), {}, Do.NOTHING),
        (a_test(state=S.FAILED), {"boot_id": "b2"}, Do.ORDER),
        (a_test(state=S.FAILED), {"request": R1}, Do.ORDER),
        # Its end is known, and the taint may be gone by it.
        (a_test(state=S.ORDERED, ends_as=S.SUCCEEDED), {"tainted": False}, Do.PROVE),
        (a_test(state=S.INCONCLUSIVE, ended_at=45.0), {}, Do.NOTHING),
        (a_test(state=S.INCONCLUSIVE, ended_at=40.0), {}, Do.ORDER),
        (a_test(state=S.INCONCLUSIVE, inconclusive=2), {}, Do.NOTHING),
        (a_test(state=S.CANCELLED, inconclusive=2), {}, Do.ORDER),
        (a_test(state=S.SUCCEEDED), {}, Do.ORDER),
    ],
)
def test_the_next_step(last: NodeTest | None, more: dict[str, Any], expected: Do) -> None:
    assert step(last, **more) is expected


def test_a_clock_that_was_set_back_does_not_hold_a_test_for_longer_than_the_pause() -> None:
    assert step(a_test(state=S.INCONCLUSIVE, ended_at=9e9)) is Do.ORDER


def test_only_the_startup_taint_is_removed() -> None:
    others = (Taint("a", "", "NoSchedule"), Taint(f"{KEY}.x", "", "NoExecute"))
    both = (Taint(KEY, "", "NoSchedule"), Taint(KEY, "yes", "NoExecute"))
    node = replace(NODE, taints=(others[0], *both, others[1]))
    assert without_taint(node, KEY) == others


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ""),
        ({"unschedulable": True}, "the node is cordoned"),
        ({"ready": False}, "its kubelet is not ready"),
        ({"ready": None}, "its kubelet is not ready"),
        (
            {"taints": (Taint("node.kubernetes.io/not-ready", "", "NoExecute"),)},
            "the node is not ready for pods (taint node.kubernetes.io/not-ready)",
        ),
        (
            {"devices": {"nvidia.com/gpu": ("8", "7")}},
            "7 of 8 nvidia.com/gpu are allocatable",
        ),
    ],
)
def test_what_a_node_says_against_a_test(change: dict[str, Any], expected: str) -> None:
    assert not_ready(replace(NODE, **change)) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (S.ORDERING, "Unknown"),
        (S.ORDERED, "Unknown"),
        (S.SUCCEEDED, "True"),
        (S.FAILED, "False"),
        (S.INCONCLUSIVE, "Unknown"),
        (S.UNKNOWN, "Unknown"),
        (S.CANCELLED, "Unknown"),
    ],
)
def test_the_condition_names_profile_operation_and_boot(state: RepairState, expected: str) -> None:
    found = present(condition_of(a_test(state=state), tainted=True, rules=RULES))
    assert found.status == expected
    assert all(word in found.message for word in ("quick", "uid-b1-1-test", "boot b1"))


def test_a_node_that_was_never_tested_and_is_not_new_has_no_condition() -> None:
    assert condition_of(None, tainted=False, rules=RULES) is None
    found = present(condition_of(None, tainted=True, rules=RULES))
    assert (found.status, found.reason) == ("Unknown", "NotTested")


@pytest.mark.parametrize(
    ("state", "held", "needs_person", "expected"),
    [
        (None, "", False, "new node, awaits its test"),
        (None, "the node is cordoned", False, "new node, awaits its test: the node is cordoned"),
        (S.ORDERED, "", False, "new node, test quick is under way"),
        (S.INCONCLUSIVE, "900 s", False, "new node, awaits its test: 900 s"),
        (S.FAILED, "x", True, "new node, no test begins by itself any more: x"),
    ],
)
def test_why_a_new_node_still_has_its_taint(
    state: RepairState | None,
    held: str,
    needs_person: bool,  # noqa: FBT001 - a parameter of the test
    expected: str,
) -> None:
    test = (
        NodeTest(number=1, operation="o", profile="quick", state=state, boot_id="b1")
        if state is not None
        else None
    )
    assert why_untested(test, held, needs_person=needs_person) == expected


# -- the limit ------------------------------------------------------------------------------


def wanted(node: str, number: int = 1) -> RunningOperation:
    return RunningOperation(node, f"{node}-{number}", NEW_NODE_TEST, 0.0, 390.0)


def reserve_test(
    record: Record, one: RunningOperation, most: int, *, now: float, stop: str = ""
) -> tuple[Record, Held | None]:
    limits = NewNodeRules(concurrent=most)
    return reserve(record, one, limits, FleetSize(100, 100), now=now, stop=stop)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 3)), max_size=40))
def test_no_order_of_reservations_passes_the_limit(asked: list[tuple[str, int]]) -> None:
    record = Record()
    for number, (node, operation) in enumerate(asked):
        record, held = reserve_test(record, wanted(node, operation), 2, now=10.0 + number)
        assert len(record.node_tests) <= 2
        assert (held is None) is (node in record.node_tests)
        assert parse_record(dump_record(record)) == record


def test_a_reservation_is_idempotent_ends_with_its_operation_and_holds_to_the_stop() -> None:
    record, held = reserve_test(Record(), wanted("a"), 1, now=10.0)
    assert held is None
    assert reserve_test(record, wanted("a"), 1, now=11.0) == (record, None)
    assert reserve_test(record, wanted("b"), 1, now=11.0)[1] is not None
    over = record.without_operations({wanted("a").operation})
    assert reserve_test(over, wanted("b"), 1, now=11.0)[1] is None
    assert reserve_test(record, wanted("b"), 5, now=11.0, stop="x")[1] is not None
    assert record.without_operations({"another"}).node_tests == record.node_tests
    assert record.without_operations({"a-1"}).node_tests == {}


def test_the_reservation_of_a_test_lasts_beyond_its_deadline() -> None:
    assert running_of("n", a_test(), NEW_NODE_TEST).until > a_test().deadline_at
