"""Keeps on the Node which requests of people were followed, so that none is followed twice."""

from aggregator.cluster.port import NodeChange, NodesAndPods
from aggregator.quarantine.decide.repair import followed_change
from aggregator.quarantine.state.node import NodeState


class FollowedRequests:
    """Writes the annotation `sickbay.dev/repair-followed`."""

    def __init__(self, cluster: NodesAndPods) -> None:
        self._cluster = cluster

    async def remember(self, node_state: NodeState, request: str) -> None:
        node = await self._cluster.read_node(node_state.node)
        change = followed_change(node.annotations, (request,)) if node is not None else {}
        if node is not None and change:
            node = await self._cluster.patch_node(node, NodeChange(annotations=change))
        node_state.take_node(node)
