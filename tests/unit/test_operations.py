"""Operations: what a quarantine is read with, what is known of them, and their retention."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.kubernetes.operation_client import decode_operation
from aggregator.cluster.operations import (
    KnownOperations,
    attempt_of,
    outdated,
    pending_of,
    spec_of,
    status_of,
    with_attempts,
)
from aggregator.cluster.port import (
    Action,
    Operation,
    OperationSpec,
    OperationStatus,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from tests.support.field_values import values

WEEK = 7 * 86400.0
QUARANTINE = Quarantine(
    "n1", "q", "5", QuarantineSpec(Action.DRAIN, "gpu", "x"), QuarantineStatus()
)


def operation(number: int, phase: RepairState, at: float = 0.0, node: str = "n1") -> Operation:
    spec = OperationSpec(node, "reboot", quarantine="q", number=number)
    status = OperationStatus(phase, began_at=at, ended_at=at + 1)
    return Operation(f"{node}-{number}", str(number), "1", spec, status)


@given(values(RepairAttempt))
def test_an_operation_is_the_attempt_from_which_it_was_written(attempt: RepairAttempt) -> None:
    spec, status = spec_of(QUARANTINE, attempt, 3), status_of(attempt)
    made = Operation(attempt.operation, "u", "1", spec, status, deleting=attempt.deleted)
    assert attempt_of(made) == attempt
    assert (spec.node, spec.quarantine, spec.number) == ("n1", "q", 3)


def test_a_quarantine_is_read_with_its_own_begun_operations_the_oldest_first() -> None:
    other = replace(operation(1, RepairState.FAILED), spec=OperationSpec("n1", "reboot", "other"))
    first, second = operation(1, RepairState.FAILED), operation(2, RepairState.ORDERED)
    pending = operation(3, RepairState.PENDING)
    found = with_attempts(QUARANTINE, [second, pending, other, first])
    assert found.status.repair is not None
    assert [one.operation for one in found.status.repair.attempts] == ["n1-1", "n1-2"]
    assert pending_of(QUARANTINE, [second, pending, other, first]) == [pending]
    held = replace(QUARANTINE, status=QuarantineStatus(repair=RepairStatus((), "held")))
    joined = with_attempts(held, [first]).status.repair
    assert joined == RepairStatus((attempt_of(first),), "held")
    assert with_attempts(QUARANTINE, []) is QUARANTINE


def test_no_known_operation_goes_back_to_an_earlier_version() -> None:
    known, one = KnownOperations(), operation(1, RepairState.ORDERED)
    newer = replace(one, version="10", status=OperationStatus(RepairState.SUCCEEDED))
    assert known.take(newer)
    assert not known.take(replace(one, version="9"))
    assert not known.take(newer)
    joined = known.join(QUARANTINE).status.repair
    assert joined is not None
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
    nameless = decode_operation(json.dumps(body | {"spec": {"kind": 7}}).encode())
    assert nameless.spec == OperationSpec("", "")


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
