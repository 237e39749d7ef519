"""A real API server: uninstalled with the nodes left as they are, and installed again."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.quarantine.decide.admission_record import parse_record
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.servers import FRUGAL
from tests.kube.test_release_scenarios import LONG, Bench
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.replica import fault, snapshot
from tests.support.stack import remove_quarantines
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

NAMESPACE = "sickbay"
#: Seconds that a control plane may take, on a busy machine, to delete a namespace or a definition
#: with all that is in it, and to list and watch everything anew.
SLOW = 240.0
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/quarantines.sickbay.dev"


@pytest.fixture(scope="module")
def plane(control_plane_programs: Mapping[str, Path]) -> Iterator[ControlPlane]:
    """One of these tests' own, whose namespaces can be deleted."""
    assert control_plane_programs  # asked for, so that this is skipped loudly where there are none
    with ControlPlane(scheduler=False, kwok=False, go=FRUGAL) as started:
        yield started


@asynccontextmanager
async def installed(plane: ControlPlane, prefix: str) -> AsyncIterator[Bench]:
    """The definition, the namespace, and a controller for the block; all else stays."""
    plane.apply(DEPLOY / "crd.yaml")
    plane.apply(f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}")
    async with (
        kube_cluster(plane.kubeconfig, namespace=NAMESPACE) as kube,
        running(kube, plane, prefix) as bench,
    ):
        yield bench


@asynccontextmanager
async def running(kube: KubeCluster, plane: ControlPlane, prefix: str) -> AsyncIterator[Bench]:
    bench = Bench(kube, Space(plane, NAMESPACE, prefix))
    task = asyncio.create_task(bench.controller.run())
    try:
        await until(lambda: not bench.fleet.view_lost, within=SLOW)
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def entries(plane: ControlPlane) -> set[str]:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-record"
    return set(parse_record(plane.call("GET", path)["data"]["record"]).entries)


def is_held(bench: Bench, node: str) -> bool:
    """Whether it has our taint and is unschedulable."""
    spec = bench.plane.node(node)["spec"]
    ours = [one for one in spec.get("taints", []) if one["key"] == "sickbay.dev/quarantine"]
    return bool(ours and spec.get("unschedulable"))


async def drained(bench: Bench, nodes: Sequence[str]) -> None:
    for node in nodes:
        await bench.phase(node, "Drained", within=SLOW)


def ill(bench: Bench, nodes: Sequence[str]) -> None:
    for node in nodes:
        bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))


@pytest.mark.timeout(900)
async def test_a_reinstall_keeps_all_twelve_nodes_in_quarantine(plane: ControlPlane) -> None:
    nodes = plane.create_nodes(12, "reinstalled")
    try:
        async with installed(plane, "reinstalled") as bench:
            ill(bench, nodes)
            await drained(bench, nodes)
            plane.call("DELETE", DEFINITION)
            await until(lambda: plane.request("GET", DEFINITION).status == 404, within=SLOW)
            assert all(is_held(bench, node) for node in nodes)
        plane.delete_namespace(NAMESPACE)
        path = f"/api/v1/namespaces/{NAMESPACE}"
        await until(lambda: plane.request("GET", path).status == 404, within=SLOW)
        async with installed(plane, "reinstalled") as bench:
            await until(lambda: entries(plane) == set(nodes), within=SLOW)
            for node in nodes:
                await bench.phase(node, "Cordoned", within=SLOW)
            ill(bench, nodes)
            await drained(bench, nodes)
            bench.clock.time += LONG
            ill(bench, nodes)
            await bench.list_nodes_anew()
            await bench.settles()
            assert [node for node in nodes if is_held(bench, node)] == nodes
            assert not [
                node
                for node in nodes
                if "sickbay.dev/overruled" in plane.node(node)["metadata"]["annotations"]
            ]
            # A person's request releases one of them, as always.
            bench.delete(nodes[0])
            await bench.free(nodes[0], within=SLOW)
    finally:
        remove_quarantines(plane, "reinstalled")
