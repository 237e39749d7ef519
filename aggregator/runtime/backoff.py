"""Exponential backoff with full jitter, which spreads the retries of many clients best.

Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. The agent, with which the
aggregator shares the contract alone, has the same in `nodeagent.backoff`.
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds. The longest pause is ``first`` after one failure, doubles, and ends at ``most``.

    ``spread`` is the share of the longest pause that is drawn; 1 is full jitter.
    """

    first: float
    most: float
    spread: float = 1.0

    def longest(self, failures: int) -> float:
        """The longest pause after ``failures`` attempts that failed in a row (1 or more)."""
        return min(self.most, self.first * 2.0 ** min(failures - 1, 60))

    def pause(self, failures: int, rng: random.Random) -> float:
        """A pause in the last ``spread`` of the longest."""
        longest = self.longest(failures)
        return rng.uniform(longest * (1.0 - self.spread), longest)
