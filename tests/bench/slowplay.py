"""Slow GPUs in a fleet that trains: their clocks, minute by minute, under the real evaluating.

Nodes of 8 GPUs run jobs for a day. It knows no measure's bounds. Published rates and sizes:

- 0.5 % of machines are slow, by about 10 % (MegaScale, NSDI 2024, section 5);
- equal GPUs at the power cap differ by 8 % on average and 22 % at most from the fastest to the
  slowest of a cluster, and outliers are up to 1.5 times slower than the median (Sinha et al., "Not
  All GPUs Are Created Equal", SC 2022);
- the time of day makes 1 to 2 % of throughput (Llama 3, 2024, section 3.3.4).

No source says how many slow machines have one slow GPU, nor how many are slowed down by heat, which
the driver names, and how many at the power cap alone. Here three in four have one, and half are
named.
"""

import math
import random
from dataclasses import dataclass, field

from aggregator.health.model import MeasuredSeries
from aggregator.policy.outliers.fleet import FleetMeasurements

GPUS = 8
MINUTES = 1440
#: Of the nodes, those that become slow, in the first half of the day.
SLOW_NODES = 0.005
ONE_GPU, NAMED = 0.75, 0.5
#: The clock of a slow GPU, as a share of what it was.
SLOWEST, LEAST_SLOW = 0.67, 0.91
#: MHz: the highest clock, its step, and the clocks of jobs that reach the power cap.
MOST, STEP, CAPPED = 1980, 15, (1200, 1800)
#: At the cap: standard deviation between GPUs, of a reading, and the share of a day's swing.
BETWEEN, READING, SWING = 0.02, 0.01, 0.01
#: Jobs: minutes, nodes, the shares of those at the cap, and of those whose clocks a person has set.
JOB_MINUTES, PAUSE_MINUTES = (20.0, 900.0), 10.0
JOB_NODES = (1, 1, 2, 4, 8, 16, 32, 64)
AT_CAP, AS_SET = 0.6, 0.05
#: Of the nodes, those whose maintenance has left them with a lower highest clock for good.
OTHER_FIRMWARE, THEIR_MOST = 0.15, 1755
_NOISE = 4096


@dataclass(frozen=True, slots=True)
class SlowFault:
    """A node's GPUs are slow from minute ``at`` on: all readings times ``share``."""

    node: int
    gpus: tuple[int, ...]
    at: int
    share: float
    named: bool


@dataclass(slots=True)
class SlowOutcome:
    """Findings that were right and wrong, faults that were found, and after how many minutes."""

    faults: int = 0
    right: int = 0
    wrong: int = 0
    found: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Job:
    until: int
    clock: float
    capped: bool
    is_set: bool


