"""When one stream is asked for a snapshot: soon, and not again and again.

A snapshot that doesn't make the digests agree points to a defect, on one side or on 10,000. So the
time between two requests doubles until they agree.
"""

#: Seconds.
EVERY = 5.0
AT_MOST_EVERY = 600.0
_LONG_AGO = float("-inf")  # one object, not one for each stream


class Resyncs:
    """Times are monotonic seconds."""

    __slots__ = ("_not_before", "_reason", "_wait")

    def __init__(self) -> None:
        self._reason = ""
        self._not_before = _LONG_AGO
        self._wait = EVERY

    def ask(self, reason: str) -> None:
        """A snapshot is wanted, when one may be asked for again."""
        self._reason = reason

    @property
    def wanted(self) -> bool:
        """Whether a snapshot is still to be asked for."""
        return bool(self._reason)

    def due(self, now: float) -> str:
        """Why to ask for one now; empty: don't. What it returns counts as asked."""
        if not self._reason or now < self._not_before:
            return ""
        reason, self._reason = self._reason, ""
        self._not_before = now + self._wait
        self._wait = min(self._wait * 2, AT_MOST_EVERY)
        return reason

    def answered(self) -> None:
        """A snapshot came: what was wanted is there."""
        self._reason = ""

    def agreed(self) -> None:
        """The digests agree: the next difference is news again."""
        self._wait = EVERY
