"""A Node that is deleted while its Quarantine stands, on the real kube-apiserver."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import Ward, warden
from tests.kube.test_releases_without_record import entries
from tests.support.replica import OPEN, POLICY, SETTINGS, fault, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

#: Seconds of absence after which a quarantine ends.
ABSENT = 3600.0


@pytest.fixture
async def ward(kube: KubeCluster, cluster_space: Space) -> AsyncIterator[Ward]:
    limits = replace(OPEN, concurrent=1, absent_node_after=ABSENT)
    settings = replace(SETTINGS, limits=limits)
    async with warden(kube, cluster_space, POLICY, settings) as made:
        yield made


def age(ward: Ward, seconds: float) -> None:
    """Let so much time pass, by both clocks."""
    ward.clock.time += seconds
    ward.wall_offset += seconds


async def test_quarantines_of_deleted_nodes_are_not_counted_and_end(
    ward: Ward, cluster_space: Space
) -> None:
    replaced, sick = cluster_space.create_nodes(2)
    await ward.list_nodes_anew()  # limits are shares of the nodes that are known
    ward.attach(replaced, snapshot(fault(boot_id=ward.boot(replaced))))
    await ward.phase(replaced, "Drained")
    ward.attach(sick, snapshot(fault(boot_id=ward.boot(sick))))
    await until(lambda: ward.fleet.node_summaries[sick].decision.hold)
    cluster_space.plane.delete_nodes([replaced])
    await until(lambda: ward.status(replaced, "nodeAbsentSince"))
    assert "its Node is gone" in ward.status(replaced, "message")
    since = ward.status(replaced, "nodeAbsentSince")
    await ward.phase(sick, "Drained")  # there is room for it now
    assert entries(cluster_space) == {replaced, sick}
    age(ward, ABSENT + 60)
    await until(lambda: ward.quarantine(replaced) is None)
    assert entries(cluster_space) == {sick}
    assert since
