"""A stop and a lost record, on real processes: no action begins after either, in a burst.

Small forms of two drills of `make bench-faults`, which counts the same over more.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bench.drill import PODS, Drill
from tests.bench.hold_drills import begun_after_stop, over_limit_record_lost
from tests.controlplane.pytest_plugin import Space

pytestmark = pytest.mark.cluster


@pytest.fixture
def drill(cluster_space: Space, tmp_path: Path) -> Iterator[Drill]:
    plane = cluster_space.plane
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": PODS}})
    with ExitStack() as ends:
        yield Drill(plane, tmp_path, cluster_space.node_prefix, ends)


def test_nothing_begins_a_second_after_a_stop_in_a_burst_on_three_replicas(drill: Drill) -> None:
    assert begun_after_stop(drill, nodes=60) == 0


def test_a_record_lost_in_a_burst_brings_no_node_past_the_limit(drill: Drill) -> None:
    """The record is once rolled back, once deleted."""
    assert over_limit_record_lost(drill, trials=2) == 0
