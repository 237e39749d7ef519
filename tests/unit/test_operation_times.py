"""By which time the deadline of an operation counts: its writer's clock is never read here."""

from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.quarantine.state.operation_times import MOST_APART, OperationTimes

BEGAN = 1.75e9


class Clock:
    """A monotonic clock, and a wall clock that may be anywhere."""

    def __init__(self, *, ahead: float) -> None:
        self.now, self.ahead = 1000.0, ahead
        clocks: Any = SimpleNamespace(
            now=lambda: self.now, trusted_wall=lambda: BEGAN - 1000 + self.now + self.ahead
        )
        self.times = OperationTimes(clocks)

    def passed(self, operation: str = "a") -> float:
        return self.times.time_of(operation, BEGAN) - BEGAN


@pytest.mark.parametrize("ahead", [0.0, 3600.0, MOST_APART - 7200, -MOST_APART, -1e9])
def test_time_passes_since_the_operation_was_first_seen_whatever_the_wall_clock(
    ahead: float,
) -> None:
    clock = Clock(ahead=ahead)
    assert clock.passed() == 0.0
    clock.now += 1800
    assert clock.passed() == 1800.0
    assert clock.passed("another") == 0.0
    clock.ahead += 3600  # it jumps
    assert clock.passed() == 1800.0


def test_an_operation_that_no_process_saw_whole_ends_a_day_late() -> None:
    clock = Clock(ahead=0.0)
    clock.now += MOST_APART + 1800
    assert clock.passed() == 1800.0


def test_of_many_operations_the_oldest_is_forgotten_whose_time_begins_anew() -> None:
    clock = Clock(ahead=0.0)
    for number in range(10_001):
        clock.passed(f"{number}")
    clock.now += 1800
    assert clock.passed("1") == 1800.0
    assert clock.passed("0") == 0.0
