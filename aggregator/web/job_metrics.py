"""Metrics of the jobs that faults hit. Labels are families, never a tenant's text."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric

from aggregator.jobs.families import FAMILIES
from aggregator.web.metric_families import counter, single_counter


class JobStats(Protocol):
    """The counters of `aggregator.jobs.recorder`."""

    @property
    def hit(self) -> Mapping[str, int]: ...
    @property
    def stopped(self) -> Mapping[str, int]: ...
    @property
    def unattributed(self) -> int: ...
    @property
    def failed_reads(self) -> int: ...


#: Those of pods that no family knows.
_OTHERS = ("other", "pod", "pod-group", "site")


def job_metrics(stats: JobStats) -> Iterator[Metric]:
    names = (*(family.name for family in FAMILIES), *_OTHERS)
    yield counter(
        "sickbay_jobs_hit",
        "Jobs with work on a node at a fault, by family of jobs.",
        ["family"],
        {name: stats.hit.get(name, 0) for name in names},
    )
    yield counter(
        "sickbay_jobs_stopped",
        "Jobs with work that a drain moved, each once for an incident, by family of jobs.",
        ["family"],
        {name: stats.stopped.get(name, 0) for name in names},
    )
    yield single_counter(
        "sickbay_jobs_unattributed", "Work that a drain moved, of unknown jobs.", stats.unattributed
    )
    yield single_counter(
        "sickbay_jobs_failed_reads",
        "Reads of a faulty node's work that failed.",
        stats.failed_reads,
    )
