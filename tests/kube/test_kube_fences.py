"""Late writers fail, on a real API server: nodes, quarantines and the record."""

import asyncio
import contextlib
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.list_reader import ListReader
from aggregator.cluster.operations import spec_of
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Conflict,
    EvidenceItem,
    Node,
    NodeChange,
    NotFound,
    Phase,
    QuarantineSpec,
    QuarantineStatus,
    Refused,
    RepairAttempt,
    RepairState,
    RepairStatus,
    Taint,
)
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.support.present import present
from tests.support.put_attempts import drop_operations, put_attempts
from tests.support.waiting import PATIENCE

OURS = Taint("sickbay.dev/quarantine", "gpu", "NoSchedule")
SPEC = QuarantineSpec(
    Action.DRAIN,
    "gpu",
    "Xid 79 on GPU-1",
    requester="sickbay",
    incident="i-1",
    boot_id="b-1",
    policy_hash="p-1",
    evidence=(EvidenceItem("xid:79", "GPU-1", "b-1", "reboot", "xid", "i-1", "fell off"),),
)


async def change_node(kube: KubeCluster, name: str, change: Callable[[Node], NodeChange]) -> Node:
    """Read and patch until no other client writes in between: controllers look at new nodes too."""
    async with asyncio.timeout(PATIENCE):
        while True:
            node = present(await kube.read_node(name))
            with contextlib.suppress(Conflict):
                return await kube.patch_node(node, change(node), guard=UNGUARDED)


def quarantine_path(node: str) -> str:
    return f"/apis/sickbay.dev/v1alpha1/quarantines/{node}"


# -- nodes -----------------------------------------------------------------------


async def test_one_patch_taints_cordons_labels_and_annotates(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1, labels={"pool": "a"}, annotations={"keep": "me"})
    node = present(await kube.read_node(name))
    assert (node.labels["pool"], node.annotations["keep"]) == ("a", "me")
    assert node.boot_id
    patched = await change_node(
        kube,
        name,
        lambda node: NodeChange(
            taints=(*node.taints, OURS),
            unschedulable=True,
            labels={"sickbay.dev/quarantine": "gpu"},
            annotations={"sickbay.dev/quarantine": "i-1"},
        ),
    )
    assert patched.unschedulable
    assert OURS in patched.taints
    assert patched.labels["sickbay.dev/quarantine"] == "gpu"
    stored = cluster_space.plane.node(name)
    assert stored["spec"]["unschedulable"] is True
    assert stored["metadata"]["annotations"]["keep"] == "me"

    released = await change_node(
        kube,
        name,
        lambda node: NodeChange(
            taints=tuple(taint for taint in node.taints if taint.key != OURS.key),
            unschedulable=False,
            labels={"sickbay.dev/quarantine": None},
            annotations={"sickbay.dev/quarantine": None},
        ),
    )
    assert not released.unschedulable
    assert OURS not in released.taints
    assert "sickbay.dev/quarantine" not in released.labels
    assert "sickbay.dev/quarantine" not in released.annotations


async def test_what_a_patch_answers_is_the_node_as_it_is_stored(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """Only metadata comes back; the rest is as it was read, except for the change."""
    [name] = cluster_space.create_nodes(1, labels={"pool": "a"}, annotations={"keep": "me"})
    theirs = {"key": "a", "value": "1", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}
    cluster_space.plane.call(
        "PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": [theirs]}}, MERGE_PATCH
    )
    changes: list[Callable[[Node], NodeChange]] = [
        lambda node: NodeChange(
            taints=(*node.taints, OURS), unschedulable=True, labels={"a": "b", "pool": None}
        ),
        lambda _: NodeChange(annotations={"keep": None, "new": "one"}),
        lambda _: NodeChange(taints=(), unschedulable=False),
    ]
    async with asyncio.timeout(PATIENCE):
        for change in changes:
            patched, stored = await change_node(kube, name, change), await kube.read_node(name)
            while stored is not None and stored.version != patched.version:
                # A controller wrote in between: patch once more, so that the two can be compared.
                patched, stored = await change_node(kube, name, change), await kube.read_node(name)
            assert patched == stored


