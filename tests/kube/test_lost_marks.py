"""A quarantined node that has lost our marks, on the real API server.

Its Node was deleted and created again in the same boot, or people have changed our marks on it.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.node_names import APPLIED
from aggregator.quarantine.decide.lost_marks import RestoreRules
from tests.bench.return_drill import as_registered
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import DISK, LONG, WELL, Bench, running_bench
from tests.support.replica import SETTINGS, snapshot
from tests.support.stack import pods_of
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

#: Seconds until a lost mark is set again: no real time, and the tests turn the clock.
GRACE = 600.0
TAINT = "sickbay.dev/quarantine"
LABEL = "sickbay.dev/quarantined"


@pytest.fixture
async def bench(kube: KubeCluster, cluster_space: Space) -> AsyncIterator[Bench]:
    async with running_bench(kube, cluster_space) as made:
        yield made


def taints(bench: Bench, node: str) -> list[dict[str, Any]]:
    found = bench.plane.node(node)["spec"].get("taints", [])
    return [one for one in found if one["key"] == TAINT]


def by_effect(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda one: str(one["effect"]))


async def test_pods_that_came_to_a_recreated_node_before_its_taint_are_evicted(
    kube: KubeCluster, cluster_space: Space
) -> None:
    plane = cluster_space.plane
    [node] = cluster_space.create_nodes(1)
    settings = replace(SETTINGS, drain=replace(SETTINGS.drain, evict_unmanaged=True))
    async with running_bench(kube, cluster_space, settings=settings) as bench:
        bench.attach(node, snapshot(DISK))
        await bench.phase(node, "Drained")
        body = as_registered(plane.node(node))
        plane.delete_nodes([node])
        plane.call("POST", "/api/v1/nodes", body)
        # Its pod names the node, as if it had been scheduled between the two.
        plane.create_pod(cluster_space.namespace, "came-at-once", node=node)
        await until(lambda: taints(bench, node))
        await until(lambda: bench.notes.kinds(node).count("quarantine.drained") == 2)
        assert bench.notes.kinds(node).count("work.moved") == 1
        assert pods_of(plane, cluster_space.namespace, node) == []


async def test_a_release_restores_what_was_before_also_where_our_annotation_was_removed(
    bench: Bench, cluster_space: Space
) -> None:
    nodes = cluster_space.create_nodes(2)
    bare = nodes[1]
    theirs = [
        {"key": TAINT, "value": "hold", "effect": effect}
        for effect in ("NoExecute", "PreferNoSchedule", "NoSchedule")
    ]
    bench.patch(bare, {"spec": {"unschedulable": True}})
    before = {}
    for node in nodes:
        bench.patch(node, {"spec": {"taints": theirs}, "metadata": {"labels": {LABEL: "hold"}}})
        before[node] = taints(bench, node)  # the server may have dated one of them
        bench.attach(node, snapshot(DISK))
        await bench.phase(node, "Drained")
        ours = {"key": TAINT, "value": "disk", "effect": "NoSchedule"}
        assert by_effect(taints(bench, node)) == by_effect([*before[node][:2], ours])
    remove_applied(bench, bare)
    for node in nodes:
        bench.says(node, WELL)
        bench.later(LONG, node)
        await until(lambda node=node: bench.quarantine(node) is None)  # type: ignore[misc]
        assert by_effect(taints(bench, node)) == by_effect(before[node])
        assert bench.plane.node(node)["metadata"]["labels"][LABEL] == "hold"
        assert bench.unschedulable(node) == (node == bare)


# -- removed or changed by people -----------------------------------------------------------


def missing(bench: Bench, node: str) -> set[str]:
    marks = ((bench.quarantine(node) or {}).get("status") or {}).get("marks") or {}
    return set(marks.get("missing", []))


def condition(bench: Bench, node: str) -> str:
    found = bench.plane.node(node)["status"]["conditions"]
    return "".join(one["status"] for one in found if one["type"] == "SickbayQuarantined")


def remove_taint(bench: Bench, node: str) -> None:
    others = [t for t in bench.plane.node(node)["spec"]["taints"] if t["key"] != TAINT]
    bench.patch(node, {"spec": {"taints": others}})


def change_taint(bench: Bench, node: str) -> None:
    found = bench.plane.node(node)["spec"]["taints"]
    changed = [t | {"effect": "PreferNoSchedule"} if t["key"] == TAINT else t for t in found]
    bench.patch(node, {"spec": {"taints": changed}})


def remove_label(bench: Bench, node: str) -> None:
    bench.patch(node, {"metadata": {"labels": {LABEL: None}}})


def remove_applied(bench: Bench, node: str) -> None:
    bench.patch(node, {"metadata": {"annotations": {APPLIED: None}}})


def overwrite_condition(bench: Bench, node: str) -> None:
    body = {"status": {"conditions": [{"type": "SickbayQuarantined", "status": "False"}]}}
    path = f"/api/v1/nodes/{node}/status"
    bench.plane.call("PATCH", path, body, "application/strategic-merge-patch+json")


#: How people change a mark, and its name in the status.
CHANGES: Sequence[tuple[Callable[[Bench, str], None], str]] = [
    (remove_taint, "taint"),
    (change_taint, "taint"),
    (remove_label, "label"),
    (remove_applied, "applied"),
    (overwrite_condition, "condition"),
]


async def test_each_mark_removed_by_hand_is_reported_and_restored_after_the_grace(
    kube: KubeCluster, cluster_space: Space
) -> None:
    nodes = cluster_space.create_nodes(len(CHANGES))
    settings = replace(SETTINGS, marks=RestoreRules(restore_after=GRACE))
    async with running_bench(kube, cluster_space, settings=settings) as bench:

        def is_told(node: str, kind: str) -> bool:
            return bench.notes.kinds(node).count(kind) == 1

        def lacks(node: str, mark: str) -> bool:
            return missing(bench, node) == {mark}

        def has_condition(node: str) -> bool:
            return condition(bench, node) == "True"

        def is_settled(node: str) -> bool:
            trail = bench.controller.parts.registry.node_state(node).quarantine_view.trail
            return has_condition(node) and trail is None

        for node in nodes:
            bench.attach(node, snapshot(DISK))
        for node in nodes:
            await bench.phase(node, "Drained")
        await until(lambda: all(map(is_settled, nodes)))
        removed = dict(zip(nodes, CHANGES, strict=True))
        for node, (change, _) in removed.items():
            change(bench, node)
        for node, (_, name) in removed.items():
            await until(partial(lacks, node, name))
            assert bench.fleet.node_summaries[node].quarantine_view.missing == (name,)
        bench.wall_offset += GRACE
        bench.later(GRACE, *nodes)
        await until(lambda: not any(missing(bench, node) for node in nodes))
        for node in nodes:
            assert {"key": TAINT, "value": "disk", "effect": "NoSchedule"} in taints(bench, node)
            await until(partial(has_condition, node))
            meta = bench.plane.node(node)["metadata"]
            assert meta["labels"][LABEL] == "disk"
            assert '"unschedulable": true' in meta["annotations"][APPLIED]
            assert bench.status(node, "phase") == "Drained"
            assert is_told(node, "quarantine.marks_missing")
            await until(partial(is_told, node, "quarantine.marks_restored"))
            bench.says(node, WELL)
        bench.later(LONG, *nodes)
        await until(lambda: not any(bench.quarantine(node) for node in nodes))
        for node in nodes:
            assert not bench.unschedulable(node)
            assert not [one for one in taints(bench, node) if one["effect"] == "NoSchedule"]


async def test_an_aggregator_that_starts_finds_the_taint_that_was_removed_while_it_was_away(
    kube: KubeCluster, cluster_space: Space
) -> None:
    nodes = cluster_space.create_nodes(2)
    async with running_bench(kube, cluster_space, keep=True) as bench:
        for node in nodes:
            bench.attach(node, snapshot(DISK))
            await bench.phase(node, "Drained")
        await until(lambda: all(condition(bench, node) == "True" for node in nodes))
    remove_taint(bench, nodes[0])
    settings = replace(SETTINGS, marks=RestoreRules(restore_times=0))
    async with running_bench(kube, cluster_space, settings=settings) as bench:
        await until(lambda: missing(bench, nodes[0]) == {"taint"})
        assert missing(bench, nodes[1]) == set()
        await bench.list_nodes_anew()
        bench.attach(nodes[0], snapshot(DISK))
        assert missing(bench, nodes[0]) == {"taint"}
        assert taints(bench, nodes[0]) == []
