"""Lists the Nodes whose active test is of interest, and writes the condition with its result.

No part of a Node's metadata has its taints, and no selector chooses by them. So all Nodes are
listed in full, in pages, and only where the configuration names a startup taint, or a node has a
test.
"""

from collections.abc import Callable, Collection

import msgspec

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.node_condition import changed_condition, write_condition
from aggregator.cluster.kubernetes.node_pages import list_nodes
from aggregator.cluster.kubernetes.object_codec import timestamp
from aggregator.cluster.kubernetes.objects import Condition, NodeObject, decode
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.node_names import TEST_CONDITION
from aggregator.cluster.port import Conflict, Guard, ListedNodeTest, NodeTestCondition

#: The kubelet writes a node's status too, so a conflict is retried this many times.
_TRIES = 5


class _Taint(msgspec.Struct, frozen=True):
    key: str


class _Spec(msgspec.Struct, frozen=True):
    taints: list[_Taint] | None = None


class _Status(msgspec.Struct, frozen=True):
    conditions: list[Condition] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None


async def list_node_tests(
    transport: Transport, taint: str, tested: Collection[str]
) -> list[ListedNodeTest]:
    """See the protocol. Raises ClusterError."""
    return await list_nodes(transport, lambda raw: _listed(decode(raw, _Node), taint, tested))


def _listed(node: _Node, taint: str, tested: Collection[str]) -> ListedNodeTest | None:
    taints = node.spec.taints if node.spec else None
    tainted = any(one.key == taint for one in taints or ())
    if not tainted and node.metadata.name not in tested:
        return None
    conditions = node.status.conditions if node.status is not None else None
    current = next((one for one in conditions or () if one.type == TEST_CONDITION), None)
    return ListedNodeTest(
        node.metadata.name,
        node.metadata.uid,
        tainted,
        NodeTestCondition(current.status, current.reason, current.message)
        if current is not None
        else None,
    )


async def write_test_condition(
    transport: Transport,
    node: str,
    *,
    node_uid: str,
    condition: NodeTestCondition,
    wall: Callable[[], float],
    guard: Guard | None = None,
) -> None:
    """See the protocol. Written against the version of a read."""
    for attempt in range(1, _TRIES + 1):
        body = await transport.request("GET", paths.node(node), Priority.STATUS)
        found = decode(body, NodeObject)
        if found.metadata.uid != node_uid:
            raise Conflict(f"node {node} is another one now: its uid is {found.metadata.uid}")
        values = (condition.status, condition.reason, condition.message)
        entry = changed_condition(found, TEST_CONDITION, *values, now=timestamp(wall()))
        if entry is None:
            return
        try:
            await write_condition(transport, found, entry, guard=guard)
        except Conflict:
            if attempt == _TRIES:
                raise
        else:
            return
    raise AssertionError("unreachable")
