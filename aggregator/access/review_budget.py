"""Bounds the reviews of tokens that were never seen: each costs the API server a request."""

from collections import OrderedDict
from collections.abc import Callable

#: Reviews a second, and how many may come at once: of one address, and of all.
ADDRESS_RATE, ADDRESS_BURST = 2.0, 20.0
RATE, BURST = 20.0, 100.0
#: Addresses that are remembered.
_MOST = 4096


class _Bucket:
    """Fills up by ``rate`` a second."""

    __slots__ = ("at", "left")

    def __init__(self, now: float, burst: float) -> None:
        self.at, self.left = now, burst

    def fill(self, now: float, rate: float, burst: float) -> None:
        self.left = min(burst, self.left + (now - self.at) * rate)
        self.at = now


class ReviewBudget:
    """``now`` is monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._all = _Bucket(now(), BURST)
        self._of_address: OrderedDict[str, _Bucket] = OrderedDict()

    def spend(self, address: str) -> bool:
        """Account for one review; False where the address, or all together, had too many."""
        now = self._now()
        own = self._of_address.setdefault(address, _Bucket(now, ADDRESS_BURST))
        self._of_address.move_to_end(address)
        while len(self._of_address) > _MOST:
            self._of_address.popitem(last=False)
        own.fill(now, ADDRESS_RATE, ADDRESS_BURST)
        self._all.fill(now, RATE, BURST)
        if own.left < 1 or self._all.left < 1:
            return False
        own.left -= 1
        self._all.left -= 1
        return True
