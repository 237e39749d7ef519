"""The cluster of the checks that install the chart."""

from collections.abc import Iterator

import pytest

from tests.chart.installation import NODES, cluster
from tests.controlplane.plane import ControlPlane


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for the tests of a file, with nothing prepared on it."""
    with cluster(tmp_path_factory.mktemp("plane") / "plane", nodes=NODES) as started:
        yield started
