"""Rises of counters over a window."""

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks.counter_window import CounterIncrease, CounterIncreases


def test_what_was_counted_before_the_first_look_is_no_rise() -> None:
    assert CounterIncrease(600).add(0, 4711) == 0


def test_a_rise_counts_until_it_leaves_the_window() -> None:
    rise = CounterIncrease(600)
    rise.add(0, 10)
    assert rise.add(60, 15) == 5
    assert rise.add(120, 16) == 6
    assert rise.add(650, 16) == 6
    assert rise.add(665, 16) == 1
    assert rise.add(730, 16) == 0


def test_a_reset_is_a_new_beginning_and_forgets_nothing() -> None:
    rise = CounterIncrease(600)
    rise.add(0, 100)
    assert rise.add(10, 103) == 3
    assert rise.add(20, 0) == 3
    assert rise.add(30, 2) == 5


def test_a_counter_that_went_away_begins_anew() -> None:
    rises = CounterIncreases(600)
    rises.add(0, {"a": 1, "b": 1})
    assert rises.add(10, {"a": 3}) == {"a": 2}
    assert rises.add(20, {"a": 3, "b": 9}) == {"a": 2, "b": 0}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2**64)), max_size=300))
def test_a_rise_is_never_negative_and_its_memory_is_bounded(looks: list[tuple[int, int]]) -> None:
    rise, at = CounterIncrease(60), 0.0
    for pause, value in looks:
        at += pause
        assert rise.add(at, value) >= 0
        assert len(rise._steps) <= 61
