"""What `kubectl describe node` shows of us: a condition, and an Event. Both may trail."""

from collections.abc import Callable

from aggregator.kube import paths
from aggregator.kube.limiter import Lane
from aggregator.kube.objects import NodeObject, decode
from aggregator.kube.quarantines import timestamp
from aggregator.kube.transport import STRATEGIC_PATCH, Transport, encode
from aggregator.quarantine.cluster import Conflict

CONDITION = "SickbayQuarantined"
_REPORTER = "sickbay.dev/aggregator"
# The API's own limits: a longer note or reason is refused.
_NOTE_BYTES = 1024
_REASON = 128


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

    The Event comes first: after a failure between the two it is told twice rather than never.
    Raises Conflict where another node has the name.
    """
    body = await transport.request("GET", paths.node(node), kind="nodes", lane=Lane.STATUS)
    found = decode(body, NodeObject)
    if found.metadata.uid != node_uid:
        raise Conflict(f"node {node} is another one now: its uid is {found.metadata.uid}")
    status = "True" if quarantined else "False"
    before = found.condition(CONDITION)
    if before and (before.status, before.reason, before.message) == (status, reason, message):
        return
    now = timestamp(wall())
    event = _event(node, node_uid, reason, message, now)
    event |= {
        "type": "Warning" if quarantined else "Normal",
        "action": "Quarantine" if quarantined else "Release",
    }
    await transport.request(
        "POST", paths.EVENTS, kind="events", lane=Lane.EVENT, body=encode(event)
    )
    condition = {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
    }
    if before is None or before.status != status:
        condition["lastTransitionTime"] = now  # kept as it is where the status is the same
    patch = {"metadata": {"uid": node_uid}, "status": {"conditions": [condition]}}
    await transport.request(
        "PATCH",
        f"{paths.node(node)}/status",
        kind="nodes/status",
        lane=Lane.STATUS,
        body=encode(patch),
        content_type=STRATEGIC_PATCH,
    )


def _event(
    node: str, node_uid: str, reason: str, message: str, now: str | None
) -> dict[str, object]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{node[:200]}-", "namespace": paths.EVENTS_NAMESPACE},
        "eventTime": now,
        "reason": reason[:_REASON],
        "note": message.encode()[:_NOTE_BYTES].decode(errors="ignore"),
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid},
        "reportingController": _REPORTER,
        "reportingInstance": _REPORTER,
    }
