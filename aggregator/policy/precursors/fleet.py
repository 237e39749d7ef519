"""The error counters of all nodes, and the parts whose counter rises while others' do not. Pure.

Of a part without a rise only its last value is kept. Times are monotonic seconds; a rise is kept by
its minute for `statistic.LONGEST`.
"""

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from aggregator.health.model import MeasuredSeries
from aggregator.policy.precursors import statistic
from aggregator.policy.precursors.counters import COUNTERS
from aggregator.runtime.interning import EMPTY

#: Minutes without a finding after a counter began anew: a reset or a load of the driver counts
#: errors of its own. Agents leave out the same time after a boot.
SETTLES = 20
#: Nodes whose counters rise within this number of minutes share an event, which is no precursor.
#: 214 of 288 nodes reported links that were down after planned reboots (NVIDIA/NVSentinel#1701).
SHARED_NODES = 3
SHARED_MINUTES = 3
#: Of a thousand parts this number may be sick at once: those with most occurrences.
SICK_IN_A_THOUSAND = 5
#: Of a thousand nodes that have a kind, at most this number have findings, and at least one: as UFM
#: bounds the ports that it isolates. Where more have rises, they are a kind of their own.
MOST_IN_A_THOUSAND = 40
#: Rises of one part that are kept: those of the last minutes.
MOST_RISES = 64
#: Series of one node that are compared. Kinds in all: those of more are not.
MOST_SERIES = 256
MOST_KINDS = 1_024
_ABSENT = 2**32 - 1
_MOST_VALUE = _ABSENT - 1
#: The least time between two fits to the fleet, in minutes.
_FIT_EVERY = 5
_NO_FIT = statistic.Background(0, 0.0, 0, 0)


@dataclass(frozen=True, slots=True)
class Precursor:
    """A finding. ``since``: monotonic seconds of the first rise that counts; ``value``: the
    counter's value now; ``rises``: its increase since then; ``others``: how many parts of the kind
    are compared; ``others_rate``: the occurrences a day of one of them.
    """

    series: MeasuredSeries
    since: float
    value: int
    rises: int
    others: int
    others_rate: float


class PrecursorChange(NamedTuple):
    """A finding has begun or has new rises (``finding``), or has ended (None)."""

    series: MeasuredSeries
    finding: Precursor | None


@dataclass(slots=True)
class _Part:
    """A part whose counter has risen: minutes and increases of the rises, one after the other."""

    minutes: "array[int]" = field(default_factory=lambda: array("q"))
    rises: "array[int]" = field(default_factory=lambda: array("q"))
    is_finding: bool = False

    def add(self, minute: int, rise: int) -> None:
        if self.minutes and self.minutes[-1] == minute:
            self.rises[-1] += rise
        else:
            self.minutes.append(minute)
            self.rises.append(rise)
        if len(self.minutes) > MOST_RISES:
            del self.minutes[0], self.rises[0]

    def remove(self, minutes: range) -> None:
        kept = [at for at, minute in enumerate(self.minutes) if minute not in minutes]
        self.rises = array("q", [self.rises[at] for at in kept])
        self.minutes = array("q", [self.minutes[at] for at in kept])

    def expire(self, now: int) -> None:
        first = now - statistic.LONGEST
        if min(self.minutes, default=first) < first:
            self.remove(range(now - 10**9, first))


