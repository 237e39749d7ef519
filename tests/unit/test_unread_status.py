"""A Quarantine's status that a later version wrote: what is read of it, and what a write keeps."""

import typing
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.kubernetes.quarantine_codec import (
    STATUS,
    decode_quarantine,
    encode_changes,
    encode_spec,
    encode_status,
)
from aggregator.cluster.port import (
    Action,
    Conflict,
    HookState,
    HookStatus,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.cluster.unread_status import expect_lossless
from tests.support.field_values import values, without_operations

SPEC = QuarantineSpec(Action.DRAIN, "gpu", "xid:79")
HOOK = HookStatus(HookState.RUNNING, started_at=40.0)
STATUS_NOW = QuarantineStatus(Phase.DRAINED, cordoned_at=10.0, drained_at=20.0, pre_evict=HOOK)
#: A value that no version has in any field: neither a text, a time, a number, a list nor an object.
UNKNOWN = [{"later": 1}, "later"]


def in_json(status: QuarantineStatus) -> dict[str, Any]:
    found = msgspec.to_builtins(encode_status(status))
    return {name: value for name, value in found.items() if value is not None}


def read(status: object) -> Quarantine:
    body = {"metadata": {"name": "n1"}, "spec": encode_spec(SPEC), "status": status}
    return decode_quarantine(msgspec.json.encode(body))


def later_hook() -> Quarantine:
    status = in_json(STATUS_NOW)
    status["preEvict"]["state"] = "Paused"
    return read(status)


def test_a_hook_in_a_state_of_a_later_version_leaves_the_other_fields_readable() -> None:
    found = later_hook()
    assert found.unread_fields == {"pre_evict"}
    assert "Invalid enum value 'Paused'" in found.unread
    assert found.problem == ""  # the spec makes sense: no person has to mend it
    assert found.status == replace(STATUS_NOW, pre_evict=None)


@pytest.mark.slow
@given(
    status=values(QuarantineStatus),
    names=st.sets(st.sampled_from([one.name for one in fields(QuarantineStatus)])),
)
def test_each_field_is_read_by_itself_where_others_cannot_be(
    status: QuarantineStatus, names: set[str]
) -> None:
    there = in_json(status)
    for name in names:
        there[STATUS.names[name]] = UNKNOWN
    found = read(there)
    assert found.unread_fields == names
    assert bool(found.unread) == bool(names)
    for name in {one.name for one in fields(QuarantineStatus)} - names:
        assert getattr(found.status, name) == getattr(without_operations(status), name)


@pytest.mark.parametrize("nonsense", [[], "Drained", 7, None])
def test_a_status_that_is_no_object_is_unread_as_a_whole(nonsense: object) -> None:
    found = read(nonsense)
    assert found.status == QuarantineStatus()
    assert found.unread_fields == {one.name for one in fields(QuarantineStatus)}


@pytest.mark.slow
@given(before=values(QuarantineStatus), after=values(QuarantineStatus), data=st.data())
def test_a_write_has_the_changes_of_readable_fields_and_the_phase_alone(
    before: QuarantineStatus, after: QuarantineStatus, data: st.DataObject
) -> None:
    names = {one.name for one in fields(QuarantineStatus)}
    unread = frozenset(data.draw(st.sets(st.sampled_from(sorted(names)))))
    quarantine = Quarantine("n1", "q", "1", SPEC, before, unread="x", unread_fields=unread)
    written = encode_changes(quarantine, after)
    whole = msgspec.to_builtins(encode_status(after))
    old = msgspec.to_builtins(encode_status(before))
    changed = {STATUS.names[name] for name in names - unread}
    expected = {name for name in changed if whole[name] != old[name]}
    expected |= {"phase"} if "phase" in unread else set()
    assert written == {name: whole[name] for name in expected}


def test_a_release_is_the_only_write_to_such_a_status_and_leaves_the_rest() -> None:
    found = later_hook()
    for phase in set(Phase) - {Phase.RELEASING}:
        with pytest.raises(Conflict, match="can't read in whole"):
            expect_lossless(found, replace(found.status, phase=phase))
    releasing = replace(found.status, phase=Phase.RELEASING, message="by a person")
    expect_lossless(found, releasing)
    assert encode_changes(found, releasing) == {"phase": "Releasing", "message": "by a person"}
    whole = read(in_json(STATUS_NOW))
    expect_lossless(whole, whole.status)


def test_every_hint_of_the_status_is_one_that_the_unknown_value_has_not() -> None:
    """Else the tests above would take a value for unread that can be read."""
    for name, hint in typing.get_type_hints(QuarantineStatus).items():
        with pytest.raises(ValueError, match=r".+"):
            msgspec.convert({STATUS.names[name]: UNKNOWN}, STATUS.struct)
        assert hint is not Any
