"""The latch: evidence in force, and unacknowledged events; its bounds are in test_latch_bounds."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.evidence.entries import BURST, OCCURRENCES, ComponentEntry
from nodeagent.evidence.latch import Latch, LatchLimits, Outgoing
from nodeagent.model import (
    Batch,
    ClearedBy,
    Clearing,
    FaultSighting,
    Gone,
    Loss,
    Observation,
    Status,
)
from tests.support.present import present

NOW = 1000.0


def latch(limits: LatchLimits | None = None) -> Latch:
    return Latch(boot_id="boot-a", epoch="e", limits=limits)


def xid(
    seq: int,
    code: int = 79,
    component: str = "GPU-1",
    *,
    cleared_by: ClearedBy = ClearedBy.REBOOT,
    at: float = NOW,
    historical: bool = False,
) -> FaultSighting:
    return FaultSighting(
        f"xid:{code}",
        "xid",
        component,
        f"seen as {seq}",
        "kmsg",
        seq,
        at,
        cleared_by=cleared_by,
        historical=historical,
        details={"pid": str(seq)},
    )


def disk(status: Status, message: str = "", component: str = "/", reason: str = "") -> Observation:
    return Observation("disk-space", component, status, reason, message)


# -- faults ---------------------------------------------------------------------------------------


def test_a_fault_keeps_its_first_identity_and_takes_the_latest_details() -> None:
    held = latch()
    held.apply([xid(5, at=10.0), xid(9, at=20.0)], NOW)
    fault = held.faults["xid:79", "GPU-1"]
    assert (fault.source_seq, fault.first, fault.last, fault.count) == (5, 10.0, 20.0, 2)
    assert (fault.message, fault.details) == ("seen as 9", {"pid": "9"})
    assert fault.occurrences == [10.0, 20.0]


def test_a_replayed_sighting_changes_nothing_even_after_its_fault_was_cleared() -> None:
    held = latch()
    held.apply([xid(5, cleared_by=ClearedBy.GPU_RESET)], NOW)
    held.apply([Clearing("GPU-1", "gpu-reset")], NOW)
    assert held.apply([xid(5, cleared_by=ClearedBy.GPU_RESET)], NOW) is False
    assert held.faults == {}


def test_two_faults_of_one_record_are_both_latched() -> None:
    held = latch()
    held.apply([xid(5, 48), xid(5, 63)], NOW)
    assert set(held.faults) == {("xid:48", "GPU-1"), ("xid:63", "GPU-1")}


def test_a_new_sighting_turns_a_historical_fault_into_a_live_one() -> None:
    held = latch()
    held.apply([xid(1, historical=True), xid(2, historical=True)], NOW)
    held.apply([xid(7)], NOW)
    fault = held.faults["xid:79", "GPU-1"]
    assert (fault.historical, fault.source_seq, fault.count) == (False, 7, 1)
    assert held.urgent


def test_occurrences_are_bounded_and_the_count_is_not() -> None:
    held = latch()
    held.apply([xid(seq, at=seq * BURST) for seq in range(1, 101)], NOW)
    fault = held.faults["xid:79", "GPU-1"]
    assert fault.count == 100
    assert fault.occurrences == [seq * BURST for seq in range(101 - OCCURRENCES, 101)]


def test_sightings_that_share_their_words_are_counted_each() -> None:
    """As a storm's are: the same objects, which are within the bounds if the first was."""
    held = latch()
    first = xid(1)
    held.apply([first], NOW)
    held.delta(NOW)
    held.apply([replace(first, source_seq=seq, at=NOW + seq) for seq in (2, 3, 3, 1)], NOW)
    fault = held.faults["xid:79", "GPU-1"]
    assert (fault.count, fault.last_seq, fault.last) == (4, 3, NOW + 3)
    assert (fault.message, fault.details) == ("seen as 1", {"pid": "1"})
    assert held.applied == {"kmsg": 3}
    assert held.delta(NOW) is not None
    harder = replace(first, source_seq=4, cleared_by=ClearedBy.OPERATOR)
    held.apply([harder], NOW)
    assert (fault.cleared_by, held.urgent) == (ClearedBy.OPERATOR, True)
    held.apply([replace(first, source_seq=5, details={"pid": "other"})], NOW)
    assert fault.details == {"pid": "other"}, "the message alone is the same object"
    held.clear_by_operator(component="GPU-1", code="")
    held.apply([replace(first, source_seq=6)], NOW)
    assert held.faults["xid:79", "GPU-1"].count == 1


