"""Jobs of active tests on a real API server: kwok plays the kubelet, and a test ends the pods."""

from dataclasses import dataclass
from typing import Any

from aggregator.cluster.port import Quarantine
from aggregator.config.job import JobSection
from aggregator.quarantine.repair.protocol import RepairOrder
from aggregator.repairers.job_manifest import job_name
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
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
