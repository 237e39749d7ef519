"""Draws that are known beforehand, in place of random ones."""

import random


class HighestDraw(random.Random):
    """Draws the upper bound of each range, so each pause is the longest; ``ranges`` are kept."""

    def __init__(self) -> None:
        super().__init__(1)
        self.ranges: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        assert a < b
        self.ranges.append((a, b))
        return b
