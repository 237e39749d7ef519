"""The node's condition and its Events, on a real API server."""

import asyncio
import contextlib
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.node_names import APPLIED, TAINT
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Conflict,
    NodeChange,
    NotFound,
    QuarantineSeen,
    QuarantineSpec,
    Taint,
    WatchSynced,
)
from tests.controlplane.plane import ADMIN
from tests.controlplane.pytest_plugin import Space
from tests.support.kube_cluster import listening
from tests.support.present import present
from tests.support.waiting import until

CONDITION, REPORTER = "SickbayQuarantined", "sickbay.dev/aggregator"


def condition_of(space: Space, name: str) -> dict[str, Any]:
    conditions = space.plane.node(name)["status"]["conditions"]
    [found] = [one for one in conditions if one["type"] == "SickbayQuarantined"]
    assert isinstance(found, dict)
    return found


def events_of(space: Space, name: str) -> list[dict[str, Any]]:
    listed = space.plane.call("GET", "/apis/events.k8s.io/v1/namespaces/default/events")
    ours = (one for one in listed["items"] if one.get("reportingController") == REPORTER)
    return [one for one in ours if one["regarding"].get("name") == name]


def is_cached(space: Space, name: str) -> bool:
    node = space.plane.call("GET", f"/api/v1/nodes/{name}?resourceVersion=0")
    return any(one["type"] == CONDITION for one in node["status"]["conditions"])


async def announce(kube: KubeCluster, space: Space, name: str, **arguments: Any) -> None:
    """Publish as the controller does: the node has been marked, or undone, before."""
    uid = await marked(kube, name, there=arguments["quarantined"])
    await kube.announce(name, node_uid=uid, **arguments)


async def marked(kube: KubeCluster, name: str, *, there: bool) -> str:
    """The uid of the node, which bears our taint and annotation now, or neither."""
    ours = (Taint(TAINT, "gpu", "NoSchedule"),) if there else ()
    notes = {APPLIED: "{}" if there else None}
    change = NodeChange(taints=ours, unschedulable=there, annotations=notes)
    while True:
        node = present(await kube.read_node(name))
        if node.taints == ours:
            return node.uid
        with contextlib.suppress(Conflict):  # others write to a new node, too
            await kube.patch_node(node, change, guard=UNGUARDED)


async def test_the_condition_and_one_event_tell_of_each_transition(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1)
    sick = {"quarantined": True, "reason": "Xid79", "message": "GPU 3 fell off the bus"}
    await announce(kube, cluster_space, name, **sick)
    await until(lambda: is_cached(cluster_space, name), "the API server's cache has the condition")
    await announce(kube, cluster_space, name, **sick)  # no change: no new Event
    first = condition_of(cluster_space, name)
    assert (first["status"], first["reason"]) == ("True", "Xid79")
    [event] = events_of(cluster_space, name)
    assert (event["type"], event["reason"], event["note"]) == ("Warning", "Xid79", sick["message"])

    await asyncio.sleep(1.1)  # times in conditions are whole seconds
    await announce(
        kube, cluster_space, name, quarantined=True, reason="Drained", message="12 pods left"
    )
    second = condition_of(cluster_space, name)
    assert second["reason"] == "Drained"
    assert second["lastTransitionTime"] == first["lastTransitionTime"]

    await announce(kube, cluster_space, name, quarantined=False, reason="Released", message="ok")
    third = condition_of(cluster_space, name)
    assert third["status"] == "False"
    assert third["lastTransitionTime"] > first["lastTransitionTime"]
    assert [one["type"] for one in events_of(cluster_space, name)].count("Warning") == 2
    assert len(events_of(cluster_space, name)) == 3
    kept = {one["type"] for one in cluster_space.plane.node(name)["status"]["conditions"]}
    assert "Ready" in kept


async def test_a_long_message_is_cut_for_the_event_and_whole_in_the_condition(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1)
    message = "ä" * 2000
    await announce(kube, cluster_space, name, quarantined=True, reason="R" * 200, message=message)
    [event] = events_of(cluster_space, name)
    assert event["note"] == "ä" * 512
    assert condition_of(cluster_space, name)["message"] == message


async def test_a_namesake_hears_nothing(kube: KubeCluster, cluster_space: Space) -> None:
    [name] = cluster_space.create_nodes(1)
    arguments: dict[str, Any] = {"quarantined": True, "reason": "Xid79", "message": "x"}
    with pytest.raises(Conflict):
        await kube.announce(name, node_uid="another", **arguments)
    assert events_of(cluster_space, name) == []
    with pytest.raises(NotFound):
        await kube.announce(f"{name}-gone", node_uid="any", **arguments)


async def test_who_was_superseded_says_nothing_of_what_is_over(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """Paused between its patch and its report, while another released the node."""
    [name] = cluster_space.create_nodes(1)
    await announce(kube, cluster_space, name, quarantined=True, reason="Xid79", message="x")
    await announce(kube, cluster_space, name, quarantined=False, reason="Released", message="ok")
    uid = cluster_space.plane.node(name)["metadata"]["uid"]
    await kube.announce(name, node_uid=uid, quarantined=True, reason="Xid79", message="late")
    assert condition_of(cluster_space, name)["status"] == "False"
    assert [one["note"] for one in events_of(cluster_space, name)].count("late") == 0


async def test_what_was_told_just_now_is_told_once_although_the_cache_may_not_show_it(
    kube: KubeCluster, cluster_space: Space
) -> None:
    names = cluster_space.create_nodes(8)
    uids = {name: await marked(kube, name, there=True) for name in names}
    for _ in range(2):  # at once after the mark, and at once after the first report
        for name, uid in uids.items():
            await kube.announce(
                name, node_uid=uid, quarantined=True, reason="Xid79", message="fell off the bus"
            )
    for name in names:
        assert condition_of(cluster_space, name)["status"] == "True"
        assert len(events_of(cluster_space, name)) == 1


async def test_the_conditions_of_nodes_that_the_watch_shows_marked_are_written_without_reads(
    kube: KubeCluster, cluster_space: Space
) -> None:
    names = cluster_space.create_nodes(6)
    async with listening(kube) as listener:
        await listener.wait(WatchSynced)
        uids = {}
        for name in names:
            await kube.create_quarantine(
                name, QuarantineSpec(Action.CORDON, "gpu", "Xid79"), guard=UNGUARDED
            )
            await listener.wait(QuarantineSeen, lambda one, name=name: one.quarantine.node == name)  # type: ignore[misc]
            uids[name] = await marked(kube, name, there=True)
        mark = cluster_space.plane.audit_mark()
        told: dict[str, Any] = {"quarantined": True, "reason": "Xid79", "message": "fell off"}
        await asyncio.gather(
            *(kube.announce(name, node_uid=uid, **told) for name, uid in uids.items())
        )
    own = [
        (entry["verb"], entry["objectRef"].get("subresource", ""))
        for entry in cluster_space.plane.audit_entries(mark)
        if entry.get("objectRef", {}).get("name") in names
        and entry["objectRef"]["resource"] == "nodes"
        and entry["user"]["username"] == ADMIN
    ]
    assert own.count(("patch", "status")) >= len(names)
    # Another client may change a node in between: the write then is refused, and the node is read.
    assert own.count(("get", "")) < len(names) / 2
    for name in names:
        assert condition_of(cluster_space, name)["status"] == "True"
        assert len(events_of(cluster_space, name)) == 1
