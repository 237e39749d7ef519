"""Unacknowledged events: when they are sent, when they are freed, and their bounds."""

from dataclasses import asdict, replace

import pytest

from nodeagent.evidence.entries import WINDOW
from nodeagent.evidence.latch import Latch
from nodeagent.evidence.state import State, dump, restore
from nodeagent.evidence.unacked import UnackedEvents
from nodeagent.model import ClearedBy, Clearing, FaultSighting, Gone, Loss, Observation, Status

SIGN, LOSS, AWAY = Clearing("GPU-1", "gpu-reset"), Loss("kmsg", 3, "gap"), Gone("disk", "/a")


def full() -> UnackedEvents:
    held = UnackedEvents()
    held.clear(SIGN)
    held.add_loss(LOSS)
    held.take_gone(AWAY, matters=True)
    return held


def test_each_thing_is_carried_once_and_by_every_snapshot_until_it_is_acknowledged() -> None:
    nothing: tuple[list[Clearing], list[Loss], list[Gone]] = ([], [], [])
    assert UnackedEvents().carry(1, everything=True) == nothing
    assert not UnackedEvents().has_unsent
    held = full()

    def has_unsent() -> bool:
        return held.has_unsent

    assert has_unsent()
    assert held.carry(5, everything=False) == ([SIGN], [LOSS], [AWAY])
    assert not has_unsent()
    assert held.carry(6, everything=False) == nothing
    assert held.carry(7, everything=True) == ([SIGN], [LOSS], [AWAY])
    assert not held.acknowledged(6), "the latest message that carried them was the seventh"
    assert held.carry(8, everything=True) == ([SIGN], [LOSS], [AWAY])
    assert held.acknowledged(8)
    assert not held.acknowledged(9)
    assert not [*held.clearings, *held.losses, *held.gone]
    assert not has_unsent()


def test_what_was_in_no_message_is_freed_by_no_acknowledgement() -> None:
    held = full()
    assert not held.acknowledged(100)
    held.carry(5, everything=False)
    later = Clearing("GPU-2", "reboot")
    held.clear(later)
    assert held.has_unsent
    assert held.acknowledged(5)
    assert held.clearings == [later]
    assert held.has_unsent


def test_the_same_sign_again_is_told_again_and_owed_once() -> None:
    held = full()
    held.carry(5, everything=False)
    held.clear(SIGN)
    assert held.clearings == [SIGN]
    assert held.carry(6, everything=False) == ([SIGN], [], [])
    assert held.acknowledged(5)
    assert held.clearings == [SIGN], "the fifth message did not carry this one"


# -- the latch that owes ----------------------------------------------------------------------


def sighting(seq: int, **changes: object) -> FaultSighting:
    base = FaultSighting("xid:79", "xid", "GPU-1", "m", "kmsg", seq, 10.0 * seq)
    return replace(base, **changes)  # type: ignore[arg-type]  # a test's words


def used() -> Latch:
    held = Latch(boot_id="boot-a", epoch="e")
    held.apply(
        [
            Observation("disk", "/a", Status.FAILED, "full", "words"),
            Observation("disk", "/b", Status.OK, "", "fine"),
            sighting(1, cleared_by=ClearedBy.REBOOT, details={"pid": "7"}),
            sighting(2, code="xid:48", cleared_by=ClearedBy.OPERATOR, historical=True),
            SIGN,
            LOSS,
        ],
        100.0,
    )
    held.apply([Observation("disk", "/b", Status.DEGRADED, "slow", "")], 150.0)
    held.apply([Gone("disk", "/b")], 160.0)
    held.apply([Observation("disk", "/c", Status.OK, "", "")], 170.0, run_of="disk")
    held.snapshot(200.0)
    held.acknowledge(1)
    held.apply([sighting(3)], 210.0)
    held.delta(210.0)
    return held


def content_of(latch: Latch) -> tuple[object, ...]:
    return (
        [asdict(entry) for entry in latch.components.values()],
        [asdict(entry) for entry in latch.faults.values()],
        (latch.boot_id, latch.epoch, latch.last_seq, latch.last_acked, latch.applied),
        (latch.unacked.clearings, latch.unacked.losses, latch.unacked.gone),
    )


