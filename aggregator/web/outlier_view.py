"""Outliers as view models for people, and the geometry of their charts. Pure."""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aggregator.policy.outliers.fleet import FleetMeasurements, Outlier
from aggregator.policy.outliers.measures import MEASURES
from aggregator.web import models
from aggregator.web.node_view import ViewMoment

#: The chart's size, and the room around the drawing for its labels, in units of its view box.
WIDTH, HEIGHT = 640.0, 150.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 12.0, 12.0, 24.0
#: Seconds without a point after which a line has a gap: the part had no load, or no agent.
_GAP = 900.0


def outliers(
    measurements: FleetMeasurements, node: str, moment: ViewMoment
) -> list[models.Outlier]:
    """The findings of one node, the oldest first."""
    found = sorted(measurements.findings(node), key=lambda one: (one.since, one.series.component))
    return [_outlier(one, moment) for one in found]


def _outlier(one: Outlier, moment: ViewMoment) -> models.Outlier:
    measure = MEASURES[one.series.measure]
    return models.shape_of(
        models.Outlier,
        one,
        measure=measure.name,
        what=measure.what,
        component=one.series.component,
        model=one.series.model,
        unit=measure.unit,
        low=measure.low,
        values=one.of,
        since=moment.when(one.since),
        points=[
            models.shape_of(models.OutlierPoint, point, at=moment.when(point.at))
            for point in one.points
        ],
    )


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines as the ``points`` of SVG polylines; the band as those of polygons.

    ``top`` and ``bottom`` are the values at the upper and lower edge, ``bound`` the height from
    which a value deviates now, None where nothing is compared with it.
    """

    lines: tuple[str, ...]
    medians: tuple[str, ...]
    bands: tuple[str, ...]
    bound: float | None
    top: float
    bottom: float
    first: dt.datetime
    last: dt.datetime
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    upper: float = _TOP
    lower: float = HEIGHT - _BOTTOM
    width: float = WIDTH
    height: float = HEIGHT


def chart(outlier: models.Outlier) -> Chart | None:
    """The value against the median of the others and its MAD; None with fewer than two points."""
    points = outlier.points
    if len(points) < 2:
        return None
    away = -outlier.limit if outlier.low else outlier.limit
    edge = outlier.median + away if outlier.values else None
    heights = [height for p in points for height in (p.value, p.median - p.mad, p.median + p.mad)]
    heights += [edge] if edge is not None else []
    bottom, top = max(0.0, min(heights)), max(heights)
    if top <= bottom:
        top = bottom + 1.0
    first, last = points[0].at, points[-1].at
    seconds = max(1.0, (last - first).total_seconds())

    def x(at: dt.datetime) -> float:
        return _LEFT + (at - first).total_seconds() / seconds * (WIDTH - _LEFT - _RIGHT)

    def y(height: float) -> float:
        share = (min(max(height, bottom), top) - bottom) / (top - bottom)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)

    def line(part: Sequence[models.OutlierPoint], heights: Iterable[float]) -> str:
        pairs = zip(part, heights, strict=True)
        return " ".join(f"{x(point.at):.1f},{y(height):.1f}" for point, height in pairs)

    parts = list(_parts(points))
    return Chart(
        lines=tuple(line(part, [p.value for p in part]) for part in parts),
        medians=tuple(line(part, [p.median for p in part]) for part in parts),
        bands=tuple(
            line(part, [p.median + p.mad for p in part])
            + " "
            + line(part[::-1], [p.median - p.mad for p in reversed(part)])
            for part in parts
        ),
        bound=None if edge is None else round(y(edge), 1),
        top=top,
        bottom=bottom,
        first=first,
        last=last,
    )


def _parts(points: Sequence[models.OutlierPoint]) -> Iterator[Sequence[models.OutlierPoint]]:
    """The points between gaps."""
    begin = 0
    for at in range(1, len(points)):
        if (points[at].at - points[at - 1].at).total_seconds() > _GAP:
            yield points[begin:at]
            begin = at
    yield points[begin:]
