"""The measurements of all nodes, and which parts deviate for long from the others. Pure.

A part's score rises with each minute in which it deviates and falls in each in which it does not;
minutes without a value (no load, no agent) do not count. A finding begins when the score reaches
its measure's ``minutes``, and ends when the score is back at 0.

A node of 100 series takes some 2 KB: its values are one array, and its tuple of distributions is
shared with all nodes of the same kind.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from aggregator.health.model import MeasuredSeries
from aggregator.policy.outliers.measures import MEASURES
from aggregator.policy.outliers.spread import Spread

#: Seconds between two evaluations of one node, at least: agents send every 60 s.
EVERY = 45.0
#: Parts of one node that its present stream has not named and whose tracks are kept: as many as one
#: stream may name.
MOST_KEPT = 256
#: Values of one node in one distribution. More of them are not evaluated, and sway no median.
MOST_OF_A_NODE = 16
#: Distributions in all; series that would need more are not evaluated.
MOST_SPREADS = 8_192
#: The seconds between two points of a chart, the number of its points (12 hours), and of charts.
POINT_EVERY = 300.0
MOST_POINTS = 144
MOST_CHARTS = 2_000
MOST_CHARTS_OF_A_NODE = 16
#: A score falls this much in a minute, before it is a finding.
_FALL = 2
#: A finding ends by values that are no more than this share of the limit away from the median.
_CALM = 0.5
#: Parts of a node that have a value, for a ratio to their median.
_LEAST_SIBLINGS = 4
_THOUSANDTHS = 1000
_ABSENT = 2**32 - 1
MOST_VALUE = _ABSENT - 1


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a chart. ``at`` is monotonic seconds, the others are in the measure's unit."""

    at: float
    value: float
    median: float
    mad: float


@dataclass(frozen=True, slots=True)
class Outlier:
    """A finding. ``value`` is None while there is none; ``since`` is monotonic seconds.

    ``limit`` is the largest deviation from the median that is no outlier. ``of``, ``nodes``: with
    how many values of how many nodes it is compared now; 0: with none.
    """

    series: MeasuredSeries
    pool: str
    value: int | None
    median: int
    mad: int
    limit: float
    of: int
    nodes: int
    since: float
    points: tuple[Point, ...]


class OutlierChange(NamedTuple):
    """A finding has begun (``outlier``), or ended (None)."""

    series: MeasuredSeries
    outlier: Outlier | None


