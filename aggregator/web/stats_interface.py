"""Other packages' counters for the metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from aggregator.alerts.overview import AlertOverview
from aggregator.ingest.stats import IngestStats
from aggregator.jobs.recorder import JobCounts
from aggregator.runtime.histogram import Histogram


class ApiStats(Protocol):
    """Requests to the Kubernetes API: answers by (method, kind of object, HTTP status), seconds by
    (method, kind of object).
    """

    @property
    def answers(self) -> Mapping[tuple[str, str, int], int]: ...
    @property
    def durations(self) -> Mapping[tuple[str, str], Histogram]: ...
    @property
    def throttled(self) -> int: ...
    @property
    def blocked(self) -> int: ...


class HistoryStats(Protocol):
    """The counters of `aggregator.history`: transitions, and rows of evidence."""

    @property
    def problem(self) -> str: ...
    @property
    def depth(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def evidence_lost(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Stats:
    """The counters of the other packages, each None where the package is not in use (the local
    cluster has no API).

    ``outbox`` returns how many alerts wait for each webhook, by the webhook's number or name,
    ``alert_trouble`` why they are not delivered; empty: they are; ``alerts`` their routes and
    dead letters. ``certificates`` returns when each of them ends, wall clock seconds, by its
    purpose. ``connected`` counts the agents that are connected to this replica, ``relays`` the
    gateways that forward others' messages. ``jobs`` counts those that faults hit.
    """

    ingest: IngestStats | None = None
    api: ApiStats | None = None
    outbox: Callable[[], Mapping[str, int]] | None = None
    alert_trouble: Callable[[], str] = lambda: ""
    alerts: Callable[[], AlertOverview] = AlertOverview
    history: HistoryStats | None = None
    certificates: Callable[[], Mapping[str, float]] = dict
    connected: Callable[[], int] = lambda: 0
    relays: Callable[[], int] = lambda: 0
    jobs: JobCounts | None = None
