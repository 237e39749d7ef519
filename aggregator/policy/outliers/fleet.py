"""The measurements of all nodes, and which parts deviate for long from the others. Pure.

A part's score rises with each minute in which it deviates and falls in each in which it does not;
minutes without a value (no load, no agent) do not count. A finding begins when the score reaches
its measure's ``minutes``, and ends when the score is back at 0.

A node of 100 series takes some 2 KB: its values are one array, and its tuple of distributions is
shared with all nodes of the same kind.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from aggregator.health.model import MeasuredSeries
from aggregator.policy.outliers.measures import MEASURES
from aggregator.policy.outliers.spread import Spread

#: Seconds between two judgements of one node, at least: agents send every 60 s.
EVERY = 45.0
#: Values of one node in one distribution. More of them are not judged, and sway no median.
MOST_OF_A_NODE = 16
#: Distributions in all; series that would need more are not judged.
MOST_SPREADS = 8_192
#: A point of a chart every so many seconds, so many of them (12 hours), for so many charts.
POINT_EVERY = 300.0
MOST_POINTS = 144
MOST_CHARTS = 2_000
#: A score falls so much in a minute, before it is a finding.
_FALL = 2
#: A value this share of the limit away from the median neither deviates nor recovers.
_CALM = 0.5
#: Values of the node's other parts, with which one is compared.
_LEAST_SIBLINGS = 3
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


class Change(NamedTuple):
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


class _Node:
    """``kept`` are tracks of parts that the present stream has not named (yet)."""

    __slots__ = (
        "components",
        "judged_at",
        "kept",
        "models",
        "pool",
        "spreads",
        "tracks",
        "values",
    )

    def __init__(self) -> None:
        self.pool = ""
        self.components: tuple[str, ...] = ()
        self.models: tuple[tuple[str, str], ...] = ()  # measure and model
        self.spreads: tuple[Spread | None, ...] = ()
        self.values = array("I")
        self.tracks: dict[int, _Track] = {}
        self.kept: dict[MeasuredSeries, _Track] = {}
        self.judged_at = float("-inf")


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
        for at, track in known.tracks.items():
            if track.score:
                known.kept[_series(known, at)] = track
            else:
                self._drop_chart(track)
        self._release(known.spreads)
        known.components, known.models, known.spreads = (), (), ()
        known.values, known.tracks = array("I"), {}
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
        if sum(other is found for other in others) >= MOST_OF_A_NODE:
            if not found.refs:
                del self._spreads[key]
            return None
        found.refs += 1
        return found

    def _release(self, spreads: Iterable[Spread | None]) -> None:
        for spread in spreads:
            if spread is not None:
                spread.refs -= 1
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
        before = _present(known)
        for number, value in values:
            self._put(known, number, min(value, MOST_VALUE))
        for number in absent:
            self._put(known, number, _ABSENT)
        after = _present(known)
        for spread in after - before:
            spread.nodes += 1
        for spread in before - after:
            spread.nodes -= 1

    def _put(self, known: _Node, number: int, value: int) -> None:
        old, spread = known.values[number], known.spreads[number]
        known.values[number] = value
        if spread is not None:
            if old != _ABSENT:
                spread.remove(old)
            if value != _ABSENT:
                spread.add(value)

    def drop_values(self, node: str) -> None:
        """The node's agent is silent: its last values are no measurements."""
        known = self._nodes.get(node)
        if known is not None:
            self.update(node, (), range(len(known.values)))
            for at, track in known.tracks.items():
                _deviates(track, known.spreads[at], deviates=False)

    def forget(self, node: str) -> None:
        """The node is gone, or another replica's."""
        self.begin(node)
        for track in self._tracks(self._nodes.pop(node, None)):
            self._drop_chart(track)

    @staticmethod
    def _tracks(known: _Node | None) -> Iterable[_Track]:
        return () if known is None else [*known.tracks.values(), *known.kept.values()]

    # -- judging ------------------------------------------------------------------------------

    def judge(self, node: str, now: float) -> list[Change]:
        """Compare the node's values with the others': the findings that begin and end by it."""
        known = self._nodes.get(node)
        if known is None or now - known.judged_at < EVERY:
            return []
        known.judged_at = now
        changes = []
        for at, spread in enumerate(known.spreads):
            value = known.values[at]
            if spread is None:
                continue
            track = known.tracks.get(at)
            if value == _ABSENT or not spread.is_population:
                if track is not None:
                    _deviates(track, spread, deviates=False)
                    self._drop_idle(known, at, track)
                continue
            spread.refresh(now)
            away = spread.deviation(value)
            deviates = away > spread.limit and self._exceeds_siblings(known, at, spread)
            if track is None:
                if not deviates:
                    continue
                track = known.tracks[at] = _Track(now)
            _deviates(track, spread, deviates=deviates)
            self._draw(track, now, value, spread)
            calm = away <= _CALM * spread.limit or (away > spread.limit and not deviates)
            changed = _count(track, spread, calm=calm)
            if changed:
                series = _series(known, at)
                begun = track.is_finding
                outlier = _outlier(known, series, at, track) if begun else None
                changes.append(Change(series, outlier))
            self._drop_idle(known, at, track)
        return changes

    @staticmethod
    def _exceeds_siblings(known: _Node, at: int, spread: Spread) -> bool:
        """Whether the value deviates from the node's other parts too, where that matters."""
        measure = spread.measure
        if not measure.siblings:
            return True
        others = sorted(
            value
            for number, value in enumerate(known.values)
            if number != at and value != _ABSENT and known.spreads[number] is spread
        )
        if len(others) < _LEAST_SIBLINGS:
            return False
        middle = others[len(others) // 2]
        value = known.values[at]
        away = middle - value if measure.low else value - middle
        return away > max(measure.floor, measure.share * middle)

    def _draw(self, track: _Track, now: float, value: int, spread: Spread) -> None:
        if track.points is None:
            if self._charts >= MOST_CHARTS:
                return
            self._charts += 1
            track.points = array("d")
        points = track.points
        if points and now - points[-4] < POINT_EVERY:
            return
        points.extend((now, float(value), float(spread.median), float(spread.mad)))
        del points[: -4 * MOST_POINTS]

    def _drop_idle(self, known: _Node, at: int, track: _Track) -> None:
        """A track counts among those that deviate for as long as it does, even with no score."""
        if not track.score and not track.deviates:
            self._drop_chart(track)
            del known.tracks[at]

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

    def restore(self, node: str, series: Collection[tuple[str, str]], now: float) -> list[Change]:
        """Findings (measure and component) that a quarantine rests on, and this process does not
        have: they stand until their values are as those of others again.
        """
        known = self._nodes.get(node)
        if known is None:
            return []
        changes = []
        for at in range(len(known.spreads)):
            one = _series(known, at)
            spread = known.spreads[at]
            if spread is None or (one.measure, one.component) not in series:
                continue
            track = known.tracks.setdefault(at, _Track(now))
            if not track.is_finding:
                track.is_finding, track.score = True, spread.measure.minutes
                changes.append(Change(one, _outlier(known, one, at, track)))
        return changes

    def dismiss(self, node: str, component: str) -> list[Change]:
        """A person has cleared the component, or another part is in its place: its findings end."""
        known = self._nodes.get(node)
        if known is None:
            return []
        changes = []
        for at in [at for at in known.tracks if known.components[at] == component]:
            track = known.tracks.pop(at)
            _deviates(track, known.spreads[at], deviates=False)
            changes += [Change(_series(known, at), None)] if track.is_finding else []
            self._drop_chart(track)
        for series in [one for one in known.kept if one.component == component]:
            track = known.kept.pop(series)
            changes += [Change(series, None)] if track.is_finding else []
            self._drop_chart(track)
        return changes

    def spreads(self) -> Iterator[Spread]:
        """Every distribution, for the metrics and the tests."""
        return iter(self._spreads.values())


def _count(track: _Track, spread: Spread, *, calm: bool) -> bool:
    """One minute more; whether the finding has begun or ended by it."""
    most = spread.measure.minutes
    if track.deviates and not spread.is_widespread:
        track.score = min(track.score + 1, most)
        if track.score == most and not track.is_finding:
            track.is_finding = True
            return True
    elif calm:
        track.score = max(0, track.score - (1 if track.is_finding else _FALL))
        if not track.score and track.is_finding:
            track.is_finding = False
            return True
    return False


def _deviates(track: _Track, spread: Spread | None, *, deviates: bool) -> None:
    if spread is not None and track.deviates != deviates:
        spread.deviating += 1 if deviates else -1
    track.deviates = deviates


def _present(known: _Node) -> set[Spread]:
    """The distributions in which the node has a value."""
    return {
        spread
        for spread, value in zip(known.spreads, known.values, strict=True)
        if spread is not None and value != _ABSENT
    }


def _series(known: _Node, at: int) -> MeasuredSeries:
    measure, model = known.models[at]
    return MeasuredSeries(measure, known.components[at], model)


def _outlier(known: _Node, series: MeasuredSeries, at: int | None, track: _Track) -> Outlier:
    spread = None if at is None else known.spreads[at]
    value = _ABSENT if at is None else known.values[at]
    flat = track.points or ()
    return Outlier(
        series=series,
        pool=known.pool,
        value=None if value == _ABSENT else value,
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
