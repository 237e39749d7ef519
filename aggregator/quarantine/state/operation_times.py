"""The time by which an operation's deadline counts, whichever replica's clock wrote it."""

from aggregator.clock import Clocks
from aggregator.runtime.recent import Recent

#: Wall clocks of two replicas may be so far apart (seconds).
MOST_APART = 86_400.0


class OperationTimes:
    """Remembers when this process first saw each beginning of an operation, by its monotonic clock.

    The wall clock may be another one than the deadline's. It alone ends an
    operation a day late: where process after process has not seen the whole of it.
    """

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._seen: Recent[tuple[str, float], float] = Recent()

    def time_of(self, operation: str, began_at: float) -> float:
        """The least that the clock shows now that wrote ``began_at``."""
        now, key = self._clocks.now(), (operation, began_at)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = now
        return max(began_at + now - seen, self._clocks.trusted_wall() - MOST_APART)
