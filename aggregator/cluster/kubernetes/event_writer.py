"""Events about a Node and about its Quarantine, as `kubectl describe` shows them."""

from contextlib import suppress

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.object_codec import timestamp
from aggregator.cluster.kubernetes.quarantine_codec import GROUP, VERSION
from aggregator.cluster.kubernetes.transport import METADATA, Transport, encode
from aggregator.cluster.port import UNGUARDED, Conflict, NodeEvent

REPORTER = "sickbay.dev/aggregator"
# The API's own limits: a longer note or reason is refused.
_NOTE_BYTES = 1024
_REASON = 128


async def write_event(transport: Transport, event: NodeEvent) -> None:
    """One Event about the Node, and one about the Quarantine where there is one.

    An Event of this name that is there already stays as it is: another replica has written it, or
    this one before its restart.
    """
    about = [("n", {"apiVersion": "v1", "kind": "Node", "uid": event.node_uid})]
    if event.quarantine_uid:
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Quarantine"}
        about.append(("q", {**kind, "uid": event.quarantine_uid}))
    for suffix, regarding in about:
        body = event_body(
            {"name": f"{event.name}{suffix}"},
            {**regarding, "name": event.node},
            reason=event.reason,
            action=event.action,
            note=event.note,
            warning=event.warning,
            now=timestamp(event.at),
        )
        with suppress(Conflict):
            await post_event(transport, body)


async def post_event(transport: Transport, body: dict[str, object], *, node: str = "") -> None:
    """Write one Event, after all other requests. Raises ClusterError.

    ``node``: the one whose taint it trails, if any (`Limiter.acquire`).
    """
    await transport.request(
        "POST",
        paths.EVENTS,
        Priority.EVENT,
        body=encode(body),
        accept=METADATA,
        guard=UNGUARDED,
        node=node,
    )


def event_body(
    meta: dict[str, str],
    regarding: dict[str, str],
    *,
    reason: str,
    action: str,
    note: str,
    warning: bool,
    now: str | None,
) -> dict[str, object]:
    """An Event of `events.k8s.io/v1`; ``meta`` has its name, or the beginning of one."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {**meta, "namespace": paths.EVENTS_NAMESPACE},
        "eventTime": now,
        "reason": reason[:_REASON],
        "note": note.encode()[:_NOTE_BYTES].decode(errors="ignore"),
        "regarding": regarding,
        "type": "Warning" if warning else "Normal",
        "action": action,
        "reportingController": REPORTER,
        "reportingInstance": REPORTER,
    }
