"""Fixtures of every test of the aggregator."""

import pytest

from aggregator.quarantine.drain import drainer


@pytest.fixture(autouse=True)
def _empty_for(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A node counts as empty at once, but in a module of tests that has its own `EMPTY_FOR`."""
    monkeypatch.setattr(drainer, "EMPTY_FOR", getattr(request.module, "EMPTY_FOR", 0.01))
