"""Whether a token's Node is still the cluster's Node of its name, at a bounded number of reads.

The token of a deleted Node is good for a day, and its agent may connect again and again. An answer
is kept for a moment, and concurrent callers for the same Node share one read.
"""

import asyncio
import logging

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError, NodesAndPods
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.runtime.recent import Recent

log = logging.getLogger("sickbay.quarantine")

#: An answer is kept for this long (seconds). A UID that is gone does not come back, so "no" is kept
#: for longest; a failed read is soon tried again.
KEPT = {False: 60.0, True: 10.0, None: 2.0}


@define(eq=False, repr=False, slots=False, kw_only=True)
class CurrentNodes:
    _cluster: NodesAndPods
    _registry: NodeRegistry = field(alias="node_registry")
    _clocks: Clocks
    _queue: WorkQueue

    def __attrs_post_init__(self) -> None:
        self._now = self._clocks.now
        #: Each answer, and until when it counts. A valid token has proved name and UID.
        self._kept: Recent[tuple[str, str], tuple[bool | None, float]] = Recent()
        self._reads: dict[tuple[str, str], asyncio.Task[bool | None]] = {}

    async def is_current(self, node: str, node_uid: str) -> bool | None:
        """Whether the cluster's Node of this name has this UID; it is None while unknown.

        Costs a request only where the list of nodes, which may be a little old, has another UID,
        and no answer to the same question is kept.
        """
        if not self._queue.view:
            return None
        node_state = self._registry.known(node)
        meta = node_state.cluster.meta if node_state is not None else None
        if meta is not None and meta.uid == node_uid:
            return True
        key = (node, node_uid)
        kept = self._kept.get(key)
        if kept is not None and self._now() < kept[1]:
            return kept[0]
        reading = self._reads.get(key)
        if reading is None:
            reading = self._reads[key] = asyncio.create_task(self._fetch(key), name=f"node {node}")
        return await asyncio.shield(reading)

    async def _fetch(self, key: tuple[str, str]) -> bool | None:
        try:
            current = await self._read(*key)
        finally:
            del self._reads[key]
        self._kept[key] = current, self._now() + KEPT[current]
        return current

    async def _read(self, node: str, node_uid: str) -> bool | None:
        try:
            found = await self._cluster.read_node(node)
        except ClusterError as error:
            log.warning("the node can't be read", extra={"node": node, "error": str(error)})
            return None
        return found is not None and found.uid == node_uid
