"""A quarantine that begins without a read: the server itself checks what the patch expects."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.node_names import RELEASED
from aggregator.cluster.port import UNGUARDED, Conflict, Node, NodeChange, Taint, Unread
from aggregator.quarantine.actions.cordon import DECIDING
from aggregator.quarantine.decide.operator_requests import EXEMPT
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.commands import KUBELET_LABEL
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import DISK, Bench, running_bench
from tests.support.present import present
from tests.support.replica import snapshot
from tests.support.waiting import PATIENCE, until

OURS = Taint("sickbay.dev/quarantine", "gpu", "NoSchedule")
THEIRS = Taint("example.com/rack-work", "x", "NoSchedule")
MARKS = NodeChange(
    taints=(OURS,),
    unschedulable=True,
    labels={"sickbay.dev/quarantined": "gpu"},
    annotations={"sickbay.dev/codes": "xid:79", "sickbay.dev/applied": "{}"},
)


def merge(space: Space, name: str, body: dict[str, Any]) -> None:
    space.plane.call("PATCH", f"/api/v1/nodes/{name}", body, MERGE_PATCH)


async def settled(kube: KubeCluster, space: Space, name: str) -> None:
    """Controllers taint and annotate a new node; those of these tests have none of their taints."""
    async with asyncio.timeout(PATIENCE):
        while True:
            merge(space, name, {"spec": {"taints": None}})
            await asyncio.sleep(0)
            node = await kube.read_node(name)
            if node is not None and not node.taints:
                return


async def expected(kube: KubeCluster, name: str, **changes: Any) -> Node:
    """The node as the list of nodes has it, without taints and cordon."""
    meta = next(one for one in await kube.list_nodes() if one.name == name)
    unread = Unread(DECIDING, annotated=meta.annotated)
    node = Node(name, meta.uid, "", False, (), meta.labels, meta.annotations, unread=unread)
    return replace(node, **changes)


async def listed(kube: KubeCluster, name: str) -> Node:
    """The same, once the list, which may be a little old, has the node."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(StopIteration, RuntimeError):
                return await expected(kube, name)


@pytest.mark.parametrize("annotations", [{"keep": "me"}, {}], ids=["annotated", "bare"])
async def test_a_node_as_expected_is_marked_and_keeps_all_else(
    kube: KubeCluster, cluster_space: Space, annotations: dict[str, str]
) -> None:
    [name] = cluster_space.create_nodes(1, labels={"pool": "a"}, annotations=annotations)
    await settled(kube, cluster_space, name)
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(Conflict):  # a controller annotates a new node meanwhile
                node = await listed(kube, name)
                patched = await kube.patch_node(node, MARKS, guard=UNGUARDED)
                break
    stored = present(await kube.read_node(name))
    assert patched.unread is None
    assert OURS in stored.taints
    assert stored.unschedulable
    assert stored.labels["sickbay.dev/quarantined"] == "gpu"
    assert stored.labels["pool"] == "a"
    assert stored.annotations["sickbay.dev/codes"] == "xid:79"
    assert annotations.items() <= stored.annotations.items()


def _annotated(key: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {key: "anything"}}}


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"taints": [{"key": THEIRS.key, "effect": "NoSchedule"}]}},
        {"spec": {"unschedulable": True}},
        {"metadata": {"labels": {"pool": "b"}}},
        {"metadata": {"labels": {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}}},
        _annotated(EXEMPT),
        _annotated(RELEASED),
        _annotated("karpenter.sh/do-not-disrupt"),
        _annotated("sickbay.dev/codes"),
        _annotated("sickbay.dev/applied"),
    ],
    ids=str,
)
async def test_a_write_of_another_client_before_ours_refuses_the_patch_and_stays(
    kube: KubeCluster, cluster_space: Space, body: dict[str, Any]
) -> None:
    [name] = cluster_space.create_nodes(1, labels={"pool": "a"}, annotations={"keep": "me"})
    await settled(kube, cluster_space, name)
    node = await listed(kube, name)
    merge(cluster_space, name, body)
    before = await kube.read_node(name)
    with pytest.raises(Conflict) as raised:
        await kube.patch_node(node, MARKS, guard=UNGUARDED)
    assert raised.value.status == 422
    after = await kube.read_node(name)
    assert before is not None
    assert after is not None
    assert OURS not in after.taints
    assert after.unschedulable == before.unschedulable
    assert after.labels == before.labels
    assert after.annotations.get("sickbay.dev/applied", "anything") == "anything"


