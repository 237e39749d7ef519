"""Whether a token's Node is still the cluster's Node of its name, at a bounded number of reads.

The token of a deleted Node is good for a day, and its agent may connect again and again. An answer
is kept for a moment, and concurrent callers for the same Node share one read.
"""

import logging
from functools import partial

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.port import ClusterError, NodesAndPods
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.runtime.recent import MOST
from aggregator.runtime.shared_answers import SharedAnswers

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
        # By name and UID, which a valid token has proved.
        self._answers: SharedAnswers[bool | None] = SharedAnswers(
            self._clocks.now, lasts=lambda answer, took: took + KEPT[answer], most=MOST
        )

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
        return await self._answers.get((node, node_uid), partial(self._read, node, node_uid))

    async def _read(self, node: str, node_uid: str) -> bool | None:
        try:
            found = await self._cluster.read_node(node)
        except ClusterError as error:
            log.warning("the node can't be read", extra={"node": node, "error": str(error)})
            return None
        return found is not None and found.uid == node_uid
