"""What `kubectl describe node` shows of us: a condition, and an Event. Both may trail."""

from collections.abc import Callable
from typing import TypedDict

from aggregator.kube import paths
from aggregator.kube.limiter import Lane
from aggregator.kube.objects import NodeObject, decode, to_node
from aggregator.kube.quarantines import timestamp
from aggregator.kube.transport import METADATA, STRATEGIC_PATCH, Transport, encode
from aggregator.quarantine.cluster import Conflict, NotFound
from aggregator.quarantine.decide.marks import TAINT

CONDITION = "SickbayQuarantined"
_REPORTER = "sickbay.dev/aggregator"
# The API's own limits: a longer note or reason is refused.
_NOTE_BYTES = 1024
_REASON = 128
#: A node's status is written by its kubelet too: so often we look anew.
_TRIES = 5


class _Said(TypedDict):
    quarantined: bool
    reason: str
    message: str
    now: str | None


async def announce(
    transport: Transport,
    node: str,
    *,
    node_uid: str,
    quarantined: bool,
    reason: str,
    message: str,
    wall: Callable[[], float],
) -> None:
    """Set the condition and tell of it by an Event, if the node doesn't show just that already.

    Said is what the node bears out: where our taint does not agree, somebody has acted after us,
    and tells. The condition is written against the version of that look, so that whoever was
    paused since can't say what is over. The Event comes first: after a failure between the two it
    is told twice rather than never. Raises Conflict where another node has the name, or where the
    node changes too often.
    """
    told = False
    for attempt in range(1, _TRIES + 1):
        said: _Said = {
            "quarantined": quarantined,
            "reason": reason,
            "message": message,
            "now": timestamp(wall()),
        }
        # The cache may only lead to a write against its version: that there is nothing to say, and
        # that another wrote in between, is asked of etcd.
        due = await _due(transport, node, node_uid, said, cached=True) if attempt == 1 else None
        due = due or await _due(transport, node, node_uid, said, cached=False)
        if due is None:
            return
        if not told:
            event = _event(node, node_uid, **said)
            await transport.request(
                "POST",
                paths.EVENTS,
                kind="events",
                lane=Lane.EVENT,
                body=encode(event),
                accept=METADATA,
            )
            told = True
        try:
            await _write(transport, *due)
        except Conflict:
            if attempt == _TRIES:
                raise
        else:
            return


async def _due(
    transport: Transport, node: str, node_uid: str, said: _Said, *, cached: bool
) -> tuple[NodeObject, dict[str, object]] | None:
    """The node and the condition to write to it; None where there is nothing to say of it."""
    query = {"resourceVersion": "0"} if cached else None
    try:
        body = await transport.request(
            "GET", paths.node(node), kind="nodes", lane=Lane.STATUS, query=query
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
    if any(taint.key == TAINT for taint in to_node(found).taints) is not said["quarantined"]:
        return None
    condition = _condition(found, **said)
    return None if condition is None else (found, condition)


def _condition(
    found: NodeObject, *, quarantined: bool, reason: str, message: str, now: str | None
) -> dict[str, object] | None:
    """The condition to write; None where the node shows it already."""
    status = "True" if quarantined else "False"
    before = found.condition(CONDITION)
    if before and (before.status, before.reason, before.message) == (status, reason, message):
        return None
    condition: dict[str, object] = {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
    }
    if before is None or before.status != status:
        condition["lastTransitionTime"] = now  # kept as it is where the status is the same
    return condition


async def _write(transport: Transport, found: NodeObject, condition: dict[str, object]) -> None:
    meta = found.metadata
    patch = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": {"conditions": [condition]},
    }
    await transport.request(
        "PATCH",
        f"{paths.node(meta.name)}/status",
        kind="nodes/status",
        lane=Lane.STATUS,
        body=encode(patch),
        content_type=STRATEGIC_PATCH,
        accept=METADATA,
    )


def _event(
    node: str, node_uid: str, *, quarantined: bool, reason: str, message: str, now: str | None
) -> dict[str, object]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{node[:200]}-", "namespace": paths.EVENTS_NAMESPACE},
        "eventTime": now,
        "reason": reason[:_REASON],
        "note": message.encode()[:_NOTE_BYTES].decode(errors="ignore"),
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid},
        "type": "Warning" if quarantined else "Normal",
        "action": "Quarantine" if quarantined else "Release",
        "reportingController": _REPORTER,
        "reportingInstance": _REPORTER,
    }
