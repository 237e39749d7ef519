"""The Quarantine's JSON, there and back, and specs that people write by hand."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.object_codec import timestamp
from aggregator.cluster.kubernetes.objects import seconds
from aggregator.cluster.kubernetes.quarantine_client import KubeQuarantines
from aggregator.cluster.kubernetes.quarantine_codec import (
    FINALIZER,
    decode_quarantine,
    encode_spec,
    encode_status,
)
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import (
    Action,
    Blocker,
    EvidenceItem,
    HookState,
    HookStatus,
    Phase,
    QuarantineSpec,
    QuarantineStatus,
    Refused,
    RepairStatus,
)

TEXT = st.text(max_size=20)
#: Whole microseconds, in a range whose floats tell them apart.
MOMENT = st.one_of(st.just(0.0), st.integers(1, 2**33 * 10**5).map(lambda us: us / 1e5))
#: Attempts are objects of their own: test_kube_operations.py.
REPAIR = st.builds(RepairStatus, held=TEXT, exhausted=TEXT, exhausted_at=MOMENT)
EVIDENCE = st.builds(EvidenceItem, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT)
SPEC = st.builds(
    QuarantineSpec,
    action=st.sampled_from([Action.CORDON, Action.DRAIN]),
    kind=TEXT,
    reason=TEXT,
    requester=TEXT,
    incident=TEXT,
    boot_id=TEXT,
    policy_hash=TEXT,
    evidence=st.lists(EVIDENCE, max_size=3).map(tuple),
    intent_action=st.sampled_from([None, Action.CORDON, Action.DRAIN]),
)
STATUS = st.builds(
    QuarantineStatus,
    phase=st.sampled_from(Phase),
    message=TEXT,
    node_uid=TEXT,
    admitted_at=MOMENT,
    cordoned_at=MOMENT,
    drain_started_at=MOMENT,
    drained_at=MOMENT,
    released_because=TEXT,
    override=TEXT,
    uncordoned=TEXT,
    uncordoned_at=MOMENT,
    recordons=st.integers(0, 6),
    evictions_held_until=MOMENT,
    overruled=st.booleans(),
    pods_remaining=st.one_of(st.none(), st.integers(0, 500)),
    deadline_at=MOMENT,
    overdue_at=MOMENT,
    pre_evict=st.none() | st.builds(HookStatus, st.sampled_from(HookState), MOMENT, MOMENT, TEXT),
    blockers=st.lists(st.builds(Blocker, TEXT, TEXT, MOMENT), max_size=3).map(tuple),
    repair=st.just(RepairStatus()) | REPAIR,
)


def stored(spec: msgspec.Struct, status: msgspec.Struct) -> bytes:
    """The patch as the API server stores it: null removes."""
    kept = [
        {key: value for key, value in msgspec.to_builtins(part).items() if value is not None}
        for part in (spec, status)
    ]
    meta = {"name": "n1", "uid": "u", "resourceVersion": "7", "finalizers": [FINALIZER]}
    return json.dumps({"metadata": meta, "spec": kept[0], "status": kept[1]}).encode()


@given(spec=SPEC, status=STATUS)
def test_what_is_written_is_read_again(spec: QuarantineSpec, status: QuarantineStatus) -> None:
    found = decode_quarantine(stored(encode_spec(spec), encode_status(status)))
    assert found.problem == ""
    assert found.spec == spec
    assert found.status == status
    assert (found.node, found.uid, found.version, found.has_finalizer) == ("n1", "u", "7", True)


@given(at=st.floats(1, 2**33))
def test_a_time_survives_to_the_microsecond(at: float) -> None:
    assert seconds(timestamp(at)) == pytest.approx(at, abs=1e-6)


def test_a_hand_made_one_needs_no_more_than_a_reason() -> None:
    body = b"""{"metadata": {"name": "n1", "uid": "u", "resourceVersion": "1",
      "creationTimestamp": "2026-01-02T03:04:05Z"}, "spec": {"reason": "fan 3 is dead"}}"""
    found = decode_quarantine(body)
    assert found.problem == ""
    assert found.spec == QuarantineSpec(Action.CORDON, "manual", "fan 3 is dead")
    assert found.status == QuarantineStatus()
    assert not found.has_finalizer
    assert found.created_at == 1767323045


def test_one_that_is_being_deleted_says_so() -> None:
    body = b'{"metadata": {"name": "n", "deletionTimestamp": "2026-01-02T03:04:05Z"}, "spec": {}}'
    assert decode_quarantine(body).deleting


@pytest.mark.parametrize(
    ("spec", "status", "says"),
    [
        ({"action": "explode"}, {}, "explode"),
        ({"action": "observe", "reason": "x"}, {}, "cordon or drain"),
        ({"reason": 7}, {}, "spec: Expected `str`, got `int` - at `$.reason`"),
        (None, {}, "spec"),
        ([], {}, "spec"),
        ({"evidence": ["xid:79"]}, {}, "$.evidence[0]"),
        ({}, {"phase": "Exorcised"}, "Exorcised"),
        ({}, {"admittedAt": "yesterday"}, "yesterday"),
        ({}, {"blockers": [{}]}, "$.blockers[0]"),
    ],
)
def test_nonsense_is_told_as_a_problem_and_never_raised(spec: Any, status: Any, says: str) -> None:
    body = {"metadata": {"name": "n1", "uid": "u"}, "spec": spec, "status": status}
    found = decode_quarantine(json.dumps(body).encode())
    assert says in (found.unread if status else found.problem)
    assert not (found.problem if status else found.unread)
    assert found.spec.action is not Action.DRAIN
    assert found.node == "n1"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
FIELDS = st.sampled_from(["action", "kind", "reason", "evidence", "phase", "blockers", "drainedAt"])


@given(spec=st.dictionaries(FIELDS, JSON), status=st.dictionaries(FIELDS, JSON))
def test_no_spec_and_no_status_is_too_odd_to_be_told(
    spec: dict[str, Any], status: dict[str, Any]
) -> None:
    body = {"metadata": {"name": "n1", "uid": "u"}, "spec": spec, "status": status}
    assert decode_quarantine(json.dumps(body).encode()).node == "n1"


@pytest.mark.parametrize("body", [b"<html>", b'{"a":' + 9_999 * b"["])
def test_what_is_no_object_at_all_is_refused(body: bytes) -> None:
    with pytest.raises(Refused, match="is this an API server"):
        decode_quarantine(body)


class Noting(Transport):
    """Notes the node whose taint each request is said to trail, and answers with one object."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.trailed: list[tuple[Priority, str]] = []

    async def request(self, method: str, path: str, lane: Priority, **how: Any) -> bytes:
        self.trailed.append((lane, how["node"]))
        return self.answer


