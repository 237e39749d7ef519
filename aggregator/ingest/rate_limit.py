"""The rate at which one node's agent may use an aggregator that serves 10,000 of them.

The bucket is the node's and not the stream's: an agent that ends one stream and opens another has
the rest of its tokens. The cost of evaluating a message counts too, since a small one may cause
much work.
"""

from aggregator.runtime.byte_budget import Budgets

#: Messages a second, and how many may come at once. An agent sends a heartbeat every ten seconds
#: and a delta for each change; a burst of faults is a handful of deltas.
RATE = 20.0
BURST = 200.0
#: A message of this many bytes costs as much as two.
BYTES_PER_MESSAGE = 65_536
#: Seconds of work that cost as much as one message: with the rate above a tenth of the time.
WORK_PER_MESSAGE = 0.005
#: At most this number of seconds counts for one message, because it may have waited for others'
#: work.
MOST_WORK = 0.25
#: Messages that a new stream of an attached node costs: a handshake and a whole snapshot.
PER_STREAM = 10.0


def budgets() -> Budgets:
    """The used tokens of nodes, while they have no stream."""
    return Budgets(burst=BURST, rate=RATE)


class NodeBudget:
    """A bucket of messages that fills up with time. Large messages cost more."""

    __slots__ = ("_at", "_left")

    def __init__(self, now: float) -> None:
        self._left = BURST
        self._at = now

    def spend(self, size: int, now: float) -> float:
        """Account for a message of ``size`` bytes: seconds to wait before reading the next."""
        self._refill(now)
        self._left -= 1 + size / BYTES_PER_MESSAGE
        return max(0.0, -self._left / RATE)

    def charge(self, seconds: float) -> None:
        """Account for the work that a message caused."""
        self._left -= min(seconds, MOST_WORK) / WORK_PER_MESSAGE

    def inherit(self, used: float) -> None:
        """An earlier stream of the node has used ``used`` tokens."""
        self._left -= used

    def used(self, now: float) -> float:
        """How much of the bucket is used."""
        self._refill(now)
        return BURST - self._left

    def _refill(self, now: float) -> None:
        self._left = min(BURST, self._left + (now - self._at) * RATE)
        self._at = now
