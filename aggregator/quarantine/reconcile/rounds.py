"""The rounds: silence, the list of nodes, and what time alone may change, every few seconds."""

import asyncio
import math

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler
from aggregator.quarantine.reconcile.cluster_events import ClusterEventHandler
from aggregator.quarantine.reconcile.fleet_report import FleetReport
from aggregator.quarantine.reconcile.node_rounds import NodeRounds
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.gpus import OutOfService
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.runtime.tasks import run_until_first_exit

#: Held proposals, silence and the fleet's size are checked again this often (seconds).
ROUNDS = 5.0
_QUORUM_POLLS = 0.5
#: The list of nodes is read anew this often (seconds).
REFRESH = 180.0
#: While the cluster can't be seen its list of nodes is requested again after this long (seconds).
REFRESH_AGAIN = 60.0


@define(eq=False, repr=False, slots=False, kw_only=True)
class ControllerRounds:
    _registry: NodeRegistry
    _queue: WorkQueue
    _agent_events: AgentEventHandler
    _cluster_events: ClusterEventHandler
    _nodes: NodeRounds
    _report: FleetReport
    _out_of_service: OutOfService
    _clocks: Clocks
    #: Whether an agent runs on a node that the list lacks, by the last round.
    _has_unlisted: bool = field(init=False, default=False)

    async def run(self) -> None:
        """Until cancelled. The list of nodes has a task of its own, since it may take long."""
        await run_until_first_exit(node_lists=self._list_nodes(), node_rounds=self._go_rounds())

    async def _list_nodes(self) -> None:
        # At the start the first view lists the nodes.
        unseen, listed_for_new = self._clocks.now() + ROUNDS - REFRESH_AGAIN, -math.inf
        while True:
            now, view = self._clocks.now(), self._queue.view
            listing = self._cluster_events.listing_nodes  # for the view, which is not up before
            if not view and not listing and now - unseen >= REFRESH_AGAIN:
                # So that nodes with our marks are shown. They are listed again with the view.
                await self._cluster_events.refresh_nodes()
                unseen = now
            elif view and now - self._cluster_events.listed_at >= REFRESH:
                await self._cluster_events.refresh_nodes()
            elif view and self._has_unlisted and now - listed_for_new >= REFRESH_AGAIN:
                # An agent runs on a node that is newer than the list: limits count it, too.
                await self._cluster_events.refresh_nodes()
                listed_for_new = now
            await asyncio.sleep(ROUNDS)

    async def _go_rounds(self) -> None:
        while True:
            now, wall = self._clocks.now(), self._clocks.earliest()
            unlisted = False
            self._out_of_service.go_round(now)
            async for some in self._registry.slices():
                for node_state in some:
                    self._agent_events.note_silence(node_state, now)
                    attached = node_state.agent.attached
                    unlisted |= attached and not self._registry.is_listed(node_state.node)
            self._has_unlisted = unlisted
            await self._report.update()
            self._cluster_events.records.report_stop()
            self._cluster_events.records.report_record()
            async for some in self._registry.slices():
                for node_state in some:
                    self._nodes.check(node_state, wall)
            self._nodes.requeue_held()
            await self._rest()

    async def _rest(self) -> None:
        """Sleep until the next round. Wake early when quorum is reached: held proposals can then be
        admitted, and the page must not show a wait that has ended.
        """
        if not self._report.update_quorum():
            await asyncio.sleep(ROUNDS)
            return
        for _ in range(int(ROUNDS / _QUORUM_POLLS)):
            await asyncio.sleep(_QUORUM_POLLS)
            if not self._report.update_quorum():
                return