async def test_a_phase_goes_in_the_order_of_the_taints_and_progress_does_not() -> None:
    """Progress comes again and again: else what trails about later nodes would wait for it."""
    spec = QuarantineSpec(action=Action.DRAIN, kind="gpu", reason="")
    before = QuarantineStatus(phase=Phase.DRAINING, admitted_at=1.0)
    answer = stored(encode_spec(spec), encode_status(before))
    draining = decode_quarantine(answer, "")
    transport = Noting(answer)
    store = KubeQuarantines(transport, "", lambda: 1.0)
    await store.write_quarantine_status(draining, replace(before, phase=Phase.DRAINED))
    await store.write_quarantine_status(draining, replace(before, pods_remaining=3))
    assert transport.trailed == [(Priority.PHASE, "n1"), (Priority.STATUS, "")]


async def test_the_end_of_a_drain_that_no_pod_had_to_leave_waits_for_the_begins_of_others() -> None:
    spec = QuarantineSpec(action=Action.DRAIN, kind="gpu", reason="")
    answer = stored(encode_spec(spec), encode_status(QuarantineStatus()))
    transport = Noting(answer)
    store = KubeQuarantines(transport, "", lambda: 1.0)
    admitted = decode_quarantine(answer, "")
    for phase in (Phase.DRAINING, Phase.DRAINED):
        await store.write_quarantine_status(
            admitted, QuarantineStatus(phase=phase, admitted_at=1.0)
        )
    assert transport.trailed == [(Priority.PHASE, "n1"), (Priority.REPORT, "n1")]
