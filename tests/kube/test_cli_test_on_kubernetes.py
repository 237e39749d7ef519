"""`sickbay test` of a node in service on a real API server: the person's own rights write the
request, the scheduler places the test's Job, and kwok plays the kubelet.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.quarantine.reconcile import rounds
from aggregator.web.event_broker import EventBroker
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_idle_nodes_on_kubernetes import CLASS, gpu_work, named
from tests.kube.test_new_nodes_on_kubernetes import condition, last_test, poll_often, status, taints
from tests.support.active_test_jobs import Jobs, TestingReplica, job_section
from tests.support.kube_cluster import kube_cluster
from tests.support.waiting import until
from tests.web.cli import Done, in_process
from tests.web.support import Served, serving

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    poll_often(monkeypatch)
    monkeypatch.setattr(rounds, "REFRESH", 0.5)


@asynccontextmanager
async def running(
    cluster: KubeCluster, space: Space, *nodes: str, profiles: tuple[str, ...] = ("quick",)
) -> AsyncIterator[Served]:
    """One replica without periodic tests, and its page."""
    feed = EventBroker(epoch=1)
    replica = TestingReplica(
        cluster,
        space,
        RepairRules(RepairMode.REPAIR),
        feed=feed,
        section=job_section(
            space.namespace, profiles={name: {"command": ["/tests", name]} for name in profiles}
        ),
        profiles=frozenset(profiles),
        gives_way=True,
    )
    async with (
        replica.running(*nodes),
        serving(replica.fleet, replica.clocks, feed=feed) as page,
    ):
        await until(lambda: set(nodes) <= replica.fleet.node_summaries.keys())
        yield page


async def sickbay(page: Served, space: Space, *arguments: str) -> Done:
    where = ["--url", page.url, "--kubeconfig", str(space.plane.kubeconfig)]
    return await in_process(*arguments, *where)


async def test_a_node_in_service_is_tested_by_hand_and_its_failure_is_shown(
    rights: Path, jobs: Jobs, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1, gpus=8)
    async with (
        kube_cluster(rights) as account,
        running(account, cluster_space, node, profiles=("quick", "long")) as page,
    ):
        asked = asyncio.create_task(
            sickbay(page, cluster_space, "test", node, "--profile", "long", "--yes")
        )
        pod = await jobs.pod_on(node)
        assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == (CLASS, -1000000)
        assert pod["spec"]["containers"][0]["command"] == ["/tests", "long"]
        assert last_test(cluster_space, node)["state"] in ("Ordering", "Ordered")
        jobs.end(pod, 1, "gemm: GPU 3 differs")
        done = await asked
        assert done.code == 1, done.err
        assert f"{node}: test long Failed: " in done.out
        assert "gemm: GPU 3 differs" in done.out
        assert "no pod is evicted for it" in done.err
        shown = await sickbay(page, cluster_space, "node", node)
        assert "TEST BY HAND: of a node in service" in shown.out
        assert "gemm: GPU 3 differs" in shown.out
        await until(lambda: status(cluster_space, node) == "False")
        assert "test long failed" in condition(cluster_space, node)["message"]
        await until(lambda: jobs.all() == [])
        assert taints(cluster_space, node) == []
        past = await sickbay(page, cluster_space, "history", "--node", node)
        assert "test long of the node in service failed" in past.out


async def test_a_node_with_work_is_refused_with_its_pods_and_the_next_step(
    rights: Path, jobs: Jobs, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1, gpus=8)
    gpu_work(cluster_space, "work", node=node)
    await until(lambda: named(jobs, "work")["spec"].get("nodeName") == node)
    async with kube_cluster(rights) as account, running(account, cluster_space, node) as page:
        done = await sickbay(page, cluster_space, "test", node, "--yes")
        assert done.code == 3, done.err
        assert "refused: the node has work" in done.out
        assert f'sickbay quarantine {node} --action drain --reason "for its test"' in done.out
        assert f"Pods on the node: {cluster_space.namespace}/work" in done.out
        assert jobs.all() == []
        assert "deletionTimestamp" not in named(jobs, "work")["metadata"]
        assert condition(cluster_space, node) == {}
        assert last_test(cluster_space, node)["state"] == "Cancelled"


async def test_a_profile_that_the_job_does_not_have_is_refused_before_anything_is_written(
    rights: Path, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1, gpus=8)
    async with kube_cluster(rights) as account, running(account, cluster_space, node) as page:
        done = await sickbay(page, cluster_space, "test", node, "--profile", "long", "--yes")
        assert done.code == 2
        assert "has no profile long; expected --profile, one of: quick" in done.err
        notes = cluster_space.plane.node(node)["metadata"].get("annotations", {})
        assert not [key for key in notes if key.startswith("sickbay.dev/")]
