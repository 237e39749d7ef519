"""The chart of the last day: well nodes above, the others below, each with its own scale. Pure.

Of 10,000 nodes some tens are in quarantine: on one scale with the well ones no one would see them.
"""

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aggregator.web.fleet_trend import LENGTH, STEP, TrendSample

#: Seconds without a point after which a line has a gap.
_GAP = 2.5 * STEP
_HOUR = 3600.0
#: Lines of the lower part: the field, and its name.
_LINES = (
    ("other", "warning, silent or unknown"),
    ("held", "held back"),
    ("quarantined", "in quarantine"),
    ("drained", "of these drained"),
)


@dataclass(frozen=True, slots=True)
class TrendLine:
    """A field over time, as the ``d`` of an SVG path, and its last value.

    Units: seconds after the first point, and nodes below the part's upper edge.
    """

    field: str
    label: str
    path: str
    last: int


@dataclass(frozen=True, slots=True)
class TrendPart:
    """Lines of one scale, and the numbers of nodes at its upper and lower edge."""

    lines: tuple[TrendLine, ...]
    most: int
    least: int


@dataclass(frozen=True, slots=True)
class TrendChart:
    """``hours``: the points nearest to each full hour, newest first, for a table. ``is_short``:
    they cover less than a day.
    """

    parts: tuple[TrendPart, ...]
    seconds: float
    first: dt.datetime
    last: dt.datetime
    hours: tuple[tuple[dt.datetime, TrendSample], ...]
    is_short: bool

    @property
    def lines(self) -> tuple[TrendLine, ...]:
        return tuple(line for part in self.parts for line in part.lines)


def trend_chart(points: Sequence[TrendSample]) -> TrendChart | None:
    """The chart of points, oldest first, or None with fewer than two."""
    if len(points) < 2:
        return None
    first, last = points[0].at, points[-1].at
    return TrendChart(
        parts=(
            _part(points, (("well", "well"),), least=min(one.well for one in points)),
            _part(points, _LINES, most=1),
        ),
        seconds=last - first,
        first=_date(first),
        last=_date(last),
        hours=tuple(_hours(points)),
        is_short=last - first < LENGTH - 2 * STEP,
    )


def _part(
    points: Sequence[TrendSample],
    names: Sequence[tuple[str, str]],
    *,
    least: int = 0,
    most: int = 0,
) -> TrendPart:
    most = max(most, *(getattr(one, name) for one in points for name, _ in names))
    lines = (
        TrendLine(name, label, _path(points, name, most), getattr(points[-1], name))
        for name, label in names
    )
    return TrendPart(tuple(lines), most, least)


def _path(points: Sequence[TrendSample], name: str, most: int) -> str:
    """Steps: a value holds until the next point. Points without a change take no room."""
    parts: list[str] = []
    before = points[0]
    for point in points:
        x, y = point.at - points[0].at, most - getattr(point, name)
        if point is before:
            parts.append(f"M{x:.0f},{y}")
        elif point.at - before.at > _GAP:
            parts.append(f"H{before.at - points[0].at:.0f}M{x:.0f},{y}")
        elif y != most - getattr(before, name):
            parts.append(f"H{x:.0f}V{y}")
        before = point
    return "".join(parts) + f"H{before.at - points[0].at:.0f}"


def _hours(points: Sequence[TrendSample]) -> Iterator[tuple[dt.datetime, TrendSample]]:
    """The last point, then the first point of each full hour."""
    yield _date(points[-1].at), points[-1]
    seen = {points[-1].at // _HOUR}
    firsts: dict[float, TrendSample] = {}
    for point in points:
        firsts.setdefault(point.at // _HOUR, point)
    for hour, point in reversed(firsts.items()):
        if hour not in seen:
            yield _date(point.at), point


def _date(at: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(at, dt.UTC)
