"""A Node that is deleted while its Quarantine stands, on the real kube-apiserver."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import Bench, running_bench
from tests.kube.test_releases_without_record import entries
from tests.support.replica import OPEN, POLICY, SETTINGS, fault, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

#: Seconds of absence after which a quarantine ends.
ABSENT = 3600.0


@pytest.fixture
async def bench(kube: KubeCluster, cluster_space: Space) -> AsyncIterator[Bench]:
    limits = replace(OPEN, concurrent=1, absent_node_after=ABSENT)
    settings = replace(SETTINGS, limits=limits)
    async with running_bench(kube, cluster_space, POLICY, settings) as made:
        yield made


def age(bench: Bench, seconds: float) -> None:
    """Let so much time pass, by both clocks."""
    bench.clock.time += seconds
    bench.wall_offset += seconds


async def test_quarantines_of_deleted_nodes_are_not_counted_and_end(
    bench: Bench, cluster_space: Space
) -> None:
    replaced, sick = cluster_space.create_nodes(2)
    await bench.list_nodes_anew()  # limits are shares of the nodes that are known
    bench.attach(replaced, snapshot(fault(boot_id=bench.boot(replaced))))
    await bench.phase(replaced, "Drained")
    bench.attach(sick, snapshot(fault(boot_id=bench.boot(sick))))
    await until(lambda: bench.fleet.node_summaries[sick].decision.hold)
    cluster_space.plane.delete_nodes([replaced])
    await until(lambda: bench.status(replaced, "nodeAbsentSince"))
    assert "its Node is gone" in bench.status(replaced, "message")
    since = bench.status(replaced, "nodeAbsentSince")
    await bench.phase(sick, "Drained")  # there is room for it now
    assert entries(cluster_space) == {replaced, sick}
    age(bench, ABSENT + 60)
    await until(lambda: bench.quarantine(replaced) is None)
    assert entries(cluster_space) == {sick}
    assert since
