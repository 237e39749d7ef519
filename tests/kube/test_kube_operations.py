"""Operations on a real API server: creation is the compare-and-set, each write has its fence."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.operation_client import (
    FINALIZER,
    NODE_LABEL,
    KubeOperations,
    operation_body,
)
from aggregator.cluster.operations import is_request
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    ClusterEvent,
    Conflict,
    OperationSpec,
    OperationStatus,
    QuarantineSeen,
    QuarantineSpec,
    Refused,
    RepairAttempt,
    RepairState,
    WatchSynced,
)
from aggregator.quarantine.decide.node_tests import NodeTest, begun_status
from aggregator.quarantine.repair.engine import OperationEngine
from aggregator.quarantine.repair.node_test_store import NodeTestStore
from aggregator.quarantine.repair.protocol import RepairSettings
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.support.present import present
from tests.support.put_attempts import drop_operations, put_attempts

SPEC = OperationSpec("node-a", "reboot", quarantine="q", requester="sickbay", reason="why")
NAME = "q-1-reboot"


async def test_an_operation_from_its_creation_to_its_end(kube: KubeCluster) -> None:
    operations = KubeOperations(kube._transport, time.time)
    made = await operations.create(NAME, SPEC)
    assert (made.spec, made.status, made.deleting) == (SPEC, OperationStatus(), False)
    with pytest.raises(Conflict):
        await operations.create(NAME, SPEC)
    assert await operations.of("node-a") == [made]
    assert await operations.of("node-b") == []
    assert made in await operations.all()
    ordering = OperationStatus(
        RepairState.ORDERING,
        "why",
        quarantine="q",
        number=1,
        boot_id="b",
        domains=("r=1",),
        began_at=1e9,
        deadline_at=1e9 + 60,
    )
    written = await operations.write_status(made, ordering)
    assert replace(written.status, conditions=()) == ordering
    assert [(one.type, one.status) for one in written.status.conditions] == [
        ("Admitted", "True"),
        ("Complete", "False"),
    ]
    with pytest.raises(Conflict):
        await operations.write_status(made, ordering)
    with pytest.raises(Conflict):  # it may act by now
        await operations.drop(made)
    ended = replace(ordering, phase=RepairState.SUCCEEDED, ended_at=1e9 + 30)
    written = await operations.write_status(written, ended)
    assert replace(written.status, conditions=()) == ended
    await operations.drop(written)
    await operations.drop(written)
    assert await operations.read(NAME) is None


@pytest.mark.parametrize(
    "mine", [{"finalizers": [FINALIZER, "example.com/x"]}, {"labels": {NODE_LABEL: "node-a"}}]
)
async def test_an_object_of_another_tool_is_adopted_before_it_is_ours(
    kube: KubeCluster, cluster_space: Space, mine: dict[str, object]
) -> None:
    """A read by our label would not find it, or its deletion would forget it."""
    operations, plane = KubeOperations(kube._transport, time.time), cluster_space.plane
    body = operation_body(NAME, SPEC) | {"metadata": {"name": NAME, **mine}}
    await asyncio.to_thread(plane.call, "POST", paths.OPERATIONS, body)
    there = present(await operations.read(NAME))
    try:
        assert (there.held, is_request(there)) == (False, True)
        adopted = await operations.adopt(there)
        assert (adopted.held, await operations.of("node-a")) == (True, [adopted])
        path = f"{paths.OPERATIONS}/{NAME}"
        meta = (await asyncio.to_thread(plane.call, "GET", path))["metadata"]
        theirs = {"example.com/x"} if "finalizers" in mine else set[str]()
        assert sorted(meta["finalizers"]) == sorted({FINALIZER, *theirs})
        assert await operations.adopt(adopted) == adopted
    finally:
        plane.call(
            "PATCH", f"{paths.OPERATIONS}/{NAME}", {"metadata": {"finalizers": None}}, MERGE_PATCH
        )
        plane.request("DELETE", f"{paths.OPERATIONS}/{NAME}")


@pytest.mark.parametrize("spec", [replace(SPEC, kind="dance"), replace(SPEC, node="")])
async def test_the_definition_refuses_what_can_not_be(
    kube: KubeCluster, spec: OperationSpec
) -> None:
    with pytest.raises(Refused):
        await kube.operations.create("wrong", spec)


async def test_a_change_of_an_operation_is_one_of_its_quarantine(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """Also one by another process; and a person's deletion waits for the aggregator."""
    name = f"{cluster_space.node_prefix}-a"
    made = await kube.create_quarantine(
        name, QuarantineSpec(Action.DRAIN, "gpu", "x"), guard=UNGUARDED
    )
    attempt = RepairAttempt(f"{made.uid}-1-reboot", "reboot", RepairState.ORDERED, began_at=1.0)
    events = kube.events()
    try:
        while not isinstance(await anext(events), WatchSynced):
            pass
        other = KubeOperations(kube._transport, time.time)
        await put_attempts(kube, made, attempt)
        await until_seen(events, name, [(attempt.operation, RepairState.ORDERED, False)])
        there = present(await other.read(attempt.operation))
        done = replace(there.status, phase=RepairState.SUCCEEDED)
        await other.write_status(there, done)
        await until_seen(events, name, [(attempt.operation, RepairState.SUCCEEDED, False)])
        plane = cluster_space.plane
        path = f"/apis/sickbay.dev/v1alpha1/operations/{attempt.operation}"
        await asyncio.to_thread(plane.request, "DELETE", path)
        await until_seen(events, name, [(attempt.operation, RepairState.SUCCEEDED, True)])
        await drop_operations(kube, name)
        await until_seen(events, name, [])
    finally:
        await events.aclose()  # type: ignore[attr-defined]
        await drop_operations(kube, name)
        await kube.drop_quarantine(made, guard=UNGUARDED)


