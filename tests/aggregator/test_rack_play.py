"""Rack events and precursors, drawn as `make bench-fleet` draws them, and their gates."""

import pytest

from tests.bench import rackplay
from tests.bench.fleet import gates, precursor_figures, rack_figures
from tests.bench.precursorplay import PrecursorOutcome, play_precursors
from tests.bench.rackplay import RackOutcome, play_racks


def test_drawn_events_name_their_origin_and_take_no_follower() -> None:
    outcome = play_racks(6, nodes=8, seed=1)
    assert outcome.wrong == []
    assert outcome.followers_evicted == 0
    assert len(outcome.taken) == outcome.explicit > 0
    assert max(outcome.taken) < 30


def test_an_origin_that_the_evidence_does_not_name_counts_as_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This shows that the play compares the names."""
    monkeypatch.setattr(rackplay.RackEvent, "named", property(lambda event: False))
    outcome = play_racks(2, nodes=4, seed=3)
    assert outcome.right < outcome.events
    assert len(outcome.wrong) == outcome.events - outcome.right


def test_a_month_of_counters_before_faults_passes_its_gates() -> None:
    outcome = play_precursors(1000, 30, seed=1)
    figures = precursor_figures([outcome], 1000, 30)
    assert outcome.faults > 100
    assert float(figures["lead_share"]) >= 0.2
    assert float(figures["lead_median_h"]) > 24
    assert float(figures["early_false_per_node_month"]) <= 0.01


def test_each_new_gate_can_fail() -> None:
    well = {
        "precision": 1.0,
        "explicit_recall": 1.0,
        "quarantine_p99_s": 1.0,
        "mass_event_quarantines": 0,
        "rack_event_quarantines": 0,
        "rack_event_alerts": 1.0,
    }
    good = rack_figures([RackOutcome(events=2, right=2)])
    early = precursor_figures([PrecursorOutcome(faults=4, leads=[3600.0], findings=1)], 10, 30)
    assert gates(well | good | early) == []
    bad = rack_figures([RackOutcome(events=2, right=1, followers_evicted=1)])
    late = precursor_figures([PrecursorOutcome(faults=4, false=1, findings=1)], 10, 30)
    assert len(gates(well | bad | late)) == 4
