"""The robust distribution of one measurement over all parts of one kind: median and MAD. Pure.

Values are whole numbers that were rounded by their agents, so there are few different ones: the
distribution is their counts, of 80,000 GPUs as of 80, and a value is replaced in one step.
"""

from dataclasses import dataclass, field
from heapq import nlargest

from aggregator.policy.outliers.measures import Measure

#: Robust standard deviations: of a normal distribution one value in a thousand million is beyond.
FACTOR = 6.0
#: The standard deviation of a normal distribution is this multiple of its MAD.
_SIGMA = 1.4826
#: Fewer values, or values of fewer nodes, are no population to compare with.
LEAST_VALUES = 30
LEAST_NODES = 10
#: Where a larger share of all parts deviates, these are a kind of their own, and no outliers. They
#: are on at least this number of nodes, and the node with most of them counts as the second, so no
#: node makes one.
MOST_DEVIATING = 0.05
LEAST_DEVIATING_NODES = 3
#: A kind that has a twentieth of fewer nodes than this shows on fewer than those three in more than
#: one pool of twenty (binomial). So a node that deviates as a whole may be of such a kind.
LEAST_FOR_KINDS = 124
#: Seconds for which median and MAD serve all comparisons.
REFRESH = 60.0


@dataclass(slots=True, eq=False)
class Spread:
    """The present values of one measurement in one pool and of one model.

    ``refs``: the series that belong to it; ``parts``: those that have had a value; ``members``: the
    nodes that have such a part; ``deviating``: by node, the parts that deviated at their last
    value; ``nodes``: the nodes that have a value in it now (all numbers). ``median``, ``mad`` and
    ``limit`` (the largest deviation of a value that is as it should be) are as of the last
    `refresh`, as is ``base``: how far from the median, to the bad side, those are that are a kind
    of their own; 0 where there are none.
    """

    key: tuple[str, ...]
    measure: Measure
    refs: int = 0
    parts: int = 0
    members: int = 0
    nodes: int = 0
    total: int = 0
    deviating: dict[str, int] = field(default_factory=dict)
    median: int = 0
    mad: int = 0
    limit: float = 0.0
    base: float = 0.0
    _counts: dict[int, int] = field(default_factory=dict)
    _at: float = float("-inf")

    def add(self, value: int) -> None:
        self._counts[value] = self._counts.get(value, 0) + 1
        self.total += 1

    def remove(self, value: int) -> None:
        """Remove a value that was added."""
        left = self._counts[value] - 1
        if left:
            self._counts[value] = left
        else:
            del self._counts[value]
        self.total -= 1

    def count_deviating(self, node: str, change: int) -> None:
        """Add ``change`` to the number of the node's parts that deviate."""
        count = self.deviating.pop(node, 0) + change
        if count:
            self.deviating[node] = count

    @property
    def is_population(self) -> bool:
        """Whether there are enough values to compare one with."""
        return self.total >= LEAST_VALUES and self.nodes >= LEAST_NODES

    @property
    def is_widespread(self) -> bool:
        """Whether too many deviate for a single one to be an outlier."""
        if len(self.deviating) < LEAST_DEVIATING_NODES:
            return False
        first, second = nlargest(2, self.deviating.values())
        counted = sum(self.deviating.values()) - first + second
        return counted > MOST_DEVIATING * self.parts

    @property
    def shows_kinds(self) -> bool:
        """Whether it has enough nodes for a kind of its own to show on several of them."""
        return not self.measure.setting or self.members >= LEAST_FOR_KINDS

    def refresh(self, now: float) -> None:
        """Compute median, MAD and limit again where they are old. ``now`` is monotonic seconds."""
        if now - self._at < REFRESH or not self._counts:
            return
        self._at = now
        self.median = weighted_median(self._counts)
        distances: dict[int, int] = {}
        for value, count in self._counts.items():
            distance = abs(value - self.median)
            distances[distance] = distances.get(distance, 0) + count
        self.mad = weighted_median(distances)
        measure = self.measure
        sigma = _SIGMA * self.mad
        self.limit = max(FACTOR * sigma, measure.floor, measure.share * self.median)
        self.base = self._base() if self.is_widespread else 0.0

    def _base(self) -> float:
        """How far the middle of those is away that deviate; infinite where many are still worse."""
        away = {value: self.deviation(value) for value in self._counts}
        beyond = {value: count for value, count in self._counts.items() if away[value] > self.limit}
        if not beyond:
            return 0.0
        base = away[weighted_median(beyond)]
        worse = sum(count for value, count in beyond.items() if away[value] > base + self.limit)
        worse -= max(self.deviating.values())  # they may all be of one node
        return base if worse <= MOST_DEVIATING * self.total else float("inf")

    def deviation(self, value: int) -> float:
        """How far the value is from the median, to the bad side."""
        return float(self.median - value if self.measure.low else value - self.median)


def weighted_median(counts: dict[int, int]) -> int:
    """The lower median of values by how often each is there; ``counts`` is not empty."""
    half = (sum(counts.values()) + 1) // 2
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= half:
            return value
    raise ValueError("no values, so no median")
