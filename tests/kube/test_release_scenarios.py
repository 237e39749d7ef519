"""Evaluation, people's requests and release, each sentence on the real kube-apiserver.

The real controller with the real client; the test plays the agents, and turns the clock of the
evaluation. Scenarios that need hours of rounds are in tests/aggregator (test_release,
test_operator_requests, test_silent_agent), in virtual time.
"""

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import yaml

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Guard, Node, NodeChange
from aggregator.composition.core import build_controller
from aggregator.health.model import Component, Delta, Hello, Snapshot, Status
from aggregator.policy.rules import Policy
from aggregator.quarantine.settings import Settings
from aggregator.quarantine.state.fleet import FleetState
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.waiting import wait_until
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.replica import (
    POLICY,
    SETTINGS,
    FakeLine,
    Notes,
    Turned,
    component,
    evaluate_due,
    fault,
    snapshot,
)
from tests.support.stack import pods_of, remove_quarantines, start_job
from tests.support.waiting import until
from tests.support.yaml_documents import read_documents

pytestmark = pytest.mark.cluster

#: Above the healthyFor of the shipped rules.
LONG = 700.0
DISK = component("disk-readonly", "/data", Status.FAILED, "read-only")
WELL = replace(DISK, status=Status.OK, reason="")


class Bench:
    """The controller over a cluster, and the agents that speak to it."""

    def __init__(
        self,
        kube: KubeCluster,
        space: Space,
        policy: Policy = POLICY,
        settings: Settings = SETTINGS,
    ) -> None:
        self.plane, self._space = space.plane, space
        self._later_nodes = itertools.count(900)  # behind those that a test makes
        self.fleet, self.notes, self.clock = FleetState(), Notes(), Turned()
        self.lines: dict[str, FakeLine] = {}
        self.wall_offset = 0.0
        self.controller = build_controller(
            cluster=kube,
            policy=policy,
            settings=settings,
            fleet=self.fleet,
            event_sink=self.notes,
            clocks=Clocks(self.clock, lambda: time.time() + self.wall_offset),
            rng=random.Random(7),
        )

    def attach(self, node: str, told: Snapshot) -> None:
        """The node's agent, in the boot that the kubelet reports."""
        boot = self.boot(node)
        line = self.lines[node] = FakeLine()
        self.controller.on_connect(Hello(node, boot, "epoch", "0.1.0", 1, "agent"), line)
        self.controller.on_evidence(node, told, self.clock())

    def says(self, node: str, *components: Component, **delta: Any) -> None:
        self.controller.on_evidence(node, Delta(tuple(components), **delta), self.clock())

    def later(self, seconds: float, *nodes: str) -> None:
        """Let so much time pass; the nodes' agents report no change."""
        evaluate_due(self.controller)
        self.clock.time += seconds
        for node in nodes:
            self.says(node)

    def boot(self, node: str) -> str:
        found: str = self.plane.node(node)["status"]["nodeInfo"]["bootID"]
        return found

    def quarantine(self, node: str) -> dict[str, Any] | None:
        path = f"/apis/sickbay.dev/v1alpha1/quarantines/{node}"
        answer = self.plane.request("GET", path)
        found: dict[str, Any] | None = answer.body if answer.status == 200 else None
        return found

    def status(self, node: str, field: str) -> str:
        return str(((self.quarantine(node) or {}).get("status") or {}).get(field, ""))

    async def phase(self, node: str, *phases: str, within: float = 60.0) -> None:
        await until(
            lambda: self.status(node, "phase") in phases, lambda: self.state_of(node), within=within
        )

    def state_of(self, node: str) -> str:
        """The server's objects, and the controller's knowledge: for a failure's message."""
        known = self.controller.parts.registry.known(node)
        return f"{self.quarantine(node)}, {known and (known, known.work)}"

    async def free(self, node: str, within: float = 60.0) -> None:
        await until(lambda: self.quarantine(node) is None, within=within)
        spec = self.plane.node(node)["spec"]
        assert not [one for one in spec.get("taints", []) if one["key"].startswith("sickbay.dev")]

    def delete(self, node: str) -> None:
        self.plane.call("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{node}")

    def patch(self, node: str, body: Any) -> None:
        self.plane.call("PATCH", f"/api/v1/nodes/{node}", body, MERGE_PATCH)

    def unschedulable(self, node: str) -> bool:
        return bool(self.plane.node(node)["spec"].get("unschedulable"))

    async def settles(self) -> None:
        """Waits until all begun work is done: a new drain has gone through the same queues.

        A test that asserts after this that no step was taken has seen that one could have been.
        """
        [node] = self._space.create_nodes(1, start=next(self._later_nodes))
        await self.list_nodes_anew()  # a node that is in no list is left alone
        self.attach(node, snapshot(fault("xid:79", boot_id=self.boot(node))))
        await self.phase(node, "Draining", "Drained")

    async def list_nodes_anew(self) -> None:
        """The list that the controller makes every three minutes, with all changes until now."""
        self.plane.wait_for_node_cache()
        await self.controller.parts.cluster_events.refresh_nodes()


