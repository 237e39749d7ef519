"""Applies a change of membership to each node: which nodes are ours now, and which no longer.

A node that becomes ours is read anew, as after a start: the cluster's list, the node, its agent's
snapshot. A node that is no longer ours is handed over: no step is begun for it from that moment,
its agent is sent to the replica that owns it now, and its evidence here is discarded.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aggregator.clock import Clocks
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.replicas.membership.lease_timing import TIMES
from aggregator.replicas.membership.view import Ownership

log = logging.getLogger("sickbay.quarantine")

#: Agents sent to their owner at once, or asked for a snapshot, and the pause after them (seconds):
#: 500 a second. Each costs the replica that gets it a TLS handshake, some milliseconds.
SLICE, PAUSE = 50, 0.1
#: A replica that leaves waits for so long (seconds), until its successors have listed the Leases:
#: an agent that comes sooner is sent back.
HEIRS_LOOK = TIMES.retry_period + 0.5


class OwnershipHandler:
    """``list_nodes`` has the cluster's nodes listed anew."""

    def __init__(
        self,
        *,
        shards: Ownership,
        node_registry: NodeRegistry,
        agent_events: AgentEventHandler,
        queue: WorkQueue,
        list_nodes: Callable[[], Awaitable[bool]],
        clocks: Clocks,
    ) -> None:
        self._shards = shards
        self._registry = node_registry
        self._agent_events = agent_events
        self._queue = queue
        self._list_nodes = list_nodes
        self._clocks = clocks
        self._term = 0
        self._had_company = False
        self._changed = asyncio.Event()
        shards.on_change(self._changed.set)

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._move()

    async def _move(self) -> None:
        """Go once through all nodes. A change meanwhile begins it anew afterwards."""
        came, went, given = [], [], 0
        joined_anew = self._has_joined_anew()
        for count, node_state in enumerate(self._registry.node_states(), 1):
            if self._shards.owns(node_state.node):
                if joined_anew and node_state.work.ours is not False:  # a new node's is None
                    self._agent_events.start_over(node_state)
                if joined_anew or node_state.work.ours is not True:
                    node_state.work.gain(self._clocks.now())
                    came.append(node_state)
            elif node_state.work.ours is not False:
                given += (
                    node_state.work.ours is True
                )  # its agent may be here even if it never was ours
                node_state.work.lose()
                went.append(node_state)
            if count % SLICE == 0:
                await asyncio.sleep(0)
        if came or given:
            log.info(
                "nodes moved",
                extra={"event": "replica.nodes_moved", "came": len(came), "went": given},
            )
        self._take_over(came)
        async for node_state in self._registry.by_slices():
            self._queue.resume(node_state)
        if came and self._queue.view:
            await self._list_nodes()
        if joined_anew:
            await self._ask_again(came)
        await self._send_home(went)

    def _has_joined_anew(self) -> bool:
        """Whether our Lease lapsed since the last check, so that other replicas may have seen that.

        They may have owned our nodes, taken positive signs, and handed them back: our earlier state
        must not be acted on. A replica that was always alone has missed no sign.
        """
        membership_view = self._shards.membership_view
        self._had_company = self._had_company or len(membership_view.members) > 1
        before, self._term = self._term, membership_view.term
        return before not in (0, membership_view.term) and self._had_company

    def _take_over(self, came: list[NodeState]) -> None:
        for node_state in came:
            node_state.cluster.set_unread(unread=True)
            if self._queue.has_work(node_state):
                node_state.work.request_read()  # its last owner may have left work half done
                self._queue.add(node_state)

    async def _ask_again(self, came: list[NodeState]) -> None:
        """Ask for whole snapshots of all our nodes: not all at once, which would block all other
        work, even the renewal of our Lease in time.
        """
        asked = 0
        for node_state in came:
            if node_state.agent.attached and not node_state.agent.was_heard:
                self._agent_events.ask_again(node_state)
                asked += 1
                if asked % SLICE == 0:
                    await asyncio.sleep(PAUSE)

    async def _send_home(self, went: list[NodeState]) -> None:
        sent, membership_view = 0, self._shards.membership_view
        if went and membership_view.me not in membership_view.members:
            await asyncio.sleep(HEIRS_LOOK)
        for node_state in went:
            if self._shards.owns(
                node_state.node
            ):  # ours again, and another replica may have had it
                self._agent_events.start_over(node_state)
                self._agent_events.ask_again(node_state)
            elif node_state.agent.attached:
                self._agent_events.send_home(node_state, "the node belongs to another replica now")
            else:
                self._agent_events.hand_over(node_state)
                continue
            sent += 1
            if sent % SLICE == 0:
                await asyncio.sleep(PAUSE)
