"""The capacity of the latch, to the entry and to the byte, and that no entry counts twice."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.evidence.entries import (
    BURST,
    OCCURRENCES,
    TRANSITIONS,
    WINDOW,
    ComponentEntry,
    FaultEntry,
)
from nodeagent.evidence.latch import Latch, LatchLimits
from nodeagent.model import (
    Batch,
    ClearedBy,
    Clearing,
    Evidence,
    FaultSighting,
    Gone,
    Observation,
    Status,
)
from sickbay.v1 import limits as contract
from tests.support.present import present

NOW = 1000.0
MANY = 10**9
#: The size of `part` and `fault` with a name of eight bytes; the rest is fixed.
PART = len("own") + 8 + contract.MAX_NAME + 128
FAULT = len("own:8888") + len("own") + len("part") + len("boot-a") + len("s") + 128


def part(name: str | int, status: Status = Status.OK, reason: str = "") -> Observation:
    return Observation("own", f"{name}".ljust(8), status, reason)


def fault(
    number: int,
    *,
    ends: ClearedBy = ClearedBy.REBOOT,
    at: float = NOW,
    seq: int | None = None,
    historical: bool = False,
    **details: str,
) -> FaultSighting:
    code = f"own:{number:04}"
    place = number if seq is None else seq
    return FaultSighting(
        *(code, "own", "part", "", "s", place, at, ends, historical),
        details=details,
    )


def latch(
    *, components: int = MANY, faults: int = MANY, parts: int = MANY, fault_bytes: int = MANY
) -> Latch:
    """Bounds in entries, and in bytes."""
    return Latch(
        boot_id="boot-a", epoch="e", limits=LatchLimits(components, faults, parts, fault_bytes)
    )


def parts(held: Latch) -> list[str]:
    return [entry.component.strip() for entry in held.components.values()]


def codes(held: Latch) -> list[int]:
    return [int(code.removeprefix("own:")) for code, _ in held.faults]


def said(held: Latch) -> list[tuple[int, str]]:
    return [(loss.records, loss.message) for loss in held.unacked.losses]


# -- what an entry weighs -------------------------------------------------------------------------


def test_an_entry_weighs_its_names_and_details_in_utf_8() -> None:
    assert ComponentEntry.first(part("a"), NOW).weight == PART
    wide = Observation("own", "ü" * 8, Status.OK)
    assert ComponentEntry.first(wide, NOW).weight == PART + 8
    assert FaultEntry.first_of(fault(1), "boot-a").weight == FAULT
    told = fault(1, pid="4711", name="ü")
    assert FaultEntry.first_of(told, "boot-a").weight == FAULT + (3 + 4 + 8) + (4 + 2 + 8)


# -- components -----------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [latch(components=4), latch(parts=4 * PART)])
def test_as_many_components_as_fit_are_held_and_a_new_one_that_is_well_is_not(held: Latch) -> None:
    held.apply([part(n) for n in range(4)], NOW)
    assert parts(held) == ["0", "1", "2", "3"]
    assert said(held) == []
    held.delta(NOW)
    assert held.apply([part(4)], NOW)
    assert held.urgent, "that it does not fit is to be told"
    assert parts(held) == ["0", "1", "2", "3"]
    [(records, message)] = said(held)
    assert records == 1
    assert "components, or too long names; new ones go" in message
    held.delta(NOW)
    held.apply([part(5)], NOW)
    assert len(said(held)) == 1, "once, and not at each look"


def test_one_byte_too_few_holds_one_component_less() -> None:
    held = latch(parts=4 * PART - 1)
    held.apply([part(n) for n in range(4)], NOW)
    assert parts(held) == ["0", "1", "2"]


def test_a_component_that_is_not_well_takes_the_place_of_the_one_that_was_well_longest() -> None:
    held = latch(components=3)
    for at, name in ((3.0, "c"), (1.0, "a"), (2.0, "b")):
        held.apply([part(name)], at)
    held.apply([part("bad", Status.DEGRADED)], NOW)
    assert sorted(parts(held)) == ["b", "bad", "c"]
    held.apply([part("worse", Status.UNKNOWN)], NOW)
    assert sorted(parts(held)) == ["bad", "c", "worse"]
    held.apply([part("worst", Status.FAILED)], NOW)
    held.apply([part("last", Status.FAILED)], NOW)
    assert sorted(parts(held)) == ["bad", "worse", "worst"], "none is well any more"


def test_what_could_not_be_held_is_said_again_after_there_was_room_again() -> None:
    held = latch(components=10)
    held.apply([part(n) for n in range(11)], NOW)
    held.delta(NOW)
    held.apply([Gone("own", part(0).component), part("x"), part("y")], NOW)
    assert len(said(held)) == 1, "nine of ten were taken: that is no room"
    for n in range(1, 4):
        held.apply([Gone("own", part(n).component)], NOW)
    held.apply([part("z")], NOW)  # now eight of ten are
    held.apply([part(n) for n in range(20, 24)], NOW)
    assert len(said(held)) == 2


def test_components_that_leave_make_room_for_as_many() -> None:
    held = latch(parts=4 * PART)
    for turn in range(3):
        names = [f"{turn}-{n}" for n in range(4)]
        held.apply([part(name) for name in names], NOW)
        assert parts(held) == names
        held.keep_checks(())
    assert said(held) == []


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [latch(faults=4), latch(fault_bytes=4 * FAULT)])
def test_as_many_faults_as_fit_are_held_and_the_least_goes_with_a_word(held: Latch) -> None:
    held.apply([fault(n, at=100.0 - n) for n in range(4)], NOW)
    assert codes(held) == [0, 1, 2, 3]
    assert said(held) == []
    held.delta(NOW)
    held.apply([fault(4)], NOW)
    assert codes(held) == [0, 1, 2, 4], "the one that was last seen first"
    [(records, message)] = said(held)
    assert (records, message.partition("; ")[2]) == (1, "own:0003 was dropped")
    assert held.unacked.clearings == [], "no fault has ended"
    out = present(held.delta(NOW))
    assert [one.code for one in out.faults] == ["own:0004"]


def test_what_is_of_an_earlier_boot_goes_first_then_what_expires_then_the_oldest() -> None:
    held = latch(faults=4)
    held.apply(
        [
            fault(0, at=50.0, ends=ClearedBy.GPU_RESET),
            fault(1, at=90.0, ends=ClearedBy.EXPIRY),
            fault(2, at=99.0, historical=True),
            fault(3, at=60.0, ends=ClearedBy.OPERATOR),
        ],
        NOW,
    )
    left = []
    for n in range(4, 8):
        held.apply([fault(n, at=70.0 + n)], NOW)
        left.append({0, 1, 2, 3} & set(codes(held)))
    assert left == [{0, 1, 3}, {0, 3}, {3}, set()]


def test_faults_that_end_make_room_for_as_many() -> None:
    held = latch(fault_bytes=4 * FAULT)
    for turn in range(4):
        held.apply([fault(4 * turn + n) for n in range(4)], NOW)
        assert codes(held) == [4 * turn + n for n in range(4)]
        held.apply([Clearing("part", "operator")], NOW)
    assert said(held) == []


def test_a_fault_that_is_too_large_alone_is_held_all_the_same() -> None:
    held = latch(fault_bytes=FAULT)
    held.apply([fault(1), fault(2, text="x" * 500)], NOW)
    assert codes(held) == [2]


def test_a_fault_s_later_details_are_left_out_where_they_do_not_fit() -> None:
    held = latch(fault_bytes=2 * FAULT + 100)
    held.apply([fault(1, seq=1), fault(2, seq=2)], NOW)
    held.apply([fault(1, seq=3, text="x" * 88)], NOW)  # of 100 bytes
    assert held.faults["own:0001", "part"].details == {"text": "x" * 88}
    assert said(held) == []
    held.apply([fault(2, seq=4, text="")], NOW)
    assert held.faults["own:0002", "part"].details == {}
    assert said(held) == [(1, "check own: details of its faults do not fit")]
    assert codes(held) == [1, 2]
    held.apply([fault(1, seq=5), fault(2, seq=6, text="x" * 88)], NOW)
    assert held.faults["own:0002", "part"].details == {"text": "x" * 88}, "there is room again"
    held.apply([fault(2, seq=7), fault(3, seq=8)], NOW)
    assert codes(held) == [2, 3]


# -- what an earlier agent left -------------------------------------------------------------------


def left_behind(*sightings: FaultSighting) -> list[FaultEntry]:
    return [FaultEntry.first_of(each, "boot-a") for each in sightings]


def entries(*seen: Observation) -> list[ComponentEntry]:
    return [ComponentEntry.first(each, NOW) for each in seen]


def test_what_fits_is_restored_as_it_was_and_without_a_word() -> None:
    held = latch(components=3, parts=3 * PART, faults=3, fault_bytes=3 * FAULT)
    held.restore(
        entries(part(2), part(1, Status.FAILED), part(0)),
        left_behind(fault(2, at=1.0), fault(1, historical=True), fault(0)),
    )
    assert (parts(held), codes(held)) == (["2", "1", "0"], [2, 1, 0])
    assert said(held) == []
    assert not held.pending


@pytest.mark.parametrize(
    "held",
    [latch(components=2, faults=2), latch(parts=2 * PART, fault_bytes=2 * FAULT)],
)
def test_of_more_than_fits_what_matters_is_restored_and_the_rest_is_said(held: Latch) -> None:
    faults = left_behind(
        fault(1, historical=True),
        fault(2, ends=ClearedBy.EXPIRY),
        fault(3, at=1.0),
        fault(4, at=2.0),
    )
    held.restore(entries(part(1), part(2, Status.FAILED), part(3, Status.UNKNOWN)), faults)
    assert codes(held) == [4, 3]
    assert parts(held) == ["2", "3"]
    [(records, _)] = said(held)
    assert records == 3, "two faults, and that there were more components"
    held.apply([Clearing("part", "operator")], NOW)
    held.apply([fault(5), fault(6)], NOW)
    assert codes(held) == [5, 6], "what was left out takes no room"


def test_what_is_there_twice_is_restored_once() -> None:
    held = latch(faults=2, fault_bytes=2 * FAULT, parts=2 * PART)
    held.restore(entries(part(1), part(1)), left_behind(fault(1), fault(1)))
    assert (parts(held), codes(held)) == (["1"], [1])
    assert [message for _, message in said(held)] == [held._full], "added up: it is one source"
    held.apply([part(2), fault(2)], NOW)
    assert (parts(held), codes(held)) == (["1", "2"], [1, 2])


def test_too_long_names_and_texts_of_an_earlier_agent_are_cut() -> None:
    long = "x" * 5_000
    held = latch()
    component = ComponentEntry(long, long, Status.OK, long, long, NOW)
    sighting = replace(fault(1), code=long, check=long, component=long, message=long, source=long)
    [one] = left_behind(replace(sighting, details={long: long}))
    held.restore([component], [one])
    [entry], [latched] = held.components.values(), held.faults.values()
    most = {len(entry.check), len(latched.code), len(latched.check), len(latched.source)}
    assert most | {len(entry.reason)} | {*map(len, latched.details)} == {contract.MAX_NAME}
    assert {len(entry.component), len(latched.component)} == {contract.MAX_COMPONENT}
    texts = {len(entry.message), len(latched.message), *map(len, latched.details.values())}
    assert texts == {contract.MAX_TEXT}


# -- a fault's past, and a component's ------------------------------------------------------------


def test_of_occurrences_in_a_burst_the_first_and_the_last_are_kept() -> None:
    held = latch()
    kept = []
    for seq, at in enumerate((0.0, 10.0, 29.0, 30.0, 58.0, 59.0)):
        held.apply([fault(1, seq=seq, at=at)], NOW)
        kept.append([*held.faults["own:0001", "part"].occurrences])
    assert BURST == 30.0
    assert kept == [
        [0.0],
        [0.0, 10.0],
        [0.0, 29.0],
        [0.0, 29.0, 30.0],
        [0.0, 29.0, 58.0],
        [0.0, 29.0, 58.0, 59.0],
    ]


def test_occurrences_of_a_day_before_the_latest_stay_and_the_last_always_does() -> None:
    held = latch()
    for seq, at in enumerate((0.0, 100.0, WINDOW)):
        held.apply([fault(1, seq=seq, at=at)], NOW)
    held.snapshot(NOW)
    one = held.faults["own:0001", "part"]
    assert one.occurrences == [0.0, 100.0, WINDOW]
    assert (one.source_seq, one.last_seq, one.count) == (0, 2, 3)
    held.apply([fault(1, seq=9, at=WINDOW + 100.1)], NOW)
    held.snapshot(NOW)
    assert one.occurrences == [WINDOW, WINDOW + 100.1]
    assert len(one.occurrences) <= OCCURRENCES


def test_of_a_component_s_past_stays_a_day_and_how_it_was_when_that_began() -> None:
    held = latch()
    for at, status in ((0.0, Status.OK), (100.0, Status.FAILED), (200.0, Status.OK)):
        held.apply([part(1, status)], at)
    [entry] = held.components.values()

    def times(now: float) -> list[float]:
        held.snapshot(now)
        return [at for _, at in entry.recent]

    assert times(WINDOW + 100.0) == [0.0, 100.0, 200.0]
    assert times(WINDOW + 100.1) == [100.0, 200.0]
    assert times(WINDOW + 200.0) == [100.0, 200.0]
    assert times(WINDOW * 9) == [200.0]
    for turn in range(TRANSITIONS + 1):
        held.apply([part(1, Status.FAILED if turn % 2 else Status.DEGRADED)], WINDOW * 9 + turn)
    assert len(entry.recent) == TRANSITIONS
    assert entry.recent[0][1] == WINDOW * 9 + 1


# -- what is let go, by whom ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ("gpu-reset", {2, 3}),
        ("reboot", {3}),
        ("expiry", {1, 2, 3}),
        ("replaced", set()),
        ("operator", set()),
        ("a new word", {0, 1, 2, 3}),
    ],
)
def test_each_sign_ends_what_it_ends(how: str, left: set[int]) -> None:
    held = latch()
    each = (ClearedBy.EXPIRY, ClearedBy.GPU_RESET, ClearedBy.REBOOT, ClearedBy.OPERATOR)
    held.apply([fault(n, ends=ends) for n, ends in enumerate(each)], NOW)
    held.delta(NOW)
    assert held.apply([Clearing("part", how)], NOW)
    assert set(codes(held)) == left
    assert held.urgent
    out = present(held.delta(NOW))
    ended = [Clearing("part", how, f"own:{n:04}") for n in range(4) if n not in left]
    assert out.clearings == [*ended, Clearing("part", how)]


def test_a_sign_for_one_fault_is_told_where_it_ends_it_or_where_there_is_none() -> None:
    held = latch()
    held.apply([fault(1, ends=ClearedBy.GPU_RESET), fault(2)], NOW)
    held.delta(NOW)
    assert not held.apply([Clearing("part", "gpu-reset", "own:0002")], NOW)
    assert (held.urgent, held.pending) == (False, False)
    assert held.apply([Clearing("part", "gpu-reset", "own:0001")], NOW)
    assert held.unacked.clearings == [Clearing("part", "gpu-reset", "own:0001")]
    held.delta(NOW)
    assert held.apply([Clearing("part", "gpu-reset", "own:0007")], NOW)
    assert held.urgent, "the aggregator may remember more than this latch"
    assert held.unacked.clearings[-1] == Clearing("part", "gpu-reset", "own:0007")
    assert codes(held) == [2]


@pytest.mark.parametrize(
    ("component", "code", "left"),
    [
        ("part", "own:0001", {("own:0001", "other"), ("own:0002", "part")}),
        ("part", "", {("own:0001", "other")}),
        ("", "own:0001", {("own:0002", "part")}),
        ("", "", set()),
        ("none", "own:0001", {("own:0001", "part"), ("own:0001", "other"), ("own:0002", "part")}),
    ],
)
def test_a_person_ends_what_both_words_name(
    component: str, code: str, left: set[tuple[str, str]]
) -> None:
    held = latch()
    assert held.apply([fault(1), replace(fault(1), component="other", source_seq=1)], NOW)
    assert held.apply([fault(2)], NOW)
    assert held.apply([fault(2, seq=3)], NOW), "that it came again is to be saved"
    assert held.clear_by_operator(component=component, code=code) == 3 - len(left)
    assert set(held.faults) == left


@pytest.mark.parametrize(
    ("past", "matters"),
    [
        ([Status.OK], False),
        ([Status.DEGRADED, Status.OK], True),
        ([Status.UNKNOWN, Status.OK], True),
        ([Status.UNKNOWN], True),
        ([Status.DEGRADED], True),
    ],
)
def test_what_is_gone_matters_if_it_was_ever_other_than_well(
    past: Sequence[Status], *, matters: bool
) -> None:
    held = latch()
    for turn, status in enumerate(past):
        held.apply([part(1, status)], NOW + turn)
    held.delta(NOW)
    assert held.apply([Gone("own", part(1).component)], NOW)
    assert held.urgent
    assert held.unacked.gone == [(Gone("own", part(1).component), matters)]
    assert held.apply([part(1)], NOW)
    assert held.unacked.gone == [], "it is back"


def test_a_component_is_dropped_at_the_second_whole_look_without_it() -> None:
    held = latch()
    seen = [part("a"), part("b"), part("bad", Status.FAILED)]
    held.apply(seen, NOW, run_of="own")
    held.apply([Observation("other", "x", Status.OK)], NOW, run_of="other")
    assert not held.apply([part("a")], NOW, run_of="own")
    assert not held.apply([part("a"), part("b")], NOW, run_of="own")
    assert not held.apply([part("a")], NOW, run_of="own"), "it was there between"
    assert held.apply([part("a")], NOW, run_of="own")
    assert parts(held) == ["a", "bad", "x"]
    assert held.known("own") == [part("a").component, part("bad").component]
    assert held.known("other") == ["x"]
    assert held.known("none") == []


def test_a_digest_is_of_what_was_sent_and_changes_with_each_message() -> None:
    held = latch()
    empty = held.digest()
    held.apply([part(1), fault(1)], NOW)
    assert held.digest() == empty, "nothing was sent yet"
    held.delta(NOW)
    one = held.digest()
    assert one != empty
    held.apply([part(1, Status.FAILED)], NOW)
    assert held.digest() == one
    held.delta(NOW)
    other = held.digest()
    assert other != one
    held.snapshot(NOW)
    assert held.digest() == other
    held.apply([Clearing("part", "operator")], NOW)
    held.delta(NOW)
    assert held.digest() != other
    held.clear_by_operator(component="", code="own")
    held.apply([part(1), Gone("own", part(1).component)], NOW)
    held.delta(NOW)
    assert held.digest() == empty


# -- whatever comes -------------------------------------------------------------------------------

SMALL = LatchLimits(components=6, faults=5, components_bytes=5 * PART, faults_bytes=4 * FAULT + 60)
ITEMS = st.one_of(
    st.builds(part, st.integers(0, 9), st.sampled_from(Status), st.sampled_from(["", "full"])),
    st.builds(lambda n: Gone("own", part(n).component), st.integers(0, 9)),
    st.builds(Clearing, st.just("part"), st.sampled_from(["gpu-reset", "operator"])),
    st.builds(
        fault,
        st.integers(0, 9),
        ends=st.sampled_from(ClearedBy),
        historical=st.booleans(),
        text=st.text(max_size=30),
    ),
)


@given(st.lists(st.lists(ITEMS, max_size=5), max_size=12), st.sampled_from(["delta", "snapshot"]))
def test_whatever_comes_the_bounds_hold_and_nothing_stays_counted(
    story: list[Batch], turns: str
) -> None:
    held = Latch(boot_id="boot-a", epoch="e", limits=SMALL)
    seq = 0
    for turn, batch in enumerate(story):
        numbered: list[Evidence | Gone] = []
        for item in batch:
            seq += 1
            if isinstance(item, FaultSighting):
                numbered.append(replace(item, source_seq=seq))
            else:
                numbered.append(item)
        held.apply(numbered, NOW + turn, run_of="own" if turn % 3 else "")
        if turns == "snapshot":
            held.snapshot(NOW)
        else:
            held.delta(NOW)
        weights = [entry.weight for entry in held.components.values()]
        assert len(weights) <= SMALL.components
        assert sum(weights) <= SMALL.components_bytes
        weights = [entry.weight for entry in held.faults.values()]
        assert len(weights) <= SMALL.faults
        assert sum(weights) <= SMALL.faults_bytes or len(weights) == 1
    for _ in range(2):
        held.apply([part(n) for n in range(10)], NOW)
        held.clear_by_operator(component="", code="")
        held.keep_checks(())
        for name in parts(held):  # those that failed leave when a person lets go of them
            held.apply([part(name)], NOW)
        held.keep_checks(())
        assert (held.components, held.faults) == ({}, {})
    held.apply([part(n) for n in range(10)], NOW)
    held.apply([fault(n, seq=seq + 1 + n) for n in range(9)], NOW)
    assert (len(held.components), len(held.faults)) == (5, 4)
