"""Node-problem-detector's conditions as evidence, by rule, on the real API server."""

import time
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.rfc3339 import write_time
from tests.controlplane.api import STRATEGIC_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import LONG, Bench, running_bench
from tests.support.replica import shipped_policy, snapshot

pytestmark = pytest.mark.cluster

RULES = """
rules:
  - {name: deadlock, kind: node, condition: KernelDeadlock, action: cordon, healthyFor: 10m}
  - {name: fit, kind: node, condition: example.com/Fit, unhealthy: "False", action: cordon}
"""


def write(space: Space, node: str, kind: str, status: str, *, ago: float = 0.0) -> None:
    """As node-problem-detector does: a patch of the status, with its heartbeat."""
    at = write_time(time.time() - ago)
    condition: dict[str, Any] = {"type": kind, "status": status, "reason": "DockerHung"}
    condition |= {"message": "task docker:7 blocked", "lastHeartbeatTime": at}
    body = {"status": {"conditions": [{**condition, "lastTransitionTime": at}]}}
    space.plane.call("PATCH", f"/api/v1/nodes/{node}/status", body, STRATEGIC_PATCH)


async def read(bench: Bench) -> None:
    """The controller's work of every three minutes."""
    await bench.controller.parts.condition_reader.read()
    bench.controller.parts.condition_reader.report()


async def test_a_condition_that_a_rule_names_cordons_and_its_opposite_releases(
    kube: KubeCluster, cluster_space: Space
) -> None:
    sick, unfit, unsure, stale, unnamed = nodes = cluster_space.create_nodes(5)
    write(cluster_space, sick, "KernelDeadlock", "True")
    write(cluster_space, unfit, "example.com/Fit", "False")
    write(cluster_space, unsure, "KernelDeadlock", "Unknown")
    write(cluster_space, stale, "KernelDeadlock", "True", ago=3600)
    write(cluster_space, unnamed, "ReadonlyFilesystem", "True")
    async with running_bench(kube, cluster_space, shipped_policy(RULES)) as bench:
        for node in nodes:
            bench.attach(node, snapshot())
        await read(bench)
        await bench.phase(sick, "Cordoned")
        await bench.phase(unfit, "Cordoned")
        [item] = (bench.quarantine(sick) or {})["spec"]["evidence"]
        assert (item["code"], item["component"]) == ("node-condition:DockerHung", "KernelDeadlock")
        assert "task docker:7 blocked" in item["message"]
        await bench.settles()
        assert [bench.quarantine(node) for node in (unsure, stale, unnamed)] == [None] * 3

        write(cluster_space, sick, "KernelDeadlock", "False")
        await read(bench)
        bench.later(LONG, sick)
        await bench.free(sick)
        assert bench.status(unfit, "phase") == "Cordoned"
