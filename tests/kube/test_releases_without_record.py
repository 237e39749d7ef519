"""A person's release without the right to the admission record, on the real kube-apiserver."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.quarantine.decide.admission_record import parse_record
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import Bench
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.replica import fault, snapshot
from tests.support.stack import remove_quarantines
from tests.support.waiting import until

pytestmark = pytest.mark.cluster


@asynccontextmanager
async def running(kube: KubeCluster, space: Space) -> AsyncIterator[Bench]:
    """A controller for the block; its objects stay for the next."""
    bench = Bench(kube, space)
    task = asyncio.create_task(bench.controller.run())
    try:
        await until(lambda: not bench.fleet.view_lost)
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def entries(space: Space) -> set[str]:
    path = f"/api/v1/namespaces/{space.namespace}/configmaps/sickbay-record"
    return set(parse_record(space.plane.call("GET", path)["data"]["record"]).entries)


def _is_held(bench: Bench, node: str) -> bool:
    found = bench.plane.node(node)
    ours = [one for one in found["spec"].get("taints", []) if one["key"].startswith("sickbay.dev")]
    return bool(found["spec"].get("unschedulable") or ours)


BINDING = "/apis/rbac.authorization.k8s.io/v1/namespaces/sickbay/rolebindings/sickbay-aggregator"


@pytest.mark.parametrize("view_begins_without", [False, True])
async def test_a_right_to_the_record_that_is_taken_away_holds_up_no_release(
    control_plane: ControlPlane,
    cluster_space: Space,
    quarantine_definition: None,
    *,
    view_begins_without: bool,
) -> None:
    """The loss of the right does not end the watches of quarantines and nodes either."""
    control_plane.apply(DEPLOY / "aggregator-rbac.yaml")
    account = control_plane.kubeconfig_for_service_account("sickbay", "sickbay-aggregator")
    [node] = cluster_space.create_nodes(1)
    try:
        async with kube_cluster(account) as kube:
            async with running(kube, cluster_space) as bench:
                bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
                await bench.phase(node, "Drained")
                if not view_begins_without:
                    await _release_without_rights(bench, control_plane, node)
            if view_begins_without:
                control_plane.call("DELETE", BINDING)
                async with running(kube, cluster_space) as bench:
                    await _release_without_rights(bench, control_plane, node)
    finally:
        control_plane.apply(DEPLOY / "aggregator-rbac.yaml")
        remove_quarantines(control_plane, cluster_space.node_prefix)


async def _release_without_rights(bench: Bench, plane: ControlPlane, node: str) -> None:
    plane.request("DELETE", BINDING)
    record = "/api/v1/namespaces/sickbay/configmaps/sickbay-record"
    account = plane.client_with_token(
        plane.token_for("sickbay", "sickbay-aggregator", audience=None)
    )
    await until(lambda: account.request("GET", record).status == 403)
    bench.delete(node)
    await until(lambda: not _is_held(bench, node))
    await until(lambda: "admission record" in bench.status(node, "message"))
    assert not bench.fleet.view_lost
    assert bench.status(node, "phase") == "Releasing"
    plane.apply(DEPLOY / "aggregator-rbac.yaml")
    await bench.free(node)
