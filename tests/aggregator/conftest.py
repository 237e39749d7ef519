"""Fixtures of every test of the aggregator."""

import pytest

from aggregator.quarantine.drain import drainer


@pytest.fixture(autouse=True)
def _soon_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node counts as empty at once: only the tests of drains are about that time."""
    monkeypatch.setattr(drainer, "EMPTY_FOR", 0.01)