def test_a_state_of_this_boot_is_restored_in_every_part() -> None:
    before = State(used(), 77, {"0000:1b:00": "GPU-1"}, 55.5)
    after = restore(dump(before, 300.0), boot_id="boot-a", new_epoch=None)
    assert content_of(after.latch) == content_of(before.latch)
    assert (after.kernel_seq, after.gpus, after.quiesced_until) == (77, before.gpus, 55.5)
    behind = restore(dump(before, 300.0), boot_id="boot-a", new_epoch=lambda: "new")
    assert behind.latch.epoch == "new"
    nothing = restore(dump(State(used()), 300.0), boot_id="boot-a", new_epoch=None)
    assert (nothing.kernel_seq, nothing.gpus, nothing.quiesced_until) == (None, {}, 0.0)


def test_of_another_boot_stay_what_a_person_ends_and_what_is_owed() -> None:
    before = State(used(), 77, {"0000:1b:00": "GPU-1"}, 55.5)
    after = restore(dump(before, 300.0), boot_id="boot-b", new_epoch=None)
    assert after.latch.boot_id == "boot-b"
    assert list(after.latch.faults) == [("xid:48", "GPU-1")]
    [fault] = after.latch.faults.values()
    assert (fault.first, fault.last, fault.occurrences) == (-280.0, -280.0, [-280.0])
    assert not after.latch.components
    assert after.latch.applied == {}
    assert (after.kernel_seq, after.quiesced_until) == (None, 0.0)
    assert after.gpus == before.gpus
    assert (after.latch.last_seq, after.latch.last_acked) == (2, 1)
    assert after.latch.unacked.clearings == before.latch.unacked.clearings
    assert after.latch.unacked.gone == before.latch.unacked.gone


@pytest.mark.parametrize(("seq", "freed"), [(0, False), (1, True), (2, False)])
def test_an_acknowledgement_counts_for_what_was_sent_and_not_acknowledged_yet(
    seq: int, *, freed: bool
) -> None:
    held = Latch(boot_id="boot-a", epoch="e")
    held.apply([SIGN], 100.0)
    held.snapshot(100.0)
    assert held.acknowledge(seq) is freed
    assert held.last_acked == (1 if freed else 0)
    assert not held.acknowledge(1) or not freed, "a second time it frees nothing"


@pytest.mark.parametrize("item", [SIGN, LOSS, sighting(1)])
def test_what_happened_once_is_told_at_once(item: Clearing | Loss | FaultSighting) -> None:
    held = Latch(boot_id="boot-a", epoch="e")

    def waits() -> tuple[bool, bool]:
        return held.urgent, held.pending

    assert waits() == (False, False)
    assert held.apply([item], 100.0)
    assert waits() == (True, True)
    assert held.delta(100.0) is not None
    assert waits() == (False, False)
    assert held.delta(100.0) is None


def test_a_fault_that_expires_does_so_a_day_after_its_last_occurrence() -> None:
    held = Latch(boot_id="boot-a", epoch="e")
    held.apply([sighting(1, cleared_by=ClearedBy.EXPIRY), sighting(2, code="xid:48")], 100.0)
    assert not held.expire(10.0 + WINDOW - 0.1)
    assert held.expire(10.0 + WINDOW)
    assert list(held.faults) == [("xid:48", "GPU-1")]
    assert not held.expire(10.0 * WINDOW)
    assert held.unacked.clearings == [Clearing("GPU-1", "expiry", "xid:79")]


def test_a_person_ends_components_that_their_check_names_no_more_and_no_others() -> None:
    held = Latch(boot_id="boot-a", epoch="e")
    for name in ("/a", "/b"):
        held.apply([Observation("disk", name, Status.FAILED, "full", "")], 100.0)
    held.apply([Observation("nic", "/a", Status.FAILED, "down", "")], 100.0)
    assert held.clear_by_operator(component="/a", code="") == 0, "it is still named"
    for name in ("disk", "nic"):
        held.apply([], 110.0, run_of=name)
    assert held.clear_by_operator(component="/a", code="disk") == 1
    assert set(held.components) == {("disk", "/b"), ("nic", "/a")}
    assert held.clear_by_operator(component="", code="disk") == 1
    assert held.clear_by_operator(component="/a", code="") == 1
    assert held.components == {}


def test_the_components_of_checks_that_run_no_more_leave_unless_they_failed() -> None:
    held = Latch(boot_id="boot-a", epoch="e")
    held.apply([Observation("disk", "/a", Status.FAILED, "full", "")], 100.0)
    held.apply([Observation("disk", "/b", Status.OK, "", "")], 100.0)
    held.apply([Observation("nic", "eth0", Status.OK, "", "")], 100.0)
    assert held.known("disk") == ["/a", "/b"]
    assert not held.keep_checks(["disk", "nic"])
    assert held.keep_checks(["nic"])
    assert set(held.components) == {("disk", "/a"), ("nic", "eth0")}
    assert not held.keep_checks(["nic"])
