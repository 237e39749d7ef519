"""An aggregator accepts every state that an agent can hold: one set of bounds, kept by both."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.health.model import Hello
from aggregator.health.node import NodeHealth
from aggregator.ingest import codec as taking
from nodeagent.evidence import bounds
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State, dump, restore
from nodeagent.model import (
    Batch,
    CheckInfo,
    ClearedBy,
    Clearing,
    FaultSighting,
    Gone,
    Loss,
    Observation,
    Status,
)
from nodeagent.uplink import codec as telling
from sickbay.v1 import limits
from sickbay.v1 import sickbay_pb2 as pb
from tests.support import decoded

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOW = 1000.0


def latch() -> Latch:
    return Latch(boot_id="boot-a", epoch="e")


def accepted(message: pb.AgentMessage) -> Any:
    """The aggregator's reading of it, after a way over the wire: no part may be dropped."""
    encoded = message.SerializeToString()
    assert len(encoded) <= limits.MAX_MESSAGE_BYTES
    again, dropped = pb.AgentMessage.FromString(encoded), taking.Dropped()
    match again.WhichOneof("body"):
        case "snapshot":
            evidence: Any = decoded.snapshot(again.snapshot, at=NOW, dropped=dropped)
        case "delta":
            evidence = decoded.delta(again.delta, at=NOW, dropped=dropped)
        case _:
            evidence = taking.hello(again.hello, dropped)
    assert dropped.reason == ""
    return evidence


# -- any evidence at all --------------------------------------------------------------------------

texts = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["", "disk-space", "/data", "x" * 200, "ü" * 3_000, "/\udcff" * 2_500, "a\nb"]),
)
items: st.SearchStrategy[Any] = st.one_of(
    st.builds(Observation, texts, texts, st.sampled_from(Status), texts, texts),
    st.builds(
        FaultSighting,
        texts,
        texts,
        texts,
        texts,
        texts,
        st.integers(-5, 2**65),
        st.floats(),
        cleared_by=st.sampled_from(ClearedBy),
        historical=st.booleans(),
        details=st.dictionaries(texts, texts, max_size=40),
    ),
    st.builds(Clearing, texts, st.sampled_from(["gpu-reset", "operator", "", "z" * 200]), texts),
    st.builds(Loss, texts, st.integers(-5, 2**65), texts),
    st.builds(Gone, texts, texts),
)
batches = st.lists(st.lists(items, max_size=6), max_size=6)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(batches, batches)
def test_whatever_the_latch_took_in_is_accepted_in_full_and_the_digests_agree(
    first: Sequence[Batch], then: Sequence[Batch]
) -> None:
    held = latch()
    for batch in first:
        held.apply(batch, NOW)
    health = NodeHealth(Hello("n", "boot-a", "e", "1", 1, "i"))
    health.snapshot(accepted(telling.snapshot(held.snapshot(NOW), NOW, 0.0)))
    assert health.digest() == held.digest()
    for batch in then:
        held.apply(batch, NOW, run_of="disk-space")
        out = held.delta(NOW)
        if out is not None:
            health.delta(accepted(telling.delta(out, NOW)))
    assert health.digest() == held.digest()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(batches)
def test_a_state_file_gives_back_what_is_accepted_too(first: Sequence[Batch]) -> None:
    held = latch()
    for batch in first:
        held.apply(batch, NOW)
    again = restore(dump(State(held), NOW), boot_id="boot-a", new_epoch=None).latch
    accepted(telling.snapshot(again.snapshot(NOW), NOW, 0.0))
    assert set(again.components) == set(held.components)
    assert set(again.faults) == set(held.faults)
    assert again.unacked.gone == held.unacked.gone


# -- as much of it as there can be ----------------------------------------------------------------


def mounts(count: int, status: Status = Status.OK, *, name: int = 90) -> list[Observation]:
    long = "x" * name
    return [
        Observation("disk-space", f"/{long}/{n}", status, "full", "m" * 900) for n in range(count)
    ]


