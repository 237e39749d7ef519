"""How much a kernel counter rose lately: over a window, and safe against its reset.

Counters fall when a driver is loaded anew or a person clears them. A fall is a new beginning and
never a negative rate; the rises before it stay counted until they leave the window.
"""

__all__ = ["CounterIncrease", "CounterIncreases"]

_STEPS = 60


class CounterIncrease:
    """One counter's rise within the last ``window`` seconds, to a sixtieth of it.

    The first value seen is no rise: it was counted at an unknown time.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._last: int | None = None
        # When, and by how much. A deque takes 0.6 KiB while it is empty, which it is in hundreds.
        self._steps: list[tuple[float, int]] = []

    def add(self, at: float, value: int) -> int:
        """The rise within the window that ends at ``at`` (seconds, never going back)."""
        last, self._last = self._last, value
        if not self._steps and (last is None or value <= last):
            return 0  # nearly always
        rose = 0 if last is None else max(0, value - last)
        if rose:
            is_recent = self._steps and at - self._steps[-1][0] < self._window / _STEPS
            began, before = self._steps.pop() if is_recent else (at, 0)
            self._steps.append((began, before + rose))
        while self._steps and at - self._steps[0][0] >= self._window:
            del self._steps[0]
        return sum(step for _, step in self._steps)


class CounterIncreases:
    """The rises of many counters by name. A counter that is not reported any more is forgotten."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._counters: dict[str, CounterIncrease] = {}

    def add(self, at: float, values: dict[str, int]) -> dict[str, int]:
        """Each counter's rise within the window."""
        if self._counters.keys() != values.keys():
            known = self._counters
            self._counters = {n: known.get(n) or CounterIncrease(self._window) for n in values}
        return {name: self._counters[name].add(at, value) for name, value in values.items()}
