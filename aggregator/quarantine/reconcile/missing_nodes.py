"""Watches the names of Nodes that are gone while their Quarantine stands, until they are back.

Nodes are watched only while they are unschedulable, and a Node that is created again is not: no
watch would report its return, and pods are scheduled there within a fraction of a second. So each
such name has a watch of its own, a bounded number at once; the others are polled at a bounded rate.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from aggregator.cluster.port import Cluster, ClusterError
from aggregator.quarantine.state.node import NodeState

log = logging.getLogger("sickbay.quarantine")

#: So many names have a watch of their own. Each is a connection to the API server.
FOLLOWED = 64
#: Of the names beyond these, so many are asked for in a second, in turn.
POLLS_A_SECOND = 5.0
#: A watch that failed is tried again after so long (seconds), spread.
_BACKOFF = (1.0, 3.0)
#: Between two checks of which names are still to be followed (seconds).
_ROUND = 1.0


class MissingNodes:
    """``returned`` is called for a case whose Node may be back; a consistent read decides.

    ``may_act`` tells whether a node is this replica's to act for now: only its owner follows it.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        returned: Callable[[NodeState], None],
        may_act: Callable[[str], bool],
        rng: random.Random,
    ) -> None:
        self._cluster = cluster
        self._returned = returned
        self._may_act = may_act
        self._rng = rng
        self._watches: dict[str, tuple[NodeState, asyncio.Task[None]]] = {}
        self._polled: dict[str, NodeState] = {}

    def follow(self, case: NodeState) -> None:
        """Follow the node's name if its Node is gone; asked after each read of it."""
        name = case.node
        if name in self._watches or not self._is_missing(case):
            return
        if len(self._watches) >= FOLLOWED:
            self._polled[name] = case
            return
        self._polled.pop(name, None)
        task = asyncio.create_task(self._wait(case), name=f"missing node {name}")
        self._watches[name] = (case, task)

    async def run(self) -> None:
        """For ever: poll, and stop following what is there again or another replica's."""
        try:
            while True:
                self._drop()
                case = next(iter(self._polled.values()), None)
                if case is not None:
                    await self._poll(case)
                await asyncio.sleep(_ROUND if case is None else 1 / POLLS_A_SECOND)
        finally:
            for _, task in self._watches.values():
                task.cancel()

    def _is_missing(self, case: NodeState) -> bool:
        stands = case.node_summary.quarantine is not None
        return case.cluster.node_gone and stands and self._may_act(case.node)

    def _drop(self) -> None:
        for case, task in list(self._watches.values()):
            if not self._is_missing(case):
                task.cancel()
        for name, case in list(self._polled.items()):
            if not self._is_missing(case):
                del self._polled[name]

    async def _wait(self, case: NodeState) -> None:
        try:
            await self._cluster.wait_for_node(case.node)
        except ClusterError as error:
            log.info(
                "a missing node can't be watched", extra={"node": case.node, "error": str(error)}
            )
            await asyncio.sleep(self._rng.uniform(*_BACKOFF))
        finally:
            del self._watches[case.node]
        self._returned(case)

    @staticmethod
    def _complain(what: str, case: NodeState, error: ClusterError) -> None:
        log.info(what, extra={"node": case.node, "error": str(error)})

    async def _poll(self, case: NodeState) -> None:
        del self._polled[case.node]
        self._polled[case.node] = case  # the others come before it again
        try:
            found = await self._cluster.read_node(case.node, cached=True)
        except ClusterError as error:
            self._complain("a missing node can't be read", case, error)
            return
        if found is not None:
            self._returned(case)
        else:
            self.follow(case)  # a watch may be free by now
