"""Our part of `kubectl describe node`: a condition, and an Event. Both may trail."""

from collections.abc import Callable
from typing import TypedDict

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.event_writer import event_body, post_event
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.marked_nodes import MarkedNodes
from aggregator.cluster.kubernetes.object_codec import timestamp
from aggregator.cluster.kubernetes.objects import NodeObject, decode, to_node
from aggregator.cluster.kubernetes.transport import METADATA, STRATEGIC_PATCH, Transport, encode
from aggregator.cluster.node_names import CONDITION, is_marked
from aggregator.cluster.port import Conflict, Guard, NotFound

#: The kubelet writes a node's status too, so a conflict is retried this many times.
_TRIES = 5
#: The watch shows a mark within milliseconds; after this long (seconds) the node is read instead.
WATCH_S = 1.0


class _Reported(TypedDict):
    quarantined: bool
    reason: str
    message: str
    now: str | None


async def publish(
    transport: Transport,
    node: str,
    *,
    node_uid: str,
    quarantined: bool,
    reason: str,
    message: str,
    wall: Callable[[], float],
    marked_nodes: MarkedNodes,
) -> None:
    """Set the condition and send an Event about it, unless the node shows just that already.

    Only a state that the node confirms is published, as the watch of marked nodes or a read shows
    it: where our marks do not agree, a later actor has changed them and publishes itself. The
    condition is written against that version, so that a process that was paused since can't publish
    a state that is over. The Event comes first: after a failure between the two it is published
    twice rather than never. Raises Conflict where another node has the name, or where the node
    changes too often.
    """
    announced = False
    for attempt in range(1, _TRIES + 1):
        wanted: _Reported = {
            "quarantined": quarantined,
            "reason": reason,
            "message": message,
            "now": timestamp(wall()),
        }
        # The watch and the cache may only lead to a write against their version: that there is
        # nothing to write, or that another wrote in between, needs a read from etcd.
        due = watched = None
        if attempt == 1:
            if quarantined:
                watched = await marked_nodes.wait_for(node, node_uid, within=WATCH_S)
                due = None if watched is None else _change(watched, wanted)
            due = due or await _due(transport, node, node_uid, wanted, cached=True)
        due = due or await _due(transport, node, node_uid, wanted, cached=False)
        if due is None:
            return
        if not announced:
            event = event_body(
                {"generateName": f"{node[:200]}-"},
                {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid},
                reason=reason,
                action="Quarantine" if quarantined else "Release",
                note=message,
                warning=quarantined,
                now=wanted["now"],
            )
            await post_event(transport, event, node=node)
            announced = True
            if watched is not None:  # the Event has waited for its turn: the node may have changed
                newer = marked_nodes.find(node, node_uid)
                due = (newer and _change(newer, wanted)) or due
        try:
            await write_condition(transport, *due)
        except Conflict:
            if attempt == _TRIES:
                raise
        else:
            return


async def _due(
    transport: Transport, node: str, node_uid: str, wanted: _Reported, *, cached: bool
) -> tuple[NodeObject, dict[str, object]] | None:
    """The node and the condition to write to it, or None where no write is due."""
    query = {"resourceVersion": "0"} if cached else None
    try:
        body = await transport.request(
            "GET", paths.node(node), Priority.STATUS, query=query, node=node
        )
    except NotFound:
        if cached:
            return None
        raise
    found = decode(body, NodeObject)
    if found.metadata.uid != node_uid:
        if cached:
            return None
        raise Conflict(f"node {node} is another one now: its uid is {found.metadata.uid}")
    if is_marked(to_node(found)) is not wanted["quarantined"]:
        return None
    return _change(found, wanted)


def _change(found: NodeObject, wanted: _Reported) -> tuple[NodeObject, dict[str, object]] | None:
    """The node and the condition to write to it, or None where the node shows it already."""
    status = "True" if wanted["quarantined"] else "False"
    texts = (status, wanted["reason"], wanted["message"])
    condition = changed_condition(found, CONDITION, *texts, now=wanted["now"])
    return None if condition is None else (found, condition)


def changed_condition(
    found: NodeObject, kind: str, status: str, reason: str, message: str, *, now: str | None
) -> dict[str, object] | None:
    """The condition of this type to write, or None where the node shows it already."""
    before = found.condition(kind)
    if before and (before.status, before.reason, before.message) == (status, reason, message):
        return None
    condition: dict[str, object] = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
    }
    if before is None or before.status != status:
        condition["lastTransitionTime"] = now  # kept as it is where the status is the same
    return condition


async def write_condition(
    transport: Transport,
    found: NodeObject,
    condition: dict[str, object],
    *,
    guard: Guard | None = None,
) -> None:
    """Write it against the version of the read. Raises ClusterError."""
    meta = found.metadata
    patch = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": {"conditions": [condition]},
    }
    await transport.request(
        "PATCH",
        f"{paths.node(meta.name)}/status",
        Priority.STATUS,
        body=encode(patch),
        content_type=STRATEGIC_PATCH,
        accept=METADATA,
        guard=guard,
        node=meta.name,
    )
