"""Exponential backoff with full jitter, which spreads the retries of many agents best.

Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. The aggregator, with which
the agent shares the contract alone, has the same in `aggregator.runtime.backoff`.
"""

from collections.abc import Callable

from nodeagent.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds. The longest pause is ``first`` after one failure, doubles, and ends at ``most``.

    ``least`` is the shortest pause as a share of the longest.
    """

    first: float
    most: float
    least: float = 0.0

    def longest(self, failures: int) -> float:
        """The longest pause after ``failures`` attempts that failed in a row (1 or more)."""
        return min(self.most, self.first * 2.0 ** min(failures - 1, 60))

    def pause(self, failures: int, random: Callable[[], float]) -> float:
        """A pause below the longest. ``random`` gives a number from [0, 1)."""
        return self.longest(failures) * (self.least + (1.0 - self.least) * random())