def test_known_words_under_a_name_that_is_none_are_checked_anew() -> None:
    held = latch()
    first = xid(1)
    held.apply([first], NOW)
    no_text: Any = ["xid:79"]
    for wrong in (replace(first, code=no_text), replace(first, check="\n" * 900)):
        held.apply([replace(wrong, source_seq=2)], NOW)
    assert all(isinstance(code, str) for code, _ in held.faults)


def test_a_milder_meaning_of_the_same_code_does_not_hide_the_fatal_one() -> None:
    held = latch()
    fatal = replace(xid(1, 145), details={"severity": "fatal", "intr_info": "0x00000007"})
    mild = replace(xid(2, 145), details={"severity": "non-fatal", "intr_info": "0x00000003"})
    held.apply([fatal, mild], NOW)
    fault = held.faults["xid:145", "GPU-1"]
    assert (fault.count, fault.details["intr_info"]) == (2, "0x00000007")
    held.apply([replace(fatal, source_seq=3, details={"severity": "fatal"})], NOW)
    assert fault.details == {"severity": "fatal"}


def test_what_is_harder_to_end_wins() -> None:
    held = latch()
    held.apply([xid(1, 154, cleared_by=ClearedBy.GPU_RESET)], NOW)
    held.delta(NOW)
    held.apply([xid(2, 154, cleared_by=ClearedBy.REBOOT)], NOW)
    assert held.faults["xid:154", "GPU-1"].cleared_by is ClearedBy.REBOOT
    assert held.urgent
    held.apply([xid(3, 154, cleared_by=ClearedBy.GPU_RESET)], NOW)
    assert held.faults["xid:154", "GPU-1"].cleared_by is ClearedBy.REBOOT


# -- clearing -------------------------------------------------------------------------------------


def test_a_gpu_reset_ends_what_a_reset_ends_and_that_gpus_alone() -> None:
    held = latch()
    reset = ClearedBy.GPU_RESET
    held.apply([xid(1, 48, cleared_by=reset), xid(2, 79), xid(3, 48, "GPU-2")], NOW)
    held.apply([Clearing("GPU-1", "gpu-reset")], NOW)
    assert set(held.faults) == {("xid:79", "GPU-1"), ("xid:48", "GPU-2")}
    out = present(held.delta(NOW))
    # The fault by name, and the sign itself for an aggregator that remembers more than we do.
    assert out.clearings == [
        Clearing("GPU-1", "gpu-reset", "xid:48"),
        Clearing("GPU-1", "gpu-reset"),
    ]


# -- components -----------------------------------------------------------------------------------


def test_a_message_alone_is_no_transition_and_not_urgent_but_is_sent() -> None:
    held = latch()
    held.apply([disk(Status.DEGRADED, "90 %")], 10.0)
    held.delta(10.0)
    assert held.apply([disk(Status.DEGRADED, "91 %")], 20.0) is True
    assert not held.urgent
    out = present(held.delta(21.0))
    assert [(c.message, c.since, c.recent) for c in out.components] == [
        ("91 %", 10.0, [(Status.DEGRADED, 10.0)])
    ]


@pytest.mark.parametrize("status", [Status.OK, Status.UNKNOWN])
def test_words_about_what_is_not_failing_are_sent_with_the_next_message(status: Status) -> None:
    held = latch()
    held.apply([disk(status, "40 %")], 10.0)
    held.delta(10.0)
    assert held.apply([disk(status, "41 %")], 20.0) is False
    assert not held.pending
    assert held.delta(20.0) is None
    assert held.components["disk-space", "/"].message == "41 %", "who asks here hears the latest"
    held.apply([disk(Status.FAILED, component="/other")], 30.0)
    out = present(held.delta(30.0))
    assert [c.message for c in out.components] == ["41 %", ""]
    assert held.apply([disk(status, "41 %")], 10_000.0) is False, "they have been sent"


