"""Nodes that are deleted and created again in the same boot, on three real replicas.

A small form of a drill of `make bench-faults`, which counts the same over more.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bench.drill import PODS, Drill
from tests.bench.return_drill import unmarked_after_return_s
from tests.controlplane.pytest_plugin import Space

pytestmark = [pytest.mark.cluster, pytest.mark.root]


@pytest.fixture
def drill(cluster_space: Space, tmp_path: Path) -> Iterator[Drill]:
    plane = cluster_space.plane
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": PODS}})
    with ExitStack() as ends:
        yield Drill(plane, tmp_path, cluster_space.node_prefix, ends)


def test_nodes_recreated_in_the_same_boot_are_marked_within_five_seconds_by_three_replicas(
    drill: Drill,
) -> None:
    assert unmarked_after_return_s(drill, nodes=6) <= 5.0
