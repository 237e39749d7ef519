"""The aggregator's core: takes agents' reports and cluster events, evaluates, reconciles each node.

`aggregator/composition/core.py` makes its parts. All of it can be lost: snapshots, Quarantine
objects and the record bring it back.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from aggregator.quarantine.actions.holds import Proposals
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.admission.stop_switch import StopSwitch
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.followers import EvictionMemory
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler
from aggregator.quarantine.reconcile.cluster_events import ClusterEventHandler
from aggregator.quarantine.reconcile.condition_reader import NodeConditionReader
from aggregator.quarantine.reconcile.current_nodes import CurrentNodes
from aggregator.quarantine.reconcile.missing_nodes import MissingNodes
from aggregator.quarantine.reconcile.node_conditions import NodeConditionPublisher
from aggregator.quarantine.reconcile.node_events import NodeEventPublisher
from aggregator.quarantine.reconcile.node_test_rounds import NodeTestRounds
from aggregator.quarantine.reconcile.own_evidence import OwnEvidence
from aggregator.quarantine.reconcile.poller import NodePoller
from aggregator.quarantine.reconcile.rounds import ControllerRounds
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.reconcile.worker import NodeWorker
from aggregator.quarantine.repair.permissions import RepairPermissions
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.runtime.tasks import run_until_first_exit
from aggregator.runtime.text import some_of

log = logging.getLogger("sickbay.quarantine")

#: A step that is cancelled delays the controller's end no longer than this (seconds).
END_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that the controller runs, closes, and hands out."""

    registry: NodeRegistry
    queue: WorkQueue
    worker: NodeWorker
    agent_events: AgentEventHandler
    cluster_events: ClusterEventHandler
    rounds: ControllerRounds
    poller: NodePoller
    missing_nodes: MissingNodes
    conditions: NodeConditionPublisher
    condition_reader: NodeConditionReader
    node_tests: NodeTestRounds
    node_events: NodeEventPublisher
    network: NetworkTracker
    causes: CommonCauseTracker
    evictions: EvictionMemory
    switch: StopSwitch
    record_writer: AdmissionRecordWriter
    current_nodes: CurrentNodes
    own_evidence: OwnEvidence
    repair_permissions: RepairPermissions
    proposals: Proposals


class Controller:
    """Implements ingest's `EvidenceSink`, whose methods are those of its parts."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.evictions = parts.evictions
        self.mode_preview = parts.proposals.preview
        self.repair_permissions = parts.repair_permissions
        self.own_evidence = parts.own_evidence
        #: Whether the cluster's Node of this name has this UID; it is None while unknown.
        self.is_current = parts.current_nodes.is_current
        self.placed = parts.network.placed
        self.assigned = parts.network.assigned
        agents = parts.agent_events
        self.on_refusal = agents.on_refusal
        self.on_connect = agents.on_connect
        self.on_evidence = agents.on_evidence
        self.on_measurements = agents.on_measurements
        self.on_heartbeat = agents.on_heartbeat
        self.on_order_end = agents.on_order_end
        self.on_disconnect = agents.on_disconnect
        self.on_conflict = agents.on_conflict
        self.evaluation_cost = agents.evaluation_cost
        self.digest = agents.digest

    @property
    def record_problem(self) -> str:
        """Why the admission record can't be used; empty when it can."""
        return self.parts.record_writer.problem

    async def run(self) -> None:
        """Until cancelled: the cluster's events, the rounds, and what trails them."""
        parts = self.parts
        try:
            await run_until_first_exit(
                news=parts.cluster_events.follow(),
                rounds=parts.rounds.run(),
                poller=parts.poller.run(),
                missing_nodes=parts.missing_nodes.run(),
                conditions=parts.conditions.run(),
                condition_reader=parts.condition_reader.run(),
                node_tests=parts.node_tests.run(),
                node_events=parts.node_events.run(),
            )
        finally:
            parts.queue.view = False  # agents report until later: none of that begins a step
            parts.switch.close()
            parts.network.close()
            parts.cluster_events.close()
            await _end_steps(parts.registry.node_states(), parts.record_writer.writing)


async def _end_steps(
    node_states: Iterable[NodeState], writing: "asyncio.Task[None] | None"
) -> None:
    """Cancel what goes on for each node, and the write of the record for them. The next controller
    begins the steps again: a site's program that is killed here must have ended by then. One that
    hangs in the kernel never does.
    """
    tasks = [writing]
    for node_state in node_states:
        tasks += node_state.work.task, node_state.quarantine_view.trail
        if node_state.decision.timer is not None:
            node_state.decision.timer.cancel()
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    left = begun and (await asyncio.wait(begun, timeout=END_WITHIN))[1]
    if left:
        log.warning(
            "steps of nodes go on after the controller's end",
            extra={"error": some_of(sorted(one.get_name() for one in left), 5)},
        )
