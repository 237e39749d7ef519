"""The slow GPUs of make bench-fleet in short: fewer nodes."""

import random
from pathlib import Path

import pytest

from tests.bench import slowplay
from tests.bench.fleet import gates, slow_figures
from tests.bench.slowplay import SlowOutcome, play_slow, slow_faults


def test_a_day_of_a_small_fleet_finds_its_slow_node_and_no_other() -> None:
    outcome = play_slow(40, 3)
    assert outcome.faults == 1
    assert len(outcome.found) == 1
    assert outcome.right >= 1
    assert outcome.wrong == 0


@pytest.mark.parametrize("seed", [5, 8, 18])
def test_a_day_of_twenty_nodes_takes_no_firmware_for_a_slow_gpu(seed: int) -> None:
    """In each of these a single node, of 10 to 16 with a load, has a lower highest clock."""
    assert play_slow(20, seed).wrong == 0


def test_findings_that_are_wrong_or_missing_fail_the_gates() -> None:
    passed: dict[str, float | int | str] = {
        "precision": 1,
        "explicit_recall": 1,
        "quarantine_p99_s": 0,
        "mass_event_quarantines": 0,
        "rack_event_quarantines": 0,
        "rack_event_alerts": 1.0,
    }
    good = slow_figures([SlowOutcome(5, 40, 2, [30, 30, 40, 90])])
    assert (good["slow_precision"], good["slow_recall"]) == (0.9524, 0.8)
    assert gates(passed | good) == []
    bad = slow_figures([SlowOutcome(5, 40, 3, [30, 30, 40])])
    assert gates(passed | bad) == [
        "precision of slow GPUs 0.9302 is below 0.95",
        "recall of slow GPUs 0.6 is below 0.8",
    ]


def test_nodes_become_slow_at_the_published_rate_and_by_as_much() -> None:
    faults = slow_faults(10_000, random.Random(1))
    assert len(faults) == 50
    assert all(1.09 < 1 / fault.share <= 1.5 for fault in faults)
    assert {len(fault.gpus) for fault in faults} == {1, 8}


def test_what_makes_slow_gpus_knows_nothing_of_the_bounds() -> None:
    text = Path(slowplay.__file__).read_text()
    imports = [line for line in text.splitlines() if line.startswith("from aggregator")]
    assert imports == [
        "from aggregator.health.model import MeasuredSeries",
        "from aggregator.policy.outliers.fleet import FleetMeasurements",
    ]
