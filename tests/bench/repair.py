"""Repairs: time from decision to order, kills of the aggregator, fences, and bisection.

The aggregator is the real process on the real API server; the site's repairers are an endpoint and
a command that record each operation that they carry out. ``BENCH_KILLS`` (200), ``BENCH_TRIALS``
(100), ``BENCH_SCHEDULES`` (500) and ``BENCH_SEED`` choose a shorter run, or another. Run by
`make bench-repair`, which exits with 1 when a gate fails, after the figures are written.

- lost: an attempt that was written, and in the end is neither ordered nor ended by a proof, its
  deadline or as unknown; or that says it was ordered, and never reached its repairer; or a due
  repair without an attempt.
- double: an operation that was carried out twice, or two operations for one rung of a quarantine.
- fences: breaches of invariants in random schedules of three replicas (`repair_fences.py`).
- bisection: 200 random sets of bad nodes among 1,024, by published counts of faults at a time.
"""

import os
import random
import sys
import time
from collections.abc import Mapping

from tests.bench.figures import percentile, table, write
from tests.bench.parts import plane_in_memory
from tests.bench.repair_fences import BREACHES, OTHER, Fences, play_schedules
from tests.bench.repair_kills import Kills, kill_at_random
from tests.bench.repair_orders import decide_to_order, requests_alone
from tests.bench.small import exit_code, number, small_or, start_quickly
from tests.support.fabrics import fabric, named, nodes, search

SETS, FLEET = small_or((2, 64), (200, 1024))
#: Bad nodes of a set: mostly one, at times as many as a rack has.
SIZES = (1, 1, 1, 1, 2, 2, 3, 4, 8, 16)

Figures = dict[str, float | int | str]


def orders(trials: int) -> Figures:
    """The time to the order, and as a ratio to its requests alone."""
    with plane_in_memory() as (plane, folder):
        ours = decide_to_order(plane, folder / "orders", trials)
    with plane_in_memory() as (plane, folder):
        alone = requests_alone(plane, folder / "alone", trials)
    return {
        "decide_to_order_p50_ms": round(percentile(ours, 50), 1),
        "decide_to_order_p99_ms": round(percentile(ours, 99), 1),
        "requests_alone_p50_ms": round(percentile(alone, 50), 1),
        "requests_alone_p99_ms": round(percentile(alone, 99), 1),
        "beyond_p50": round(percentile(ours, 50) / percentile(alone, 50), 2),
    }


def killed(kills: int, rng: random.Random) -> tuple[Figures, Kills]:
    """The steps that 200 kills lost or doubled."""
    begun = time.perf_counter()
    with plane_in_memory() as (plane, folder):
        found = kill_at_random(plane, folder / "kills", kills=kills, rng=rng)
    figures: Figures = {
        "lost_orders": len(found.lost),
        "double_orders": len(found.double),
        "reservations_left": found.reservations_left,
        "kills": found.kills,
        "kill_nodes": found.nodes,
        "kill_attempts": found.attempts,
        "kill_attempts_in_flight": found.in_flight,
        "kill_orders_sent_again": found.resent,
        "kill_outcomes": ", ".join(f"{name} {n}" for name, n in sorted(found.outcomes.items())),
        "kills_wall_s": round(time.perf_counter() - begun, 1),
    }
    return figures, found


def fenced(schedules: int, rng: random.Random) -> tuple[Figures, Fences]:
    """The breaches that random schedules of replicas found."""
    found = play_schedules(schedules, rng)
    return {**found.figures(), "fence_schedules": schedules}, found


def bisections(seed: int) -> Figures:
    """Rounds and wrong verdicts of random sets of bad nodes."""
    group, rng = nodes(FLEET), random.Random(seed)
    rounds, tests, wrong = [], [], 0
    for _ in range(SETS):
        bad = set(rng.sample(group, rng.choice(SIZES)))
        found = search(group, fabric(bad))
        wrong += named(found) != bad or bool(found.interactions) or not found.rest_passed
        rounds.append(found.rounds)
        tests.append(found.tests)
    links = [search(group, fabric(links=[rng.sample(group, 2)])) for _ in range(small_or(1, 20))]
    return {
        "bisection_rounds_1024": max(rounds),
        "bisection_wrong": wrong,
        "bisection_tests_p50": percentile(tests, 50),
        "bisection_tests_max": max(tests),
        "bisection_link_rounds_1024": max(one.rounds for one in links),
        "bisection_links_missed": sum(len(one.interactions) != 1 for one in links),
    }


#: The most of each figure.
_WANTED = {
    "decide_to_order_p99_ms": 100.0,
    "lost_orders": 0,
    "double_orders": 0,
    "reservations_left": 0,
    **dict.fromkeys((*BREACHES.values(), OTHER), 0),
    "bisection_rounds_1024": 22,
    "bisection_wrong": 0,
    "bisection_link_rounds_1024": 22,
    "bisection_links_missed": 0,
}


def gates(figures: Mapping[str, float | int | str]) -> list[str]:
    """The gates that fail, in words."""
    return [
        f"{name} is {figures[name]}; expected {most:g} at most"
        for name, most in _WANTED.items()
        if float(figures[name]) > most
    ]


def main() -> int:
    kills = number("BENCH_KILLS", 200, 1)
    trials = number("BENCH_TRIALS", 100, 1)
    schedules = number("BENCH_SCHEDULES", 500, 3)
    start_quickly()
    seed = int(os.environ.get("BENCH_SEED", "21"))
    # Each start of the aggregator would compile its modules anew otherwise.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    figures = bisections(seed)
    print(f"{schedules} schedules of three replicas ...", flush=True)
    fence_figures, fences = fenced(schedules, random.Random(seed))
    figures |= fence_figures
    print(f"decide to order, {trials} trials ...", flush=True)
    figures |= orders(trials)
    print(f"{kills} kills ...", flush=True)
    found_figures, found = killed(kills, random.Random(seed))
    figures |= found_figures
    for what, these in (
        ("lost", found.lost),
        ("double", found.double),
        ("fences", fences.wrong),
    ):
        for one in these:
            print(f"{what}: {one}")
    rows = [
        (name, str(value), f"{_WANTED[name]:g}" if name in _WANTED else "")
        for name, value in figures.items()
    ]
    print(table(f"bench-repair: {write('repair', figures)}", rows))
    failed = gates(figures)
    for gate in failed:
        print(f"GATE: {gate}")
    return exit_code(failed=bool(failed))


if __name__ == "__main__":
    sys.exit(main())