def sightings(count: int, **details: str) -> list[FaultSighting]:
    return [
        FaultSighting(
            f"own:{n}", "own", f"part-{n}", "m" * 900, "own:s", n, 1.0 + n, details=details
        )
        for n in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", [90, 4_000], ids=["names of mounts", "the longest names"])
def test_a_latch_that_is_full_is_accepted_and_says_so_once(name: int) -> None:
    held = latch()
    for _ in range(3):  # each look names all of them
        held.apply(mounts(2_500, Status.FAILED, name=name), NOW)
        held.apply(sightings(1_200), NOW)
    held.apply([FaultSighting("xid:79", "xid", "GPU-1", "off", "kmsg", 1, 2_000.0)], NOW)
    evidence = accepted(telling.snapshot(held.snapshot(NOW), NOW, 0.0))
    assert ("xid:79", "GPU-1") in {one.key for one in evidence.faults}
    assert len(evidence.faults) == limits.MAX_FAULTS
    assert 300 < len(evidence.components) <= limits.MAX_COMPONENTS
    # 201 faults, and the components once: losses of one source are added up until they are sent.
    assert [(one.source, one.records) for one in evidence.lost] == [("latch", 202)]


@pytest.mark.slow
def test_the_largest_history_is_accepted() -> None:
    held = latch()
    for turn in range(70):
        status = Status.FAILED if turn % 2 else Status.OK
        held.apply(mounts(2_000, status, name=5), NOW + turn)
    for turn in range(40):
        again = [
            FaultSighting(f"c:{n}", "own", "", "", "s", turn, 100.0 * turn) for n in range(999)
        ]
        held.apply(again, NOW + turn)
    evidence = accepted(telling.snapshot(held.snapshot(NOW), NOW + 100, 0.0))
    assert len(evidence.components) == 2_000
    assert all(one.recent for one in evidence.components)


def test_a_state_file_of_an_older_agent_with_wider_bounds_is_cut_and_said() -> None:
    held = latch()
    held.apply(mounts(10), NOW)
    document = dump(State(held), NOW)
    [entry, *_] = document["components"]
    document["components"] = [[entry[0], f"/{n}", *entry[2:]] for n in range(2_048)]
    document["components"].append(["own", "x", 3, "r" * 300, "", NOW, 0, [[3, NOW]]])
    again = restore(document, boot_id="boot-a", new_epoch=None).latch
    evidence = accepted(telling.snapshot(again.snapshot(NOW), NOW, 0.0))
    assert len(evidence.components) == limits.MAX_COMPONENTS
    assert ("own", "x") in {one.key for one in evidence.components}
    assert len(evidence.lost) == 1


def test_many_signs_that_nobody_acknowledges_are_accepted() -> None:
    held = latch()
    held.apply([Clearing("c" * 3_000 + str(n), "gpu-reset") for n in range(500)], NOW)
    held.apply(mounts(1_900, name=3), NOW)
    held.keep_checks(())
    held.apply([Loss(f"own:{n}", 1, "x" * 2_000) for n in range(300)], NOW)
    evidence = accepted(telling.snapshot(held.snapshot(NOW), NOW, 0.0))
    assert evidence.cleared
    assert len(evidence.gone) <= limits.MAX_GONE


def test_hello_names_as_many_checks_as_it_may_those_first_that_run() -> None:
    checks = [CheckInfo(f"off-{n}", 60.0, "o" * 5_000) for n in range(300)]
    checks += [CheckInfo(f"on-{n}" + "x" * 300, 60.0) for n in range(400)]
    hello = telling.hello(
        node="n",
        boot_id="b",
        epoch="e",
        last_acked=0,
        version="1",
        checks=checks,
        traits={f"t{n}" * 100: "v" * 5_000 for n in range(50)},
        instance="i",
        boottime=1.0,
    )
    told = accepted(hello)
    assert len(told.checks) == limits.MAX_CHECKS
    assert sum(not check.off_because for check in told.checks) == 400


# -- what is cut ----------------------------------------------------------------------------------


def test_two_long_names_that_begin_alike_stay_two() -> None:
    one, other = (bounds.identifier("x" * 300 + end) for end in "ab")
    assert one != other
    assert len(one) == len(other) == limits.MAX_NAME
    assert bounds.component_name("é" * 4_000).encode().__len__() <= limits.MAX_COMPONENT


def test_what_was_cut_is_reported_once_and_not_at_each_look() -> None:
    held = latch()
    for _ in range(5):
        held.apply([Observation("own-x", "", Status.FAILED, "r" * 300)], NOW)
    [loss] = held.unacked.losses
    assert loss.message == "check own-x: its reason is outside the contract's bounds and was cut"
    [entry] = held.components.values()
    assert entry.reason == "r" * limits.MAX_NAME


def test_what_others_code_gives_in_place_of_text_is_told_as_text() -> None:
    held = latch()
    odd: Any = 5
    held.apply([Observation("own", odd, Status.FAILED, odd, odd)], NOW)
    fault = FaultSighting("own:c", "own", odd, odd, "own:s", 1, 1.0, details={"pid": odd})
    held.apply([fault], NOW)
    evidence = accepted(telling.snapshot(held.snapshot(NOW), NOW, 0.0))
    assert [(one.component, one.reason) for one in evidence.components] == [("5", "5")]
    assert [(one.component, one.details) for one in evidence.faults] == [("5", {"pid": "5"})]


# -- the page -------------------------------------------------------------------------------------


def test_the_contract_s_page_has_the_bounds_that_the_code_keeps() -> None:
    page = (ROOT / "docs/reference/contract-bounds.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([\d,]+|2\^64 - 1) \|", page, re.MULTILINE)
    said = {
        name: 2**64 - 1 if value.startswith("2^") else int(value.replace(",", ""))
        for name, value in rows
    }
    assert said == {name: getattr(limits, name) for name in dir(limits) if name.isupper()}
