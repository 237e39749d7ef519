"""The chart of the last day: well nodes above, the others below, each with its own scale. Pure.

Of 10,000 nodes some tens are in quarantine: on one scale with the well ones no one would see them.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from aggregator.web.fleet_trend import LENGTH, STEP, TrendSample

WIDTH, HEIGHT = 960.0, 190.0
#: On a phone of 360 pixels.
NARROW = 330.0
_LEFT, _RIGHT = 64.0, 16.0
#: The upper and lower edge of each part of the chart.
_WELL, _REST = (12.0, 60.0), (82.0, 162.0)
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
    """A field over time, as the ``d`` of an SVG path, and its last value."""

    field: str
    label: str
    path: str
    last: int


@dataclass(frozen=True, slots=True)
class TrendChart:
    """All in units of the view box. ``scales``: heights and the value there. ``hours``: the points
    nearest to each full hour, newest first, for a table. ``is_short``: they cover less than a day.
    """

    lines: tuple[TrendLine, ...]
    scales: tuple[tuple[float, int], ...]
    first: dt.datetime
    last: dt.datetime
    hours: tuple[tuple[dt.datetime, TrendSample], ...]
    is_short: bool
    width: float = WIDTH
    left: float = _LEFT
    height: float = HEIGHT

    @property
    def right(self) -> float:
        return self.width - _RIGHT


def trend_chart(points: Sequence[TrendSample], width: float = WIDTH) -> TrendChart | None:
    """The chart of points, oldest first, or None with fewer than two."""
    if len(points) < 2:
        return None
    first, last = points[0].at, points[-1].at

    def x(at: float) -> float:
        return _LEFT + (at - first) / (last - first) * (width - _LEFT - _RIGHT)

    well = [one.well for one in points]
    low, high = min(well), max(well)
    most = max(1, *(getattr(one, name) for one in points for name, _ in _LINES))
    lines = [
        TrendLine(
            "well",
            "well",
            _path(points, attrgetter("well"), x, _scale(*_WELL, low, high)),
            well[-1],
        )
    ]
    for name, label in _LINES:
        path = _path(points, attrgetter(name), x, _scale(*_REST, 0, most))
        lines.append(TrendLine(name, label, path, getattr(points[-1], name)))
    scales = [(_REST[0], most), (_REST[1], 0), (_WELL[0], high)]
    if low < high:
        scales.append((_WELL[1], low))
    return TrendChart(
        lines=tuple(lines),
        scales=tuple(scales),
        first=_date(first),
        last=_date(last),
        hours=tuple(_hours(points)),
        is_short=last - first < LENGTH - 2 * STEP,
        width=width,
    )


def _scale(upper: float, lower: float, least: int, most: int) -> Callable[[int], float]:
    """The height of a value; one that never changes is drawn at the upper edge."""

    def y(value: int) -> float:
        share = (value - least) / (most - least) if most > least else 1.0
        return lower - share * (lower - upper)

    return y


def _path(
    points: Sequence[TrendSample],
    value: Callable[[TrendSample], int],
    x: Callable[[float], float],
    y: Callable[[int], float],
) -> str:
    """Steps: a value holds until the next point. Points without a change take no room."""
    parts: list[str] = []
    before: TrendSample | None = None
    for point in points:
        if before is None or point.at - before.at > _GAP:
            if before is not None:
                parts.append(f"H{x(before.at):.0f}")
            parts.append(f"M{x(point.at):.0f},{y(value(point)):.1f}")
        elif value(point) != value(before):
            parts.append(f"H{x(point.at):.0f}V{y(value(point)):.1f}")
        before = point
    if before is not None:
        parts.append(f"H{x(before.at):.0f}")
    return "".join(parts)


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
