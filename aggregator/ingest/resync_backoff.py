"""The times at which a snapshot is requested from one stream: soon, with growing pauses between
them.

A snapshot after which the digests still differ points to a defect, on one side or on 10,000. So the
time between two requests doubles until they agree.
"""

from aggregator.runtime.backoff import Backoff

#: Without jitter: a stream's snapshot follows what its agent reports, and no common event.
BACKOFF = Backoff(first=5.0, most=600.0)
_LONG_AGO = float("-inf")  # one object, not one for each stream


class ResyncBackoff:
    """Times are monotonic seconds."""

    __slots__ = ("_not_before", "_reason", "_requests")

    def __init__(self) -> None:
        self._reason = ""
        self._not_before = _LONG_AGO
        self._requests = 0

    def request(self, reason: str) -> None:
        """A snapshot is wanted, as soon as the next request is allowed."""
        self._reason = reason

    @property
    def wanted(self) -> bool:
        """Whether a snapshot is still to be requested."""
        return bool(self._reason)

    def due(self, now: float) -> str:
        """The reason to request one now; empty: do not. A returned reason counts as requested."""
        if not self._reason or now < self._not_before:
            return ""
        reason, self._reason = self._reason, ""
        self._requests += 1
        self._not_before = now + BACKOFF.longest(self._requests)
        return reason

    def answered(self) -> None:
        """A snapshot came, so none is wanted any more."""
        self._reason = ""

    def agreed(self) -> None:
        """The digests agree: the next difference is new."""
        self._requests = 0
