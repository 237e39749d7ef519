"""How much one stream may ask of an aggregator that serves 10,000."""

#: Messages a second and how many may come at once. An agent sends a heartbeat every ten seconds
#: and a delta when something changed; a burst of faults is a handful of deltas.
RATE = 20.0
BURST = 200.0
#: A message of this many bytes costs as much as two.
BYTES_PER_MESSAGE = 65_536


class Allowance:
    """A bucket of messages that fills up with time. Large messages cost more."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, now: float, *, rate: float = RATE, burst: float = BURST) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = now

    def spend(self, size: int, now: float) -> float:
        """Account for a message of ``size`` bytes: seconds to wait before reading the next."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        self._left -= 1 + size / BYTES_PER_MESSAGE
        return max(0.0, -self._left / self._rate)
