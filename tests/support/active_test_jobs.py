"""Jobs of active tests on a real API server: kwok plays the kubelet, and a test ends the pods."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Quarantine
from aggregator.composition.core import build_controller
from aggregator.config.job import JobSection
from aggregator.events import EventSink
from aggregator.health.model import Hello
from aggregator.quarantine.decide.repair import RepairRules
from aggregator.quarantine.repair.protocol import ConfiguredRepairer, RepairOrder, RepairSettings
from aggregator.quarantine.state.fleet import FleetState
from aggregator.repairers.job import JobRepairer
from aggregator.repairers.job_manifest import job_name
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.support.replica import POLICY, SETTINGS, FakeLine, Notes, snapshot
from tests.support.tasks import end_tasks
from tests.support.waiting import until

DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "TerminationByKubelet",
    "message": "The node was low on resource: memory.",
}


def job_section(namespace: str, **more: Any) -> JobSection:
    given = {
        "namespace": namespace,
        "image": f"registry.example/tests@sha256:{'0' * 64}",
        "profiles": {"quick": {"command": ["sickbay-agent", "test", "--profile", "quick"]}},
    }
    return JobSection.model_validate(given | more)


def order_of_a_test(
    node: dict[str, Any], quarantine: Quarantine | None = None, *, number: int = 1, **more: Any
) -> RepairOrder:
    uid = quarantine.uid if quarantine is not None else "q"
    name, node_uid = node["metadata"]["name"], node["metadata"]["uid"]
    given: dict[str, Any] = {"lasts": 600.0, "profile": "quick"}
    return RepairOrder(
        f"{uid}-{number}-test", "test", name, node_uid, "boot-1", uid, "xid:79", **(given | more)
    )


class TestingReplica:
    """One replica that orders tests by Jobs, and the agents that report to it."""

    __test__ = False

    def __init__(
        self,
        cluster: KubeCluster,
        space: Space,
        rules: RepairRules,
        *,
        feed: EventSink | None = None,
        section: JobSection | None = None,
        **repairer: Any,
    ) -> None:
        """``feed`` takes the events instead of `notes`; ``repairer``: what else is configured."""
        self.space, self.fleet, self.notes = space, FleetState(), Notes()
        job = JobRepairer(cluster.objects(), section or job_section(space.namespace))
        entry = ConfiguredRepairer(job, 600.0, job.clean_up, job.missing_rights, **repairer)
        self.clocks = Clocks(time.monotonic, time.time)
        self.controller = build_controller(
            cluster=cluster,
            policy=POLICY,
            settings=replace(SETTINGS, repair=RepairSettings(rules, {"test": entry})),
            fleet=self.fleet,
            event_sink=feed or self.notes,
            clocks=self.clocks,
            rng=random.Random(7),
        )

    def attach(self, node: str) -> None:
        boot = self.space.plane.node(node)["status"]["nodeInfo"]["bootID"]
        self.controller.on_connect(Hello(node, boot, "epoch", "0.1.0", 1, "agent"), FakeLine())
        self.controller.on_evidence(node, snapshot(), time.monotonic())

    @asynccontextmanager
    async def running(self, *nodes: str) -> AsyncIterator["TestingReplica"]:
        """``nodes``: those whose agents are attached."""
        task = asyncio.create_task(self.controller.run())
        try:
            for node in nodes:
                self.attach(node)
            yield self
        finally:
            await end_tasks(task)


@dataclass
class Jobs:
    """The Jobs of one test's namespace, and their pods."""

    space: Space

    @property
    def path(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.space.namespace}/jobs"

    def marked_node(self, *, gpus: int = 8, start: int = 0) -> dict[str, Any]:
        """A node as a quarantine leaves it: cordoned, and with our taint."""
        [name] = self.space.create_nodes(1, start=start, gpus=gpus)
        taint = {"key": "sickbay.dev/quarantine", "value": "gpu", "effect": "NoSchedule"}
        spec = {"unschedulable": True, "taints": [taint]}
        found: dict[str, Any] = self.space.plane.call(
            "PATCH", f"/api/v1/nodes/{name}", {"spec": spec}, MERGE_PATCH
        )
        return found

    def all(self) -> list[dict[str, Any]]:
        return list(self.space.plane.call("GET", self.path)["items"])

    def one(self, order: RepairOrder) -> dict[str, Any] | None:
        found = self.space.plane.request("GET", f"{self.path}/{job_name(order)}")
        return found.body if found.status == 200 else None

    def pods(self) -> list[dict[str, Any]]:
        return list(self.space.plane.call("GET", self.space.path("pods"))["items"])

    async def pod_on(self, node: str) -> dict[str, Any]:
        """The one pod, once the scheduler has placed it and it runs."""

        def runs() -> bool:
            return any(pod["status"]["phase"] == "Running" for pod in self.pods())

        await until(runs, "the test's pod to run")
        [pod] = self.pods()
        assert pod["spec"]["nodeName"] == node
        return pod

    def end(
        self,
        pod: dict[str, Any],
        code: int,
        message: str = "",
        *,
        reason: str = "",
        pod_reason: str = "",
        condition: dict[str, str] | None = None,
    ) -> None:
        """As the kubelet reports the end of the pod's program."""
        told = reason or ("Completed" if code == 0 else "Error")
        ended = {"exitCode": code, "reason": told, "message": message}
        ended |= dict.fromkeys(("startedAt", "finishedAt"), "2026-01-01T00:00:00Z")
        container = {"name": "test", "image": "i", "imageID": "", "ready": False}
        container |= {"restartCount": 0, "started": False, "state": {"terminated": ended}}
        status: dict[str, Any] = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [container],
        }
        if pod_reason:
            status["reason"] = pod_reason
        if condition is not None:
            status["conditions"] = [*pod["status"].get("conditions", []), condition]
        self.patch_status(pod, status)

    def patch_status(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        path = self.space.path("pods", f"{pod['metadata']['name']}/status")
        self.space.plane.call("PATCH", path, {"status": status}, MERGE_PATCH)
