"""Drawn rack events through the real controller, as `make bench-fleet` plays 100 of them."""

import pytest

from tests.bench import rackplay
from tests.bench.rackplay import play_racks


def test_drawn_events_name_their_origin_and_take_no_follower() -> None:
    outcome = play_racks(12, nodes=8, seed=1)
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
