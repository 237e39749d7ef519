"""Programs that wait for long and need no attention run beside the other tests."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.quarantine.drain import drainer


@pytest.fixture(scope="session")
def half_open(tmp_path_factory: pytest.TempPathFactory) -> Iterator["subprocess.Popen[str]"]:
    """The program of that name in a network of its own: it waits for the kernel's timeouts."""
    folder = str(tmp_path_factory.mktemp("half-open"))
    process = subprocess.Popen(
        ["unshare", "--mount", "--net", sys.executable, "-m", "tests.aggregator.half_open", folder],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(scope="session", autouse=True)
def _begun_early(request: pytest.FixtureRequest) -> None:
    """Begin with the first test what the last ones look at."""
    if any("half_open" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("half_open")


@pytest.fixture(autouse=True)
def _soon_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node counts as empty at once: only the tests of drains are about that time."""
    monkeypatch.setattr(drainer, "EMPTY_FOR", 0.01)