class _Track:
    """A part that deviates, or did: since when, its score, whether it is a finding, its chart."""

    __slots__ = ("deviates", "is_finding", "points", "score", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.score = 0
        self.is_finding = self.deviates = False
        #: at, value, median, MAD of each point, one after the other; None: too many charts.
        self.points: array[float] | None = None


@dataclass(slots=True, eq=False)
class _Node:
    """``kept`` are tracks of parts that the present stream has not named (yet)."""

    pool: str = ""
    components: tuple[str, ...] = ()
    models: tuple[tuple[str, str], ...] = ()  # measure and model
    spreads: tuple[Spread | None, ...] = ()
    values: "array[int]" = field(default_factory=lambda: array("I"))
    seen: int = 0  # a bit for each series that has had a value
    tracks: dict[int, _Track] = field(default_factory=dict)
    kept: dict[MeasuredSeries, _Track] = field(default_factory=dict)
    evaluated_at: float = float("-inf")


class FleetMeasurements:
    """All nodes' present values, their distributions and findings. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._spreads: dict[tuple[str, ...], Spread] = {}
        self._charts = 0

    def begin(self, node: str) -> None:
        """A new stream of the node: it names its series anew. Its findings stay."""
        known = self._nodes.get(node)
        if known is None:
            return
        self.drop_values(node)
        if known.spreads:  # scores of parts that a whole stream has not named are too old
            for series in [one for one, track in known.kept.items() if not track.is_finding]:
                self._drop_chart(known.kept.pop(series))
        for at, track in known.tracks.items():
            _deviates(node, track, known.spreads[at], deviates=False)
            if track.score:
                known.kept[_series(known, at)] = track
            else:
                self._drop_chart(track)
        self._release(known)
        known.components, known.models, known.spreads = (), (), ()
        known.values, known.tracks, known.seen = array("I"), {}, 0
        if not known.kept:
            del self._nodes[node]

    def add_series(self, node: str, pool: str, series: Sequence[MeasuredSeries]) -> None:
        """More series of the node, numbered in this order after those that it has named before."""
        known = self._nodes.setdefault(node, _Node())
        known.pool = pool
        first = len(known.spreads)
        known.components = (*known.components, *(one.component for one in series))
        known.models = _shared_models(
            (*known.models, *((one.measure, one.model) for one in series))
        )
        spreads = list(known.spreads)
        for number, one in enumerate(series, first):
            spreads.append(self._spread(pool, one, spreads))
            track = known.kept.pop(one, None)
            if track is not None:
                known.tracks[number] = track
        known.spreads = _shared_spreads(tuple(spreads))
        known.values = known.values + array("I", [_ABSENT]) * len(series)

    def _spread(
        self, pool: str, one: MeasuredSeries, others: Iterable[Spread | None]
    ) -> Spread | None:
        measure = MEASURES.get(one.measure)
        if measure is None:
            return None
        key = (pool, one.measure, one.model, one.component if measure.each else "")
        found = self._spreads.get(key)
        if found is None:
            if len(self._spreads) >= MOST_SPREADS:
                return None
            found = self._spreads[key] = Spread(key, measure)
        most = 1 if measure.each else MOST_OF_A_NODE
        if sum(other is found for other in others) >= most:
            if not found.refs:
                del self._spreads[key]
            return None
        found.refs += 1
        return found

    def _release(self, known: _Node) -> None:
        for member_of in {one for one in known.spreads if one is not None and _seen(known, one)}:
            member_of.members -= 1
        for at, spread in enumerate(known.spreads):
            if spread is not None:
                spread.refs -= 1
                spread.parts -= known.seen >> at & 1
                if not spread.refs:
                    del self._spreads[spread.key]

    def move(self, node: str, pool: str) -> None:
        """The node's pool, which may have changed since it named its series."""
        known = self._nodes.get(node)
        if known is None or known.pool == pool or not known.spreads:
            return
        series = [_series(known, at) for at in range(len(known.spreads))]
        values = [(at, value) for at, value in enumerate(known.values) if value != _ABSENT]
        self.begin(node)
        self.add_series(node, pool, series)
        self.update(node, values)

    def size(self, node: str) -> int:
        """How many series the node's stream has named."""
        known = self._nodes.get(node)
        return 0 if known is None else len(known.spreads)

    def update(
        self, node: str, values: Iterable[tuple[int, int]], absent: Iterable[int] = ()
    ) -> None:
        """New values by number of their series, and the numbers of those that have none now."""
        known = self._nodes.get(node)
        if known is None:
            return
        before = _compared(known)
        for number, value in values:
            known.values[number] = min(value, MOST_VALUE)
        for number in absent:
            known.values[number] = _ABSENT
        after = _compared(known)
        for at, (spread, value) in before.items():
            if after.get(at) != (spread, value):
                spread.remove(value)
        for at, (spread, value) in after.items():
            if before.get(at) != (spread, value):
                spread.add(value)
            if not known.seen >> at & 1:
                spread.members += not _seen(known, spread)
                known.seen |= 1 << at
                spread.parts += 1
        had = {spread for spread, _ in before.values()}
        has = {spread for spread, _ in after.values()}
        for spread in has - had:
            spread.nodes += 1
        for spread in had - has:
            spread.nodes -= 1

    def drop_values(self, node: str) -> None:
        """The node's agent is silent: its last values are no measurements."""
        known = self._nodes.get(node)
        if known is not None:
            self.update(node, (), range(len(known.values)))

    def forget(self, node: str) -> None:
        """The node is gone, or another replica's."""
        self.begin(node)
        for track in self._tracks(self._nodes.pop(node, None)):
            self._drop_chart(track)

    @staticmethod
    def _tracks(known: _Node | None) -> Iterable[_Track]:
        return () if known is None else [*known.tracks.values(), *known.kept.values()]

    # -- evaluating ------------------------------------------------------------------------------

    def evaluate(self, node: str, now: float) -> list[OutlierChange]:
        """Compare the node's values with the others': the findings that begin and end by it."""
        known = self._nodes.get(node)
        if known is None or now - known.evaluated_at < EVERY:
            return []
        known.evaluated_at = now
        changes = self._end_superseded(node, known) + self._end_surplus(known)
        compared = _compared(known)
        tracked: list[tuple[int, _Track]] = []
        for at, (spread, value) in compared.items():
            if not spread.is_population:
                continue
            spread.refresh(now)
            deviates = spread.deviation(value) > spread.limit
            track = known.tracks.get(at)
            if track is None:
                if not deviates:
                    continue
                track = known.tracks[at] = _Track(now)
            _deviates(node, track, spread, deviates=deviates)
            tracked.append((at, track))
        for at, track in tracked:  # all parts first: a node may deviate as a whole
            spread, value = compared[at]
            self._draw(known, track, now, value, spread)
            base = max(spread.base, _own_base(node, known, spread, compared))
            if _count(track, spread, spread.deviation(value) - base):
                series = _series(known, at)
                outlier = _outlier(known, series, at, track) if track.is_finding else None
                changes.append(OutlierChange(series, outlier))
            if not track.score and not track.deviates:
                self._drop_chart(track)
                del known.tracks[at]
        return changes

    def _end_superseded(self, node: str, known: _Node) -> list[OutlierChange]:
        """End the tracks of parts that have a value as another model now, and none as this one."""
        if not known.tracks and not known.kept:
            return []
        present = {
            (known.models[at][0], known.components[at])
            for at, value in enumerate(known.values)
            if value != _ABSENT
        }
        changes = []
        for at in [at for at in known.tracks if known.values[at] == _ABSENT]:
            series = _series(known, at)
            if (series.measure, series.component) in present:
                track = known.tracks.pop(at)
                _deviates(node, track, known.spreads[at], deviates=False)
                changes += self._end(series, track)
        for series in [one for one in known.kept if (one.measure, one.component) in present]:
            changes += self._end(series, known.kept.pop(series))
        return changes

    def _end_surplus(self, known: _Node) -> list[OutlierChange]:
        """End the oldest kept tracks, findings last: each stream may name other parts."""
        surplus = len(known.kept) - MOST_KEPT
        if surplus <= 0:
            return []
        oldest = sorted(known.kept, key=lambda one: known.kept[one].is_finding)
        changes = []
        for series in oldest[:surplus]:
            changes += self._end(series, known.kept.pop(series))
        return changes

    def _end(self, series: MeasuredSeries, track: _Track) -> list[OutlierChange]:
        """A track that was removed: it has no chart any more, and its finding is over."""
        self._drop_chart(track)
        return [OutlierChange(series, None)] if track.is_finding else []

    def _draw(self, known: _Node, track: _Track, now: float, value: int, spread: Spread) -> None:
        if track.points is None:
            of_node = sum(one.points is not None for one in self._tracks(known))
            if self._charts >= MOST_CHARTS or of_node >= MOST_CHARTS_OF_A_NODE:
                return
            self._charts += 1
            track.points = array("d")
        points = track.points
        if points and now - points[-4] < POINT_EVERY:
            return
        points.extend((now, float(value), float(spread.median), float(spread.mad)))
        del points[: -4 * MOST_POINTS]

    def _drop_chart(self, track: _Track) -> None:
        if track.points is not None:
            self._charts -= 1
            track.points = None

    # -- findings -----------------------------------------------------------------------------

    def findings(self, node: str) -> list[Outlier]:
        """The node's findings, in the order of its series."""
        known = self._nodes.get(node)
        if known is None:
            return []
        named = sorted(known.tracks.items())
        return [
            *(
                _outlier(known, _series(known, at), at, track)
                for at, track in named
                if track.is_finding
            ),
            *(
                _outlier(known, series, None, track)
                for series, track in known.kept.items()
                if track.is_finding
            ),
        ]

    def restore(
        self, node: str, series: Collection[tuple[str, str]], now: float
    ) -> list[OutlierChange]:
        """Findings (measure and component) that a quarantine rests on, and this process does not
        have: they stay open until their values are as those of others again.
        """
        known = self._nodes.get(node)
        if known is None:
            return []
        found = {(one.series.measure, one.series.component) for one in self.findings(node)}
        missing = set(series) - found
        changes = []
        for at in range(len(known.spreads)):
            one = _series(known, at)
            spread = known.spreads[at]
            if spread is None or (one.measure, one.component) not in missing:
                continue
            track = known.tracks.setdefault(at, _Track(now))
            if not track.is_finding:
                track.is_finding, track.score = True, spread.measure.minutes
                changes.append(OutlierChange(one, _outlier(known, one, at, track)))
        return changes

    def dismiss(self, node: str, component: str) -> list[OutlierChange]:
        """A person has cleared the component, or another part is in its place: its findings end."""
        known = self._nodes.get(node)
        if known is None:
            return []
        changes = []
        for at in [at for at in known.tracks if known.components[at] == component]:
            track = known.tracks.pop(at)
            _deviates(node, track, known.spreads[at], deviates=False)
            changes += self._end(_series(known, at), track)
        for series in [one for one in known.kept if one.component == component]:
            changes += self._end(series, known.kept.pop(series))
        return changes

    def spreads(self) -> Iterator[Spread]:
        """Every distribution, for the metrics and the tests."""
        return iter(self._spreads.values())


def _count(track: _Track, spread: Spread, away: float) -> bool:
    """One minute more; whether the finding has begun or ended by it.

    ``away`` is how far the value is from those of its kind.
    """
    most = spread.measure.minutes
    if away > spread.limit:
        track.score = min(track.score + 1, most)
        if track.score == most and not track.is_finding:
            track.is_finding = True
            return True
    elif not track.is_finding:
        track.score = max(0, track.score - _FALL)
    elif away <= _CALM * spread.limit:
        track.score -= 1
        track.is_finding = track.score > 0
        return not track.is_finding
    return False


def _deviates(node: str, track: _Track, spread: Spread | None, *, deviates: bool) -> None:
    if spread is not None and track.deviates != deviates:
        spread.count_deviating(node, 1 if deviates else -1)
    track.deviates = deviates


def _compared(known: _Node) -> dict[int, tuple[Spread, int]]:
    """The distribution and the value there of each series that has one now, by its number."""
    found: dict[int, tuple[Spread, int]] = {}
    siblings: dict[Spread, list[int]] = {}
    for at, spread in enumerate(known.spreads):
        if spread is None or known.values[at] == _ABSENT:
            continue
        if spread.measure.siblings:
            siblings.setdefault(spread, []).append(at)
        else:
            found[at] = (spread, known.values[at])
    for spread, parts in siblings.items():
        if len(parts) < _LEAST_SIBLINGS:
            continue
        middle = sorted(known.values[at] for at in parts)[len(parts) // 2]
        for at in parts:
            ratio = _THOUSANDTHS * known.values[at] // max(1, middle)
            found[at] = (spread, min(ratio, MOST_VALUE))
    return found


def _seen(known: _Node, spread: Spread) -> int:
    """How many parts of the node have had a value in the distribution."""
    return sum(one is spread and known.seen >> at & 1 for at, one in enumerate(known.spreads))


def _own_base(
    node: str, known: _Node, spread: Spread, compared: Mapping[int, tuple[Spread, int]]
) -> float:
    """How far the middle of the node's own parts is from the median, where the node deviates as a
    whole and the pool is too small to show whether that is a kind of its own; otherwise 0.
    """
    if spread.shows_kinds or 2 * spread.deviating.get(node, 0) <= _seen(known, spread):
        return 0.0
    away = sorted(spread.deviation(value) for one, value in compared.values() if one is spread)
    middle = away[(len(away) - 1) // 2]
    return middle if middle > spread.limit else 0.0  # half of those with a value may be normal


def _series(known: _Node, at: int) -> MeasuredSeries:
    measure, model = known.models[at]
    return MeasuredSeries(measure, known.components[at], model)


def _outlier(known: _Node, series: MeasuredSeries, at: int | None, track: _Track) -> Outlier:
    spread = None if at is None else known.spreads[at]
    value = None if at is None else _compared(known).get(at, (spread, None))[1]
    flat = track.points or ()
    return Outlier(
        series=series,
        pool=known.pool,
        value=value,
        median=0 if spread is None else spread.median,
        mad=0 if spread is None else spread.mad,
        limit=0.0 if spread is None else spread.limit,
        of=0 if spread is None else spread.total,
        nodes=0 if spread is None else spread.nodes,
        since=track.since,
        points=tuple(Point(*flat[i : i + 4]) for i in range(0, len(flat), 4)),
    )


@lru_cache(maxsize=512)
def _shared_spreads(spreads: tuple[Spread | None, ...]) -> tuple[Spread | None, ...]:
    """One tuple for all nodes of a kind."""
    return spreads


@lru_cache(maxsize=512)
def _shared_models(models: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """One tuple for all nodes of a kind."""
    return models
