"""The charts of GPU hours that jobs lost: a column for each day, a bar for each group. Pure."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aggregator.jobs.report import Stop
from aggregator.web.job_models import DayHours, GroupHours
from aggregator.web.timefmt import bounded_time

WIDTH, HEIGHT = 960.0, 150.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 12.0, 126.0
_ROW, _LABEL, _VALUE = 24.0, 150.0, 70.0
_MOST_LABEL = 22
#: Days of one report, the newest; groups of one chart.
_MOST_DAYS, _MOST_GROUPS = 366, 8
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class DayColumn:
    x: float
    y: float
    width: float
    height: float
    day: DayHours


@dataclass(frozen=True, slots=True)
class DayChart:
    """All in units of the view box. ``most``: the hours of the highest column."""

    columns: tuple[DayColumn, ...]
    most: float
    total: float
    width: float
    left: float = _LEFT
    top: float = _TOP
    bottom: float = _BOTTOM
    height: float = HEIGHT

    @property
    def right(self) -> float:
        return self.width - _RIGHT


@dataclass(frozen=True, slots=True)
class GroupBar:
    label: str
    y: float
    length: float
    group: GroupHours


@dataclass(frozen=True, slots=True)
class GroupChart:
    """All in units of the view box."""

    bars: tuple[GroupBar, ...]
    width: float
    height: float
    left: float = _LABEL


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
    sums: dict[str, float] = {}
    for name, hours in names:
        sums[name] = sums.get(name, 0.0) + hours
    order = sorted(sums, key=lambda name: (-sums[name], name))
    shown, others = order[:_MOST_GROUPS], order[_MOST_GROUPS:]
    found = [GroupHours(name=name, others=0, lost_hours=round(sums[name], 3)) for name in shown]
    if others:
        rest = round(sum(sums[name] for name in others), 3)
        found.append(GroupHours(name="", others=len(others), lost_hours=rest))
    return found


def day_chart(days: Sequence[DayHours], width: float = WIDTH) -> DayChart | None:
    """None where no hour was lost."""
    most = max((one.lost_hours for one in days), default=0.0)
    if most <= 0:
        return None
    room = (width - _LEFT - _RIGHT) / len(days)
    columns = [
        DayColumn(
            x=round(_LEFT + number * room, 1),
            y=round(_BOTTOM - one.lost_hours / most * (_BOTTOM - _TOP), 1),
            width=round(max(0.7 * room, 1.0), 1),
            height=round(one.lost_hours / most * (_BOTTOM - _TOP), 1),
            day=one,
        )
        for number, one in enumerate(days)
    ]
    return DayChart(tuple(columns), most, sum(one.lost_hours for one in days), width)


def group_chart(groups: Sequence[GroupHours], width: float = WIDTH / 2) -> GroupChart | None:
    """None where no hour was lost."""
    most = max((one.lost_hours for one in groups), default=0.0)
    if most <= 0:
        return None
    room = width - _LABEL - _VALUE
    bars = [
        GroupBar(
            label=f"{one.others} others" if one.others else _short(one.name),
            y=number * _ROW,
            length=round(one.lost_hours / most * room, 1),
            group=one,
        )
        for number, one in enumerate(groups)
    ]
    return GroupChart(tuple(bars), width, len(bars) * _ROW + 4)


def _short(name: str) -> str:
    return name if len(name) <= _MOST_LABEL else f"{name[: _MOST_LABEL - 1]}…"


def date(day: dt.datetime) -> str:
    return f"{day:%Y-%m-%d}"