def test_words_wait_a_quarter_of_an_hour_at_most_whatever_comes_after_them() -> None:
    held = latch()
    held.apply([disk(Status.OK, "0")], 0.0)
    held.delta(0.0)
    told = []
    for minute in range(1, 61):
        held.apply([disk(Status.OK, str(minute))], minute * 60.0)
        if held.pending:
            out = present(held.delta(minute * 60.0))
            told += [entry.message for entry in out.components]
    assert told == ["16", "32", "48"]


def test_words_of_what_has_failed_meanwhile_are_not_kept_back() -> None:
    held = latch()
    held.apply([disk(Status.OK, "40 %")], 0.0)
    held.delta(0.0)
    held.apply([disk(Status.OK, "41 %")], 1.0)
    held.apply([disk(Status.FAILED, "41 %")], 2.0)
    assert held.urgent
    out = present(held.delta(2.0))
    assert [(c.status, c.message) for c in out.components] == [(Status.FAILED, "41 %")]


def test_a_status_change_is_urgent_and_remembered() -> None:
    held = latch()
    held.apply([disk(Status.OK)], 10.0)
    held.delta(10.0)
    held.apply([disk(Status.FAILED)], 20.0)
    assert held.urgent
    entry = held.components["disk-space", "/"]
    assert entry.since == 20.0
    assert entry.recent == [(Status.OK, 10.0), (Status.FAILED, 20.0)]


@pytest.mark.parametrize("before", [None, *Status])
@pytest.mark.parametrize("after", list(Status))
def test_every_change_of_a_status_is_to_be_saved_and_told_at_once(
    before: Status | None, after: Status
) -> None:
    held = latch()
    if before is not None:
        held.apply([disk(before)], NOW)
        held.delta(NOW)
    changed = before is not after
    assert held.apply([disk(after)], NOW + 1) is changed
    assert held.urgent is changed
    assert (held.delta(NOW + 1) is not None) is changed
    assert not held.apply([disk(after)], NOW + 2), "the same again is no change"
    assert not held.urgent


def test_another_reason_alone_is_to_be_saved_and_told_at_once() -> None:
    held = latch()
    held.apply([disk(Status.FAILED, reason="bytes")], NOW)
    held.delta(NOW)
    assert held.apply([disk(Status.FAILED, reason="inodes")], NOW + 5)
    assert held.urgent
    [entry] = held.components.values()
    assert (entry.since, entry.reason) == (NOW, "inodes"), "it has failed since the first of them"


def test_news_of_the_past_move_the_mark_and_leave_a_live_fault_as_it_is() -> None:
    held = latch()
    held.apply([xid(5, at=10.0)], NOW)
    held.delta(NOW)
    live = replace(held.faults["xid:79", "GPU-1"])
    assert held.apply([xid(9, at=5.0, historical=True)], NOW + 1), "the mark is to be saved"
    assert held.applied["kmsg"] == 9
    assert held.faults["xid:79", "GPU-1"] == live
    assert held.delta(NOW + 1) is None, "nothing of it is told"
    assert not held.apply([xid(8, at=5.0)], NOW + 2), "what is before the mark is known"
    assert held.faults["xid:79", "GPU-1"] == live


def test_what_failed_and_was_taken_away_is_missed_by_the_looks_that_follow() -> None:
    held = latch()
    held.apply([disk(Status.FAILED, component="/data")], NOW)
    assert not held.apply([Gone("disk-space", "/data")], NOW)
    assert held.components["disk-space", "/data"].absent == 1
    assert not held.apply([Gone("disk-space", "/data")], NOW), "said again it is no later look"
    assert held.components["disk-space", "/data"].absent == 1
    assert not held.apply([Gone("disk-space", "/never")], NOW)
    held.apply([disk(Status.FAILED, component="/data")], NOW)
    assert held.components["disk-space", "/data"].absent == 0, "it is there again"


def test_absence_clears_no_failure() -> None:
    held = latch()
    held.apply([disk(Status.FAILED), disk(Status.OK, component="/data")], NOW, run_of="disk-space")
    for _ in range(5):
        held.apply([], NOW, run_of="disk-space")
    held.apply([Gone("disk-space", "/")], NOW)
    assert set(held.components) == {("disk-space", "/")}
    # It would be stuck for good without this: a person may let go of it.
    assert held.clear_by_operator(component="/", code="") == 1
    assert held.components == {}


