"""Outliers as view models for people, and the lines of their charts. Pure."""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aggregator.policy.outliers.fleet import FleetMeasurements, Outlier
from aggregator.policy.outliers.measures import MEASURES
from aggregator.web import models
from aggregator.web.node_view import ViewMoment

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

    Units: seconds after the first point, and the measure's below ``top``. ``bound``: where a value
    deviates now, None where nothing is compared with it.
    """

    lines: tuple[str, ...]
    medians: tuple[str, ...]
    bands: tuple[str, ...]
    bound: float | None
    top: float
    bottom: float
    seconds: float
    first: dt.datetime
    last: dt.datetime


def chart(outlier: models.Outlier) -> Chart | None:
    """The value against the median of the others and its MAD; None with fewer than two points."""
    points = outlier.points
    if len(points) < 2:
        return None
    away = -outlier.limit if outlier.low else outlier.limit
    edge = [outlier.median + away] if outlier.values else []
    around = [height for p in points for height in (p.value, p.median - p.mad, p.median + p.mad)]
    bottom, top = max(0.0, min(around + edge)), max(around + edge)
    if top <= bottom:
        top = bottom + 1.0

    def line(part: Iterable[models.OutlierPoint], mads: float | None = None) -> str:
        """Of the values, or so many MADs from the medians."""
        return " ".join(
            f"{(p.at - points[0].at).total_seconds():.0f},"
            f"{top - (p.value if mads is None else max(p.median + mads * p.mad, bottom)):.6g}"
            for p in part
        )

    parts = list(_parts(points))
    return Chart(
        lines=tuple(line(part) for part in parts),
        medians=tuple(line(part, 0) for part in parts),
        bands=tuple(f"{line(part, 1)} {line(reversed(part), -1)}" for part in parts),
        bound=top - edge[0] if edge else None,
        top=top,
        bottom=bottom,
        seconds=max(1.0, (points[-1].at - points[0].at).total_seconds()),
        first=points[0].at,
        last=points[-1].at,
    )


def _parts(points: Sequence[models.OutlierPoint]) -> Iterator[Sequence[models.OutlierPoint]]:
    """The points between gaps."""
    begin = 0
    for at in range(1, len(points)):
        if (points[at].at - points[at - 1].at).total_seconds() > _GAP:
            yield points[begin:at]
            begin = at
    yield points[begin:]
