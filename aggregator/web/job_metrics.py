"""Metrics of the jobs that faults hit. Labels are families, never a tenant's text."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from aggregator.jobs.families import FAMILIES
from aggregator.jobs.recorder import JobCounts
from aggregator.web.metric_families import counter, single_counter

#: Those of pods that no family knows.
_OTHERS = ("other", "pod", "pod-group", "site")


def job_metrics(stats: JobCounts) -> Iterator[Metric]:
    names = (*(family.name for family in FAMILIES), *_OTHERS)
    yield counter(
        "sickbay_jobs_hit",
        "Jobs with work on a node at a fault, by family of jobs.",
        ["family"],
        {name: stats.hit[name] for name in names},
    )
    yield counter(
        "sickbay_jobs_stopped",
        "Jobs with work that a drain moved, each once for an incident, by family of jobs.",
        ["family"],
        {name: stats.stopped[name] for name in names},
    )
    yield single_counter(
        "sickbay_jobs_unattributed", "Work that a drain moved, of unknown jobs.", stats.unattributed
    )
    yield single_counter(
        "sickbay_jobs_failed_reads",
        "Reads of a faulty node's work that failed.",
        stats.failed_reads,
    )
