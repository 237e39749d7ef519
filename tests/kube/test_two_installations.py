"""Two aggregators with records of their own, in two namespaces of one real cluster.

Each leaves the other's Quarantines alone: it does not enter, void, drain or release them.
"""

from dataclasses import replace

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Action
from aggregator.quarantine.controller import Controller
from aggregator.quarantine.decide.admission_record import parse_record
from aggregator.quarantine.state.node import NodeState
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import running_bench
from tests.support.kube_cluster import kube_cluster
from tests.support.present import present
from tests.support.replica import OPEN, SETTINGS, fault, snapshot
from tests.support.stack import pods_of, start_job
from tests.support.waiting import until

pytestmark = pytest.mark.cluster


async def entries(kube: KubeCluster) -> set[str]:
    return set(parse_record((await kube.read_record()).text).entries)


def steps_of(controller: Controller, node: str) -> list[str]:
    """Grows by one with each step that the controller has ended for the node from now on."""
    ended: list[str] = []
    real = controller.parts.worker._one_step

    async def counted(node_state: NodeState) -> bool:
        done = await real(node_state)
        if node_state.node == node:
            ended.append(node)
        return done

    controller.parts.worker._one_step = counted  # type: ignore[method-assign]
    return ended


async def test_anothers_quarantine_is_left_alone_and_its_node_is_held(
    kube: KubeCluster, cluster_space: Space
) -> None:
    plane = cluster_space.plane
    theirs, ours = cluster_space.create_nodes(2)
    start_job(plane, cluster_space.namespace, "job", theirs)
    staging = f"{cluster_space.namespace}-staging"
    plane.create_namespace(staging)
    # The other installation only cordons, so an eviction on the node comes from the wrong one.
    at_once = replace(OPEN, silent_drain_after=0)
    cordons = replace(SETTINGS, mode=Action.CORDON, limits=at_once)
    drains = replace(SETTINGS, limits=at_once)
    async with (
        kube_cluster(plane.kubeconfig, namespace=staging) as other,
        running_bench(other, cluster_space, settings=cordons) as first,
        running_bench(kube, cluster_space, settings=drains) as second,
    ):
        ill = {node: snapshot(fault(boot_id=first.boot(node))) for node in (theirs, ours)}
        first.attach(theirs, ill[theirs])
        await first.phase(theirs, "Cordoned")
        assert first.quarantine(theirs)["spec"]["installation"] == staging  # type: ignore[index]
        second.attach(theirs, ill[theirs])
        second.attach(ours, ill[ours])
        await second.phase(ours, "Drained")
        hold = present(second.fleet.node_summaries[theirs].decision.hold)
        assert (hold.limit, hold.value) == ("installation", staging)
        tried = steps_of(second.controller, theirs)
        await until(lambda: len(tried) >= 2, "two rounds, in which the second would go on with it")
        assert await entries(kube) == {ours}
        assert await entries(other) == {theirs}
        assert first.status(theirs, "phase") == "Cordoned"
        assert len(pods_of(plane, cluster_space.namespace, theirs)) == 2
        # In the other direction as well: the first one leaves the second's quarantine alone.
        seen = present(first.fleet.node_summaries[ours].quarantine)
        assert seen.foreign == cluster_space.namespace
        first.delete(theirs)
        await first.free(theirs)
        # The node remembers the person's request, and the other installation reads it there.
        await until(lambda: second.fleet.node_summaries[theirs].cluster.overruled)
        await until(lambda: second.fleet.node_summaries[theirs].decision.hold is None)
