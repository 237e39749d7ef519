"""Ingest's counters: plain numbers, read by the metrics and the page."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class IngestStats:
    """Since the start, except ``attached`` and ``overdue``, which are now.

    ``refused`` counts streams that never attached, by `Refusal` or "malformed", "no_hello" and the
    like; ``ended`` counts attached streams by why they ended; ``messages`` by kind.
    """

    attached: int = 0
    overdue: int = 0  # attached on expired credentials while the cluster can't renew them
    opened: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    acks: int = 0
    resyncs: int = 0
    dropped: int = 0  # entries of messages that were outside the contract's bounds
    throttled: int = 0  # times that a stream was made to wait
    superseded: int = 0
    conflicts: int = 0
    renewed: int = 0
    certificate_troubles: int = 0  # a rotated TLS certificate that could not be used


#: Messages that `RateLimitedLog` remembers: some of them name a node.
MOST_LOGGED = 1_000


class RateLimitedLog:
    """Logs the same message at most once in ``interval`` seconds: 10,000 agents may fail alike.

    Of more than `MOST_LOGGED` messages it forgets the one that was logged first.
    """

    def __init__(self, interval: float = 10.0) -> None:
        self._interval = interval
        self._logged: dict[str, tuple[float, int]] = {}

    def __call__(self, what: str, now: float) -> Mapping[str, int] | None:
        """Fields of the log line, with how often it was suppressed since the last, or None if not
        now.
        """
        at, suppressed = self._logged.get(what, (float("-inf"), 0))
        if now - at < self._interval:
            self._logged[what] = (at, suppressed + 1)
            return None
        self._logged.pop(what, None)
        while len(self._logged) >= MOST_LOGGED:
            del self._logged[next(iter(self._logged))]
        self._logged[what] = (now, 0)
        return {"unsaid": suppressed} if suppressed else {}