async def test_a_node_from_the_cache_is_the_node_and_an_older_one_fails_its_patch(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1)
    first = await kube.read_node(name, cached=True)
    assert first is not None  # also where the cache has not heard of it yet
    assert first.name == name
    await change_node(kube, name, lambda _: NodeChange(annotations={"a": "b"}))
    with pytest.raises(Conflict) as raised:
        await kube.patch_node(first, NodeChange(taints=(OURS,)), guard=UNGUARDED)
    assert raised.value.status == 409
    async with asyncio.timeout(PATIENCE):
        while True:
            cached, stored = await kube.read_node(name, cached=True), await kube.read_node(name)
            if cached == stored:
                break
    assert await kube.read_node(f"{name}-none", cached=True) is None


async def test_a_taint_that_another_sets_between_our_read_and_our_write_survives(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1)
    node = present(await kube.read_node(name))
    theirs = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    cluster_space.plane.call(
        "PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": [theirs]}}, MERGE_PATCH
    )
    with pytest.raises(Conflict) as raised:
        await kube.patch_node(node, NodeChange(taints=(OURS,)), guard=UNGUARDED)
    assert raised.value.status == 409
    assert cluster_space.plane.node(name)["spec"]["taints"] == [theirs]

    patched = await change_node(kube, name, lambda node: NodeChange(taints=(*node.taints, OURS)))
    assert {taint.key for taint in patched.taints} == {theirs["key"], OURS.key}


async def test_a_taint_keeps_the_time_that_it_was_added(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1)
    theirs = {"key": "a", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}
    cluster_space.plane.call(
        "PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": [theirs]}}, MERGE_PATCH
    )
    await change_node(kube, name, lambda node: NodeChange(taints=(*node.taints, OURS)))
    assert theirs in cluster_space.plane.node(name)["spec"]["taints"]


async def test_another_node_of_that_name_is_a_conflict_and_stays_untouched(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1)
    node = present(await kube.read_node(name))
    cluster_space.plane.delete_nodes([name])
    cluster_space.create_nodes(1)
    namesake = present(await kube.read_node(name))
    assert namesake.uid != node.uid
    with pytest.raises(Conflict):
        await kube.patch_node(node, NodeChange(taints=(OURS,)), guard=UNGUARDED)
    # With the version right, it is the uid alone that fails it.
    statuses = set()
    async with asyncio.timeout(PATIENCE):
        while 422 not in statuses:
            fresh = present(await kube.read_node(name))
            with pytest.raises(Conflict) as raised:
                await kube.patch_node(
                    replace(fresh, uid=node.uid), NodeChange(taints=(OURS,)), guard=UNGUARDED
                )
            statuses.add(raised.value.status)
    assert "taints" not in cluster_space.plane.node(name)["spec"]


async def test_a_node_that_is_gone_is_none_to_read_and_not_found_to_patch(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1)
    node = present(await kube.read_node(name))
    cluster_space.plane.delete_nodes([name])
    assert await kube.read_node(name) is None
    with pytest.raises(NotFound):
        await kube.patch_node(node, NodeChange(unschedulable=True), guard=UNGUARDED)


async def test_the_list_of_nodes_has_their_metadata(
    kube: KubeCluster, cluster_space: Space
) -> None:
    names = cluster_space.create_nodes(3, labels={"pool": "h100"})
    listed: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE):  # the server's cache may be a little behind
        while not set(names) <= set(listed):
            listed = {node.name: node for node in await kube.list_nodes()}
    assert {listed[name].labels["pool"] for name in names} == {"h100"}
    assert len({listed[name].uid for name in names}) == 3