def test_one_missed_look_drops_nothing_but_an_unknown() -> None:
    held = latch()
    batch = [disk(Status.OK), disk(Status.UNKNOWN, component="", reason="hung")]
    held.apply(batch, NOW, run_of="disk-space")
    held.delta(NOW)
    held.apply([], NOW, run_of="disk-space")
    assert set(held.components) == {("disk-space", "/")}
    held.apply([], NOW, run_of="disk-space")
    assert held.components == {}
    out = present(held.delta(NOW))
    assert [entry.component for entry in out.gone] == ["", "/"]


def test_what_failed_and_is_unknown_since_is_not_gone_when_it_is_missed() -> None:
    """The check hangs, and then the disk is taken away: no look has seen it well meanwhile."""
    held = latch()
    held.apply([disk(Status.FAILED, reason="full")], NOW)
    held.apply([disk(Status.UNKNOWN, reason="hung")], NOW + 1)
    held.apply([Gone("disk-space", "/")], NOW + 2)
    held.apply([], NOW + 3, run_of="disk-space")
    held.keep_checks(())
    assert ("disk-space", "/") in held.components
    assert held.unacked.gone == []
    held.apply([disk(Status.OK)], NOW + 4)
    held.apply([disk(Status.UNKNOWN, reason="hung")], NOW + 5)
    held.apply([Gone("disk-space", "/")], NOW + 6)
    assert [one for one, _ in held.unacked.gone] == [Gone("disk-space", "/")]


def test_words_that_changed_and_are_repeated_are_sent_after_a_quarter_of_an_hour() -> None:
    made = latch()
    made.apply([disk(Status.OK, "10 % used")], NOW)
    made.delta(NOW)
    for minute in range(1, 16):
        made.apply([disk(Status.OK, "11 % used")], NOW + 60 * minute)
        assert not made.pending
    made.apply([disk(Status.OK, "11 % used")], NOW + 60 * 16)
    assert made.pending


def test_a_component_that_is_no_text_gets_a_name() -> None:
    made = latch()
    for _ in range(2):
        made.apply([Observation("own", ["x"], Status.OK)], NOW)  # type: ignore[arg-type]
    assert made.known("own") == ["['x']"]


class Plodding(Latch):
    """Takes each observation as if it were new, and looks at every component after each look."""

    def _repeats(self, seen: Observation) -> bool:
        return False

    def _count_absent(self, check: str, named: Collection[str]) -> bool:
        self._held[check] = -1
        return super()._count_absent(check, named)

    def _drop_component(self, entry: ComponentEntry) -> None:
        self._held[entry.check] = 1
        super()._drop_component(entry)


observations = st.builds(
    Observation,
    check=st.sampled_from(["a", "b"]),
    component=st.sampled_from(["x", "y", "z", "w" * 3000]),
    status=st.sampled_from([Status.OK, Status.OK, Status.FAILED, Status.UNKNOWN]),
    reason=st.sampled_from(["", "r"]),
    message=st.sampled_from(["m", "n"]),
)


