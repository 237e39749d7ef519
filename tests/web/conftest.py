"""Fixtures for the tests of the page."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aggregator.cluster.local.store import LocalStore
from tests.controlplane.ports import ReservedPort
from tests.support.compiled_templates import compile_templates_once
from tests.web.support import NIGHT, Hands, Served, serving, small_fleet

compile_templates_once()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.db"
    LocalStore(path, wall=lambda: NIGHT).close()
    return path


@pytest.fixture
def address() -> Iterator[str]:
    """For a server that ends, and begins again at the same place."""
    with ReservedPort() as port:
        yield f"127.0.0.1:{port.number}"


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    hands = Hands()
    async with serving(small_fleet(hands), hands.clocks()) as one:
        yield one
