"""New nodes on a real API server: the controller tests a node with a startup taint by a Job, which
the scheduler places; kwok plays the kubelet, and a test ends the pods.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.node_names import TEST_CONDITION
from aggregator.cluster.port import UNGUARDED, Conflict, NodeChange
from aggregator.quarantine.decide.new_nodes import NewNodeRules, without_taint
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.reconcile import node_test_rounds, node_tests
from aggregator.quarantine.repair import idle_node_choice, node_test_state
from aggregator.runtime.backoff import Backoff
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.support.active_test_jobs import Jobs, TestingReplica
from tests.support.admission_policies import POLICIES
from tests.support.kube_cluster import kube_cluster
from tests.support.present import present
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

KEY = "sickbay.dev/untested"
UNTESTED = {"key": KEY, "effect": "NoSchedule"}
FOREIGN = {"key": "example.test/storage-missing", "effect": "NoSchedule"}


def poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real clocks, and a person who waits for the test."""
    monkeypatch.setattr(node_test_rounds, "EVERY", 0.1)
    for module in (node_tests, node_test_rounds, idle_node_choice):
        monkeypatch.setattr(module, "POLL_EVERY", 0.3)
    monkeypatch.setattr(node_tests, "POLL_BUSY", 0.3)
    monkeypatch.setattr(node_test_state, "_BACKOFF", Backoff(first=0.3, most=2.0))


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    poll_often(monkeypatch)


def new_node(space: Space, start: int = 0) -> str:
    """As its kubelet registers it: --register-with-taints."""
    [name] = space.create_nodes(1, start=start)
    set_taints(space, name, UNTESTED)
    return name


def set_taints(space: Space, node: str, *taints: dict[str, str]) -> None:
    body = {"spec": {"taints": list(taints)}}
    space.plane.call("PATCH", f"/api/v1/nodes/{node}", body, MERGE_PATCH)


def taints(space: Space, node: str) -> list[str]:
    return [one["key"] for one in space.plane.node(node)["spec"].get("taints", [])]


def condition(space: Space, node: str) -> dict[str, Any]:
    found = space.plane.node(node)["status"]["conditions"]
    return next((one for one in found if one["type"] == TEST_CONDITION), {})


def status(space: Space, node: str) -> str:
    return str(condition(space, node).get("status", ""))


def last_test(space: Space, node: str) -> dict[str, Any]:
    """The newest Operation of a test of this Node in no quarantine; empty: there is none."""
    uid = space.plane.node(node)["metadata"]["uid"]
    listed = space.plane.call("GET", "/apis/sickbay.dev/v1alpha1/operations")["items"]
    tests = [one for one in listed if "nodeTest" in one.get("status", {})]
    mine = [one for one in tests if one["status"].get("nodeUID") == uid]
    newest = max(mine, key=lambda one: one["status"]["number"], default=None)
    if newest is None:
        return {}
    status, name = newest["status"], newest["metadata"]["name"]
    return {
        "number": status["number"],
        "state": status["phase"],
        "message": status.get("message", ""),
        "operation": status.get("operation", name),
    }


def running(
    cluster: KubeCluster, space: Space, *nodes: str, **rules: Any
) -> AbstractAsyncContextManager[TestingReplica]:
    given: dict[str, Any] = {"taint": KEY, "profile": "quick", "concurrent": 2}
    new_nodes = NewNodeRules(**given | rules)
    repair = RepairRules(RepairMode.REPAIR, test_pause=1.0, new_nodes=new_nodes)
    return TestingReplica(cluster, space, repair).running(*nodes)


async def test_a_node_that_passes_is_opened_with_the_rights_of_deploy(
    rights: Path, jobs: Jobs, cluster_space: Space
) -> None:
    node = new_node(cluster_space)
    async with kube_cluster(rights) as account, running(account, cluster_space, node) as site:
        pod = await jobs.pod_on(node)
        [job] = jobs.all()
        [owner] = job["metadata"]["ownerReferences"]
        uid = cluster_space.plane.node(node)["metadata"]["uid"]
        assert (owner["kind"], owner["uid"]) == ("Node", uid)
        asked = [one["key"] for one in job["spec"]["template"]["spec"]["tolerations"]]
        assert asked == [KEY]
        await until(lambda: status(cluster_space, node) == "Unknown")
        jobs.end(pod, 0, "all steps passed")
        await until(lambda: status(cluster_space, node) == "True", within=60)
        assert taints(cluster_space, node) == []
        said = condition(cluster_space, node)
        assert said["reason"] == "TestPassed"
        assert "all steps passed" in said["message"]
        assert last_test(cluster_space, node)["operation"] in said["message"]
        await until(lambda: jobs.all() == [])
        assert site.notes.kinds(node) == ["repair.ordered", "repair.ended"]


async def test_the_admission_policy_lets_the_named_taint_and_condition_change_and_no_others(
    policies: None, rights: Path, jobs: Jobs, cluster_space: Space, control_plane: ControlPlane
) -> None:
    node = new_node(cluster_space)
    async with kube_cluster(rights) as account, running(account, cluster_space, node) as site:
        jobs.end(await jobs.pod_on(node), 0)

        def held() -> str:
            shown = site.controller.parts.worker._inputs.fleet.node_tests.get(node)
            return shown.held if shown is not None else ""

        await until(lambda: "may change the taints that ownTaints" in held(), held)
        assert taints(cluster_space, node) == [KEY]
        text = POLICIES.read_text()
        for name, own in (("SickbayQuarantined", TEST_CONDITION), ("sickbay.dev/quarantine", KEY)):
            old = f"\"['{name}']\""
            assert text.count(old) == 1
            text = text.replace(old, f"\"['{name}', '{own}']\"")
        control_plane.apply(text)
        await until(lambda: status(cluster_space, node) == "True", held, within=90)
        assert taints(cluster_space, node) == []
        assert last_test(cluster_space, node)["number"] == 1


async def test_the_server_refuses_the_removal_of_a_list_of_taints_that_has_changed(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """The taints are one list: without the version of the read a foreign one would be lost."""
    node = new_node(cluster_space)
    read = present(await kube.read_node(node))
    set_taints(cluster_space, node, UNTESTED, FOREIGN)
    with pytest.raises(Conflict):
        await kube.patch_node(read, NodeChange(taints=without_taint(read, KEY)), guard=UNGUARDED)
    assert taints(cluster_space, node) == [KEY, FOREIGN["key"]]


async def test_two_replicas_that_both_take_a_node_for_theirs_make_one_job(
    kube: KubeCluster, jobs: Jobs, cluster_space: Space
) -> None:
    node = new_node(cluster_space)
    names: set[str] = set()
    async with (
        kube_cluster(cluster_space.plane.kubeconfig, namespace=cluster_space.namespace) as other,
        running(kube, cluster_space, node),
        running(other, cluster_space, node),
    ):
        pod = await jobs.pod_on(node)
        await until(lambda: last_test(cluster_space, node)["state"] == "Ordered")
        for _ in range(20):  # several looks of both
            names |= {one["metadata"]["name"] for one in jobs.all()}
            await asyncio.sleep(0.05)
        jobs.end(pod, 0)
        await until(lambda: KEY not in taints(cluster_space, node))
        await until(lambda: jobs.all() == [])
        # The end is written after the removal of the Job.
        await until(lambda: last_test(cluster_space, node)["state"] != "Ordered")
    assert len(names) == 1
    assert last_test(cluster_space, node)["number"] == 1
    assert last_test(cluster_space, node)["state"] == "Succeeded"
