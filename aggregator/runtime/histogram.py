"""A histogram of durations, cheap enough for each request and each fault."""

from bisect import bisect_left
from collections.abc import Sequence

#: Upper bounds in seconds. One request, or one step of a decision.
REQUEST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: A page or an answer of the API: few, because each route has its own series.
PAGE = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    """Observations by upper bound. ``bounds`` ascend; an observation above the last counts too."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        #: The sum of all observations.
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one duration, in seconds. A negative one, of a clock set back, counts as 0."""
        value = max(value, 0.0)
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """For each bound, and then for infinity, the number of observations up to it."""
        found, so_far = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found