async def until_seen(
    events: AsyncIterator[ClusterEvent], node: str, expected: list[tuple[str, RepairState, bool]]
) -> None:
    async for one in events:
        if isinstance(one, QuarantineSeen) and one.quarantine.node == node:
            found = one.quarantine.status.repair.attempts
            if [(each.operation, each.state, each.deleted) for each in found] == expected:
                return


def an_engine(operations: KubeOperations) -> OperationEngine:
    clocks, writer = Clocks(time.monotonic, time.time), cast("Any", None)
    return OperationEngine(
        operations=operations, record_writer=writer, clocks=clocks, settings=RepairSettings()
    )


async def test_a_test_of_a_node_that_memory_has_an_old_version_of_goes_on_at_the_second_try(
    kube: KubeCluster,
) -> None:
    """A list that was read before a write, and came after it, is older than the watch's events."""
    operations = KubeOperations(kube._transport, time.time)
    store, uid = NodeTestStore(operations), "uid-a"
    engine = an_engine(operations)
    test = NodeTest(
        number=1,
        operation="uid-a-boot-1-test",
        profile="quick",
        state=RepairState.ORDERING,
        boot_id="boot",
        node_uid=uid,
        deadline_at=2e9,
    )
    spec = OperationSpec("node-a", "test", profile="quick", requester="sickbay")
    there = await operations.create(test.operation, spec)
    try:
        await operations.write_status(there, begun_status(test))
        old = await operations.of("node-a")
        ordered = replace(test, state=RepairState.ORDERED)
        await engine.write(test, ordered)
        operations.known.take_read(old, "node-a")
        passed = replace(test, state=RepairState.SUCCEEDED)
        with pytest.raises(Conflict):
            await engine.write(test, passed)
        known, _ = store.last("node-a", uid)
        assert known == ordered
        await engine.write(ordered, passed)
    finally:
        left = present(await operations.read(test.name))
        await operations.drop(left)
