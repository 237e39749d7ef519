"""The Node of an order, as much of it as names its machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aggregator.cluster.objects import ObjectResource, ObjectStore
from aggregator.config.field_path import read_field
from aggregator.quarantine.repair.protocol import RepairOrder

NODES = ObjectResource("v1", "Node", "nodes", namespaced=False)


class NodeIsAnotherError(Exception):
    """The Node is gone, or another one has its name: the order may have been carried out."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """``provider_id``: the cloud's name of the machine, empty where the Node has none."""

    name: str
    uid: str
    provider_id: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    def is_of_claim(self, claim: Mapping[str, Any]) -> bool:
        """Whether a NodeClaim is of this Node: by the providerID, or by name where one has none.

        Names of Nodes are used again in some clouds, and providerIDs are not.
        """
        theirs = read_field(claim, ("status", "providerID")) or ""
        if theirs and self.provider_id:
            return bool(theirs == self.provider_id)
        return bool(read_field(claim, ("status", "nodeName")) == self.name)

    def is_of_machine(self, machine: Mapping[str, Any]) -> str:
        """Why a Machine is not of this Node; empty: it is.

        A kubelet can write annotations of its own Node, so they are no proof.
        """
        node_ref = read_field(machine, ("status", "nodeRef")) or {}
        if read_field(node_ref, ("name",)) != self.name:
            named = read_field(node_ref, ("name",)) or "none"
            return f"its status.nodeRef names {named} and not {self.name}"
        if read_field(node_ref, ("uid",)) not in (None, "", self.uid):
            return f"its status.nodeRef is another Node of the name {self.name}"
        theirs = read_field(machine, ("spec", "providerID")) or ""
        if theirs and self.provider_id and theirs != self.provider_id:
            return f"its providerID is {theirs}, and the Node's is {self.provider_id}"
        return ""


async def read_node_facts(objects: ObjectStore, order: RepairOrder) -> NodeFacts:
    """Raises NodeIsAnotherError, and ClusterError."""
    found = await objects.get(NODES, "", order.node)
    if found is None or found.uid != order.node_uid:
        raise NodeIsAnotherError(f"Node {order.node} is gone, or is another one")
    provider_id = read_field(found.content, ("spec", "providerID")) or ""
    return NodeFacts(found.name, found.uid, str(provider_id), found.annotations)
