"""An object in the cluster that was made for an order: whose it is, and what it ends with."""

from aggregator.cluster.objects import QUARANTINE, ClusterObject
from aggregator.quarantine.decide.own_pods import OPERATION
from aggregator.quarantine.repair.protocol import RepairOrder


def is_of_order(found: ClusterObject, order: RepairOrder) -> bool:
    """Whether the object was made for this order; another party's may have its name."""
    return found.annotations.get(OPERATION) == order.operation


def owner_of(order: RepairOrder) -> dict[str, str]:
    """The Quarantine as an owner, or the Node where there is none: the cluster's garbage collector
    deletes what a crash leaves.
    """
    if not order.quarantine:
        return {"apiVersion": "v1", "kind": "Node", "name": order.node, "uid": order.node_uid}
    return {
        "apiVersion": QUARANTINE.api_version,
        "kind": QUARANTINE.kind,
        "name": order.node,
        "uid": order.quarantine,
    }
