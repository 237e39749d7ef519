"""The bound of unacknowledged events, to the byte; which go first, and how that is reported."""

import pytest

from nodeagent.evidence.unacked import LIMIT, UnackedEvents
from nodeagent.model import Clearing, Gone, Loss
from sickbay.v1 import limits

#: Bytes of a sign of which 32 fit exactly.
EVEN = limits.MAX_SIGNS_BYTES // 32
MORE_CLEARINGS = "more clearings than fit while no message was acknowledged"
MORE_GONE = "more components vanished than can be remembered"


def sign(number: int, size: int = EVEN) -> Clearing:
    """A clearing that takes ``size`` bytes: 32, its names, and "gpu-reset"."""
    return Clearing(f"{number:04}".ljust(size - 32 - len("gpu-reset"), "x"), "gpu-reset")


def vanished(number: int, size: int = EVEN) -> Gone:
    return Gone("own", f"{number:04}".ljust(size - 32 - len("own"), "x"))


def owing(*items: Clearing | Loss | Gone) -> UnackedEvents:
    unacked = UnackedEvents()
    for item in items:
        if isinstance(item, Clearing):
            unacked.clear(item)
        elif isinstance(item, Loss):
            unacked.add_loss(item)
        else:
            unacked.take_gone(item, matters=False)
    return unacked


def names(unacked: UnackedEvents) -> list[str]:
    return [gone.component[:4] for gone, _ in unacked.gone]


# -- clearings ------------------------------------------------------------------------------------


def test_clearings_are_kept_to_the_last_byte_and_the_oldest_goes_with_a_word() -> None:
    signs = [sign(n) for n in range(32)]
    unacked = owing(*signs)
    assert unacked.clearings == signs
    assert unacked.losses == []
    unacked.clear(Clearing("", "x"))
    assert unacked.clearings == [*signs[1:], Clearing("", "x")]
    assert unacked.losses == [Loss("latch", 1, MORE_CLEARINGS)]


def test_a_clearing_said_again_takes_no_more_room_and_is_told_again_as_the_latest() -> None:
    signs = [sign(n) for n in range(32)]
    unacked = owing(*signs)
    unacked.carry(1, everything=False)
    for _ in range(3):
        unacked.clear(signs[0])
    assert unacked.clearings == [*signs[1:], signs[0]]
    assert unacked.losses == []
    assert unacked.has_unsent
    assert unacked.carry(2, everything=False) == ([signs[0]], [], [])


