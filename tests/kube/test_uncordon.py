"""Uncordons of quarantined nodes on the real API server: by tools, by people, by a kubelet."""

import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.quarantine.decide.uncordon import UncordonRules
from tests.controlplane.api import JSON
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import Bench, running_bench
from tests.support.present import present
from tests.support.replica import SETTINGS, fault, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

KURED = {"User-Agent": "kured/v1.17.1 (linux/amd64) kubernetes/$Format"}
AS_SHIPPED = replace(SETTINGS, uncordon=UncordonRules())


@pytest.fixture
async def bench(kube: KubeCluster, cluster_space: Space) -> AsyncIterator[Bench]:
    async with running_bench(kube, cluster_space, settings=AS_SHIPPED) as made:
        yield made


def kubectl(space: Space, *arguments: str) -> None:
    command = ["kubectl", "--kubeconfig", str(space.plane.kubeconfig), *arguments]
    subprocess.run(command, check=True, capture_output=True)


async def is_cordoned_again(bench: Bench, node: str) -> None:
    await until(lambda: bench.unschedulable(node) and bench.status(node, "uncordoned"))
    found = present(bench.quarantine(node))
    assert found["status"]["phase"] == "Drained"
    node_now = bench.plane.node(node)
    assert "sickbay.dev/overruled" not in node_now["metadata"]["annotations"]
    assert [one["value"] for one in node_now["spec"]["taints"] if "sickbay" in one["key"]] == [
        "gpu"
    ]


@pytest.mark.parametrize("way", ["kubectl", "update"])
async def test_no_way_to_uncordon_our_cordon_is_a_release_by_default(
    bench: Bench, cluster_space: Space, way: str
) -> None:
    [node] = cluster_space.create_nodes(1)
    bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
    await bench.phase(node, "Drained")
    path, client = f"/api/v1/nodes/{node}", bench.plane.client
    if way == "kubectl":
        kubectl(cluster_space, "uncordon", node)
    else:

        def updated() -> bool:
            whole = client.call("GET", path)
            del whole["spec"]["unschedulable"]
            return client.request("PUT", path, whole, JSON, headers=KURED).status == 200

        await until(updated)
    await is_cordoned_again(bench, node)
    told = bench.status(node, "uncordoned")
    assert f"sickbay release {node}" in told
    bench.delete(node)
    await bench.free(node)
    assert not bench.unschedulable(node)