@dataclass(slots=True, eq=False)
class _Kind:
    """All parts of one counter and one model."""

    seen_at: int
    series: int = 0
    counted: int = 0
    nodes: int = 0
    days: float = 0.0
    parts: dict[tuple[str, int], _Part] = field(default_factory=dict)
    #: Nodes and numbers of the parts with a rise, by span of `SHARED_MINUTES`.
    _shared: dict[int, dict[str, set[int]]] = field(default_factory=dict)
    _fit: statistic.Background = _NO_FIT
    _fitted_at: int = -_FIT_EVERY

    def pass_time(self, now: int) -> None:
        """Count the days for which the parts have been seen, of the longest window at most."""
        days = self.series * (now - self.seen_at) / statistic.DAY
        most = self.series * statistic.LONGEST / statistic.DAY
        self.days = min(self.days + days, most)
        self.seen_at = now

    def rise(self, node: str, number: int, minute: int, by: int) -> bool:
        """Count a rise; whether it is one node's own."""
        self.parts.setdefault((node, number), _Part()).add(minute, by)
        span = minute // SHARED_MINUTES
        for old in [one for one in self._shared if one < span - 1]:
            del self._shared[old]
        self._shared.setdefault(span, {}).setdefault(node, set()).add(number)
        around = {one: self._shared.get(one, {}) for one in (span - 1, span)}
        nodes = {name for members in around.values() for name in members}
        if len(nodes) < SHARED_NODES:
            return True
        for one, members in around.items():
            minutes = range(one * SHARED_MINUTES, (one + 1) * SHARED_MINUTES)
            for name, numbers in members.items():
                for each in numbers:
                    part = self.parts.get((name, each))
                    if part is not None and not part.is_finding:
                        part.remove(minutes)
        return False

    def fit(self, now: int) -> statistic.Background:
        """The healthy parts, fitted to all without the busiest, which may be sick."""
        if now - self._fitted_at < _FIT_EVERY:
            return self._fit
        self._fitted_at = now
        self.pass_time(now)
        for key in list(self.parts):
            part = self.parts[key]
            part.expire(now)
            if not part.minutes and not part.is_finding:
                del self.parts[key]
        slots = sorted(
            (len({minute // statistic.SLOT for minute in part.minutes}), node)
            for (node, _), part in self.parts.items()
        )
        busiest = ceil(self.series * SICK_IN_A_THOUSAND / 1000)
        quiet = slots[: max(0, len(slots) - busiest)]
        rising = [node for count, node in quiet if count]
        self._fit = statistic.Background(
            self.series,
            self.days,
            occurrences=sum(count for count, _ in quiet),
            noisy=max(0, max(self.counted, len(slots)) - busiest),
            rising=len(rising),
            is_one_node=self.nodes > 1 and len(set(rising)) == 1,
        )
        return self._fit

    def has_place(self, node: str) -> bool:
        """Whether one more node may have a finding."""
        nodes = {name for (name, _), part in self.parts.items() if part.is_finding}
        most = max(1, self.nodes * MOST_IN_A_THOUSAND // 1000)
        return node in nodes or len(nodes) < most


@dataclass(slots=True, eq=False)
class _Node:
    names: tuple[MeasuredSeries | None, ...] = ()
    kinds: tuple[_Kind | None, ...] = ()
    values: "array[int]" = field(default_factory=lambda: array("I"))
    counted: int = 0  # a bit for each series that has counted: a set is 216 bytes
    quiet_until: Mapping[int, int] = field(default_factory=lambda: EMPTY)


class FleetCounters:
    """Used by one process that sees all nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._kinds: dict[tuple[str, str], _Kind] = {}
        #: Parts with rises of earlier streams, which number their series anew.
        self._kept: dict[str, dict[MeasuredSeries, tuple[int, _Part]]] = {}

    def begin(self, node: str) -> None:
        """A new stream of the node: it names its series anew. Findings and rises stay."""
        known = self._nodes.pop(node, None)
        if known is None:
            return
        kept = self._kept.setdefault(node, {})
        for number, (series, kind) in enumerate(zip(known.names, known.kinds, strict=True)):
            if series is None or kind is None:
                continue
            part = kind.parts.pop((node, number), None) or _Part()
            if known.values[number] != _ABSENT:
                kept[series] = (known.values[number], part)
            kind.series -= 1
            kind.counted -= known.counted >> number & 1
        for kind in {one for one in known.kinds if one is not None}:
            kind.nodes -= 1
        if len(kept) > MOST_SERIES:
            self._kept[node] = dict(list(kept.items())[-MOST_SERIES:])

    def size(self, node: str) -> int:
        """How many series the node's stream has named."""
        known = self._nodes.get(node)
        return 0 if known is None else len(known.names)

    def add_series(self, node: str, series: Sequence[MeasuredSeries], now: float) -> None:
        """More series of the node, numbered in this order after those that it has named before."""
        known = self._nodes.setdefault(node, _Node())
        kept = self._kept.get(node, {})
        names, kinds, minute = list(known.names), list(known.kinds), _minute(now)
        for number, one in enumerate(series, len(names)):
            kind = self._kind(one, minute) if number < MOST_SERIES else None
            names.append(one if kind is not None else None)
            kinds.append(kind)
            value = _ABSENT
            if kind is not None:
                kind.pass_time(minute)
                kind.series += 1
                value, part = kept.pop(one, (_ABSENT, _Part()))
                if part.minutes or part.is_finding:
                    kind.parts[node, number] = part
                if value not in (_ABSENT, 0):
                    known.counted |= 1 << number
                    kind.counted += 1
            known.values.append(value)
        for kind in {one for one in kinds if one is not None} - set(known.kinds):
            kind.nodes += 1
        known.names, known.kinds = tuple(names), _shared_kinds(tuple(kinds))

    def restore(
        self, node: str, findings: Collection[tuple[str, str]], now: float
    ) -> list[PrecursorChange]:
        """Findings (counter, component) that a quarantine rests on, and this process does not have:
        they are open until a week from now has passed without a rise.
        """
        known = self._nodes.get(node)
        if known is None:
            return []
        changes, minute = [], _minute(now)
        for number, (series, kind) in enumerate(zip(known.names, known.kinds, strict=True)):
            if series is None or kind is None:
                continue
            if (series.measure, series.component) not in findings:
                continue
            part = kind.parts.setdefault((node, number), _Part())
            if not part.is_finding:
                part.add(minute, 0)
                part.is_finding = True
                found = _precursor(known, number, series, part, kind.fit(minute))
                changes.append(PrecursorChange(series, found))
        return changes

    def _kind(self, one: MeasuredSeries, minute: int) -> _Kind | None:
        if one.measure not in COUNTERS:
            return None
        key = (one.measure, one.model)
        found = self._kinds.get(key)
        if found is None and len(self._kinds) < MOST_KINDS:
            found = self._kinds[key] = _Kind(minute)
        return found

    def update(
        self, node: str, values: Iterable[tuple[int, int]], now: float
    ) -> list[PrecursorChange]:
        """New values by number of their series: the findings that begin or grow by them."""
        known = self._nodes.get(node)
        if known is None:
            return []
        minute, changes = _minute(now), []
        for number, given in values:
            kind, series = known.kinds[number], known.names[number]
            if kind is None or series is None:
                continue
            value, before = min(given, _MOST_VALUE), known.values[number]
            known.values[number] = value
            if before == _ABSENT:
                if value:
                    known.counted |= 1 << number
                    kind.counted += 1
                continue
            if value < before:
                known.quiet_until = {**known.quiet_until, number: minute + SETTLES}
                continue
            if value == before or minute < known.quiet_until.get(number, minute):
                continue
            if kind.rise(node, number, minute, value - before):
                changes += self._evaluate(node, known, number, kind, series, minute)
        return changes

    def _evaluate(
        self,
        node: str,
        known: _Node,
        number: int,
        kind: _Kind,
        series: MeasuredSeries,
        minute: int,
    ) -> list[PrecursorChange]:
        part = kind.parts[node, number]
        fit = kind.fit(minute)
        had_counted = bool(known.counted >> number & 1)
        found = statistic.score(part.minutes, minute, fit, had_counted=had_counted)
        is_weak = found < fit.threshold or fit.is_common or not kind.has_place(node)
        if not part.is_finding and is_weak:
            return []
        part.is_finding = True
        return [PrecursorChange(series, _precursor(known, number, series, part, fit))]

    def expire(self, node: str, now: float) -> list[PrecursorChange]:
        """The findings that end: no rise within the longest window, or many others rise too."""
        known = self._nodes.get(node)
        if known is None:
            return []
        changes, minute = [], _minute(now)
        for number, (series, kind) in enumerate(zip(known.names, known.kinds, strict=True)):
            part = kind.parts.get((node, number)) if kind is not None else None
            if part is None or series is None or not part.is_finding:
                continue
            part.expire(minute)
            if kind is not None and (not part.minutes or kind.fit(minute).is_common):
                changes += self._end(node, number)
        return changes

    def dismiss(self, node: str, component: str) -> list[PrecursorChange]:
        """A person has cleared the component, or another part is in its place: its rises end."""
        known = self._nodes.get(node)
        if known is None:
            return []
        numbers = [n for n, one in enumerate(known.names) if one and one.component == component]
        return [change for number in numbers for change in self._end(node, number)]

    def _end(self, node: str, number: int) -> list[PrecursorChange]:
        known = self._nodes[node]
        kind, series = known.kinds[number], known.names[number]
        part = kind.parts.pop((node, number), None) if kind is not None else None
        if part is None or series is None or not part.is_finding:
            return []
        return [PrecursorChange(series, None)]

    def forget(self, node: str) -> None:
        """The node is gone."""
        self.begin(node)
        self._kept.pop(node, None)


def _precursor(
    known: _Node, number: int, series: MeasuredSeries, part: _Part, fit: statistic.Background
) -> Precursor:
    return Precursor(
        series=series,
        since=60.0 * part.minutes[0] if part.minutes else 0.0,
        value=known.values[number],
        rises=sum(part.rises),
        others=max(0, fit.series - 1),
        others_rate=fit.quiet_rate,
    )


def _minute(now: float) -> int:
    return int(now // 60)


@lru_cache(maxsize=512)
def _shared_kinds(kinds: tuple[_Kind | None, ...]) -> tuple[_Kind | None, ...]:
    """One tuple for all nodes of a kind."""
    return kinds
