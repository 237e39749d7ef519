"""Backoff: it doubles up to a limit, and each pause is drawn between nothing and that."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nodeagent.backoff
from aggregator.runtime.backoff import Backoff


@pytest.mark.parametrize(("failures", "longest"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0)])
def test_the_longest_pause_doubles_up_to_its_limit(failures: int, longest: float) -> None:
    assert Backoff(first=0.5, most=3.0).longest(failures) == longest


@given(failures=st.integers(1, 10**9), seed=st.integers())
def test_a_pause_is_never_longer_however_often_it_failed(failures: int, seed: int) -> None:
    backoff = Backoff(first=0.2, most=15.0)
    assert 0.0 <= backoff.pause(failures, random.Random(seed)) <= backoff.longest(failures) <= 15.0


def test_pauses_after_the_same_failure_are_spread_over_the_whole_range() -> None:
    rng, backoff = random.Random(1), Backoff(first=1.0, most=8.0)
    pauses = sorted(backoff.pause(4, rng) for _ in range(1000))
    assert pauses[0] < 0.2
    assert pauses[500] == pytest.approx(4.0, abs=0.5)
    assert pauses[-1] > 7.8


def test_a_part_of_the_pause_is_certain_where_less_is_drawn() -> None:
    rng, backoff = random.Random(1), Backoff(first=1.0, most=8.0, spread=0.25)
    pauses = sorted(backoff.pause(4, rng) for _ in range(1000))
    assert 6.0 <= pauses[0] < 6.1
    assert 7.9 < pauses[-1] <= 8.0


@given(
    first=st.floats(0.01, 1e3),
    most=st.floats(0.01, 1e5),
    failures=st.integers(1, 10**9),
    seed=st.integers(),
)
def test_the_agents_backoff_is_the_aggregators(
    first: float, most: float, failures: int, seed: int
) -> None:
    """They share no module, because they share nothing but the contract."""
    ours = Backoff(first=first, most=most)
    agents = nodeagent.backoff.Backoff(first=first, most=most)
    assert agents.longest(failures) == ours.longest(failures)
    drawn = agents.pause(failures, random.Random(seed).random)
    assert drawn == ours.pause(failures, random.Random(seed))
