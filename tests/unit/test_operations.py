"""Operations: what a quarantine is read with, what is known of them, and their retention."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.kubernetes.operation_client import decode_operation
from aggregator.cluster.operation_conditions import MOST_MESSAGE, with_conditions
from aggregator.cluster.operations import (
    KnownOperations,
    attempt_of,
    begun_status,
    cancelled,
    is_node_test,
    is_request,
    name_of,
    newest_tests,
    outdated,
    pending_of,
    spec_of,
    status_of,
    unknown_outcome,
    with_attempts,
)
from aggregator.cluster.port import (
    Action,
    NodeTestStatus,
    Operation,
    OperationRequest,
    OperationSpec,
    OperationStatus,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from aggregator.quarantine.decide.node_tests import last_test
from aggregator.quarantine.decide.repair import operation_id
from tests.support.field_values import values
from tests.support.present import present

WEEK = 7 * 86400.0
QUARANTINE = Quarantine(
    "n1", "q", "5", QuarantineSpec(Action.DRAIN, "gpu", "x"), QuarantineStatus()
)


def operation(number: int, phase: RepairState, at: float = 0.0, node: str = "n1") -> Operation:
    spec = OperationSpec(node, "reboot", quarantine="q")
    status = OperationStatus(phase, quarantine="q", number=number, began_at=at, ended_at=at + 1)
    return Operation(name_of("q", number, "reboot"), f"{node}-{number}", "1", spec, status)


def request(name: str, **more: Any) -> Operation:
    spec = OperationSpec(**{"node": "n1", "kind": "reboot", **more})
    return Operation(name, name, "1", spec, created_at=1.0, held=False)


@given(values(RepairAttempt))
def test_an_operation_is_the_attempt_from_which_it_was_written(attempt: RepairAttempt) -> None:
    attempt = replace(attempt, operation=attempt.operation or "q-3-reboot")
    spec, status = spec_of(QUARANTINE, attempt), begun_status(QUARANTINE, attempt, 3)
    made = Operation(attempt.name, "u", "1", spec, status, deleting=attempt.deleted)
    assert attempt_of(made) == attempt
    assert (spec.node, spec.quarantine, status.number) == ("n1", "q", 3)
    assert status_of(attempt, status) == status


def node_test(name: str, node: str = "n1", at: float = 1.0, **status: Any) -> Operation:
    spec = OperationSpec(node, "test", profile="quick", requester="sickbay")
    begun = {"phase": RepairState.SUCCEEDED, "number": 1, "node_test": NodeTestStatus()}
    found = OperationStatus(**{**begun, "began_at": at, **status})
    return Operation(name, name, "1", spec, found)


def test_a_test_of_a_node_in_no_quarantine_is_neither_a_request_nor_an_attempt() -> None:
    pending = node_test("u-b-1-test", phase=RepairState.PENDING, node_test=None)
    begun, asked = node_test("u-b-2-test"), request("r1", kind="test")
    followed = replace(asked, status=begun.status, held=True)
    kinds = [(is_request(one), is_node_test(one)) for one in (pending, begun, asked, followed)]
    assert kinds == [(False, False), (False, True), (True, False), (True, True)]
    assert with_attempts(QUARANTINE, [pending, begun]) == QUARANTINE


def test_one_whose_status_can_not_be_read_may_be_a_test_unless_it_is_of_a_quarantine() -> None:
    spec = OperationSpec("n1", "test")
    unread = unknown_outcome("o", spec, OperationStatus(), ValueError("phase"))
    assert is_node_test(Operation("o", "o", "1", spec, unread))
    bound = replace(spec, quarantine="q")
    unread = unknown_outcome("o", bound, OperationStatus(), ValueError("phase"))
    assert not is_node_test(Operation("o", "o", "1", bound, unread))


def test_the_known_tests_are_those_of_a_node_and_need_no_read_for_a_quarantine() -> None:
    known = KnownOperations()
    first, second = node_test("a", at=1.0), node_test("b", at=2.0)
    other = node_test("c", "n2")
    for one in (first, second, other):
        known.take(one)
    assert known.node_tests("n1") == [first, second]
    assert len(known.node_tests()) == 3
    assert known.node_tests("n3") == []
    assert newest_tests(known.node_tests()) == [other, second]
    assert not known.has("n1")
    known.take(request("r1"))
    assert known.has("n1")


def test_the_newest_test_of_a_node_has_the_highest_number_also_after_a_clock_went_back() -> None:
    first, second = node_test("a", at=9.0, number=1), node_test("b", at=2.0, number=2)
    other_node = node_test("c", at=10.0, number=1, node_uid="another")
    assert newest_tests([second, first]) == newest_tests([first, second]) == [second]
    assert newest_tests([other_node, first, second]) == [other_node]
    found, _ = last_test([second, first], second.status.node_uid)
    assert found is not None
    assert found.operation == "b"


def test_another_installations_tests_are_not_known() -> None:
    known = KnownOperations("ours")
    spec = OperationSpec("n1", "test", requester="sickbay", installation="theirs")
    theirs, asked = replace(node_test("a"), spec=spec), request("r1", kind="test")
    ours = replace(node_test("b"), spec=replace(spec, installation="ours"))
    for one in (theirs, asked, ours):
        known.take(one)
    assert (known.node_tests(), known.requests) == ([ours], [asked])
    taken = replace(node_test("r1").status, installation="theirs")
    known.take(replace(asked, version="9", status=taken))
    assert (known.node_tests(), known.requests) == ([ours], [])
    known.take_read([theirs, ours])
    assert known.node_tests() == [ours]
    for installation in ("", "theirs"):
        everybodys = KnownOperations(installation)
        everybodys.take(theirs)
        assert everybodys.node_tests() == [theirs]


def test_a_test_that_has_ended_and_was_deleted_is_known_until_it_is_gone() -> None:
    known, ended = KnownOperations(), node_test("a", phase=RepairState.ORDERED)
    known.take(ended)
    going = replace(ended, deleting=True, version="8")
    known.take(going)
    assert known.deleted_tests == []
    gone = replace(going, status=replace(going.status, phase=RepairState.FAILED), version="9")
    known.take(gone)
    assert known.deleted_tests == [gone]
    known.drop(gone)
    assert known.deleted_tests == []


def test_an_object_of_another_name_is_a_persons_request_of_its_node() -> None:
    own, other = operation(1, RepairState.PENDING), request("q-1-test", quarantine="q")
    assert (is_request(own), is_request(other)) == (False, True)
    bound, free = request("b", quarantine="q"), request("a", kind="test", profile="x")
    old = request("old", quarantine="p")
    elsewhere, gone = request("c", node="n2"), replace(request("d"), deleting=True)
    begun = replace(request("e"), status=OperationStatus(RepairState.ORDERED, operation="q-1"))
    found = with_attempts(QUARANTINE, [own, bound, free, old, elsewhere, gone, begun])
    names = [one.name for one in found.status.repair.requests]
    assert (names, found.status.repair.attempts) == (["a", "b"], ())
    assert found.status.repair.requests[0] == OperationRequest("a", "test", "x", "a")


def test_requests_that_are_not_held_are_known_beside_a_read_of_those_that_are() -> None:
    """The read selects by a label that only an adopted object has."""
    known, free, held = KnownOperations(), request("free"), replace(request("held"), held=True)
    known.take_read([free, held])
    assert known.requests == [free, held]
    known.take_read([], "n1")
    assert known.requests == [free]
    known.take(replace(free, version="2", status=OperationStatus(RepairState.CANCELLED)))
    assert known.requests == []
    known.take_read([])
    assert not known.has("n1")


def test_conditions_follow_from_the_status_and_long_texts_are_cut() -> None:
    new = with_conditions(OperationStatus(), OperationStatus(message="x" * 2000), 5.0)
    assert len(new.message) == MOST_MESSAGE
    waits = with_conditions(new, replace(new, message="the rack is full"), 6.0)
    begun = replace(waits, phase=RepairState.ORDERED, began_at=7.0)
    ended = replace(begun, phase=RepairState.FAILED, message="no proof")
    shown = [
        [(each.type, each.status, each.reason, each.last_transition_time) for each in one]
        for one in (
            waits.conditions,
            with_conditions(waits, begun, 7.0).conditions,
            with_conditions(with_conditions(waits, begun, 7.0), ended, 8.0).conditions,
        )
    ]
    assert shown == [
        [("Admitted", "False", "Waiting", 5.0), ("Complete", "False", "Pending", 5.0)],
        [("Admitted", "True", "Begun", 7.0), ("Complete", "False", "Ordered", 5.0)],
        [("Admitted", "True", "Begun", 7.0), ("Complete", "True", "Failed", 8.0)],
    ]
    never = with_conditions(waits, cancelled(waits, "its node is released", 9.0), 9.0)
    assert (never.conditions[0].reason, never.conditions[0].message) == (
        "Cancelled",
        "its node is released",
    )


def test_a_quarantine_is_read_with_its_own_begun_operations_the_oldest_first() -> None:
    other = operation(1, RepairState.FAILED)
    other = replace(other, status=replace(other.status, quarantine="other"))
    first, second = operation(1, RepairState.FAILED), operation(2, RepairState.ORDERED)
    pending = operation(3, RepairState.PENDING)
    found = with_attempts(QUARANTINE, [second, pending, other, first])
    assert [one.operation for one in found.status.repair.attempts] == ["q-1-reboot", "q-2-reboot"]
    assert pending_of(QUARANTINE, [second, pending, other, first]) == [pending]
    held = replace(QUARANTINE, status=QuarantineStatus(repair=RepairStatus(held="held")))
    joined = with_attempts(held, [first]).status.repair
    assert joined == RepairStatus((attempt_of(first),), held="held")
    assert with_attempts(QUARANTINE, []) is QUARANTINE


def test_no_known_operation_goes_back_to_an_earlier_version() -> None:
    known, one = KnownOperations(), operation(1, RepairState.ORDERED)
    done = replace(one.status, phase=RepairState.SUCCEEDED)
    newer = replace(one, version="10", status=done)
    assert known.take(newer)
    assert not known.take(replace(one, version="9"))
    assert not known.take(newer)
    joined = present(known.join(QUARANTINE).status.repair)
    assert joined.attempts[0].state is RepairState.SUCCEEDED
    known.drop(replace(newer, uid="another"))
    assert known.has("n1")
    known.take_read([replace(one, version="2")], "n1")  # etcd was restored: a read counts
    assert known.take(replace(one, version="3"))
    known.drop(one)
    assert not known.has("n1")
    assert known.join(QUARANTINE) is QUARANTINE


def test_an_operation_of_a_later_version_has_an_unknown_outcome() -> None:
    body = {
        "metadata": {"name": "o", "uid": "u", "resourceVersion": "4"},
        "spec": {"node": "n1", "kind": "reboot", "quarantine": "q"},
        "status": {"phase": "Paused"},
    }
    found = decode_operation(json.dumps(body).encode())
    assert (found.spec.node, found.status.phase) == ("n1", RepairState.UNKNOWN)
    assert "Invalid enum value 'Paused'" in found.status.message
    assert (found.status.quarantine, found.status.number) == ("q", 0), "its name is none of ours"
    nameless = decode_operation(json.dumps(body | {"spec": {"kind": 7}}).encode())
    assert nameless.spec == OperationSpec("", "")


@pytest.mark.parametrize("readable", [True, False])
def test_an_operation_that_can_not_be_read_keeps_its_place_among_the_attempts(
    *, readable: bool
) -> None:
    """Else its number would be used again, and a repair begun that was there."""
    status: dict[str, object] = {"phase": "Paused"}
    if readable:
        status |= {"quarantine": "q", "number": 2, "bootID": "b", "endedAt": "no time"}
        status |= {"beganAt": "2026-11-01T00:00:00Z", "operation": "q-2-reboot"}
    body = {
        "metadata": {"name": "mine" if readable else "q-2-reboot", "uid": "u"},
        "spec": {"node": "n1", "kind": "reboot"} | ({} if readable else {"quarantine": "q"}),
        "status": status,
    }
    unread = decode_operation(json.dumps(body).encode())
    joined = with_attempts(QUARANTINE, [unread, operation(1, RepairState.SUCCEEDED)]).status.repair
    assert joined is not None
    first, second = joined.attempts
    assert (first.operation, second.operation) == ("q-1-reboot", "q-2-reboot")
    assert second.state is RepairState.UNKNOWN
    if readable:
        assert (second.boot_id, second.request, second.ended_at) == ("b", "mine", 0.0)
        assert second.began_at > 0
    assert operation_id("q", joined, "replace") == "q-3-replace"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(RepairState), st.floats(0, 4 * WEEK), st.sampled_from(["a", "b"])
        ),
        max_size=30,
    ),
    st.integers(0, 5),
    st.integers(0, 10),
)
def test_retention_forgets_no_open_one_and_none_that_the_cap_counts(
    made: list[tuple[RepairState, float, str]], per_node: int, most: int
) -> None:
    known = [operation(n, *one) for n, one in enumerate(made)]
    now = 4 * WEEK
    gone = outdated(known, now=now, window=WEEK, per_node=per_node, most=most)
    assert all(not one.is_open and now - one.status.began_at >= WEEK for one in gone)
    old = [one for one in known if not one.is_open and now - one.status.began_at >= WEEK]
    left = [one for one in old if one not in gone]
    for node in "ab":
        assert sum(one.spec.node == node for one in left) <= per_node
    ended = sum(not one.is_open for one in known)
    assert ended - len(gone) <= most or not left
    newest = max((one.status.ended_at for one in gone), default=0.0)
    if per_node >= len(known):  # the fleet's bound alone: the oldest go
        assert all(one.status.ended_at >= newest for one in left)