@given(
    looks=st.lists(
        st.tuples(
            st.lists(observations, max_size=4),
            st.sampled_from(["a", "b", ""]),
            st.sampled_from([1.0, 60.0, 1000.0]),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_a_repeated_observation_has_the_effect_of_a_new_one(
    looks: list[tuple[list[Observation], str, float, bool]],
) -> None:
    """Nearly all repeat the one before, and are not looked at further."""
    limits = LatchLimits(components=3)
    quick = latch(limits)
    plodding = Plodding(boot_id="boot-a", epoch="e", limits=limits)
    now = NOW
    for batch, run_of, passed, sent in looks:
        now += passed
        told = [each.apply(batch, now, run_of=run_of) for each in (quick, plodding)]
        assert told[0] == told[1]
        assert quick.components == plodding.components
        assert (quick.urgent, quick.pending) == (plodding.urgent, plodding.pending)
        if sent:
            assert quick.delta(now) == plodding.delta(now)


def test_text_that_no_wire_can_carry_is_escaped() -> None:
    held = latch()
    held.apply([disk(Status.OK, component="/mnt/\udcff")], NOW)
    held.apply([disk(Status.FAILED, component="/mnt/\udcff")], NOW)
    assert list(held.components) == [("disk-space", "/mnt/\\udcff")]
    held.snapshot(NOW)


# -- sending --------------------------------------------------------------------------------------


def test_a_delta_carries_what_changed_and_a_snapshot_everything() -> None:
    held = latch()
    held.apply([disk(Status.OK), xid(1)], NOW)
    first = held.snapshot(NOW)
    assert (first.seq, len(first.components), len(first.faults)) == (1, 1, 1)
    assert held.delta(NOW) is None
    held.apply([xid(2)], NOW)
    assert not held.urgent  # a count can wait
    second = present(held.delta(NOW))
    assert (second.seq, second.components, [f.count for f in second.faults]) == (2, [], [2])


def test_an_ack_frees_only_what_its_messages_carried_and_never_a_fault() -> None:
    held = latch()
    held.apply([xid(1), Loss("kmsg", 3, "gone")], NOW)
    held.snapshot(NOW)  # 1
    held.apply([Loss("kmsg", 4, "more")], NOW)
    held.delta(NOW)  # 2
    held.apply([Loss("kmsg", 5, "untold")], NOW)
    assert held.acknowledge(1) is True
    assert [loss.records for loss in held.unacked.losses] == [4, 5]
    assert held.acknowledge(99) is False  # no aggregator can have seen that
    assert held.acknowledge(2) is True
    assert [loss.records for loss in held.unacked.losses] == [5]
    assert ("xid:79", "GPU-1") in held.faults
    assert held.acknowledge(1) is False


def test_what_no_ack_freed_goes_into_the_next_snapshot_and_is_freed_there() -> None:
    held = latch()
    held.apply([Clearing("GPU-1", "gpu-reset"), Loss("kmsg", 3, "gone")], NOW)
    held.delta(NOW)
    again = held.snapshot(NOW)
    assert (len(again.clearings), len(again.losses)) == (1, 1)
    assert held.delta(NOW) is None
    held.acknowledge(again.seq)
    assert held.snapshot(NOW).clearings == []


# -- properties -----------------------------------------------------------------------------------

CODES = st.sampled_from([31, 48, 79, 154])
GPUS = st.sampled_from(["GPU-1", "GPU-2"])
OBSERVATIONS = st.builds(
    Observation,
    check=st.sampled_from(["disk-space", "reach"]),
    component=st.sampled_from(["", "/", "/data"]),
    status=st.sampled_from(Status),
    reason=st.sampled_from(["", "full"]),
    message=st.text(max_size=3),
)
SIGNS = st.builds(
    Clearing,
    component=GPUS,
    how=st.sampled_from(["gpu-reset", "replaced", "operator"]),
    code=st.sampled_from(["", "xid:48"]),
)


@st.composite
def stories(draw: st.DrawFn) -> list[Batch]:
    """Batches as they come: sightings in the order of the kernel log, and all other entries."""
    batches: list[Batch] = []
    seq = 0
    for _ in range(draw(st.integers(1, 8))):
        batch: list[Observation | FaultSighting | Clearing] = []
        for _ in range(draw(st.integers(0, 4))):
            seq += 1
            ends = draw(st.sampled_from(ClearedBy))
            batch.append(xid(seq, draw(CODES), draw(GPUS), cleared_by=ends, at=float(seq)))
        batch += draw(st.lists(OBSERVATIONS | SIGNS, max_size=3))
        batches.append(batch)
    return batches


def sightings(batches: Sequence[Batch]) -> list[FaultSighting]:
    return [item for batch in batches for item in batch if isinstance(item, FaultSighting)]


@given(stories(), st.data())
def test_replaying_any_part_of_the_kernel_log_changes_nothing(
    story: list[Batch], data: st.DataObject
) -> None:
    held = latch()
    for batch in story:
        held.apply(batch, NOW)
    seen = sightings(story)
    start = data.draw(st.integers(0, len(seen)))
    end = data.draw(st.integers(start, len(seen)))
    before = repr(held.faults)
    assert held.apply(seen[start:end], NOW + 1) is False
    assert repr(held.faults) == before


class Folded:
    """The state of an aggregator that applies docs/contract.md."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, ...], bytes] = {}

    def take(self, out: Outgoing, *, whole: bool) -> None:
        if whole:
            self.lines.clear()
        for entry in out.gone:
            self.lines.pop(("c", *entry.key), None)
        if not whole:
            for sign in out.clearings:
                self.lines.pop(("f", sign.code, sign.component), None)
        for c in out.components:
            line = f"c\x1f{c.check}\x1f{c.component}\x1f{int(c.status)}\x1f{c.reason}\n"
            self.lines["c", *c.key] = line.encode()
        for f in out.faults:
            identity = f"{f.boot_id}\x1f{f.source}\x1f{f.source_seq}\x1f{f.count}\n"
            self.lines["f", *f.key] = f"f\x1f{f.code}\x1f{f.component}\x1f{identity}".encode()

    def digest(self) -> int:
        content = b"".join(sorted(self.lines.values()))
        return int.from_bytes(blake2b(content, digest_size=8).digest(), "big")


@given(stories(), st.lists(st.sampled_from(["delta", "snapshot", "wait", "look"]), max_size=8))
def test_the_digest_is_that_of_whoever_got_every_message(
    story: list[Batch], turns: list[str]
) -> None:
    held = latch(LatchLimits(components=3, faults=3))
    far = Folded()
    far.take(held.snapshot(NOW), whole=True)
    for batch, turn in zip(story, turns + ["delta"] * len(story), strict=False):
        held.apply(batch, NOW, run_of="reach" if turn == "look" else "")
        if turn == "snapshot":
            far.take(held.snapshot(NOW), whole=True)
        elif turn != "wait" and (out := held.delta(NOW)) is not None:
            far.take(out, whole=False)
        assert held.digest() == far.digest()


@given(stories())
def test_a_late_listener_learns_everything_from_one_snapshot(story: list[Batch]) -> None:
    held = latch()
    followed, late = Folded(), Folded()
    followed.take(held.snapshot(NOW), whole=True)
    for batch in story:
        held.apply(batch, NOW)
        if (out := held.delta(NOW)) is not None:
            followed.take(out, whole=False)
    late.take(held.snapshot(NOW), whole=True)
    assert late.lines == followed.lines


def test_the_example_of_the_contract_page() -> None:
    held = latch()
    held.boot_id = "b"
    held.apply([disk(Status.FAILED, reason="full"), xid(7), xid(8)], NOW)
    held.snapshot(NOW)
    assert f"{held.digest():#018x}" == EXAMPLE


EXAMPLE = "0x32dd7d21c253ece2"


@pytest.mark.parametrize("how", ["replaced", "named"])
def test_a_failed_part_leaves_when_another_has_its_place_or_it_another_name(how: str) -> None:
    latch = Latch(boot_id="b", epoch="e")
    failed = [Observation(check, "GPU-1", Status.FAILED, "x") for check in ("gpu-rows", "gpu-ecc")]
    other = Observation("gpu-rows", "GPU-2", Status.FAILED, "failure")
    operator = FaultSighting("xid:54", "xid", "GPU-1", "", "kmsg", 1, 1.0, ClearedBy.OPERATOR)
    latch.apply([*failed, other, operator], 1.0)
    latch.snapshot(1.0)
    latch.apply([Clearing("GPU-1", how)], 2.0)
    assert set(latch.components) == {("gpu-rows", "GPU-2")}
    assert bool(latch.faults) is (how == "named"), "a name ends no fault"
    out = present(latch.delta(2.0))
    assert {(one.check, one.component) for one in out.gone} == {
        ("gpu-rows", "GPU-1"),
        ("gpu-ecc", "GPU-1"),
    }
    assert Clearing("GPU-1", how) in out.clearings


def test_what_was_failed_and_is_unknown_for_days_is_not_gone_when_its_check_leaves_it_out() -> None:
    latch = Latch(boot_id="b", epoch="e")
    for at, status in ((1.0, Status.OK), (2.0, Status.FAILED), (3.0, Status.UNKNOWN)):
        latch.apply([Observation("infiniband", "mlx5_0/1", status)], at)
    for day in range(1, 5):
        latch.snapshot(day * 86_400.0)
        latch.apply([], day * 86_400.0, run_of="infiniband")
    assert latch.components[("infiniband", "mlx5_0/1")].last_known is Status.FAILED
    assert latch.unacked.gone == []
