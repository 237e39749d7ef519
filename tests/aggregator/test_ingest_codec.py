"""Messages become evidence exactly, or are refused by the name of the field that is wrong."""

import math
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.health.model import (
    CheckOff,
    Cleared,
    ClearedBy,
    Component,
    Delta,
    Fault,
    Hello,
    Lost,
    Snapshot,
    Status,
)
from aggregator.ingest import codec
from sickbay.v1 import limits
from sickbay.v1 import sickbay_pb2 as pb
from tests.support import decoded
from tests.support import evidence as said

AT = 1_000_000.0
HELLO: dict[str, Any] = {
    "node": "n",
    "boot_id": "b",
    "spool_epoch": "e",
    "agent_version": "1",
    "instance": "i",
}

names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=40)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=80)
#: Whole milliseconds, as the wire has them.
times = st.integers(0, 90_000_000).map(lambda ms: AT - ms / 1000)
entries = st.dictionaries(names, texts, max_size=4)

components = st.builds(
    Component,
    check=names,
    component=texts,
    status=st.sampled_from(Status),
    reason=texts,
    message=texts,
    since=times,
    recent=st.lists(st.tuples(times, st.sampled_from(Status)), max_size=3).map(tuple),
)


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    first, last = sorted((draw(times), draw(times)))
    return Fault(
        code=draw(names),
        check=draw(names),
        component=draw(texts),
        message=draw(texts),
        boot_id=draw(names),
        source=draw(names),
        source_seq=draw(st.integers(0, 2**64 - 1)),
        first_at=first,
        last_at=last,
        count=draw(st.integers(1, 2**64 - 1)),
        cleared_by=draw(st.sampled_from(ClearedBy)),
        historical=draw(st.booleans()),
        details=draw(entries),
        occurrences=tuple(draw(st.lists(times, max_size=3))),
    )


cleared = st.builds(Cleared, code=texts, component=texts, how=names)
lost = st.builds(Lost, source=names, records=st.integers(0, 2**64 - 1), message=texts)


def many(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=3).map(tuple)


@given(
    st.builds(
        Snapshot,
        components=many(components),
        faults=many(faults()),
        cleared=many(cleared),
        lost=many(lost),
        quiesced_for=st.integers(0, 10**7).map(lambda ms: ms / 1000),
    )
)
def test_a_snapshot_arrives_as_it_was_meant(evidence: Snapshot) -> None:
    message = said.snapshot(evidence, at=AT)
    again = pb.AgentMessage.FromString(message.SerializeToString())
    assert _rounded(decoded.snapshot(again.snapshot, at=AT)) == _rounded(evidence)


@given(
    st.builds(
        Delta,
        components=many(components),
        faults=many(faults()),
        cleared=many(cleared),
        lost=many(lost),
        gone=many(st.tuples(names, texts)),
    )
)
def test_a_delta_arrives_as_it_was_meant(evidence: Delta) -> None:
    message = said.delta(evidence, seq=2, at=AT)
    again = pb.AgentMessage.FromString(message.SerializeToString())
    assert _rounded(decoded.delta(again.delta, at=AT)) == _rounded(evidence)