async def test_the_list_is_decoded_while_it_arrives(
    kube: KubeCluster, cluster_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the form that this API server writes: else its list would stop the event loop."""
    cluster_space.create_nodes(3)
    left: list[int] = []
    finish = ListReader.finish

    def count(reader: ListReader[Any]) -> list[Any]:
        left.append(len(reader._buffer))
        return finish(reader)

    monkeypatch.setattr(ListReader, "finish", count)
    async with asyncio.timeout(PATIENCE):  # the server's cache may be a little behind
        while len(await kube.list_nodes()) < 3:
            left.clear()
    assert left[-1] < 4_000  # the last object alone


# -- quarantines -----------------------------------------------------------------


def decided(status: QuarantineStatus) -> QuarantineStatus:
    """The status without the conditions, which its writer makes of the rest."""
    return replace(status, observed_generation=0, conditions=())


async def test_a_quarantine_is_stored_whole_and_read_again(
    kube: KubeCluster, cluster_space: Space
) -> None:
    name = f"{cluster_space.node_prefix}-a"
    made = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    assert made.spec == SPEC
    assert made.has_finalizer
    status = QuarantineStatus(Phase.DRAINING, "3 to go", "uid", 5.25, 6.5, pods_remaining=3)
    written = await kube.write_quarantine_status(made, status)
    assert (decided(written.status), written.spec) == (status, SPEC)
    fewer = QuarantineStatus(Phase.DRAINED, node_uid="uid", admitted_at=5.25)
    rewritten = await kube.write_quarantine_status(written, fewer)
    assert decided(rewritten.status) == fewer
    lesser = replace(SPEC, action=Action.CORDON, reason="better now", evidence=())
    assert (await kube.write_quarantine_spec(rewritten, lesser)).spec == lesser
    read = present(await kube.read_quarantine(name))
    assert (read.spec, decided(read.status)) == (lesser, fewer)
    await kube.drop_quarantine(read, guard=UNGUARDED)
    assert await kube.read_quarantine(name) is None


async def test_an_attempt_at_a_repair_is_stored_whole_and_written_by_one_process_alone(
    kube: KubeCluster, cluster_space: Space
) -> None:
    name = f"{cluster_space.node_prefix}-a"
    made = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    attempt = RepairAttempt(
        f"{made.uid}-1-reboot", "reboot", RepairState.ORDERING, "b-1", "uid", "", 7.25, 9.5
    )
    written = await put_attempts(kube, made, attempt)
    assert written.status.repair == RepairStatus((attempt,))
    with pytest.raises(Conflict):  # another process that decided on the same rung
        await kube.operations.create(attempt.operation, spec_of(made, attempt))
    ended = replace(attempt, state=RepairState.UNKNOWN, ended_at=9.5, message="no proof")
    written = await put_attempts(kube, made, ended)
    repair = RepairStatus((ended,), exhausted="a person decides", exhausted_at=10.0)
    await kube.write_quarantine_status(written, QuarantineStatus(Phase.DRAINED, repair=repair))
    read = present(await kube.read_quarantine(name))
    assert read.status.repair == repair
    await drop_operations(kube, name)
    await kube.drop_quarantine(read, guard=UNGUARDED)


async def test_a_node_has_one_quarantine(kube: KubeCluster, cluster_space: Space) -> None:
    name = f"{cluster_space.node_prefix}-a"
    made = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    with pytest.raises(Conflict):
        await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    await kube.drop_quarantine(made, guard=UNGUARDED)


async def test_of_two_who_change_a_phase_one_fails(kube: KubeCluster, cluster_space: Space) -> None:
    made = await kube.create_quarantine(f"{cluster_space.node_prefix}-a", SPEC, guard=UNGUARDED)
    await kube.write_quarantine_status(made, QuarantineStatus(Phase.CORDONED))
    with pytest.raises(Conflict):
        await kube.write_quarantine_status(made, QuarantineStatus(Phase.RELEASING))
    with pytest.raises(Conflict):
        await kube.write_quarantine_spec(made, SPEC)
    await kube.drop_quarantine(made, guard=UNGUARDED)


async def test_what_is_dropped_is_that_quarantine_and_no_namesake(
    kube: KubeCluster, cluster_space: Space
) -> None:
    name = f"{cluster_space.node_prefix}-a"
    first = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    await kube.drop_quarantine(first, guard=UNGUARDED)
    await kube.drop_quarantine(first, guard=UNGUARDED)  # gone already is success
    second = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    await kube.drop_quarantine(first, guard=UNGUARDED)
    kept = present(await kube.read_quarantine(name))
    assert (kept.uid, kept.deleting) == (second.uid, False)
    with pytest.raises(Conflict):
        await kube.write_quarantine_status(first, QuarantineStatus(Phase.CORDONED))
    await kube.drop_quarantine(second, guard=UNGUARDED)


async def test_dropping_leaves_another_finalizer_to_its_owner(
    kube: KubeCluster, cluster_space: Space
) -> None:
    name = f"{cluster_space.node_prefix}-a"
    made = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    plane, path = cluster_space.plane, quarantine_path(name)
    both = {"metadata": {"finalizers": ["sickbay.dev/undo", "example.com/audit"]}}
    plane.call("PATCH", path, both, MERGE_PATCH)
    await kube.drop_quarantine(made, guard=UNGUARDED)  # its version is old: dropping goes by uid
    assert plane.call("GET", path)["metadata"]["finalizers"] == ["example.com/audit"]
    plane.call("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH)
    plane.wait_gone(path)


async def test_a_person_makes_one_by_hand_and_ends_it(
    kube: KubeCluster, cluster_space: Space
) -> None:
    name = f"{cluster_space.node_prefix}-a"
    plane = cluster_space.plane
    plane.apply(
        "{apiVersion: sickbay.dev/v1alpha1, kind: Quarantine,"
        f" metadata: {{name: {name}}}, spec: {{reason: fan 3 is dead}}}}"
    )
    seen = present(await kube.read_quarantine(name))
    assert seen.spec == QuarantineSpec(Action.CORDON, "manual", "fan 3 is dead")
    assert not seen.has_finalizer
    held = await kube.add_finalizer(seen)
    assert held.has_finalizer
    with pytest.raises(Conflict):
        await kube.add_finalizer(seen)
    plane.call("DELETE", quarantine_path(name))
    ending = present(await kube.read_quarantine(name))
    assert ending.deleting
    with pytest.raises(Conflict):
        await kube.add_finalizer(ending)
    await kube.drop_quarantine(ending, guard=UNGUARDED)
    assert await kube.read_quarantine(name) is None


# -- the record -------------------------------------------------------------------


async def test_contenders_for_the_record_lose_no_write(
    kube: KubeCluster, cluster_space: Space
) -> None:
    async def add_ten() -> int:
        lost = 0
        for _ in range(10):
            while True:
                record = await kube.read_record()
                try:
                    await kube.write_record(
                        str(int(record.text or "0") + 1), record.version, guard=UNGUARDED
                    )
                except Conflict:
                    lost += 1
                    continue
                break
        return lost

    lost = await asyncio.gather(*(add_ten() for _ in range(6)))
    assert (await kube.read_record()).text == "60"
    assert sum(lost) > 0  # they did contend


async def test_an_edit_of_the_record_by_kubectl_is_a_conflict_and_survives_our_write(
    kube: KubeCluster, cluster_space: Space
) -> None:
    before = await kube.read_record()
    assert before.text == ""
    plane = cluster_space.plane
    command = ["kubectl", "--kubeconfig", str(plane.kubeconfig), "-n", cluster_space.namespace]
    command += ["patch", "configmap", "sickbay-record", "--type", "merge"]
    command += ["-p", '{"data": {"note": "ask Ops"}}']
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    with pytest.raises(Conflict):
        await kube.write_record("{}", before.version, guard=UNGUARDED)
    edited = await kube.read_record()
    written = await kube.write_record('{"entries": []}', edited.version, guard=UNGUARDED)
    assert written.text == '{"entries": []}'
    stored = plane.call("GET", cluster_space.path("configmaps", "sickbay-record"))
    assert stored["data"]["note"] == "ask Ops"


async def test_a_version_that_was_learned_elsewhere_can_be_written_against_and_an_old_one_not(
    kube: KubeCluster, cluster_space: Space
) -> None:
    old = await kube.read_record()
    plane = cluster_space.plane
    path = cluster_space.path("configmaps", "sickbay-record")
    news = plane.call("PATCH", path, {"data": {"note": "wait"}}, MERGE_PATCH)
    version = news["metadata"]["resourceVersion"]
    written = await kube.write_record("x", version, guard=UNGUARDED)
    assert written.text == "x"
    for stale in (old.version, version, "1"):
        with pytest.raises(Conflict):
            await kube.write_record("y", stale, guard=UNGUARDED)
    assert (await kube.read_record()).text == "x"


async def test_a_record_that_was_deleted_is_a_conflict_and_then_made_anew(
    kube: KubeCluster, cluster_space: Space
) -> None:
    record = await kube.read_record()
    cluster_space.plane.call("DELETE", cluster_space.path("configmaps", "sickbay-record"))
    with pytest.raises(Conflict):
        await kube.write_record("x", record.version, guard=UNGUARDED)
    made = await kube.write_record("x", "", guard=UNGUARDED)
    assert made.text == "x"
    with pytest.raises(Conflict):
        await kube.write_record("y", "", guard=UNGUARDED)


async def test_a_missing_namespace_is_named(
    cluster_space: Space, quarantine_definition: None
) -> None:
    cluster = KubeCluster(kubeconfig=str(cluster_space.plane.kubeconfig), namespace="nowhere")
    await cluster.start()
    with pytest.raises(Refused, match="no namespace nowhere"):
        await cluster.read_record()
    await cluster.close()
