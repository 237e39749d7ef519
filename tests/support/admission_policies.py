"""The shipped admission policies on a shared control plane: in force for a test, and removed."""

import itertools
import uuid
from pathlib import Path
from typing import Any

from aggregator.cluster.kubernetes import paths
from tests.controlplane.api import MERGE_PATCH, ApiClient
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.waiting import wait_until
from tests.support.kube_cluster import DEPLOY
from tests.support.yaml_documents import read_documents

OWN = "sickbay.dev/probe"
ACCOUNT = ("sickbay", "sickbay-aggregator")
POLICIES = DEPLOY / "admission-policies.yaml"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
}


def remove(plane: ControlPlane, file: Path) -> None:
    for one in read_documents(file.read_text()):
        name = one["metadata"]["name"]
        plane.request("DELETE", f"{REGISTRATION}/{PATHS[one['kind']]}/{name}")


def kubelet_of(plane: ControlPlane, node: str) -> ApiClient:
    """A kubelet's client: its certificate, with Node authorization and NodeRestriction."""
    return plane.client_for(f"system:node:{node}", ["system:nodes"])


def patch(client: ApiClient, path: str, body: Any, kind: str = MERGE_PATCH) -> tuple[int, str]:
    answer = client.request("PATCH", path, body, kind)
    return answer.status, str(answer.body.get("message", ""))


class KeptPolicies:
    """The policies about nodes and Quarantines, in force from one test that needs them to the next.

    The API server compiles them anew each time they are created, and obeys a change a moment later:
    a change of them in each test took half of its time.
    """

    def __init__(self, plane: ControlPlane) -> None:
        own = uuid.uuid4().hex[:8]
        self._plane = plane
        self._space = Space(plane, namespace="default", node_prefix=f"n-policies-{own}")
        self._names = {one["metadata"]["name"] for one in read_documents(POLICIES.read_text())}
        self._values = itertools.count()
        #: The versions of their specs while they are in force.
        self._in_force: dict[str, int] = {}
        self._probe = ""
        self._denied: list[tuple[ApiClient, str]] = []

    def put(self) -> None:
        """Have them in force, as they are shipped: each has denied something."""
        if self._in_force and self._generations() == self._in_force:
            return
        self.remove()
        self._make_probes()
        plane, quarantine = self._plane, f"{paths.QUARANTINES}/{self._probe}"
        spec = {"action": "cordon", "reason": "a probe", "requester": "test"}
        made = {"apiVersion": "sickbay.dev/v1alpha1", "kind": "Quarantine", "spec": spec}
        intent = {"spec": {"intentAction": "cordon"}}
        plane.apply(POLICIES)
        self._in_force = self._generations()
        wait_until(lambda: self._allowed() == [False, False], what="the policies about nodes")
        plane.call("POST", paths.QUARANTINES, made | {"metadata": {"name": self._probe}})
        wait_until(
            lambda: patch(plane.client, f"{quarantine}?dryRun=All", intent)[0] != 200,
            what="the policy about what a person may edit",
        )
        plane.call("DELETE", quarantine)

    def remove(self) -> None:
        """Have none of them in force."""
        if self._in_force:
            remove(self._plane, POLICIES)
            self._in_force = {}
            wait_until(lambda: self._allowed() == [True, True], what="the end of the policies")

    def close(self) -> None:
        self.remove()
        self._space.clear()

    def _make_probes(self) -> None:
        if not self._probe:
            [self._probe] = self._space.create_nodes(1)
            token = self._plane.token_for(*ACCOUNT, audience=None)
            self._denied = [
                (kubelet_of(self._plane, self._probe), OWN),
                (self._plane.client_with_token(token), "example.test/probe"),
            ]

    def _allowed(self) -> list[bool]:
        """Whether each may set its label to a value that it does not have."""
        path = f"/api/v1/nodes/{self._probe}"
        return [
            patch(client, path, {"metadata": {"labels": {key: str(next(self._values))}}})[0] == 200
            for client, key in self._denied
        ]

    def _generations(self) -> dict[str, int]:
        kinds = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
        return {
            f"{kind}/{one['metadata']['name']}": one["metadata"]["generation"]
            for kind in kinds
            for one in self._plane.call("GET", f"{REGISTRATION}/{kind}")["items"]
            if one["metadata"]["name"] in self._names
        }