def slow_faults(nodes: int, rng: random.Random) -> list[SlowFault]:
    """Which nodes become slow, and how."""
    chosen = rng.sample(range(nodes), max(1, round(nodes * SLOW_NODES)))
    return [
        SlowFault(
            node=node,
            gpus=(rng.randrange(GPUS),) if rng.random() < ONE_GPU else tuple(range(GPUS)),
            at=rng.randrange(MINUTES // 2),
            share=rng.uniform(SLOWEST, LEAST_SLOW),
            named=rng.random() < NAMED,
        )
        for node in chosen
    ]


def play_slow(nodes: int, seed: int) -> SlowOutcome:
    """One day of ``nodes`` nodes."""
    rng = random.Random(f"slow {seed}")
    play = _Play(nodes, rng)
    for minute in range(MINUTES):
        play.minute(minute)
    return play.outcome


class _Play:
    def __init__(self, nodes: int, rng: random.Random) -> None:
        self._rng = rng
        self._names = [f"node-{number:05}" for number in range(nodes)]
        self._faults = {fault.node: fault for fault in slow_faults(nodes, rng)}
        self._jobs: list[_Job | None] = [None] * nodes
        self._most = [THEIR_MOST if rng.random() < OTHER_FIRMWARE else MOST for _ in range(nodes)]
        self._own = [[rng.gauss(1.0, BETWEEN) for _ in range(GPUS)] for _ in range(nodes)]
        self._noise = [rng.gauss(1.0, READING) for _ in range(_NOISE + GPUS)]
        self._told: list[list[int]] = [[-1] * 2 * GPUS for _ in range(nodes)]
        self._fleet = FleetMeasurements()
        self._found: set[int] = set()
        self.outcome = SlowOutcome(faults=len(self._faults))
        series = [
            MeasuredSeries(measure, f"GPU-{gpu}", "NVIDIA H200")
            for measure in ("gpu-clock", "gpu-clock-capped")
            for gpu in range(GPUS)
        ]
        for name in self._names:
            self._fleet.add_series(name, "training", series)

    def minute(self, minute: int) -> None:
        self._schedule(minute)
        swing = 1 + SWING * math.sin(2 * math.pi * minute / MINUTES)
        for number, name in enumerate(self._names):
            self._send_changes(number, name, self._readings(number, minute, swing))
            for change in self._fleet.evaluate(name, 60.0 * minute):
                if change.outlier is not None:
                    self._evaluate(number, int(change.series.component[4:]), minute)

    def _schedule(self, minute: int) -> None:
        """Jobs end, and others begin on nodes that are free, of one load on all their GPUs."""
        rng = self._rng
        for number, job in enumerate(self._jobs):
            if job is not None and job.until <= minute:
                self._jobs[number] = None
        free = [n for n, job in enumerate(self._jobs) if job is None]
        rng.shuffle(free)
        while free and rng.random() < 1 - 1 / PAUSE_MINUTES:
            shortest, longest = JOB_MINUTES
            capped = rng.random() < AT_CAP
            job = _Job(
                until=minute + round(shortest * (longest / shortest) ** rng.random()),
                clock=rng.uniform(*CAPPED) if capped else MOST,
                capped=capped,
                is_set=rng.random() < AS_SET,
            )
            for _ in range(min(rng.choice(JOB_NODES), len(free))):
                self._jobs[free.pop()] = job

    def _readings(self, number: int, minute: int, swing: float) -> list[int]:
        """The values of the node's series; -1: none. A job's first and last minutes have none."""
        readings = [-1] * 2 * GPUS
        job = self._jobs[number]
        if job is None or job.is_set:
            return readings
        offset = self._rng.randrange(_NOISE)
        fault = self._faults.get(number)
        if fault is not None and fault.at > minute:
            fault = None
        most, own = self._most[number], self._own[number]
        for gpu in range(GPUS):
            clock, capped = float(most), job.capped
            if capped:
                clock = job.clock * swing * own[gpu] * self._noise[offset + gpu]
                capped = clock < most
            if fault is not None and gpu in fault.gpus:
                clock *= fault.share
                capped = job.capped and not fault.named
            readings[gpu + GPUS * capped] = STEP * round(min(clock, most) / STEP)
        return readings

    def _send_changes(self, number: int, name: str, readings: list[int]) -> None:
        """Only what has changed, as an agent does."""
        told = self._told[number]
        if told == readings:
            return
        self._told[number] = readings
        changed = [
            (i, new) for i, (old, new) in enumerate(zip(told, readings, strict=True)) if old != new
        ]
        self._fleet.update(
            name,
            [(i, value) for i, value in changed if value >= 0],
            [i for i, value in changed if value < 0],
        )

    def _evaluate(self, number: int, gpu: int, minute: int) -> None:
        fault = self._faults.get(number)
        if fault is None or gpu not in fault.gpus or fault.at > minute:
            self.outcome.wrong += 1
            return
        self.outcome.right += 1
        if number not in self._found:
            self._found.add(number)
            self.outcome.found.append(minute - fault.at)
