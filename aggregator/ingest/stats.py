"""Ingest's counters: plain numbers, read by the metrics and the page."""

from collections import Counter
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
