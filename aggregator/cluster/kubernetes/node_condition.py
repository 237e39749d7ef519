"""Our part of `kubectl describe node`, and conditions for other tools. All of them may trail."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from attrs import define, field

from aggregator.cluster.condition_record import CONDITIONS, read_written, record_written
from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.condition_plan import plan_conditions
from aggregator.cluster.kubernetes.event_writer import event_body, post_event
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.marked_nodes import MarkedNodes
from aggregator.cluster.kubernetes.object_codec import timestamp
from aggregator.cluster.kubernetes.objects import NodeObject, decode, to_node
from aggregator.cluster.kubernetes.transport import METADATA, STRATEGIC_PATCH, Transport, encode
from aggregator.cluster.node_names import CONDITION, TEST_CONDITION, is_marked
from aggregator.cluster.port import (
    UNGUARDED,
    Conflict,
    Guard,
    NodeCondition,
    NodeGuard,
    NodeTestCondition,
    NotFound,
    WrittenConditions,
)

T = TypeVar("T")

#: The kubelet writes a node's status too, so a conflict is retried this many times.
_TRIES = 5
#: The watch shows a mark within milliseconds; after this long (seconds) the node is read instead.
WATCH_S = 1.0
#: A node, and the condition to write to it.
_Due = tuple[NodeObject, dict[str, object]]


@define(eq=False, repr=False, slots=False)
class KubeNodeConditions:
    """The part of `NodesAndPods` that writes conditions. ``wall``: the time of those that change.

    Each is written against the version of a read, so that a process that was paused since can't
    write a state that is over.
    """

    _transport: Transport
    _installation: str = field(kw_only=True)
    _marked_nodes: MarkedNodes = field(kw_only=True)
    _wall: Callable[[], float] = field(kw_only=True)

    async def announce(
        self, node: str, *, node_uid: str, quarantined: bool, reason: str, message: str
    ) -> None:
        """Set the condition and send an Event about it, unless the node shows just that already.

        Only a state that the node confirms is published, as the watch of marked nodes or a read
        shows it: where our marks do not agree, a later actor has changed them and publishes itself.
        The Event comes first: after a failure between the two it is published twice rather than
        never. Raises Conflict where another node has the name, or where the node changes too often.
        """

        def change(found: NodeObject) -> _Due | None:
            texts = ("True" if quarantined else "False", reason, message)
            now = timestamp(self._wall())
            condition = changed_condition(found, CONDITION, *texts, now=now)
            return None if condition is None else (found, condition)

        async def read(*, cached: bool) -> _Due | None:
            try:
                found = await self._read(node, node_uid, cached=cached, about=node)
            except (NotFound, Conflict):
                if cached:
                    return None
                raise
            return change(found) if is_marked(to_node(found)) is quarantined else None

        announced = False
        for attempt in range(1, _TRIES + 1):
            # The watch and the cache may only lead to a write against their version: that there is
            # nothing to write, or that another wrote in between, needs a read from etcd.
            due = watched = None
            if attempt == 1:
                if quarantined:
                    watched = await self._marked_nodes.wait_for(node, node_uid, within=WATCH_S)
                    due = None if watched is None else change(watched)
                due = due or await read(cached=True)
            due = due or await read(cached=False)
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
                    now=timestamp(self._wall()),
                )
                await post_event(self._transport, event, node=node)
                announced = True
                if watched is not None:  # the Event has waited for its turn: the node may differ
                    newer = self._marked_nodes.find(node, node_uid)
                    due = (newer and change(newer)) or due
            found, condition = due
            try:
                await write_condition(
                    self._transport, found, condition, guard=UNGUARDED, about=node
                )
            except Conflict:
                if attempt == _TRIES:
                    raise
            else:
                return

    async def write_conditions(
        self,
        node: str,
        *,
        node_uid: str,
        wanted: Mapping[str, NodeCondition | None],
        guard: NodeGuard,
    ) -> WrittenConditions:
        """See the protocol. Conditions and record are one request."""

        async def write(found: NodeObject) -> WrittenConditions:
            annotations = found.metadata.annotations or {}
            before, now = read_written(annotations), timestamp(self._wall())
            plan = plan_conditions(found, before, wanted, self._installation, now)
            acts_on = annotations if plan.worsens else None
            if plan.patches or plan.written != before:
                await write_condition(
                    self._transport,
                    found,
                    *plan.patches,
                    annotations={CONDITIONS: record_written(plan.written)},
                    guard=Guard(lambda: guard(acts_on)),
                )
            return WrittenConditions(plan.written, frozenset(plan.foreign))

        return await self._by_read(node, node_uid, write)

    async def write_test_condition(
        self, node: str, *, node_uid: str, condition: NodeTestCondition, guard: Guard
    ) -> None:
        async def write(found: NodeObject) -> None:
            values, now = (condition.status, condition.reason, condition.message), self._wall()
            entry = changed_condition(found, TEST_CONDITION, *values, now=timestamp(now))
            if entry is not None:
                await write_condition(self._transport, found, entry, guard=guard, about=node)

        await self._by_read(node, node_uid, write)

    async def _by_read(
        self, node: str, node_uid: str, write: Callable[[NodeObject], Awaitable[T]]
    ) -> T:
        """The result of ``write``, which gets the node as it is now."""
        for attempt in range(1, _TRIES + 1):
            found = await self._read(node, node_uid)
            try:
                return await write(found)
            except Conflict:
                if attempt == _TRIES:
                    raise
        raise AssertionError("unreachable")

    async def _read(
        self, node: str, node_uid: str, *, cached: bool = False, about: str = ""
    ) -> NodeObject:
        """Raises Conflict where another node has the name."""
        query = {"resourceVersion": "0"} if cached else None
        body = await self._transport.get(paths.node(node), Priority.STATUS, query=query, node=about)
        found = decode(body, NodeObject)
        if found.metadata.uid != node_uid:
            raise Conflict(f"node {node} is another one now: its uid is {found.metadata.uid}")
        return found


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
    *conditions: Mapping[str, object],
    annotations: Mapping[str, str | None] | None = None,
    guard: Guard,
    about: str = "",
) -> None:
    """Write these against the version of the read. ``about``: a report of this node. Raises
    ClusterError.
    """
    meta = found.metadata
    metadata: dict[str, object] = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    if annotations is not None:
        metadata["annotations"] = annotations
    status = {"status": {"conditions": conditions}} if conditions else {}
    await transport.request(
        "PATCH",
        f"{paths.node(meta.name)}/status",
        Priority.STATUS,
        body=encode({"metadata": metadata, **status}),
        content_type=STRATEGIC_PATCH,
        accept=METADATA,
        guard=guard,
        node=about,
    )
