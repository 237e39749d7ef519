"""The aggregator's core: takes agents' reports and cluster events, evaluates, reconciles each node.

Its parts, in `reconcile`: `agent_events`, `cluster_events`, `evaluate`, `worker` (each node's
steps). All of it can be lost: snapshots, Quarantine objects and
the record bring it back.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterator

from aggregator.clock import Clocks
from aggregator.cluster.port import Action, Cluster, Phase
from aggregator.events import EventSink, EvidenceRecording, NoEvidenceRecording
from aggregator.health.model import Component, Delta, Hello, Measurements, Snapshot
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.adoption import MarkAdopter
from aggregator.quarantine.actions.cordon import NodeActions
from aggregator.quarantine.actions.mark_restorer import MarkRestorer
from aggregator.quarantine.actions.release import ReleaseActions
from aggregator.quarantine.admission.mode_preview import ModePreview
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.admission.stop_switch import StopSwitch
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.evictions import EvictionMemory
from aggregator.quarantine.correlation.measurements import MeasurementTrackers
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.correlation.outliers import OutlierTracker
from aggregator.quarantine.correlation.precursors import PrecursorTracker
from aggregator.quarantine.decide.admission import quorum
from aggregator.quarantine.decide.agentless import AgentlessNodes
from aggregator.quarantine.decide.operator_requests import NONE, describe
from aggregator.quarantine.decide.pools import Pools
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.decide.uncordon import Uncordoned
from aggregator.quarantine.drain.drainer import Drainer
from aggregator.quarantine.drain.evictor import EvictionLanes
from aggregator.quarantine.drain.hooks import HookRunner
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler, AgentLine
from aggregator.quarantine.reconcile.cluster_events import ClusterEventHandler
from aggregator.quarantine.reconcile.condition_reader import NodeConditionReader
from aggregator.quarantine.reconcile.current_nodes import CurrentNodes
from aggregator.quarantine.reconcile.evaluate import NodeEvaluator
from aggregator.quarantine.reconcile.missing_nodes import MissingNodes
from aggregator.quarantine.reconcile.node_conditions import NodeConditionPublisher
from aggregator.quarantine.reconcile.node_events import NodeEventPublisher
from aggregator.quarantine.reconcile.poller import NodePoller, waits_for_its_node
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.reconcile.worker import Reconciler
from aggregator.quarantine.repair.node_tests import NodeTests
from aggregator.quarantine.repair.permissions import RepairPermissions
from aggregator.quarantine.repair.runner import RepairRunner
from aggregator.quarantine.repair.start_checks import RepairStartChecks
from aggregator.quarantine.settings import Settings, group_labels, limits_for_people
from aggregator.quarantine.state.fleet import FleetState, PoolUse
from aggregator.quarantine.state.gpus import OutOfService
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.node_pools import NodePools
from aggregator.quarantine.state.others_marks import OthersMarks
from aggregator.quarantine.state.quarantine_index import QuarantineIndex
from aggregator.quarantine.state.quarantine_view import NO_QUARANTINE
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.runtime.tasks import run_until_first_exit

#: Held proposals, silence and the fleet's size are checked again so often (seconds).
ROUNDS = 5.0
_QUORUM_LOOKS = 0.5
#: Why the cluster's state is unknown before its first event.
NO_NEWS_YET = "not connected yet"
#: So many of those that a common cause holds in one round, in turn, and as many of the others.
HELD_A_ROUND = 500
#: The list of nodes is read anew so often (seconds).
REFRESH = 180.0
#: While the cluster can't be seen its list of nodes is asked for again after so long (seconds).
REFRESH_AGAIN = 60.0

log = logging.getLogger("sickbay.quarantine")

_IN_SUSPENSE = (Phase.ADMITTED, Phase.CORDONED, Phase.DRAINING, Phase.RELEASING)


class Controller:
    """Implements ingest's `EvidenceSink` by its `on_connect`, `on_evidence` and so on."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        policy: Policy,
        settings: Settings,
        fleet: FleetState,
        event_sink: EventSink,
        clocks: Clocks,
        rng: random.Random,
        evidence_recording: EvidenceRecording | None = None,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """``may_act``: whether this process is the controller at the moment of the call. Without it
        no other ever is.
        """
        self._cluster = cluster
        self._settings = settings
        self._fleet = fleet
        self._clocks = clocks
        self._turns = {True: 0, False: 0}
        self._registry = node_registry = NodeRegistry(
            fleet,
            settings.limits.pool_label,
            lists_all=cluster.lists_all,
            now=clocks.now,
            agentless=AgentlessNodes(settings.silence.none_on),
            others=OthersMarks(
                settings.maintenance,
                now=clocks.now,
                earliest=clocks.earliest,
                words=cluster.words,
            ),
        )
        self._pools = pools = NodePools(Pools(settings.pools, settings.mode), node_registry, policy)

        def writes_events(node: str) -> bool:
            return settings.events.observe or pools.mode_of(node) is not Action.OBSERVE

        event_sink = self._node_events = NodeEventPublisher(
            event_sink,
            cluster=cluster,
            fleet=fleet,
            uid_of=node_registry.uid_of,
            enabled=writes_events,
            now=clocks.now,
        )
        event_sink = self.evictions = evictions = EvictionMemory(
            event_sink,
            policy=policy,
            fabrics_of=self._fabrics_of,
            known=node_registry.known,
            clocks=clocks,
        )
        self._cause_tracker = cause_tracker = CommonCauseTracker(
            limits=settings.common,
            admission=settings.limits,
            policy=policy,
            node_registry=node_registry,
            fleet=fleet,
            event_sink=event_sink,
            clocks=clocks,
        )
        standing = QuarantineIndex(node_registry.pool_of, pools.name_of)

        def quarantined() -> Iterator[NodeState]:
            known = (node_registry.known(one.node) for one in standing.quarantines())
            return (node_state for node_state in known if node_state is not None)

        self._out_of_service = OutOfService(quarantined, fleet.stages)
        self._switch = switch = StopSwitch(cluster, now=clocks.now)
        self._record_writer = record_writer = AdmissionRecordWriter(
            cluster,
            limits=settings.limits,
            policy_hash=policy.hash,
            size=node_registry.size,
            causes=cause_tracker.causes,
            wall=clocks.trusted_wall,
            switch=switch,
            standing=standing,
            pools=pools.facts,
            now=clocks.now,
        )
        self._queue = queue = WorkQueue(record_writer=record_writer, may_act=may_act)
        self._network_tracker = network_tracker = NetworkTracker(
            node_registry=node_registry,
            fleet=fleet,
            event_sink=event_sink,
            clocks=clocks,
            labels=settings.common.domain_labels,
            evaluate=queue.evaluate,
            quorum=lambda: quorum(settings.limits, node_registry.size()) is None,
        )
        acts = NodeActions(
            cluster=cluster,
            record_writer=record_writer,
            event_sink=event_sink,
            clocks=clocks,
            policy=policy,
            pool_of=node_registry.pool_of,
            pools=pools,
            suspects=cause_tracker.suspects,
            drain_suspects=cause_tracker.drain_suspects,
            unsettled=cause_tracker.unsettled,
            fabric_hold=lambda one: evictions.hold(one) or cause_tracker.fabric_hold(one),
            off_load_balancers=settings.drain.off_load_balancers,
            marks=settings.marks,
            may_act=may_act,
            switch=switch,
            uncordon=settings.uncordon,
            rng=rng,
            stages=fleet.stages,
        )
        most_evictions = settings.limits.evictions_at_once
        hook_runner = HookRunner(acts=acts, clocks=clocks, rules=settings.hooks, rng=rng)
        drain = Drainer(
            cluster=cluster,
            acts=acts,
            clocks=clocks,
            rules=settings.drain,
            hook_runner=hook_runner,
            off_balancers=settings.drain.off_load_balancers,
            lanes=EvictionLanes(
                at_once=asyncio.Semaphore(most_evictions),
                # A fifth, so that first requests find the rest free.
                retries=asyncio.Semaphore(max(1, most_evictions // 5)),
            ),
            deadline=settings.drain.deadline,
            rng=rng,
            test_namespace=settings.repair.test_namespace,
        )
        release_actions = ReleaseActions(
            cluster=cluster,
            record_writer=record_writer,
            acts=acts,
            clocks=clocks,
            policy=policy,
            after_release=hook_runner.after_release,
            uncordon=settings.uncordon,
            marks=settings.marks,
        )
        adopter = MarkAdopter(
            cluster=cluster,
            record_writer=record_writer,
            acts=acts,
            release_actions=release_actions,
            clocks=clocks,
            policy=policy,
            pools=pools,
            pool_of=node_registry.pool_of,
            may_act=may_act,
        )
        self._missing = missing = MissingNodes(
            cluster=cluster, returned=queue.add_for_read, may_act=may_act, rng=rng
        )
        evaluator = NodeEvaluator(
            policy=policy,
            pools=pools,
            acts=acts,
            event_sink=event_sink,
            clocks=clocks,
            cause_tracker=cause_tracker,
            queue=queue,
            stages=fleet.stages,
            silent_action=settings.silence.silent_action,
        )
        self._poller = NodePoller(
            cluster=cluster,
            node_registry=node_registry,
            acts=acts,
            clocks=clocks,
            may_act=may_act,
            queue=queue,
            rng=rng,
        )
        measurements = MeasurementTrackers(
            (
                OutlierTracker(
                    node_registry=node_registry, fleet=fleet, say=self.record_own_evidence
                ),
                PrecursorTracker(fleet, self.record_own_evidence),
            )
        )
        self._agent_events = agent_events = AgentEventHandler(
            node_registry=node_registry,
            queue=queue,
            acts=acts,
            policy=policy,
            clocks=clocks,
            silent_after=settings.silence.silent_after,
            network_tracker=network_tracker,
            measurements=measurements,
            evidence_recording=evidence_recording or NoEvidenceRecording(),
        )
        start_checks = RepairStartChecks(
            cluster=cluster,
            switch=switch,
            clocks=clocks,
            drain=settings.drain,
            test_namespace=settings.repair.test_namespace,
        )
        self._repairs = RepairRunner(
            cluster=cluster,
            acts=acts,
            record_writer=record_writer,
            clocks=clocks,
            policy=policy,
            settings=settings.repair,
            checks=start_checks,
            pool_label=settings.limits.pool_label,
        )
        self._node_tests = NodeTests(
            cluster=cluster,
            record_writer=record_writer,
            clocks=clocks,
            pools=pools,
            settings=settings.repair,
            node_registry=node_registry,
            fleet=fleet,
            may_act=may_act,
            view=lambda: queue.view,
            event_sink=event_sink,
            say=self.record_own_evidence,
        )
        self.repair_permissions = RepairPermissions(
            cluster=cluster,
            acts=acts,
            record_writer=record_writer,
            settings=settings.repair,
            checks=start_checks,
            node_tests=self._node_tests,
            known=node_registry.known,
        )
        self._reconciler = Reconciler(
            cluster=cluster,
            acts=acts,
            release_actions=release_actions,
            adopter=adopter,
            drain=drain,
            restorer=MarkRestorer(cluster=cluster, acts=acts, clocks=clocks, rules=settings.marks),
            repairs=self._repairs,
            settings=settings,
            pools=pools,
            fleet=fleet,
            clocks=clocks,
            rng=rng,
            queue=queue,
            evaluator=evaluator,
            agent_events=agent_events,
            missing_nodes=missing,
        )
        self._conditions = NodeConditionPublisher(
            cluster=cluster,
            rules=settings.conditions,
            node_registry=node_registry,
            fleet=fleet,
            may_act=may_act,
            view=lambda: queue.view,
            clocks=clocks,
            check_stop=switch.check,
        )
        self._condition_reader = NodeConditionReader(
            cluster=cluster,
            policy=policy,
            node_registry=node_registry,
            say=self.record_own_evidence,
            view=lambda: queue.view,
            clocks=clocks,
        )
        self._current_nodes = CurrentNodes(
            cluster=cluster,
            node_registry=node_registry,
            now=clocks.now,
            view=lambda: queue.view,
        )
        self._cluster_events = ClusterEventHandler(
            cluster=cluster,
            policy=policy,
            node_registry=node_registry,
            record_writer=record_writer,
            queue=queue,
            cause_tracker=cause_tracker,
            network_tracker=network_tracker,
            measurements=measurements,
            fleet=fleet,
            event_sink=event_sink,
            clocks=clocks,
            may_act=may_act,
            switch=switch,
            standing=standing,
            pools=pools,
            requeue_held=self._requeue_held,
        )
        self.mode_preview = ModePreview(
            preview=record_writer.preview,
            known=node_registry.known,
            pool_of=node_registry.pool_of,
            policy_pool_of=pools.name_of,
            suspects=cause_tracker.suspects,
            unsettled=cause_tracker.unsettled,
        )
        fleet.mode = settings.mode.value
        fleet.pools = pools.pools
        fleet.limits = limits_for_people(settings)
        fleet.group_labels = group_labels(settings)
        fleet.repairs = RepairPlan(
            settings.repair.rules,
            frozenset(settings.repair.repairers),
            policy,
            agents_awaited_until=clocks.now() + settings.limits.silent_drain_after,
            test_profiles=settings.repair.test_profiles,
            tests_in_service=settings.repair.tests_in_service,
        )
        fleet.view_lost = NO_NEWS_YET

    def _fabrics_of(self, node: str) -> frozenset[str]:
        return self._cause_tracker.fabrics_of(node)

    @property
    def record_problem(self) -> str:
        """Why the admission record can't be used; empty when it can."""
        return self._record_writer.problem

    async def is_current(self, node: str, node_uid: str) -> bool | None:
        """Whether the cluster's Node of this name has this UID; it is None while unknown."""
        return await self._current_nodes.is_current(node, node_uid)

    async def run(self) -> None:
        """Until cancelled: the cluster's events, and the rounds."""
        try:
            await run_until_first_exit(
                news=self._cluster_events.follow(),
                rounds=self._go_round(),
                poller=self._poller.run(),
                missing_nodes=self._missing.run(),
                conditions=self._conditions.run(),
                condition_reader=self._condition_reader.run(),
                node_tests=self._node_tests.run(),
                node_events=self._node_events.run(),
            )
        finally:
            self._switch.close()
            self._network_tracker.close()
            self._cluster_events.close()
            for node_state in self._registry.node_states():
                for task in (node_state.work.task, node_state.quarantine_view.trail):
                    if task is not None:
                        task.cancel()
                if node_state.decision.timer is not None:
                    node_state.decision.timer.cancel()

    async def _go_round(self) -> None:
        # At the start the first view lists the nodes.
        unseen = self._clocks.now() + ROUNDS - REFRESH_AGAIN
        unlisted, listed_for_new = False, -math.inf
        while True:
            now, view = self._clocks.now(), self._queue.view
            if not view and now - unseen >= REFRESH_AGAIN:
                # So that nodes with our marks are shown. They are listed again with the view.
                await self._cluster_events.refresh_nodes()
                unseen = now
            elif view and now - self._cluster_events.listed_at >= REFRESH:
                await self._cluster_events.refresh_nodes()
            elif view and unlisted and now - listed_for_new >= REFRESH_AGAIN:
                # An agent runs on a node that is newer than the list: limits count it, too.
                await self._cluster_events.refresh_nodes()
                listed_for_new = now
            unlisted = False
            self._out_of_service.go_round(now)
            wall = self._clocks.earliest()
            async for some in self._registry.slices():
                for node_state in some:
                    self._agent_events.note_silence(node_state, now)
                    attached = node_state.agent.attached
                    unlisted |= attached and not self._registry.is_listed(node_state.node)
            await self._cause_tracker.count_silence()
            self._tell_fleet()
            self._cluster_events.report_stop()
            self._cluster_events.report_record()
            async for some in self._registry.slices():
                for node_state in some:
                    self._look_at(node_state, wall)
            self._requeue_held()
            await self._rest()

    def _look_at(self, node_state: NodeState, wall: float) -> None:
        """Enqueue the node where time may have changed its next step."""
        requests = node_state.cluster.operator_requests
        if (
            requests is not NONE
            and requests != NONE
            and node_state.decision.requests != describe(requests, wall)
        ):
            self._queue.evaluate(node_state)  # an exemption has ended
        if node_state.node_summary.quarantine_view is NO_QUARANTINE:  # most nodes of a fleet
            self._queue.resume(node_state)
            return
        if self._waits(node_state):
            self._attend_again(node_state)
        self._queue.resume(node_state)
        if node_state.age_trail():
            self._queue.add_for_read(node_state)

    def _waits(self, node_state: NodeState) -> bool:
        """Whether its quarantine waits for something that time or its node may bring."""
        view = node_state.quarantine_view
        if view.missing or _is_schedulable(node_state):
            return True
        return view.quarantine is not None and (
            view.quarantine.status.phase in _IN_SUSPENSE
            or bool(node_state.release_held)
            or _is_absent(node_state)
            or self._repairs.waits(node_state)
        )

    async def _rest(self) -> None:
        """Until the next round, which comes sooner once enough agents have reported: proposals that
        waited for that are due, and people would else read of new faults beside a wait that is
        over.
        """
        if not self._fleet.waiting_for_quorum:
            await asyncio.sleep(ROUNDS)
            return
        for _ in range(int(ROUNDS / _QUORUM_LOOKS)):
            await asyncio.sleep(_QUORUM_LOOKS)
            self._tell_quorum()
            if not self._fleet.waiting_for_quorum:
                return

    def _requeue_held(self) -> None:
        """Enqueue some held nodes, in separate lines for those with and without a shared cause.

        A node that is held for a moment (its version has just changed) must not queue behind all
        those that a driver's roll-out holds.
        """
        lines: dict[bool, list[NodeState]] = {True: [], False: []}
        for node_state in self._registry.held():
            if node_state.decision.hold is not None:
                lines[bool(node_state.decision.hold.cause)].append(node_state)
        for shared, held in lines.items():
            for node_state in self._in_turn(held, shared=shared):
                self._attend_again(node_state)

    def _in_turn(self, held: list[NodeState], *, shared: bool) -> list[NodeState]:
        """Some of those that are held: the next of their line in each round.

        Each costs half a millisecond. In a storm of thousands the agents' reports must still be
        processed.
        """
        if len(held) <= HELD_A_ROUND:
            return held
        start = self._turns[shared] % len(held)
        self._turns[shared] = start + HELD_A_ROUND
        return (held + held)[start : start + HELD_A_ROUND]

    def _attend_again(self, node_state: NodeState) -> None:
        """Enqueue it, unless only a read of its node can help: `NodePoller` paces those."""
        if not waits_for_its_node(node_state):
            self._queue.add(node_state)

    def _tell_fleet(self) -> None:
        entries = self._record_writer.record.entries
        self._fleet.record_entries = len(entries)
        self._fleet.absent_entries = len(self._registry.absent & entries.keys())
        self._fleet.repairing = len(self._record_writer.record.repairs)
        self._record_writer.go_round()
        self._tell_pools()
        self._tell_quorum()
        self._cause_tracker.go_round(self._record_writer.record)
        self._network_tracker.go_round()

    def _tell_pools(self) -> None:
        if not self._pools.pools:
            return
        budget, cooldown = self._record_writer.pool_budget(), self._settings.limits.cooldown
        self._fleet.pool_use = {
            name: PoolUse(
                budget.standing(name), budget.lately(name), budget.cooling(name, cooldown)
            )
            for name in self._pools.pools.names
        }

    def _tell_quorum(self) -> None:
        waiting = quorum(self._settings.limits, self._registry.size())
        self._fleet.waiting_for_quorum = waiting.reason if waiting is not None else ""

    def record_own_evidence(self, node: str, component: Component) -> bool:
        """Evidence about a node in our own name; False: its agent has not reported yet."""
        node_state = self._registry.known(node)
        if node_state is None or node_state.agent.health is None:
            return False
        if node_state.agent.health.record_own_evidence(component):
            self._queue.evaluate(node_state)
        return True

    # -- ingest's EvidenceSink -----------------------------------------------------------

    def placed(self, node: str, address: str) -> None:
        self._network_tracker.placed(node, address)

    def assigned(self, node: str, addresses: tuple[str, ...]) -> None:
        self._network_tracker.assigned(node, addresses)

    def on_refusal(self, node: str, reason: str) -> None:
        self._agent_events.on_refusal(node, reason)

    def on_connect(self, hello: Hello, line: AgentLine) -> None:
        self._agent_events.on_connect(hello, line)

    def on_evidence(
        self, node: str, evidence: Snapshot | Delta, at: float
    ) -> Awaitable[None] | None:
        return self._agent_events.on_evidence(node, evidence, at)

    def on_measurements(self, node: str, told: Measurements, at: float) -> None:
        self._agent_events.on_measurements(node, told, at)

    def evaluation_cost(self, node: str) -> float:
        return self._agent_events.evaluation_cost(node)

    def digest(self, node: str) -> int | None:
        return self._agent_events.digest(node)

    def on_heartbeat(self, node: str, at: float) -> None:
        self._agent_events.on_heartbeat(node, at)

    def on_order_end(self, node: str) -> None:
        self._agent_events.on_order_end(node)

    def on_disconnect(self, node: str, line: AgentLine, reason: str) -> None:
        self._agent_events.on_disconnect(node, line, reason)

    def on_conflict(self, node: str, detail: str) -> None:
        self._agent_events.on_conflict(node, detail)


def _is_schedulable(node_state: NodeState) -> bool:
    """Whether its node, which should be cordoned, was not when it was last read."""
    return node_state.quarantine_view.uncordoned is not Uncordoned.NO


def _is_absent(node_state: NodeState) -> bool:
    """Whether its quarantine waits for the Node to come back, or for its own end."""
    quarantine = node_state.node_summary.quarantine
    return quarantine is not None and quarantine.status.node_absent_since > 0
