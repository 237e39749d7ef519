"""Ports for servers that start later."""

import pytest

from aggregator.demo import ports


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = (number for number in range(10_240, 32_768) for _ in range(2))
    monkeypatch.setattr("aggregator.demo.ports.secrets.choice", lambda _: next(draws))
    assert ports.free_port() != ports.free_port()
