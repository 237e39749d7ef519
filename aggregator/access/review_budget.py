"""Bounds the reviews of tokens that were never seen: each costs the API server a request."""

from collections.abc import Callable

from aggregator.runtime.byte_budget import Budgets

#: Reviews a second, and how many may come at once: of one address, and of all.
ADDRESS_RATE, ADDRESS_BURST = 2.0, 20.0
RATE, BURST = 20.0, 100.0
_ALL = ""
#: Seconds that an answer counts: a right that was taken back works no longer than that.
ALLOWED_FOR = 60.0
#: Seconds that a refusal counts: a right that was granted works after that.
REFUSED_FOR = 10.0


class ReviewBudget:
    """``now`` is monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._all = Budgets(burst=BURST, rate=RATE)
        #: Not more addresses than reviews that all together had within a minute.
        self._of_address = Budgets(burst=ADDRESS_BURST, rate=ADDRESS_RATE)

    def spend(self, address: str) -> bool:
        """Account for one review; False where the address, or all together, had too many."""
        now = self._now()
        return (
            self._all.used(_ALL, now) + 1 <= BURST
            and self._of_address.spend(address, 1, now)
            and self._all.spend(_ALL, 1, now)
        )
