"""Idle nodes on a real API server: the scheduler places the test's pod by its PriorityClass, and
preempts it for work; kwok plays the kubelet.
"""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.quarantine.decide.idle_nodes import IdleNodeRules
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.repair import idle_node_choice
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_new_nodes_on_kubernetes import condition, last_test, poll_often, status
from tests.support.active_test_jobs import Jobs, TestingReplica
from tests.support.kube_cluster import kube_cluster
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

CLASS = "sickbay-idle-test"


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    poll_often(monkeypatch)
    monkeypatch.setattr(idle_node_choice, "_IDLE_AGAIN", 0.5)


def running(
    cluster: KubeCluster, space: Space, *nodes: str
) -> AbstractAsyncContextManager[TestingReplica]:
    rules = RepairRules(RepairMode.REPAIR, test_pause=600.0, idle_nodes=IdleNodeRules())
    replica = TestingReplica(cluster, space, rules, pod_namespace=space.namespace)
    return replica.running(*nodes)


def gpu_work(space: Space, name: str, *, node: str = "") -> dict[str, Any]:
    """A pod of a tenant with all GPUs of a node, with the default priority."""
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    container = {"name": "work", "image": "registry.example/work:1", "resources": limits}
    where = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    body = {"metadata": {"name": name}, "spec": {"containers": [container], **where}}
    made: dict[str, Any] = space.plane.call("POST", space.path("pods"), body)
    return made


def named(jobs: Jobs, name: str) -> dict[str, Any]:
    return next((one for one in jobs.pods() if one["metadata"]["name"] == name), {})


def of_tests(jobs: Jobs) -> list[dict[str, Any]]:
    return [one for one in jobs.pods() if "priorityClassName" in one["spec"]]


async def test_work_preempts_the_test_of_an_idle_node_which_has_no_verdict_then(
    rights: Path, jobs: Jobs, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1, gpus=8)
    async with kube_cluster(rights) as account, running(account, cluster_space, node) as site:
        pod = await jobs.pod_on(node)
        assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == (CLASS, -1000000)
        assert pod["spec"]["preemptionPolicy"] == "Never"
        tolerated = {one["key"] for one in pod["spec"]["tolerations"]}
        assert all(key.startswith("node.kubernetes.io/") for key in tolerated)
        assert "node.kubernetes.io/unschedulable" not in tolerated
        # The selector keeps the work from a node of an earlier test, on which it would not preempt.
        gpu_work(cluster_space, "work", node=node)
        name = pod["metadata"]["name"]
        await until(
            lambda: "deletionTimestamp" in named(jobs, name)["metadata"],
            lambda: f"the scheduler did not preempt the test for {named(jobs, 'work')}",
        )
        [why] = [
            one["reason"]
            for one in named(jobs, name)["status"]["conditions"]
            if one["type"] == "DisruptionTarget"
        ]
        assert why == "PreemptionByScheduler"
        jobs.end(named(jobs, name), 143)  # as the kubelet ends a pod that is deleted
        await until(lambda: named(jobs, "work")["spec"].get("nodeName") == node)
        await until(lambda: last_test(cluster_space, node).get("state") == "Inconclusive")
        assert condition(cluster_space, node) == {}
        # The event follows the answer to the write of the state.
        await until(lambda: set(site.notes.kinds(node)) == {"repair.ordered", "repair.ended"})
        await until(lambda: jobs.all() == [])


async def test_a_node_with_work_is_not_tested_and_a_pass_of_another_writes_the_condition(
    rights: Path, jobs: Jobs, cluster_space: Space
) -> None:
    free, used = cluster_space.create_nodes(2, gpus=8)
    gpu_work(cluster_space, "work", node=used)
    await until(lambda: named(jobs, "work")["spec"].get("nodeName") == used)
    async with kube_cluster(rights) as account, running(account, cluster_space, free, used):
        await until(lambda: any(one["status"]["phase"] == "Running" for one in of_tests(jobs)))
        [pod] = of_tests(jobs)
        assert pod["spec"]["nodeName"] == free
        jobs.end(pod, 0, "all steps passed")
        await until(lambda: status(cluster_space, free) == "True", within=60)
        assert "all steps passed" in condition(cluster_space, free)["message"]
        await until(lambda: jobs.all() == [])
        assert last_test(cluster_space, used) == {}
        assert condition(cluster_space, used) == {}
