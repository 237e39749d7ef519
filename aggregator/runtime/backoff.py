"""Exponential backoff with full jitter, which spreads the retries of many clients best.

Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds. The longest pause is ``first`` after one failure, doubles, and ends at ``most``."""

    first: float
    most: float

    def longest(self, failures: int) -> float:
        """The longest pause after ``failures`` attempts that failed in a row (1 or more)."""
        return min(self.most, self.first * 2.0 ** min(failures - 1, 60))

    def pause(self, failures: int, rng: random.Random) -> float:
        """A pause between 0 and the longest."""
        return rng.uniform(0.0, self.longest(failures))
