"""What waits for long and needs no attention runs beside the other tests."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


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
