"""A canary on the real kube-apiserver: its nodes are drained, all others only observed."""

from dataclasses import replace

import pytest

from aggregator.cluster.port import Action, Phase
from aggregator.policy.label_selector import LabelRequirement, LabelSelector
from aggregator.quarantine.decide.pools import Pool, PoolLimits
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_limit_scenarios import SHIPPED, life, stored
from tests.support.kube_cluster import kube_cluster
from tests.support.replica import Turned, snapshot
from tests.support.stack import remove_quarantines
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

POOL = "example.com/pool"
CANARY = Pool(
    "canary",
    LabelSelector(
        {POOL: "canary"}, (LabelRequirement("node-role.kubernetes.io/edge", "DoesNotExist"),)
    ),
    Action.DRAIN,
    PoolLimits(concurrent=1),
)
SETTINGS = replace(
    SHIPPED,
    mode=Action.OBSERVE,
    pools=(CANARY,),
    limits=replace(SHIPPED.limits, concurrent_percent=100, new_per_window_percent=100),
)


@pytest.mark.usefixtures("quarantine_definition")
async def test_the_canary_is_drained_and_the_rest_observed(
    cluster_space: Space, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: remove_quarantines(cluster_space.plane, cluster_space.node_prefix))
    canary = cluster_space.create_nodes(2, labels={POOL: "canary"})
    rest = cluster_space.create_nodes(2, start=2, labels={POOL: "other"})
    well = dict.fromkeys(canary + rest, snapshot())
    async with (
        life(cluster_space, SETTINGS, Turned(), well) as bench,
        kube_cluster(cluster_space.plane.kubeconfig, namespace=cluster_space.namespace) as reader,
    ):
        bench.break_(canary + rest)
        await until(lambda: len(bench.sick()) == 1 and len(bench.holds()) == 1)
        [sick] = bench.sick()
        assert sick in canary
        assert set(bench.holds()) == set(canary) - {sick}
        assert set(bench.holds().values()) == {"pools.limits.concurrent"}
        summary = bench.fleet.node_summaries[sick]
        await until(
            lambda: (
                summary.quarantine is not None and summary.quarantine.status.phase is Phase.DRAINED
            )
        )
        record = await stored(cluster_space)
        assert {one.policy_pool for one in record.entries.values()} == {"canary"}
        for name in rest:
            assert bench.fleet.node_summaries[name].decision.would.startswith("drain: ")
            node = await reader.read_node(name)
            assert node is not None
            assert not node.unschedulable
            assert not node.taints
            assert await reader.read_quarantine(name) is None
        # A label that a person takes away is no sign of health: the mark and the entry stay.
        cluster_space.plane.call(
            "PATCH",
            f"/api/v1/nodes/{sick}",
            {"metadata": {"labels": {POOL: "other"}}},
            "application/merge-patch+json",
        )
        await until(lambda: bench.fleet.pool_of(summary) == "default")
        node = await reader.read_node(sick)
        assert node is not None
        assert node.unschedulable
        assert await reader.read_quarantine(sick) is not None
        assert set((await stored(cluster_space)).entries) == {sick}
        assert set(bench.holds()) == set(canary) - {sick}, "it still takes its place in the canary"