async def test_a_node_of_the_same_name_with_another_uid_is_not_marked(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1, annotations={"keep": "me"})
    node = await listed(kube, name)
    with pytest.raises(Conflict):
        await kube.patch_node(replace(node, uid="another"), MARKS, guard=UNGUARDED)


# -- the aggregator ------------------------------------------------------------------


@pytest.fixture
async def bench(kube: KubeCluster, cluster_space: Space) -> AsyncIterator[Bench]:
    async with running_bench(kube, cluster_space) as made:
        yield made


def is_ours(entry: dict[str, Any]) -> bool:
    """Whether the request is of the aggregator."""
    return entry.get("userAgent") == "sickbay-aggregator"


async def quarantine_requests(bench: Bench, space: Space, node: str) -> list[tuple[str, str, int]]:
    """Verb, kind and code of each request about the node until the patch that has marked it."""
    await bench.controller.parts.cluster_events.refresh_nodes()  # the list of every three minutes
    since = space.plane.audit_mark()
    bench.attach(node, snapshot(DISK))
    await bench.phase(node, "Drained")
    found = []
    for entry in space.plane.audit_entries(since):
        what = entry.get("objectRef", {})
        if not is_ours(entry) or what.get("name", node) != node or what.get("subresource"):
            continue
        if what["resource"] not in {"nodes", "quarantines"} or entry["verb"] in {"list", "watch"}:
            continue
        found.append((entry["verb"], what["resource"], entry["responseStatus"]["code"]))
        if found[-1] == ("patch", "nodes", 200):
            return found
    raise AssertionError(found)


async def test_the_audit_log_has_two_requests_until_the_taint(
    bench: Bench, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1, labels={KUBELET_LABEL: "away"}, annotations={"a": "b"})
    assert await quarantine_requests(bench, cluster_space, node) == [
        ("create", "quarantines", 201),
        ("patch", "nodes", 200),
    ]


async def test_a_tainted_pool_is_read_once_and_keeps_its_taints(
    bench: Bench, cluster_space: Space
) -> None:
    nodes = cluster_space.create_nodes(2, labels={KUBELET_LABEL: "away"}, annotations={"a": "b"})
    taint = {"key": THEIRS.key, "value": THEIRS.value, "effect": THEIRS.effect}
    for node in nodes:
        merge(cluster_space, node, {"spec": {"taints": [taint]}})
    first = await quarantine_requests(bench, cluster_space, nodes[0])
    assert ("patch", "nodes", 422) in first
    assert ("get", "nodes", 200) in first
    second = await quarantine_requests(bench, cluster_space, nodes[1])
    assert second == [("create", "quarantines", 201), ("patch", "nodes", 200)]
    for node in nodes:
        keys = {one["key"] for one in cluster_space.plane.node(node)["spec"]["taints"]}
        assert keys >= {THEIRS.key, OURS.key}


@pytest.mark.parametrize("key", ["annotations", "labels"])
async def test_the_aggregator_marks_a_node_that_another_client_patches_all_the_time(
    bench: Bench, cluster_space: Space, key: str
) -> None:
    """Its annotation conflicts with no patch of ours; its label does, and is not lost either."""
    [node] = cluster_space.create_nodes(1, labels={KUBELET_LABEL: "away"}, annotations={"a": "b"})
    await bench.controller.parts.cluster_events.refresh_nodes()
    written = 0
    ends = asyncio.Event()

    async def patch_often() -> None:
        nonlocal written
        while not ends.is_set():
            body = {"metadata": {key: {"example.com/count": str(written + 1)}}}
            await asyncio.to_thread(merge, cluster_space, node, body)
            written += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ends.wait(), 0.005)

    writer = asyncio.create_task(patch_often())
    try:
        await until(lambda: written > 20)
        since = cluster_space.plane.audit_mark()
        bench.attach(node, snapshot(DISK))
        await until(lambda: bench.unschedulable(node))
    finally:
        ends.set()
        await writer
    attempts = [
        entry["responseStatus"]["code"]
        for entry in cluster_space.plane.audit_entries(since)
        if entry["verb"] == "patch"
        and is_ours(entry)
        and entry["objectRef"]["resource"] == "nodes"
        and not entry["objectRef"].get("subresource")
        and entry["objectRef"].get("name") == node
    ]
    if key == "annotations":
        assert attempts[0] == 200
    stored = cluster_space.plane.node(node)
    assert stored["metadata"][key]["example.com/count"] == str(written)
    assert OURS.key in {one["key"] for one in stored["spec"]["taints"]}
