"""Watches the names of Nodes that are gone while their Quarantine is in force, until they are back.

Nodes are watched only while they are unschedulable, and a Node that is created again is not: no
watch would report its return, and pods are scheduled there within a fraction of a second. So each
such name has a watch of its own, a bounded number at once; the others are polled at a bounded rate.
"""

import asyncio
import logging
import random

from attrs import define, field

from aggregator.cluster.port import ClusterError, NodesAndPods
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.quarantine")

#: This number of names has a watch of its own. Each is a connection to the API server.
FOLLOWED = 64
#: Of the names beyond these, this number is read each second, in turn.
POLLS_A_SECOND = 5.0
#: A watch that failed is tried again after 1 to 3 s, however often it failed.
_BACKOFF = Backoff(first=3.0, most=3.0, spread=2 / 3)
#: Between two checks of which names are still to be followed (seconds).
_ROUND = 1.0


@define(eq=False, repr=False, slots=False, kw_only=True)
class MissingNodes:
    """A node whose Node may be back is added to the queue for a consistent read, which decides."""

    _cluster: NodesAndPods
    _queue: WorkQueue
    _rng: random.Random
    _watches: dict[str, tuple[NodeState, asyncio.Task[None]]] = field(factory=dict, init=False)
    _polled: dict[str, NodeState] = field(factory=dict, init=False)
    #: Set while any name is followed.
    _followed: asyncio.Event = field(factory=asyncio.Event, init=False)

    def follow(self, node_state: NodeState) -> None:
        """Follow the node's name if its Node is gone; called after each read of it."""
        name = node_state.node
        if name in self._watches or not self._is_missing(node_state):
            return
        self._followed.set()
        if len(self._watches) >= FOLLOWED:
            self._polled[name] = node_state
            return
        self._polled.pop(name, None)
        task = asyncio.create_task(self._wait(node_state), name=f"missing node {name}")
        self._watches[name] = (node_state, task)

    async def run(self) -> None:
        """For ever: poll, and stop following what is there again or another replica's."""
        try:
            while True:
                if not (self._watches or self._polled):  # as nearly always: no round is needed
                    self._followed.clear()
                    await self._followed.wait()
                self._drop()
                node_state = next(iter(self._polled.values()), None)
                if node_state is not None:
                    await self._poll(node_state)
                await asyncio.sleep(_ROUND if node_state is None else 1 / POLLS_A_SECOND)
        finally:
            for _, task in self._watches.values():
                task.cancel()

    def _is_missing(self, node_state: NodeState) -> bool:
        in_quarantine = node_state.quarantine is not None
        return node_state.cluster.node_gone and in_quarantine and self._queue.holds_lease()

    def _drop(self) -> None:
        for node_state, task in list(self._watches.values()):
            if not self._is_missing(node_state):
                task.cancel()
        for name, node_state in list(self._polled.items()):
            if not self._is_missing(node_state):
                del self._polled[name]

    async def _wait(self, node_state: NodeState) -> None:
        try:
            await self._cluster.wait_for_node(node_state.node)
        except ClusterError as error:
            self._complain("a missing node can't be watched", node_state, error)
            await asyncio.sleep(_BACKOFF.pause(1, self._rng))
        finally:
            del self._watches[node_state.node]
        self._queue.add_for_read(node_state)

    @staticmethod
    def _complain(what: str, node_state: NodeState, error: ClusterError) -> None:
        log.info(what, extra={"node": node_state.node, "error": str(error)})

    async def _poll(self, node_state: NodeState) -> None:
        del self._polled[node_state.node]
        self._polled[node_state.node] = node_state  # the others come before it again
        try:
            found = await self._cluster.read_node(node_state.node, cached=True)
        except ClusterError as error:
            self._complain("a missing node can't be read", node_state, error)
            return
        if found is not None:
            self._queue.add_for_read(node_state)
        else:
            self.follow(node_state)  # a watch may be free by now
