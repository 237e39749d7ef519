"""An event repeated by a restart or a takeover is kept and shown once; a new event is not."""

import asyncio
import time
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aggregator.events import EventKind, Transition
from aggregator.history.dedup import newest_first, without_repeats
from tests.support.histories import Place, happened
from tests.support.waiting import until

GONE = "n1: a GPU is gone"


def opened(at: float, text: str = GONE, incident: str = "i1") -> Transition:
    return happened(at, kind=EventKind.INCIDENT_OPENED, text=text, incident=incident)


def closed(at: float) -> Transition:
    return happened(at, kind=EventKind.INCIDENT_CLOSED, incident="i1")


def held(at: float, limit: str, text: str) -> Transition:
    return happened(at, kind=EventKind.HELD, text=text, incident="i1", limit=limit)


def would(at: float) -> Transition:
    return happened(at, kind=EventKind.SUPPRESSED, text="n1: would be drained", incident="i1")


def cordoned(at: float) -> Transition:
    return happened(at, kind=EventKind.CORDONED, incident="i1")


def times(past: list[Transition]) -> list[float]:
    return [one.at for one in past]


def test_an_incident_that_stays_open_is_opened_once() -> None:
    assert times(without_repeats([opened(1), cordoned(2), opened(3), opened(4)])) == [1, 2]


def test_an_incident_that_closed_opens_again() -> None:
    assert times(without_repeats([opened(1), closed(2), opened(3), opened(4)])) == [1, 2, 3]


def test_one_that_says_something_else_by_now_is_told() -> None:
    assert times(without_repeats([opened(1), opened(2, "n1: two GPUs are gone")])) == [1, 2]
    acts = replace(opened(2), details={"action": "drain"})
    assert times(without_repeats([opened(1), acts, replace(acts, at=3.0)])) == [1, 2]


def test_a_hold_is_told_once_for_each_limit_whatever_its_words_count() -> None:
    past = [
        held(1, "concurrent", "12 of 10"),
        held(2, "concurrent", "13 of 10"),
        held(3, "quorum", "too few"),
        held(4, "concurrent", "13 of 10"),
        cordoned(5),
        held(6, "concurrent", "14 of 10"),
    ]
    assert times(without_repeats(past)) == [1, 3, 4, 5, 6]


def test_what_would_be_done_is_told_once_until_it_is_over() -> None:
    assert times(without_repeats([would(1), opened(2), would(3), closed(4), would(5)])) == [
        *(1, 2),
        *(4, 5),
    ]


def test_evictions_and_what_has_no_incident_are_never_repeats() -> None:
    past = [happened(at, kind=EventKind.MOVED, text="pod x") for at in (1, 2)]
    past += [happened(at, kind=EventKind.INCIDENT_OPENED, text="x", incident="") for at in (3, 4)]
    assert times(without_repeats(past)) == [1, 2, 3, 4]


def test_what_comes_late_is_no_repeat_of_what_came_after_it() -> None:
    """A replica that catches up writes its own past under its successor's later events."""
    assert times(without_repeats([opened(5), opened(2)])) == [5, 2]


kinds = st.sampled_from(
    [EventKind.INCIDENT_OPENED, EventKind.INCIDENT_CLOSED, EventKind.HELD, EventKind.CORDONED]
)
pasts = st.lists(st.tuples(kinds, st.sampled_from("ab"), st.sampled_from("xy"))).map(
    lambda rows: [
        happened(float(at), kind=kind, text=text, incident=incident)
        for at, (kind, incident, text) in enumerate(rows)
    ]
)


@given(pasts)
def test_to_leave_repeats_out_twice_is_to_do_it_once_and_order_stays(
    past: list[Transition],
) -> None:
    kept = without_repeats(past)
    assert without_repeats(kept) == kept
    assert times(kept) == sorted(times(kept))
    assert newest_first(past[::-1]) == kept[::-1]
    assert {one.kind for one in kept} == {one.kind for one in past}


async def test_a_replica_that_takes_over_adds_nothing_that_is_known(place: Place) -> None:
    now = time.time()
    first = [opened(now - 50), would(now - 49), cordoned(now - 48)]
    again = [opened(now - 20), would(now - 19), opened(now - 18, "n2: x", "i2")]
    async with place.history(replica="a") as a:
        for one in first:
            a.record_event(one)
        await until(lambda: a.written == 3)
    async with place.history(replica="b") as b:
        for one in [*again, *again]:
            b.record_event(one)
        await until(lambda: b.written == 6)
        kept = await b.recent()
        # CORDONED is an end: an action that would be taken after it is a new event, but said once.
        assert times(kept) == [now - 18, now - 19, now - 48, now - 49, now - 50]
    rows = place.sql("SELECT replica FROM transitions ORDER BY at")
    assert [row[0] for row in rows] == ["a", "a", "a", "b", "b"]


async def test_two_replicas_at_once_write_each_its_own(place: Place) -> None:
    now = time.time()
    async with place.history(replica="a") as a, place.history(replica="b") as b:
        for number in range(600):
            for history, name in ((a, "a"), (b, "b")):
                history.record_event(happened(now - number / 10, name, incident=f"{name}{number}"))
        await until(lambda: a.written == 600 and b.written == 600)
        found = await asyncio.gather(*(a.recent(name, limit=1000) for name in "ab"))
        assert [len(one) for one in found] == [600, 600]
        assert (a.lost, b.lost, a.problem, b.problem) == (0, 0, "", "")