@asynccontextmanager
async def running_bench(
    kube: KubeCluster,
    space: Space,
    policy: Policy = POLICY,
    settings: Settings = SETTINGS,
    *,
    keep: bool = False,
) -> AsyncIterator[Bench]:
    """``keep``: the quarantines stand when it has ended."""
    bench = Bench(kube, space, policy, settings)
    running = asyncio.create_task(bench.controller.run())
    try:
        await until(lambda: not bench.fleet.view_lost)
        yield bench
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if not keep:
            remove_quarantines(space.plane, space.node_prefix)


@pytest.fixture
async def bench(kube: KubeCluster, cluster_space: Space) -> AsyncIterator[Bench]:
    async with running_bench(kube, cluster_space) as made:
        yield made


# -- evaluating ---------


async def test_a_fault_that_is_gone_before_its_drain_began_evicts_nobody(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    start_job(cluster_space.plane, cluster_space.namespace, "train", node)

    class Slow(KubeCluster):
        """A cluster whose node patch waits until the fault has gone."""

        def __init__(self) -> None:
            super().__init__(
                kubeconfig=str(cluster_space.plane.kubeconfig), namespace=cluster_space.namespace
            )
            self.arrived, self.go = asyncio.Event(), asyncio.Event()

        async def patch_node(self, node: Node, change: NodeChange, *, guard: Guard) -> Node:
            self.arrived.set()
            await self.go.wait()
            return await super().patch_node(node, change, guard=guard)

    slow = Slow()
    await slow.start()
    try:
        async with running_bench(slow, cluster_space) as bench:
            bench.attach(node, snapshot(DISK))
            await asyncio.wait_for(slow.arrived.wait(), 300)
            bench.says(node, WELL)
            slow.go.set()
            await bench.phase(node, "Cordoned")
            bench.later(LONG, node)
            await bench.free(node)
            assert len(pods_of(cluster_space.plane, cluster_space.namespace, node)) == 2
    finally:
        await slow.close()


# -- release ---------


# -- people's word ---------


async def test_a_quarantine_made_by_hand_that_makes_no_sense_is_refused_or_says_so(
    bench: Bench, cluster_space: Space
) -> None:
    def make(name: str, **spec: Any) -> int:
        body = {
            "apiVersion": "sickbay.dev/v1alpha1",
            "kind": "Quarantine",
            "metadata": {"name": name},
            "spec": {"reason": "smoke", **spec},
        }
        return bench.plane.request("POST", "/apis/sickbay.dev/v1alpha1/quarantines", body).status

    [node] = cluster_space.create_nodes(1)
    for nonsense in (
        {"action": "explode"},
        {"action": "observe"},
        {"kind": "ghost"},
        {"reason": ""},
        {"reason": "  "},
        {"requester": "sickbay"},
    ):
        assert make(node, **nonsense) == 422, nonsense
    assert make("Not_A_Name") == 422
    typo = f"{node}-typo"
    assert make(typo, action="drain") == 201
    assert make(node, requester="sickbay", incident="made-up") == 201  # the schema lets it through
    await bench.phase(typo, "Invalid")
    assert "no node of this name" in bench.status(typo, "message")
    await bench.phase(node, "Invalid")
    assert "aggregator's own name" in bench.status(node, "message")
    record = bench.plane.request("GET", cluster_space.path("configmaps", "sickbay-record")).body
    assert node not in json.dumps(record)
    assert not bench.unschedulable(node)

    def change(name: str, **spec: str) -> int:
        where = f"/apis/sickbay.dev/v1alpha1/quarantines/{name}"
        return bench.plane.request("PATCH", where, {"spec": spec}, MERGE_PATCH).status

    # A quarantine of no requester, or of a person, never becomes the aggregator's, because the
    # aggregator would then end it by itself.
    assert change(typo, requester="sickbay", incident="made-up") == 422
    assert change(typo, requester="hall-2") == 200
    assert change(typo, requester="sickbay", incident="made-up") == 422
    assert change(node, reason="smoke again") == 200
    bench.delete(typo)
    bench.delete(node)
    await until(lambda: bench.quarantine(typo) is bench.quarantine(node) is None)


@contextmanager
def later_definition(plane: ControlPlane) -> Iterator[None]:
    """The definition of a later version, whose hooks have one more state."""
    crd, _ = read_documents((DEPLOY / "crd.yaml").read_text())
    [version] = crd["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    status["preEvict"]["properties"]["state"]["enum"].append("Paused")
    plane.apply(yaml.safe_dump(crd))
    try:
        yield
    finally:
        plane.apply(DEPLOY / "crd.yaml")
        # The server refuses requests (429) while it prepares the storage of the new definition.
        served = (
            plane.request("GET", "/apis/sickbay.dev/v1alpha1/quarantines").status == 200
            for _ in itertools.count()
        )
        wait_until(lambda: all(itertools.islice(served, 20)), what="Quarantines to be served")


async def test_a_hook_that_a_later_version_wrote_stands_until_a_person_releases_the_node(
    bench: Bench, cluster_space: Space
) -> None:
    node, other = cluster_space.create_nodes(2)
    bench.attach(node, snapshot(DISK))
    await bench.phase(node, "Drained")
    hook = {"state": "Paused", "later": "field"}
    path = f"/apis/sickbay.dev/v1alpha1/quarantines/{node}/status"

    def is_held() -> bool:
        told = [one.details for one in bench.notes.transitions if one.node == node]
        return "unread-status" in [one.get("limit") for one in told]

    with later_definition(bench.plane):
        written = {"status": {"preEvict": hook}}
        await until(
            lambda: (
                bench.plane.request("PATCH", path, written, MERGE_PATCH).status == 200
                and bench.status(node, "preEvict") != ""
            )
        )
        await until(is_held)
        version = (bench.quarantine(node) or {})["metadata"]["resourceVersion"]
        bench.says(node, WELL)
        bench.later(LONG, node)  # it would be released now
        bench.attach(other, snapshot(DISK))
        await bench.phase(other, "Drained")
        await bench.settles()
        standing = bench.quarantine(node) or {}
        assert standing["metadata"]["resourceVersion"] == version
        assert standing["status"]["phase"] == "Drained"
        assert standing["status"]["preEvict"]["state"] == "Paused"
        assert bench.unschedulable(node)
        bench.delete(node)
        await bench.free(node)
        assert not bench.unschedulable(node)


# -- silence ---------


async def test_the_client_reads_devices_readiness_and_boot(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    async with kube_cluster(cluster_space.plane.kubeconfig) as cluster:
        found = await cluster.read_node(node)
    assert found is not None
    assert found.devices == {"nvidia.com/gpu": ("8", "8")}
    assert found.boot_id
