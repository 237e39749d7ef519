"""Uncordons of quarantined nodes on the real API server: by tools, by people, by a kubelet."""

import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.quarantine.decide.uncordon import UncordonRules
from tests.controlplane.api import JSON, MERGE_PATCH, STRATEGIC_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import Ward, warden
from tests.support.replica import SETTINGS, fault, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

KURED = {"User-Agent": "kured/v1.17.1 (linux/amd64) kubernetes/$Format"}
AS_SHIPPED = replace(SETTINGS, uncordon=UncordonRules())


@pytest.fixture
async def ward(kube: KubeCluster, cluster_space: Space) -> AsyncIterator[Ward]:
    async with warden(kube, cluster_space, settings=AS_SHIPPED) as made:
        yield made


def kubectl(space: Space, *arguments: str) -> None:
    command = ["kubectl", "--kubeconfig", str(space.plane.kubeconfig), *arguments]
    subprocess.run(command, check=True, capture_output=True)


async def is_cordoned_again(ward: Ward, node: str) -> None:
    await until(lambda: ward.unschedulable(node) and ward.status(node, "uncordoned"))
    found = ward.quarantine(node)
    assert found is not None
    assert found["status"]["phase"] == "Drained"
    node_now = ward.plane.node(node)
    assert "sickbay.dev/overruled" not in node_now["metadata"]["annotations"]
    assert [one["value"] for one in node_now["spec"]["taints"] if "sickbay" in one["key"]] == [
        "gpu"
    ]


async def test_a_tool_that_lifts_its_own_cordon_releases_nothing(
    ward: Ward, cluster_space: Space
) -> None:
    """kured's way: cordon, reboot, uncordon; the Xid came in between."""
    [node] = cluster_space.create_nodes(1)
    path = f"/api/v1/nodes/{node}"
    client = ward.plane.client
    cordon = {"spec": {"unschedulable": True}}
    client.request("PATCH", path, cordon, STRATEGIC_PATCH, headers=KURED)
    ward.attach(node, snapshot(fault(boot_id=ward.boot(node))))
    await ward.phase(node, "Drained")
    uncordon = {"spec": {"unschedulable": None}}
    client.request("PATCH", path, uncordon, STRATEGIC_PATCH, headers=KURED)
    await is_cordoned_again(ward, node)
    assert "somebody else's" in ward.status(node, "uncordoned")
    ward.delete(node)  # it was cordoned in our own name: now no mark of ours is left
    await ward.free(node)
    assert not ward.unschedulable(node)


@pytest.mark.parametrize("way", ["kubectl", "merge", "strategic", "json", "update", "apply"])
async def test_no_way_to_uncordon_our_cordon_is_a_release_by_default(
    ward: Ward, cluster_space: Space, way: str
) -> None:
    [node] = cluster_space.create_nodes(1)
    ward.attach(node, snapshot(fault(boot_id=ward.boot(node))))
    await ward.phase(node, "Drained")
    path, client = f"/api/v1/nodes/{node}", ward.plane.client
    uncordoned = {"spec": {"unschedulable": False}}
    match way:
        case "kubectl":
            kubectl(cluster_space, "uncordon", node)
        case "merge":
            assert (
                client.request("PATCH", path, uncordoned, MERGE_PATCH, headers=KURED).status == 200
            )
        case "strategic":
            kind = STRATEGIC_PATCH
            assert client.request("PATCH", path, uncordoned, kind, headers=KURED).status == 200
        case "json":
            ops = [{"op": "remove", "path": "/spec/unschedulable"}]
            kind = "application/json-patch+json"
            assert client.request("PATCH", path, ops, kind, headers=KURED).status == 200
        case "update":

            def updated() -> bool:
                whole = client.call("GET", path)
                del whole["spec"]["unschedulable"]
                return client.request("PUT", path, whole, JSON, headers=KURED).status == 200

            await until(updated)
        case "apply":
            node_kind = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
            where = f"{path}?fieldManager=gitops&force=true"
            kind = "application/apply-patch+yaml"
            assert client.request("PATCH", where, {**node_kind, **uncordoned}, kind).status == 200
    await is_cordoned_again(ward, node)
    told = ward.status(node, "uncordoned")
    assert f"sickbay release {node}" in told
    ward.delete(node)
    await ward.free(node)
    assert not ward.unschedulable(node)


async def test_a_quarantine_that_a_person_made_is_lifted_by_no_uncordon(
    ward: Ward, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    body = {
        "apiVersion": "sickbay.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": node},
        "spec": {"reason": "suspected compromise, forensics pending", "requester": "mary"},
    }
    ward.plane.call("POST", "/apis/sickbay.dev/v1alpha1/quarantines", body)
    await ward.phase(node, "Cordoned")
    kubelet = ward.plane.client_for(f"system:node:{node}", ["system:nodes"])
    uncordon = {"spec": {"unschedulable": False}}
    answer = kubelet.request("PATCH", f"/api/v1/nodes/{node}", uncordon, STRATEGIC_PATCH)
    assert answer.status == 200  # no admission policy is applied here
    await until(lambda: ward.unschedulable(node) and ward.status(node, "uncordoned"))
    assert ward.quarantine(node) is not None
