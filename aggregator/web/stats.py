"""What others count and the metrics tell: structural, so that nobody has to know this package."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


class IngestStats(Protocol):
    """What `aggregator.ingest.stats` counts, as much of it as is told."""

    @property
    def attached(self) -> int: ...
    @property
    def overdue(self) -> int: ...
    @property
    def opened(self) -> int: ...
    @property
    def refused(self) -> Mapping[str, int]: ...
    @property
    def ended(self) -> Mapping[str, int]: ...
    @property
    def messages(self) -> Mapping[str, int]: ...
    @property
    def acks(self) -> int: ...
    @property
    def resyncs(self) -> int: ...
    @property
    def throttled(self) -> int: ...
    @property
    def superseded(self) -> int: ...
    @property
    def conflicts(self) -> int: ...
    @property
    def certificate_troubles(self) -> int: ...


class ApiStats(Protocol):
    """What is asked of the Kubernetes API: answers by (method, kind of object, HTTP status)."""

    @property
    def answers(self) -> Mapping[tuple[str, str, int], int]: ...
    @property
    def throttled(self) -> int: ...
    @property
    def blocked(self) -> int: ...


class HistoryStats(Protocol):
    """What `aggregator.history` counts: transitions, and rows of what agents told."""

    @property
    def problem(self) -> str: ...
    @property
    def depth(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def untold(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Stats:
    """The counters of the others; None where there is none (the local cluster has no API).

    ``outbox`` returns how many alerts wait for each webhook, by the webhook's number or name,
    ``alert_trouble`` why they don't get out; empty: they do.
    """

    ingest: IngestStats | None = None
    api: ApiStats | None = None
    outbox: Callable[[], Mapping[str, int]] | None = None
    alert_trouble: Callable[[], str] = lambda: ""
    history: HistoryStats | None = None
