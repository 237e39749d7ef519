"""The loss of a job with a stop: the work since its last checkpoint, and the restart. Pure.

Three annotations on any pod of the job state it; each is a tenant's text, and bounded.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from aggregator.cluster.port import Pod
from aggregator.jobs.settings import JobRules
from aggregator.rfc3339 import read_time

LAST_CHECKPOINT = "sickbay.dev/last-checkpoint"  # RFC 3339
CHECKPOINT_INTERVAL = "sickbay.dev/checkpoint-interval"  # such as "30m"
RESTART_TIME = "sickbay.dev/restart-time"

MEASURED, DECLARED, DEFAULT = "measured", "declared", "default"
#: Seconds. Longer statements count as this much.
LONGEST_INTERVAL, LONGEST_RESTART = 7 * 86400.0, 86400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])")


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: ``age`` of the last checkpoint, ``interval`` between two, ``restart``. Each source
    is measured, declared or default.
    """

    age: float
    age_source: str
    interval: float
    restart: float
    restart_source: str


def costs_of(pods: Iterable[Pod], at: float, fault_at: float, rules: JobRules) -> Costs:
    """The costs of a stop at ``at``, after a fault at ``fault_at`` (wall clock seconds).

    Without a time of the last checkpoint its age is half an interval at the fault, and grows until
    the stop. No age is longer than the job has run.
    """
    found = list(pods)
    began = min((pod.created_at for pod in found if pod.created_at), default=0.0)
    ran = max(0.0, at - began) if began else LONGEST_INTERVAL
    interval, interval_source = _stated(found, CHECKPOINT_INTERVAL, LONGEST_INTERVAL)
    restart, restart_source = _stated(found, RESTART_TIME, LONGEST_RESTART)
    interval = interval or rules.checkpoint_interval
    times = [one for pod in found if (one := _time(pod)) is not None and began <= one <= at]
    if times:
        age, source = at - max(times), MEASURED
    else:
        age, source = interval / 2 + max(0.0, at - fault_at), interval_source
    return Costs(
        age=min(age, ran),
        age_source=source,
        interval=interval,
        restart=restart or rules.restart_time,
        restart_source=restart_source,
    )


def _stated(pods: Iterable[Pod], key: str, longest: float) -> tuple[float, str]:
    """The longest that a pod states, at most ``longest``; 0 where none does."""
    found = [_seconds(pod.annotations.get(key, "")) for pod in pods]
    most = min(max(found, default=0.0), longest)
    return most, DECLARED if most else DEFAULT


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


def _time(pod: Pod) -> float | None:
    text = pod.annotations.get(LAST_CHECKPOINT, "")
    if not text or len(text) > 40:
        return None
    try:
        return read_time(text)
    except (ValueError, OverflowError):
        return None
