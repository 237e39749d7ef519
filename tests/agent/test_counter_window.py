"""Rises of counters over a window."""

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks.counter_window import CounterIncrease, CounterIncreases


def test_a_rise_leaves_its_window_a_sixtieth_of_it_at_a_time() -> None:
    rise = CounterIncrease(600.0)
    assert rise.add(0.0, 100) == 0, "the first value is no rise"
    assert rise.add(10.0, 103) == 3
    assert rise.add(19.9, 104) == 4, "within ten seconds of the step before: one step"
    assert rise.add(20.0, 106) == 6, "a step of its own"
    assert rise.add(609.9, 106) == 6
    assert rise.add(610.0, 106) == 2, "ten minutes after it began"
    assert rise.add(620.0, 106) == 0


def test_a_counter_that_falls_begins_anew_and_keeps_what_it_had_counted() -> None:
    rise = CounterIncrease(600.0)
    assert [rise.add(at, value) for at, value in ((0.0, 5), (60.0, 9), (120.0, 0))] == [0, 4, 4]
    assert rise.add(180.0, 1) == 5


def test_a_counter_that_is_not_told_for_once_is_forgotten() -> None:
    rises = CounterIncreases(600.0)
    assert rises.add(0.0, {"a": 1, "b": 1}) == {"a": 0, "b": 0}
    assert rises.add(60.0, {"a": 2}) == {"a": 1}
    assert rises.add(120.0, {"a": 2, "b": 9}) == {"a": 1, "b": 0}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2**64)), max_size=300))
def test_a_rise_is_never_negative_and_its_memory_is_bounded(looks: list[tuple[int, int]]) -> None:
    rise, at = CounterIncrease(60), 0.0
    for pause, value in looks:
        at += pause
        assert rise.add(at, value) >= 0
        assert len(rise._steps) <= 61