def test_names_are_counted_in_bytes_of_utf_8() -> None:
    wide = Clearing("ü" * ((EVEN - 32 - 9) // 2) + "x", "gpu-reset")  # of 4,055 bytes
    signs = [sign(n) for n in range(31)]
    unacked = owing(*signs, wide)
    assert unacked.clearings == [*signs, wide]
    unacked = owing(*signs, Clearing(wide.component + "ü", "gpu-reset"))
    assert len(unacked.clearings) == 31
    assert len(unacked.losses) == 1


def test_so_many_clearings_are_kept_however_short_they_are() -> None:
    unacked = owing(*(Clearing(str(n), "gpu-reset") for n in range(LIMIT)))
    assert (len(unacked.clearings), unacked.losses) == (LIMIT, [])
    unacked.clear(Clearing("one", "gpu-reset"))
    unacked.clear(Clearing("two", "gpu-reset"))
    assert len(unacked.clearings) == LIMIT
    assert unacked.clearings[0].component == "2"
    assert unacked.losses == [Loss("latch", 2, MORE_CLEARINGS)]


def test_clearings_that_differ_in_the_fault_or_in_the_sign_alone_are_several() -> None:
    signs = [
        Clearing("GPU-1", "gpu-reset"),
        Clearing("GPU-1", "gpu-reset", "xid:48"),
        Clearing("GPU-1", "operator", "xid:48"),
    ]
    assert owing(*signs, *signs).clearings == signs


def test_what_was_acknowledged_makes_room_for_as_much() -> None:
    unacked = owing(*(sign(n) for n in range(32)), *(vanished(n) for n in range(32)))
    unacked.carry(1, everything=False)
    assert unacked.acknowledged(1)
    again = [sign(n) for n in range(100, 132)]
    later = [vanished(n) for n in range(100, 132)]
    for one, other in zip(again, later, strict=True):
        unacked.clear(one)
        unacked.take_gone(other, matters=True)
    assert (unacked.clearings, unacked.losses) == (again, [])
    assert [gone for gone, _ in unacked.gone] == later


def test_what_was_not_acknowledged_keeps_its_room() -> None:
    signs = [sign(n) for n in range(16)]
    gone = [vanished(n) for n in range(16)]
    unacked = owing(*signs, *gone)
    unacked.carry(1, everything=False)
    for n in range(16, 32):
        unacked.clear(sign(n))
        unacked.take_gone(vanished(n), matters=True)
    unacked.acknowledged(1)
    for n in range(32, 48):
        unacked.clear(sign(n))
        unacked.take_gone(vanished(n), matters=True)
    assert (len(unacked.clearings), len(unacked.gone), unacked.losses) == (32, 32, [])
    unacked.clear(Clearing("", "x"))
    unacked.take_gone(Gone("x", ""), matters=True)
    assert unacked.losses == [Loss("latch", 2, MORE_GONE)]


# -- what is gone ---------------------------------------------------------------------------------


def test_what_is_gone_is_kept_to_the_last_byte() -> None:
    unacked = owing(*(vanished(n) for n in range(32)))
    assert len(unacked.gone) == 32
    unacked.take_gone(Gone("x", ""), matters=False)
    assert names(unacked) == [*(f"{n:04}" for n in range(1, 32)), ""]
    assert unacked.losses == [], "nothing can stand on what never failed"


def test_of_too_many_that_are_gone_those_leave_first_that_never_failed() -> None:
    unacked = UnackedEvents()
    for n in range(32):
        unacked.take_gone(vanished(n), matters=n not in (5, 9))
    for n in (32, 33):
        unacked.take_gone(vanished(n), matters=True)
        assert unacked.losses == []
    assert {"0005", "0009"}.isdisjoint(names(unacked))
    unacked.take_gone(vanished(34), matters=True)
    assert names(unacked)[0] == "0001", "then the oldest"
    assert unacked.losses == [Loss("latch", 1, MORE_GONE)]
    unacked.take_gone(vanished(35), matters=False)
    assert "0035" not in names(unacked)
    assert len(unacked.losses) == 1


def test_so_many_that_are_gone_are_kept_however_short_they_are() -> None:
    unacked = UnackedEvents()
    for n in range(limits.MAX_GONE):
        unacked.take_gone(Gone("own", str(n)), matters=True)
    assert (len(unacked.gone), unacked.losses) == (limits.MAX_GONE, [])
    unacked.take_gone(Gone("own", "one more"), matters=True)
    assert len(unacked.gone) == limits.MAX_GONE
    assert unacked.losses == [Loss("latch", 1, MORE_GONE)]


def test_what_is_back_or_gone_again_takes_no_room_twice() -> None:
    unacked = owing(*(vanished(n) for n in range(32)))
    for _ in range(3):
        unacked.take_gone(vanished(0), matters=True)
    assert names(unacked) == [*(f"{n:04}" for n in range(1, 32)), "0000"]
    assert unacked.gone[-1] == (vanished(0), True)
    for n in (7, 7, 8):
        unacked.drop_gone(vanished(n).key)
    assert len(unacked.gone) == 30
    for n in (40, 41):
        unacked.take_gone(vanished(n), matters=True)
    assert len(unacked.gone) == 32
    unacked.take_gone(vanished(42), matters=True)
    assert len(unacked.gone) == 32


# -- losses ---------------------------------------------------------------------------------------


def test_losses_of_one_source_are_added_up_until_they_are_told() -> None:
    unacked = owing(Loss("kmsg", 3, "one"), Loss("latch", 1, "other"), Loss("kmsg", 4, "two"))
    assert unacked.losses == [Loss("kmsg", 7, "two"), Loss("latch", 1, "other")]
    assert unacked.carry(1, everything=False)[1] == unacked.losses
    unacked.add_loss(Loss("kmsg", 5, "three"))
    unacked.add_loss(Loss("kmsg", 6, "four"))
    assert unacked.losses[2:] == [Loss("kmsg", 11, "four")]
    assert unacked.carry(2, everything=False) == ([], [Loss("kmsg", 11, "four")], [])


@pytest.mark.parametrize(
    ("before", "more", "sum_of_both"),
    [
        (1, 2, 3),
        (0, 2, 0),  # an unknown number and two are an unknown number
        (2, 0, 0),
        (0, 0, 0),
        (limits.MAX_COUNT, 2, limits.MAX_COUNT),
    ],
)
def test_an_unknown_number_stays_unknown_and_a_known_one_within_the_contract(
    before: int, more: int, sum_of_both: int
) -> None:
    unacked = owing(Loss("kmsg", before, ""), Loss("kmsg", more, "last"))
    assert unacked.losses == [Loss("kmsg", sum_of_both, "last")]


def test_with_64_losses_under_way_one_more_of_a_source_is_added_and_told_again() -> None:
    unacked = owing(*(Loss(f"own:{n}", 1, "") for n in range(63)))
    unacked.carry(1, everything=True)
    unacked.add_loss(Loss("own:0", 1, ""))
    assert len(unacked.losses) == 64
    unacked.carry(2, everything=True)
    unacked.add_loss(Loss("own:1", 5, "more"))
    assert len(unacked.losses) == 64
    assert unacked.losses[1] == Loss("own:1", 6, "more")
    assert unacked.carry(3, everything=False)[1] == [Loss("own:1", 6, "more")]


def test_of_more_than_64_sources_the_oldest_loss_goes() -> None:
    unacked = owing(*(Loss(f"own:{n}", 1, "") for n in range(66)))
    assert [loss.source for loss in unacked.losses] == [f"own:{n}" for n in range(2, 66)]
