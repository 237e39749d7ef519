"""Writes the conditions that other tools read, and leaves those of other writers alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aggregator.cluster.condition_record import (
    CONDITIONS,
    WrittenCondition,
    read_written,
    record_written,
)
from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.object_codec import timestamp
from aggregator.cluster.kubernetes.objects import Condition, NodeObject, decode
from aggregator.cluster.kubernetes.transport import METADATA, STRATEGIC_PATCH, Transport, encode
from aggregator.cluster.port import Conflict, Guard, NodeCondition, NodeGuard, WrittenConditions

#: The kubelet writes a node's status too, so a conflict is retried this many times.
_TRIES = 5


@dataclass(slots=True)
class _Plan:
    """``patches``: the entries of a strategic merge patch; ``written``: the record then.

    ``worsens``: one of the patches makes a condition unhealthy.
    """

    patches: list[dict[str, object]] = field(default_factory=list)
    written: dict[str, WrittenCondition] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    worsens: bool = False


async def write_conditions(
    transport: Transport,
    node: str,
    *,
    node_uid: str,
    wanted: Mapping[str, NodeCondition | None],
    installation: str,
    wall: Callable[[], float],
    guard: NodeGuard | None = None,
) -> WrittenConditions:
    """See the protocol. Conditions and record are one request, against the version of a read."""
    for attempt in range(1, _TRIES + 1):
        body = await transport.request("GET", paths.node(node), Priority.STATUS)
        found = decode(body, NodeObject)
        if found.metadata.uid != node_uid:
            raise Conflict(f"node {node} is another one now: its uid is {found.metadata.uid}")
        before = read_written(found.metadata.annotations or {})
        plan = _plan(found, before, wanted, installation, timestamp(wall()))
        result = WrittenConditions(plan.written, frozenset(plan.foreign))
        if not plan.patches and plan.written == before:
            return result
        try:
            await _patch(transport, found, plan, guard)
        except Conflict:
            if attempt == _TRIES:
                raise
        else:
            return result
    raise AssertionError("unreachable")


def _plan(
    found: NodeObject,
    before: Mapping[str, WrittenCondition],
    wanted: Mapping[str, NodeCondition | None],
    installation: str,
    now: str | None,
) -> _Plan:
    plan = _Plan(written=dict(before))
    for kind, want in wanted.items():
        there = found.condition(kind)
        recorded = before.get(kind)
        if recorded is not None and recorded.installation != installation:
            plan.foreign.add(kind)
        elif there is not None and (recorded is None or _is_changed(there, recorded)):
            plan.foreign.add(kind)
            plan.written.pop(kind, None)
        elif want is None:
            plan.written.pop(kind, None)
            if there is not None:
                plan.patches.append({"type": kind, "$patch": "delete"})
        elif (want.unhealthy or recorded is not None) and (
            there is None or there.status != want.status
        ):
            plan.patches.append(_entry(kind, want, now))
            plan.worsens |= want.unhealthy
            plan.written[kind] = WrittenCondition(want.status, want.reason, installation)
    return plan


def _is_changed(there: Condition, recorded: WrittenCondition) -> bool:
    return (there.status, there.reason) != (recorded.status, recorded.reason)


def _entry(kind: str, want: NodeCondition, now: str | None) -> dict[str, object]:
    return {
        "type": kind,
        "status": want.status,
        "reason": want.reason,
        "message": want.message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


async def _patch(
    transport: Transport, found: NodeObject, plan: _Plan, guard: NodeGuard | None
) -> None:
    meta = found.metadata
    annotations = meta.annotations or {}
    acts_on = annotations if plan.worsens else None
    metadata = {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "annotations": {CONDITIONS: record_written(plan.written)},
    }
    status = {"status": {"conditions": plan.patches}} if plan.patches else {}
    await transport.request(
        "PATCH",
        f"{paths.node(meta.name)}/status",
        Priority.STATUS,
        body=encode({"metadata": metadata, **status}),
        content_type=STRATEGIC_PATCH,
        accept=METADATA,
        guard=None if guard is None else Guard(lambda: guard(acts_on)),
    )