def _rounded(value: Any) -> Any:
    """Times to the millisecond: the wire has whole ones, and floats add up as they do."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, tuple):
        return tuple(_rounded(item) for item in value)
    if isinstance(value, Component | Fault | Snapshot | Delta):
        return tuple(_rounded(getattr(value, name)) for name in type(value).__slots__)
    return value


@given(
    st.builds(
        Hello,
        node=st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,40}[A-Za-z0-9])?", fullmatch=True),
        boot_id=names,
        spool_epoch=names,
        agent_version=names,
        contract_version=st.integers(0, 100),
        instance=names,
        checks=many(
            st.builds(
                CheckOff,
                name=names,
                interval=st.integers(0, 10**6).map(float),
                off_because=texts,
            )
        ),
        traits=entries,
        node_uid=st.just(""),
    )
)
def test_a_hello_arrives_as_it_was_meant(told: Hello) -> None:
    assert decoded.hello(said.hello(told).hello) == told


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_whatever_bytes_parse_are_evidence_or_a_wire_error(data: bytes) -> None:
    message = pb.Snapshot()
    try:
        message.ParseFromString(data)
        evidence = decoded.snapshot(message, at=AT)
    except (DecodeError, codec.InvalidMessage):
        return
    assert all(math.isfinite(c.since) for c in evidence.components)
    assert all(f.first_at <= f.last_at <= AT for f in evidence.faults)


def state(**fields: Any) -> pb.ComponentState:
    return pb.ComponentState(**{"check": "c", "status": pb.STATUS_OK, **fields})


def latched(**fields: Any) -> pb.Fault:
    return pb.Fault(
        **{
            "code": "xid:79",
            "check": "xid",
            "boot_id": "b",
            "source": "kmsg",
            "count": 1,
            "cleared_by": pb.CLEARED_BY_REBOOT,
            **fields,
        }
    )


ages = [pb.Transition(status=pb.STATUS_OK)] * (limits.MAX_TRANSITIONS + 1)

MALFORMED: list[tuple[pb.Snapshot, str]] = [
    (pb.Snapshot(components=[state(check="")]), "components[0].check"),
    (pb.Snapshot(components=[state(), state(check="a\nb")]), "components[1].check"),
    (pb.Snapshot(components=[state(check="c" * 129)]), "components[0].check"),
    (pb.Snapshot(components=[state(component="c" * 4097)]), "components[0].component"),
    (pb.Snapshot(components=[state(reason="r" * 129)]), "components[0].reason"),
    (pb.Snapshot(components=[state(status=0)]), "components[0].status"),
    (pb.Snapshot(components=[state(status=17)]), "components[0].status"),
    (pb.Snapshot(components=[state(age_ms=2**64 - 1)]), "components[0].age_ms"),
    (
        pb.Snapshot(components=[state(recent=[pb.Transition()])]),
        "components[0].recent[0].status",
    ),
    (pb.Snapshot(components=[state()] * 2001), "components"),
    (pb.Snapshot(faults=[latched(code="")]), "faults[0].code"),
    (pb.Snapshot(faults=[latched(boot_id="")]), "faults[0].boot_id"),
    (pb.Snapshot(faults=[latched(source="")]), "faults[0].source"),
    (pb.Snapshot(faults=[latched(count=0)]), "faults[0].count"),
    (pb.Snapshot(faults=[latched(cleared_by=0)]), "faults[0].cleared_by"),
    (pb.Snapshot(faults=[latched(cleared_by=99)]), "faults[0].cleared_by"),
    (pb.Snapshot(faults=[latched(first_age_ms=2**63)]), "faults[0].first_age_ms"),
    (pb.Snapshot(faults=[latched(details={str(n): "" for n in range(33)})]), "faults[0].details"),
    (pb.Snapshot(faults=[latched(historical=True)] * 1001), "faults"),
    (pb.Snapshot(cleared=[pb.Cleared(code="xid:79")]), "cleared[0].how"),
    (pb.Snapshot(gone=[state(check="")]), "gone[0].check"),
    (pb.Snapshot(lost=[pb.EvidenceLost()]), "lost[0].source"),
    (pb.Snapshot(quiesced_for_ms=2**63), "quiesced_for_ms"),
]


@pytest.mark.parametrize(("message", "field"), MALFORMED, ids=[f for _, f in MALFORMED])
def test_what_is_no_evidence_is_refused_by_field(message: pb.Snapshot, field: str) -> None:
    with pytest.raises(codec.InvalidMessage) as refused:
        decoded.snapshot(message, at=AT)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


ENTRIES = [one for one in MALFORMED if one[1] != "quiesced_for_ms"]


@pytest.mark.parametrize(("message", "field"), ENTRIES, ids=[f for _, f in ENTRIES])
def test_an_entry_that_is_no_evidence_is_dropped_and_all_others_count(
    message: pb.Snapshot, field: str
) -> None:
    """One mount with too long a name must not hide an Xid 79 of the same node."""
    message = pb.Snapshot.FromString(message.SerializeToString())  # the other test has this one
    message.components.append(state(component="sound", status=pb.STATUS_FAILED))
    message.faults.append(latched(component="sound"))
    dropped = codec.Dropped()
    taken = decoded.snapshot(message, at=AT, dropped=dropped)
    assert "sound" in {one.component for one in taken.components}
    assert "sound" in {one.component for one in taken.faults}
    assert dropped.entries >= 1
    assert dropped.reason.startswith(f"{field}: ")
    assert taken.partial


def test_of_too_many_components_those_that_are_well_are_dropped_first() -> None:
    well = [state(component=f"well{n}") for n in range(limits.MAX_COMPONENTS)]
    failed = [state(component=f"failed{n}", status=pb.STATUS_FAILED) for n in range(48)]
    dropped = codec.Dropped()
    taken = decoded.snapshot(pb.Snapshot(components=[*well, *failed]), at=AT, dropped=dropped)
    assert len(taken.components) == limits.MAX_COMPONENTS
    assert {f"failed{n}" for n in range(48)} <= {one.component for one in taken.components}
    assert (dropped.entries, dropped.reason) == (
        48,
        "components: 2048 entries; expected at most 2000",
    )


def test_of_too_many_faults_those_of_before_the_agent_are_dropped_first() -> None:
    old = [latched(component=f"old{n}", historical=True) for n in range(limits.MAX_FAULTS)]
    live = [latched(component=f"live{n}") for n in range(24)]
    taken = decoded.snapshot(pb.Snapshot(faults=[*old, *live]), at=AT, dropped=codec.Dropped())
    assert len(taken.faults) == limits.MAX_FAULTS
    assert {f"live{n}" for n in range(24)} <= {one.component for one in taken.faults}


def test_of_too_long_a_history_the_latest_counts() -> None:
    many = [pb.Transition(age_ms=n, status=pb.STATUS_OK) for n in range(500, 0, -1)]
    told = pb.Snapshot(
        components=[state(component=f"c{n}", recent=many) for n in range(limits.MAX_COMPONENTS)],
        faults=[latched(occurrence_ages_ms=range(500, 0, -1))],
    )
    taken = decoded.snapshot(told, at=AT)
    assert taken.components[0].recent[-1] == (AT - 0.001, Status.OK)
    assert len(taken.components[0].recent) == limits.MAX_TRANSITIONS
    assert len(taken.components[-1].recent) == 1
    assert taken.faults[0].occurrences == (AT - 0.001,)
    held = sum(len(one.recent) for one in taken.components)
    assert held <= limits.MAX_HISTORY + limits.MAX_COMPONENTS


def test_too_many_checks_in_hello_cost_the_last_ones_and_not_the_node() -> None:
    checks = [pb.CheckInfo(name=f"own-{n}") for n in range(limits.MAX_CHECKS + 50)]
    dropped = codec.Dropped()
    told = codec.hello(pb.Hello(**HELLO, checks=checks, traits={"": "x"}), dropped)
    assert len(told.checks) == limits.MAX_CHECKS
    assert dropped.entries == 51


@pytest.mark.parametrize("field", ["node", "boot_id", "spool_epoch", "agent_version", "instance"])
def test_a_hello_without_one_of_its_names_is_refused(field: str) -> None:
    decoded.hello(pb.Hello(**HELLO))
    with pytest.raises(codec.InvalidMessage) as refused:
        decoded.hello(pb.Hello(**{**HELLO, field: ""}))
    assert refused.value.field == field


@pytest.mark.parametrize(
    "name", ["..", "a/b", "-rf", "n1,n2", "n[1-9]", "a b", "n\n", "ü", "n" * 254]
)
def test_a_node_whose_name_would_be_more_than_a_name_to_a_command_is_refused(name: str) -> None:
    for sound in ("gpu-0117", "Node_7.rack-2", "n" * 253):
        assert decoded.hello(pb.Hello(**{**HELLO, "node": sound})).node == sound
    with pytest.raises(codec.InvalidMessage, match="is no node's name; expected a node's"):
        decoded.hello(pb.Hello(**{**HELLO, "node": name}))


def test_what_one_look_saw_of_many_components_is_kept_once() -> None:
    """The times are told apart by their age, and the transitions by all of them."""
    failed = pb.Transition(age_ms=5, status=pb.STATUS_FAILED)
    fine = pb.Transition(age_ms=7, status=pb.STATUS_OK)
    told = pb.Snapshot(
        components=[
            state(component="a", age_ms=5, recent=[fine, failed]),
            state(component="b", age_ms=5, recent=[fine, failed]),
            state(component="c", age_ms=7, recent=[fine]),
        ]
    )
    a, b, c = decoded.snapshot(told, at=AT).components
    assert a.since is b.since
    assert a.recent is b.recent
    assert (a.since, c.since) == (AT - 0.005, AT - 0.007)
    assert a.recent == ((AT - 0.007, Status.OK), (AT - 0.005, Status.FAILED))
    assert c.recent == ((AT - 0.007, Status.OK),)


def test_text_for_people_is_cut_where_it_is_too_long() -> None:
    long = pb.Snapshot(components=[state(message="m" * 5000)])
    [component] = decoded.snapshot(long, at=AT).components
    mark = "… (5,000 characters)"
    assert component.message == "m" * (limits.MAX_TEXT - len(mark)) + mark


def test_clocks_of_two_cores_that_differ_leave_first_before_last() -> None:
    [fault] = decoded.snapshot(
        pb.Snapshot(faults=[latched(first_age_ms=5, last_age_ms=9)]), at=AT
    ).faults
    assert (fault.first_at, fault.last_at) == (AT - 0.009, AT - 0.005)


def test_a_full_message_is_read_within_a_second() -> None:
    import time

    full = pb.Snapshot(
        components=[
            state(component=f"c{n}", recent=ages[:64]) for n in range(limits.MAX_COMPONENTS)
        ],
        faults=[latched(component=f"c{n}") for n in range(limits.MAX_FAULTS)],
    )
    started = time.process_time()
    decoded.snapshot(full, at=AT)
    assert time.process_time() - started < 1.0


def test_the_memory_of_checks_that_are_off_keeps_no_longer_text_than_evidence_has() -> None:
    """A hostile agent would fill it with texts as long as its messages."""
    made = codec._check_off.cache_info().misses
    for ending in "abc":
        long = "x" * (limits.MAX_TEXT + 1000) + ending
        check = pb.CheckInfo(name="of-this-test", interval_ms=1, off_because=long)
        found = decoded.hello(pb.Hello(**HELLO, checks=[check]))
        assert len(found.checks[0].off_because) <= limits.MAX_TEXT
    assert codec._check_off.cache_info().misses == made + 1, "one for three, as they are cut"
