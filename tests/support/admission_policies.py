"""The shipped admission policies on a shared control plane: what they are, and their removal."""

from pathlib import Path
from typing import Any

from tests.controlplane.api import MERGE_PATCH, ApiClient
from tests.controlplane.plane import ControlPlane
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
