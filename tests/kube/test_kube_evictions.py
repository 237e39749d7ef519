"""Evictions, and a pod's own report, on a real API server with real disruption budgets."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import UNGUARDED, Evicted, Pod
from tests.controlplane.objects import LINGER
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.waiting import wait_until
from tests.support.waiting import PATIENCE


def budget(name: str, app: str) -> str:
    return (
        "{apiVersion: policy/v1, kind: PodDisruptionBudget,"
        f" metadata: {{name: {name}}},"
        f" spec: {{minAvailable: 1, selector: {{matchLabels: {{app: {app}}}}}}}}}"
    )


def run_pod(space: Space, node: str, name: str, **arguments: Any) -> None:
    space.plane.create_pod(space.namespace, name, node=node, **arguments)
    space.plane.wait_pod_running(space.namespace, name)


async def pod_of(kube: KubeCluster, node: str, name: str) -> Pod:
    """The pod, once it has come to rest: kwok writes its status once more after Running."""
    before: Pod | None = None
    async with asyncio.timeout(PATIENCE):
        while True:
            found = {pod.name: pod for pod in await kube.pods_on(node)}[name]
            if before == found:
                return found
            before = found
            await asyncio.sleep(0.2)


async def protect(space: Space, app: str, *names: str) -> None:
    """Budgets that let no pod of this app go, counted by the controller."""
    for name in names:
        space.plane.apply(budget(name, app), namespace=space.namespace)
    base = f"/apis/policy/v1/namespaces/{space.namespace}/poddisruptionbudgets"

    def counted() -> bool:
        found = [space.plane.call("GET", f"{base}/{name}")["status"] for name in names]
        return all(one.get("currentHealthy") == 1 for one in found)

    await asyncio.to_thread(wait_until, counted, what="the budgets to be counted")


async def test_an_unprotected_pod_goes_and_is_gone(kube: KubeCluster, cluster_space: Space) -> None:
    [node] = cluster_space.create_nodes(1)
    run_pod(cluster_space, node, "a")
    pod = await pod_of(kube, node, "a")
    assert pod.phase == "Running"
    assert (await kube.evict(pod, guard=UNGUARDED)).outcome is Evicted.ACCEPTED
    cluster_space.plane.wait_gone(cluster_space.path("pods", "a"))
    assert (await kube.evict(pod, guard=UNGUARDED)).outcome is Evicted.GONE
    assert await kube.pods_on(node) == []


async def test_a_budget_blocks_says_which_and_slows_nobody(
    kube: KubeCluster, cluster_space: Space, caplog: pytest.LogCaptureFixture
) -> None:
    [node] = cluster_space.create_nodes(1)
    run_pod(cluster_space, node, "a", labels={"app": "db"})
    await protect(cluster_space, "db", "db-budget")
    pod = await pod_of(kube, node, "a")
    for _ in range(5):
        blocked = await kube.evict(pod, guard=UNGUARDED)
        assert blocked.outcome is Evicted.BLOCKED
        assert "db-budget" in blocked.message
        await kube.read_node(node)
    assert "pausing" not in caplog.text
    assert kube.counters.throttled == 0
    assert kube.counters.blocked == 5


async def test_a_repeated_eviction_of_a_terminating_pod_is_no_second_one(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    run_pod(cluster_space, node, "a", annotations={LINGER: "true"})
    pod = await pod_of(kube, node, "a")
    assert (await kube.evict(pod, guard=UNGUARDED)).outcome is Evicted.ACCEPTED
    assert (await kube.evict(pod, guard=UNGUARDED)).outcome is Evicted.GONE  # another version: 409
    [lingering] = await kube.pods_on(node)
    assert lingering.deleting
    assert lingering.uid == pod.uid


async def test_a_dry_run_is_one_for_the_audit_log_too_and_evicts_no_pod(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    run_pod(cluster_space, node, "a")
    pod = await pod_of(kube, node, "a")
    mark = cluster_space.plane.audit_mark()
    assert (await kube.evict(pod, dry_run=True, guard=UNGUARDED)).outcome is Evicted.ACCEPTED
    assert [left.deleting for left in await kube.pods_on(node)] == [False]
    assert (await kube.evict(pod, guard=UNGUARDED)).outcome is Evicted.ACCEPTED

    def evictions() -> list[str]:
        return [
            entry["requestURI"].partition("/pods/")[2]
            for entry in cluster_space.plane.audit_entries(mark)
            if entry.get("objectRef", {}).get("subresource") == "eviction"
            and entry["objectRef"]["namespace"] == cluster_space.namespace
        ]

    wait_until(lambda: len(set(evictions())) == 2, what="both in the audit log")
    assert sorted(set(evictions())) == ["a/eviction", "a/eviction?dryRun=All"]


async def test_a_namesake_is_not_evicted(kube: KubeCluster, cluster_space: Space) -> None:
    [node] = cluster_space.create_nodes(1)
    run_pod(cluster_space, node, "a")
    pod = await pod_of(kube, node, "a")
    assert (await kube.evict(replace(pod, uid="another"), guard=UNGUARDED)).outcome is Evicted.GONE
    assert [left.deleting for left in await kube.pods_on(node)] == [False]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ()),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, ("v",)),
        ({"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}, ()),
    ],
)
async def test_a_pod_reports_its_volumes_with_data_to_lose(
    kube: KubeCluster, cluster_space: Space, spec: dict[str, Any], expected: tuple[str, ...]
) -> None:
    [node] = cluster_space.create_nodes(1)
    run_pod(cluster_space, node, "a", spec=spec, labels={"app": "x"})
    pod = await pod_of(kube, node, "a")
    assert pod.empty_dirs == expected
    assert (pod.owner_kind, pod.mirror, pod.labels["app"]) == ("", False, "x")
    assert pod.key == f"{cluster_space.namespace}/a"


async def test_a_pod_names_its_owner_and_a_static_one_its_kubelet(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "controller": True}
    owner["uid"] = cluster_space.plane.node(node)["metadata"]["uid"]
    body = {
        "metadata": {
            "name": "static",
            "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "i"}],
        },
    }
    cluster_space.plane.call("POST", cluster_space.path("pods"), body)
    [pod] = await kube.pods_on(node)
    assert (pod.owner_kind, pod.owner_name, pod.mirror) == ("Node", node, True)
