"""Log lines that many clients or nodes could cause at once: one of each kind in a while."""

import math
from collections.abc import Mapping

from aggregator.runtime.recent import Recent

#: Messages that `RateLimitedLog` remembers: some of them name a node.
MOST_LOGGED = 1_000


class RateLimitedLog:
    """Logs the same message at most once in ``interval`` seconds: 10,000 agents may fail alike.

    It remembers the latest `MOST_LOGGED` messages.
    """

    def __init__(self, interval: float = 10.0) -> None:
        self._interval = interval
        #: When each was logged (the caller's clock), and how often it was left out since.
        self._logged: Recent[str, tuple[float, int]] = Recent(MOST_LOGGED)

    def __call__(self, what: str, now: float) -> Mapping[str, int] | None:
        """Fields of the log line, with how often it was left out since the last; None: not now."""
        at, left_out = self._logged.get(what, (-math.inf, 0))
        if now - at < self._interval:
            self._logged[what] = at, left_out + 1
            return None
        self._logged[what] = now, 0
        return {"left_out": left_out} if left_out else {}
