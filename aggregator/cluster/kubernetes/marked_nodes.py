"""The nodes in quarantine as the watch last showed them: as much as the write of a condition needs.

It saves the read before that write. The watch may be behind, so the write carries the version.
"""

import asyncio

from aggregator.cluster.kubernetes.objects import Meta, NodeObject, NodeStatus, to_node
from aggregator.cluster.node_names import CONDITION, is_marked
from aggregator.cluster.port import Node


class MarkedNodes:
    """By name. A node without our marks is not kept."""

    def __init__(self) -> None:
        self._found: dict[str, NodeObject] = {}
        self._awaited: dict[str, set[asyncio.Future[None]]] = {}

    def take(self, node: NodeObject) -> Node:
        """The node as a list or an event of the watch shows it. Returns it decoded."""
        meta, seen = node.metadata, to_node(node)
        if not is_marked(seen):
            self.drop(meta.name)
            return seen
        own = node.condition(CONDITION)
        self._found[meta.name] = NodeObject(
            metadata=Meta(name=meta.name, uid=meta.uid, resource_version=meta.resource_version),
            status=NodeStatus(conditions=None if own is None else [own]),
        )
        for awaited in self._awaited.pop(meta.name, ()):
            if not awaited.done():
                awaited.set_result(None)
        return seen

    def drop(self, name: str) -> None:
        """The node is schedulable again, or gone."""
        self._found.pop(name, None)

    def clear(self) -> None:
        """The nodes are listed anew."""
        self._found.clear()

    def find(self, name: str, uid: str) -> NodeObject | None:
        """The node of this name and uid, without the parts that no condition needs."""
        found = self._found.get(name)
        return found if found is not None and found.metadata.uid == uid else None

    async def wait_for(self, name: str, uid: str, *, within: float) -> NodeObject | None:
        """As `find`, after a wait (seconds at most) for a mark that was just set."""
        if name not in self._found:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            others = self._awaited.setdefault(name, set())
            others.add(future)
            try:
                await asyncio.wait([future], timeout=within)
            finally:
                others.discard(future)
                if not others and self._awaited.get(name) is others:
                    del self._awaited[name]
        return self.find(name, uid)
