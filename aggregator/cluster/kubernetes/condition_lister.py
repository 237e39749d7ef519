"""Lists the conditions of all Nodes that rules name: no part of a Node's metadata has them.

A Node in full may be 24 KB (50 images, the labels of node feature discovery), most of which is
skipped here. So it is requested only where a rule names a condition, in pages of 2 ms.
"""

from collections.abc import Collection

import msgspec

from aggregator.cluster.condition_record import CONDITIONS, read_written
from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import decode
from aggregator.cluster.kubernetes.reflector import Resource, read_objects
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.policy.node_condition import OWN_TYPES, ReportedCondition, ReportedConditions
from aggregator.rfc3339 import read_time

#: All Nodes in full, in pages of 2.4 MB of such with 50 images: 2 ms of the event loop (measured).
IN_FULL = Resource(paths.NODES, lane=Priority.STATUS, page=100)


class _Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class _Status(msgspec.Struct, frozen=True):
    conditions: list[_Condition] | None = None


class _Annotations(msgspec.Struct, frozen=True):
    """Only the record of what sickbay has written: the others are skipped unread."""

    written: str | None = msgspec.field(default=None, name=CONDITIONS)


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""
    annotations: _Annotations | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata
    status: _Status | None = None


async def list_conditions(transport: Transport, types: Collection[str]) -> list[ReportedConditions]:
    """Every Node, with those of its conditions that are of ``types`` and not of sickbay's own
    writing. Raises ClusterError.
    """
    return await read_objects(transport, IN_FULL, lambda raw: _reported(decode(raw, _Node), types))


def _reported(node: _Node, types: Collection[str]) -> ReportedConditions:
    notes = node.metadata.annotations
    written = read_written({CONDITIONS: notes.written}) if notes and notes.written else {}
    ours = OWN_TYPES | written.keys()
    listed = node.status.conditions if node.status is not None else None
    return ReportedConditions(
        node.metadata.name,
        node.metadata.uid,
        {
            one.type: ReportedCondition(
                one.type,
                one.status,
                one.reason,
                one.message,
                _time(one.last_heartbeat_time),
                _time(one.last_transition_time),
            )
            for one in listed or ()
            if one.type in types and one.type not in ours
        },
    )


def _time(text: str | None) -> float:
    """Seconds since the epoch; 0 for none, or for what is no time."""
    try:
        return read_time(text) if text else 0.0
    except ValueError:
        return 0.0
