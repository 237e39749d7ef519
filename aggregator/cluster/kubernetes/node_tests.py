"""Lists the Nodes whose active test is of interest.

No part of a Node's metadata has its taints, and no selector chooses by them. So all Nodes are
listed in full, in pages, and only where the configuration names a startup taint, or a node has a
test.
"""

from collections.abc import Collection

from aggregator.cluster.kubernetes.condition_lister import IN_FULL
from aggregator.cluster.kubernetes.objects import NodeObject, decode
from aggregator.cluster.kubernetes.reflector import read_objects
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.node_names import TEST_CONDITION
from aggregator.cluster.port import ListedNodeTest, NodeTestCondition


async def list_node_tests(
    transport: Transport, taint: str, tested: Collection[str]
) -> list[ListedNodeTest]:
    """See the protocol. Raises ClusterError."""
    return await read_objects(
        transport, IN_FULL, lambda raw: _listed(decode(raw, NodeObject), taint, tested)
    )


def _listed(node: NodeObject, taint: str, tested: Collection[str]) -> ListedNodeTest | None:
    taints = node.spec.taints if node.spec else None
    tainted = any(one.key == taint for one in taints or ())
    if not tainted and node.metadata.name not in tested:
        return None
    shown = node.condition(TEST_CONDITION)
    return ListedNodeTest(
        node.metadata.name,
        node.metadata.uid,
        tainted,
        NodeTestCondition(shown.status, shown.reason, shown.message) if shown is not None else None,
    )
