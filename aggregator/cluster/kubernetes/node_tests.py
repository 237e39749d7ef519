"""Lists the Nodes whose active test is of interest.

No part of a Node's metadata has its taints, and no selector chooses by them. So all Nodes are
listed in full, in pages, and only where the configuration names a startup taint, or a node has a
test.
"""

from collections.abc import Collection

import msgspec

from aggregator.cluster.kubernetes.condition_lister import IN_FULL
from aggregator.cluster.kubernetes.objects import Condition, decode
from aggregator.cluster.kubernetes.reflector import read_objects
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.node_names import TEST_CONDITION
from aggregator.cluster.port import ListedNodeTest, NodeTestCondition


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
    return await read_objects(
        transport, IN_FULL, lambda raw: _listed(decode(raw, _Node), taint, tested)
    )


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
