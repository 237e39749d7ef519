"""The GPU hours that jobs lost, summed for each day and each group. Pure."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable

from aggregator.jobs.report import Stop
from aggregator.web.job_models import DayHours, GroupHours
from aggregator.web.timefmt import bounded_time

#: Days of one report, the newest; groups of one chart.
_MOST_DAYS, _MOST_GROUPS = 366, 8
_DAY = 86400.0


def days_of(stops: Iterable[Stop], since: float, until: float) -> list[DayHours]:
    """Each day of the time in UTC, the earliest first, also those without a stop."""
    hours: dict[int, float] = defaultdict(float)
    for one in stops:
        hours[int(one.hit.at // _DAY)] += one.hours
    last = int(until // _DAY)
    first = max(int(since // _DAY), last - _MOST_DAYS + 1)
    return [
        DayHours(day=bounded_time(day * _DAY), lost_hours=round(hours[day], 3))
        for day in range(first, last + 1)
    ]


def groups_of(names: Iterable[tuple[str, float]]) -> list[GroupHours]:
    """The groups with the most hours; the last is the sum of all others."""
    sums: dict[str, float] = defaultdict(float)
    for name, hours in names:
        sums[name] += hours
    order = sorted(sums, key=lambda name: (-sums[name], name))
    shown, others = order[:_MOST_GROUPS], order[_MOST_GROUPS:]
    found = [GroupHours(name=name, others=0, lost_hours=round(sums[name], 3)) for name in shown]
    if others:
        rest = round(sum(sums[name] for name in others), 3)
        found.append(GroupHours(name="", others=len(others), lost_hours=rest))
    return found


def date(day: dt.datetime) -> str:
    return f"{day:%Y-%m-%d}"
