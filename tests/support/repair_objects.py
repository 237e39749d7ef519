"""Objects of Karpenter, Cluster API and medik8s on a real API server, and what they do to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space

DEFINITIONS = Path(__file__).with_name("repair_definitions.yaml")
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
FINALIZER = "karpenter.sh/termination"


@dataclass
class Objects:
    """One test's objects. Names of what is in no namespace begin with the space's prefix."""

    space: Space

    def node(
        self, *, provider_id: str = "", annotations: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """A new Node with this providerID."""
        plane = self.space.plane
        number = sum(
            one["metadata"]["name"].startswith(self.space.node_prefix)
            for one in plane.call("GET", "/api/v1/nodes")["items"]
        )
        [name] = self.space.create_nodes(1, start=number, annotations=annotations)
        if provider_id:
            patch = {"spec": {"providerID": provider_id}}
            plane.call("PATCH", f"/api/v1/nodes/{name}", patch, MERGE_PATCH)
        found: dict[str, Any] = plane.node(name)
        return found

    def claim(self, name: str, *, node: str = "", provider_id: str = "") -> str:
        """A NodeClaim as Karpenter keeps it; its name."""
        plane, name = self.space.plane, f"{self.space.node_prefix}-{name}"
        metadata = {"name": name, "finalizers": [FINALIZER]}
        body = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata}
        plane.call("POST", CLAIMS, body)
        status = {"nodeName": node, "providerID": provider_id}
        kept = {key: text for key, text in status.items() if text}
        plane.call("PATCH", f"{CLAIMS}/{name}/status", {"status": kept}, MERGE_PATCH)
        return name

    def claim_is_deleted(self, name: str) -> bool:
        """Whether its deletion was asked for."""
        found = self.space.plane.call("GET", f"{CLAIMS}/{name}")
        return "deletionTimestamp" in found["metadata"]

    def terminate(self, name: str, node: str) -> None:
        """As Karpenter's finalizer does: the Node goes, then the NodeClaim."""
        plane = self.space.plane
        plane.delete_nodes([node])
        patch: dict[str, Any] = {"metadata": {"finalizers": []}}
        plane.call("PATCH", f"{CLAIMS}/{name}", patch, MERGE_PATCH)

    def remove_claims(self) -> None:
        """All of this space."""
        plane = self.space.plane
        for one in plane.call("GET", CLAIMS)["items"]:
            name = one["metadata"]["name"]
            if name.startswith(self.space.node_prefix):
                patch: dict[str, Any] = {"metadata": {"finalizers": []}}
                plane.request("PATCH", f"{CLAIMS}/{name}", patch, MERGE_PATCH)
                plane.request("DELETE", f"{CLAIMS}/{name}")

    # -- Cluster API --------------------------------------------------------------

    @property
    def machines(self) -> str:
        """Their path, in the test's namespace."""
        return f"/apis/cluster.x-k8s.io/v1beta2/namespaces/{self.space.namespace}/machines"

    def machine(
        self,
        name: str,
        *,
        node: str,
        owned: bool = True,
        provider_id: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """A Machine of the Node, owned by a MachineSet."""
        plane = self.space.plane
        owner = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "owner",
            "uid": self._owner_uid(),
            "controller": True,
        }
        metadata: dict[str, Any] = {"name": name, "annotations": dict(annotations or {})}
        if owned:
            metadata["ownerReferences"] = [owner]
        body = {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Machine",
            "metadata": metadata,
            "spec": {"clusterName": "c", **({"providerID": provider_id} if provider_id else {})},
        }
        plane.call("POST", self.machines, body)
        status = {"status": {"nodeRef": {"name": node}}}
        plane.call("PATCH", f"{self.machines}/{name}/status", status, MERGE_PATCH)

    def _owner_uid(self) -> str:
        """Of an object that is there: the garbage collector deletes what has an absent owner."""
        plane, path = self.space.plane, self.space.path("configmaps")
        found = plane.request("GET", f"{path}/owner")
        if found.status != 200:
            made = plane.call("POST", path, {"metadata": {"name": "owner"}})
            return str(made["metadata"]["uid"])
        return str(found.body["metadata"]["uid"])

    def machine_annotations(self, name: str) -> dict[str, str]:
        found = self.space.plane.call("GET", f"{self.machines}/{name}")
        return dict(found["metadata"].get("annotations", {}))

    def pass_on(self, name: str) -> None:
        """As a MachineHealthCheck does for a Machine with the mark."""
        conditions = [{"type": "OwnerRemediated", "status": "False", "reason": "Waiting"}]
        status = {"status": {"conditions": conditions}}
        self.space.plane.call("PATCH", f"{self.machines}/{name}/status", status, MERGE_PATCH)

    # -- medik8s ------------------------------------------------------------------

    @property
    def remediations(self) -> str:
        """Their path, in the test's namespace."""
        group = "/apis/self-node-remediation.medik8s.io/v1alpha1"
        return f"{group}/namespaces/{self.space.namespace}/selfnoderemediations"

    def remediation(self, name: str) -> dict[str, Any] | None:
        found = self.space.plane.request("GET", f"{self.remediations}/{name}")
        return found.body if found.status == 200 else None

    def all_remediations(self) -> list[dict[str, Any]]:
        return list(self.space.plane.call("GET", self.remediations)["items"])

    def end_remediation(self, name: str, status: str) -> None:
        """As the remediator does at its end."""
        one = {"type": "Succeeded", "status": status, "reason": "Done", "message": "as it went"}
        body = {"status": {"conditions": [one]}}
        self.space.plane.call("PATCH", f"{self.remediations}/{name}/status", body, MERGE_PATCH)
