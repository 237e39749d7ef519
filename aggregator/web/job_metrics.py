"""Metrics of the jobs that faults hit. Labels are families, never a tenant's text."""

from collections.abc import Mapping

from aggregator.jobs.family import FAMILIES
from aggregator.jobs.recorder import JobCounts
from aggregator.web.metric_families import Values

#: Those of pods that no family knows.
_OTHERS = ("other", "pod", "pod-group", "site")


def job_values(stats: JobCounts) -> Mapping[str, Values]:
    names = (*(family.name for family in FAMILIES), *_OTHERS)
    return {
        "sickbay_jobs_hit": {name: stats.hit[name] for name in names},
        "sickbay_jobs_stopped": {name: stats.stopped[name] for name in names},
        "sickbay_jobs_unattributed": stats.unattributed,
        "sickbay_jobs_failed_reads": stats.failed_reads,
    }
