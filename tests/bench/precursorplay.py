"""Hardware faults of a fleet for a month, and the error counters that rise before some of them.

`FleetCounters` receives the rises of all GPUs, as the aggregator does. Rates, shares and leads are
published ones where there are any (Llama 3, "Story of Two GPUs" (SC 25), arXiv 2605.09370,
marin-community/marin#9086), else assumptions: a fault without a counter before it can't be seen.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from aggregator.health.model import MeasuredSeries
from aggregator.policy.precursors.fleet import FleetCounters
from tests.bench.faultplay import DAY, GPUS

#: Faults are drawn until so long after the month (seconds): their counters may rise within it.
_LONGEST_LEAD = 60 * DAY
#: The fleet has been seen for so long when the month begins.
_BEFORE = 7 * DAY
#: Occurrences a day on a healthy part, and on the noisy ones; the share of parts that are noisy.
_LINKS = 18
_QUIET, _NOISY, _NOISY_SHARE = 1e-4, 1e-2, 1e-3


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. ``rate`` is per GPU hour, ``share`` of the faults have a counter that
    rises ``days`` before (least, most), ``daily`` occurrences a day (least, most).
    """

    name: str
    rate: float
    share: float = 0.0
    counter: str = ""
    days: tuple[float, float] = (0.0, 0.0)
    daily: tuple[float, float] = (0.0, 0.0)


KINDS = (
    Kind("gpu-core", 7.0e-6),
    Kind("hbm", 1.1e-5, 0.3, "row-remaps", (1, 60), (1, 5)),
    Kind("remap-failure", 3.8e-6, 0.8, "row-remaps", (1, 10), (1, 8)),
    Kind("nvlink", 6.9e-6, 0.4, "nvlink-recoveries", (1, 10), (1, 10)),
    Kind("cable", 1.6e-6, 0.5, "ib-symbol-errors", (1, 10), (2, 20)),
    Kind("silent-corruption", 3e-7),
)
COUNTERS = ("row-remaps", "nvlink-recoveries", "ib-symbol-errors")


@dataclass(frozen=True, slots=True)
class _Fault:
    at: float
    node: int
    gpu: int
    kind: Kind
    begins: float = math.inf
    daily: float = 0.0


@dataclass
class PrecursorOutcome:
    """``leads`` are the seconds from a finding to its fault, ``faults`` all of the month."""

    faults: int = 0
    leads: list[float] = field(default_factory=list)
    false: int = 0
    findings: int = 0


def play_precursors(nodes: int, days: float, seed: int) -> PrecursorOutcome:
    """A month of so many nodes."""
    rng = random.Random(f"precursors {seed}")
    faults = list(_faults(nodes, days, rng))
    of_part = {(one.node, one.gpu, one.kind.counter): one for one in faults if one.kind.counter}
    counters = FleetCounters()
    values: dict[tuple[int, int], int] = {}
    for node in range(nodes):
        series = [MeasuredSeries(one, f"gpu{n}", "H100") for one in COUNTERS for n in range(GPUS)]
        counters.begin(str(node))
        counters.add_series(str(node), series, 0.0)
        counters.update(str(node), [(n, 0) for n in range(len(series))], 0.0)
    outcome, found = PrecursorOutcome(), set()
    rises = [*_healthy(nodes, days, rng)]
    for one in faults:
        rises += _before(one, days, rng)
    for at, node, gpu, counter in sorted(rises):
        number = COUNTERS.index(counter) * GPUS + gpu
        values[node, number] = values.get((node, number), 0) + 1
        changes = counters.update(str(node), [(number, values[node, number])], at + _BEFORE)
        if not any(change.finding for change in changes) or (node, gpu, counter) in found:
            continue
        found.add((node, gpu, counter))
        outcome.findings += 1
        fault = of_part.get((node, gpu, counter))
        if fault is None or not fault.begins <= at < fault.at:
            outcome.false += at >= 0
        elif 0 <= fault.at < days * DAY:
            outcome.leads.append(fault.at - at)
    outcome.faults = sum(0 <= one.at < days * DAY for one in faults)
    return outcome


def _faults(nodes: int, days: float, rng: random.Random) -> Iterator[_Fault]:
    seconds = days * DAY + _LONGEST_LEAD
    for kind in KINDS:
        expected = kind.rate * nodes * GPUS * seconds / 3600
        for _ in range(max(0, round(rng.gauss(expected, math.sqrt(expected))))):
            at, node, gpu = rng.uniform(0, seconds), rng.randrange(nodes), rng.randrange(GPUS)
            if rng.random() >= kind.share:
                yield _Fault(at, node, gpu, kind)
                continue
            lead, daily = _between(kind.days, rng), _between(kind.daily, rng)
            yield _Fault(at, node, gpu, kind, at - lead * DAY, daily)


def _between(bounds: tuple[float, float], rng: random.Random) -> float:
    """A value between the bounds; its logarithm is uniform."""
    return math.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1])))


def _before(
    fault: _Fault, days: float, rng: random.Random
) -> Iterator[tuple[float, int, int, str]]:
    """The rises of the counter before the fault."""
    if not fault.daily:
        return
    at = max(fault.begins, -_BEFORE)
    while True:
        at += rng.expovariate(fault.daily / DAY)
        if at >= min(fault.at, days * DAY):
            return
        yield at, fault.node, fault.gpu, fault.kind.counter


def _healthy(nodes: int, days: float, rng: random.Random) -> Iterator[tuple[float, int, int, str]]:
    """The rises of healthy parts: nearly all are quiet, and a few are noisy."""
    parts = nodes * GPUS
    for counter in COUNTERS:
        links = _LINKS if counter == "nvlink-recoveries" else 1
        noisy = [rng.randrange(parts) for _ in range(round(parts * links * _NOISY_SHARE))]
        for members, rate in ((range(parts), links * _QUIET), (noisy, _NOISY)):
            expected = len(members) * rate * (days + _BEFORE / DAY)
            for _ in range(max(0, round(rng.gauss(expected, math.sqrt(expected))))):
                part = rng.choice(members)
                at = rng.uniform(-_BEFORE, days * DAY)
                yield at, part // GPUS, part % GPUS, counter
