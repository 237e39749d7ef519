"""What ingest counts: plain numbers, read by the metrics and the page."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class IngestStats:
    """Since the start, but for ``attached`` and ``overdue``, which are now.

    ``refused`` counts streams that never spoke, by `Refusal` or "malformed", "no_hello" and the
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
    throttled: int = 0  # times that a stream was made to wait
    superseded: int = 0
    conflicts: int = 0
    renewed: int = 0
    certificate_troubles: int = 0  # a rotated TLS certificate that could not be used


class Sparingly:
    """Says the same thing at most once in ``interval`` seconds: 10,000 agents may fail alike."""

    def __init__(self, interval: float = 10.0) -> None:
        self._interval = interval
        self._said: dict[str, tuple[float, int]] = {}

    def __call__(self, what: str, now: float) -> Mapping[str, int] | None:
        """Log fields to say it with, with how often it was not said since; None: not now."""
        at, unsaid = self._said.get(what, (float("-inf"), 0))
        if now - at < self._interval:
            self._said[what] = (at, unsaid + 1)
            return None
        self._said[what] = (now, 0)
        return {"unsaid": unsaid} if unsaid else {}
