"""Makes the acting core: the state, what correlates nodes, the acts, the reconcilers, the loops."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from aggregator.clock import Clocks
from aggregator.cluster.port import Cluster
from aggregator.events import EventSink, EvidenceRecording
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.adoption import MarkAdopter
from aggregator.quarantine.actions.announcer import Announcer
from aggregator.quarantine.actions.cordon import CordonActions, ExpectedNodes
from aggregator.quarantine.actions.holds import NodeHolds, Proposals
from aggregator.quarantine.actions.mark_restorer import MarkRestorer
from aggregator.quarantine.actions.node_actions import NodeActions, NodeReports
from aggregator.quarantine.actions.object_writes import ObjectWrites
from aggregator.quarantine.actions.release import ReleaseActions
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.admission.stop_switch import StopSwitch
from aggregator.quarantine.controller import Controller, Parts
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.followers import EvictionMemory
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.correlation.outliers import OutlierTracker
from aggregator.quarantine.correlation.precursors import PrecursorTracker
from aggregator.quarantine.correlation.trackers import FleetTrackers
from aggregator.quarantine.decide.agentless import AgentlessNodes
from aggregator.quarantine.decide.pools import Pools
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.drain.drainer import Drainer
from aggregator.quarantine.drain.evictor import EvictionLanes
from aggregator.quarantine.drain.hooks import HookRunner
from aggregator.quarantine.reconcile.admission import AdmissionReconciler
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler
from aggregator.quarantine.reconcile.cluster_events import ClusterEventHandler, RecordEvents
from aggregator.quarantine.reconcile.condition_reader import NodeConditionReader
from aggregator.quarantine.reconcile.current_nodes import CurrentNodes
from aggregator.quarantine.reconcile.drain import DrainReconciler
from aggregator.quarantine.reconcile.fleet_report import FleetReport
from aggregator.quarantine.reconcile.missing_nodes import MissingNodes
from aggregator.quarantine.reconcile.new_marks import NewMarksWriter
from aggregator.quarantine.reconcile.node_conditions import NodeConditionPublisher
from aggregator.quarantine.reconcile.node_events import NodeEventPublisher
from aggregator.quarantine.reconcile.node_rounds import NodeRounds
from aggregator.quarantine.reconcile.node_test_rounds import NodeTestRounds
from aggregator.quarantine.reconcile.node_tests import NodeTestReconciler
from aggregator.quarantine.reconcile.operations import (
    OpenOperationReconciler,
    OperationReconciler,
)
from aggregator.quarantine.reconcile.own_evidence import OwnEvidence
from aggregator.quarantine.reconcile.plan_inputs import PlanInputs
from aggregator.quarantine.reconcile.poller import NodePoller
from aggregator.quarantine.reconcile.publish import PublishReconciler
from aggregator.quarantine.reconcile.quarantine import QuarantineReconciler
from aggregator.quarantine.reconcile.reconciler import Reconciler
from aggregator.quarantine.reconcile.release import ReleaseReconciler
from aggregator.quarantine.reconcile.rounds import ControllerRounds
from aggregator.quarantine.reconcile.work_queue import NodeEvaluator, WorkQueue
from aggregator.quarantine.reconcile.worker import NodeReads, NodeWorker
from aggregator.quarantine.repair.engine import OperationEngine
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_reports import NodeTestReports
from aggregator.quarantine.repair.node_test_state import NodeTestContext
from aggregator.quarantine.repair.permissions import RepairPermissions
from aggregator.quarantine.repair.quarantine_case import RepairContext
from aggregator.quarantine.repair.runner import RepairRunner
from aggregator.quarantine.repair.start_checks import RepairStartChecks
from aggregator.quarantine.settings import Settings, group_labels, limits_for_people
from aggregator.quarantine.state.cluster_view import OthersMarks
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.gpus import OutOfService
from aggregator.quarantine.state.registry import NodePools, NodeRegistry

#: Why the cluster's state is unknown before its first event.
NO_NEWS_YET = "not connected yet"


@dataclass(frozen=True, slots=True)
class Given:
    """``may_act``: whether this process is the controller at the moment of the call."""

    cluster: Cluster
    policy: Policy
    settings: Settings
    fleet: FleetState
    event_sink: EventSink
    clocks: Clocks
    rng: random.Random
    evidence_recording: EvidenceRecording | None
    may_act: Callable[[], bool]


class _Base:
    """The state of the nodes, the record, the queue, and what correlates nodes."""

    def __init__(self, given: Given) -> None:
        settings, clocks, fleet, cluster = given.settings, given.clocks, given.fleet, given.cluster
        self.registry = registry = NodeRegistry(
            fleet,
            settings.limits.pool_label,
            lists_all=cluster.lists_all,
            clocks=clocks,
            agentless=AgentlessNodes(settings.silence.none_on),
            others=OthersMarks(settings.maintenance, clocks=clocks, words=cluster.words),
        )
        self.pools = pools = NodePools(Pools(settings.pools, settings.mode), registry, given.policy)
        self.node_events = NodeEventPublisher(
            given.event_sink,
            cluster=cluster,
            registry=registry,
            pools=pools,
            rules=settings.events,
        )
        self.event_sink = self.evictions = EvictionMemory(
            self.node_events if settings.reconcilers.publish else given.event_sink,
            policy=given.policy,
            fabrics_of=self._fabrics_of,
            registry=registry,
            clocks=clocks,
        )
        self.causes: CommonCauseTracker = CommonCauseTracker(
            limits=settings.common,
            admission=settings.limits,
            policy=given.policy,
            node_registry=registry,
            event_sink=self.event_sink,
            clocks=clocks,
        )
        self.reports = NodeReports(event_sink=self.event_sink, clocks=clocks, stages=fleet.stages)
        self.switch = StopSwitch(cluster, clocks=clocks, may_act=given.may_act)
        self.record_writer = AdmissionRecordWriter(
            cluster,
            limits=settings.limits,
            policy_hash=given.policy.hash,
            registry=registry,
            causes=self.causes,
            pools=pools,
            clocks=clocks,
            switch=self.switch,
        )
        self.queue = queue = WorkQueue(self.record_writer)
        self.network = NetworkTracker(
            node_registry=registry,
            event_sink=self.event_sink,
            clocks=clocks,
            labels=settings.common.domain_labels,
            queue=queue,
            limits=settings.limits,
        )
        self.own_evidence = OwnEvidence(registry, queue)
        measurements = (
            OutlierTracker(node_registry=registry, evidence=self.own_evidence),
            PrecursorTracker(fleet, self.own_evidence),
        )
        self.trackers = FleetTrackers(self.causes, self.network, measurements)

    def _fabrics_of(self, node: str) -> frozenset[str]:
        return self.causes.fabrics_of(node)


class _Acts:
    """What acts on a node: the guard first, then each kind of act."""

    def __init__(self, given: Given, base: _Base) -> None:
        settings, clocks, cluster = given.settings, given.clocks, given.cluster
        writer, pools, registry = base.record_writer, base.pools, base.registry
        self.acts = acts = NodeActions(
            cluster=cluster,
            record_writer=writer,
            pools=pools,
            announcer=Announcer(cluster, given.rng),
            event_sink=base.event_sink,
            clocks=clocks,
            policy=given.policy,
            stages=given.fleet.stages,
        )
        self.holds = NodeHolds(acts=acts)
        self.proposals = Proposals(
            holds=self.holds,
            record_writer=writer,
            causes=base.causes,
            evictions=base.evictions,
            pools=pools,
            registry=registry,
        )
        self.objects = ObjectWrites(acts=acts)
        self.cordon = CordonActions(
            acts=acts,
            objects=self.objects,
            expected=ExpectedNodes(cluster, registry),
            marks=settings.marks,
            uncordon=settings.uncordon,
            off_load_balancers=settings.drain.off_load_balancers,
        )
        hook_runner = HookRunner(acts=acts, rules=settings.hooks, rng=given.rng)
        most = settings.limits.evictions_at_once
        self.drain = Drainer(
            acts=acts,
            rules=settings.drain,
            hook_runner=hook_runner,
            lanes=EvictionLanes(
                at_once=asyncio.Semaphore(most),
                # A fifth, so that first requests find the rest free.
                retries=asyncio.Semaphore(max(1, most // 5)),
            ),
            waits=settings.waits,
            rng=given.rng,
            test_namespace=settings.repair.test_namespace,
        )
        self.release = ReleaseActions(
            acts=acts,
            hooks=hook_runner,
            uncordon=settings.uncordon,
            marks=settings.marks,
        )
        self.restorer = MarkRestorer(acts=acts, rules=settings.marks)
        self.start_checks = RepairStartChecks(
            acts=acts,
            drain=settings.drain,
            proposals=self.proposals,
            test_namespace=settings.repair.test_namespace,
            uncordon=settings.uncordon,
        )
        self.operations = OperationEngine(
            operations=cluster.operations,
            record_writer=writer,
            clocks=clocks,
            settings=settings.repair,
        )
        self.quarantined = RepairContext(
            acts=acts,
            settings=settings.repair,
            engine=self.operations,
            checks=self.start_checks,
            pool_label=settings.limits.pool_label,
        )
        self.repairs = RepairRunner(self.quarantined)
        self.adopter = MarkAdopter(
            acts=acts,
            release_actions=self.release,
            orders=self.repairs,
        )
        tests = NodeTestContext(
            cluster=cluster,
            engine=self.operations,
            clocks=clocks,
            settings=settings.repair,
            registry=registry,
        )
        self.node_tests = NodeTestReconciler(
            shared=tests,
            checks=NodeTestChecks(shared=tests, pools=pools),
            reports=NodeTestReports(
                shared=tests, event_sink=base.event_sink, record=base.own_evidence.record
            ),
        )


def build_controller(
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
) -> Controller:
    """The controller. Without ``may_act`` no other process ever is."""
    given = Given(
        cluster, policy, settings, fleet, event_sink, clocks, rng, evidence_recording, may_act
    )
    base = _Base(given)
    acts = _Acts(given, base)
    agent_events = AgentEventHandler(
        node_registry=base.registry,
        queue=base.queue,
        reports=base.reports,
        policy=policy,
        silent_after=settings.silence.silent_after,
        trackers=base.trackers,
        recording=evidence_recording,
    )
    missing = MissingNodes(cluster=cluster, queue=base.queue, rng=rng)
    worker = _worker(given, base, acts, missing, agent_events)
    controller = Controller(_parts(given, base, acts, worker, missing, agent_events))
    _show_settings(given, base)
    return controller


def _reconcilers(given: Given, acts: _Acts, inputs: PlanInputs) -> tuple[Reconciler, ...]:
    """In the order in which a node's next step is looked for, without those left out."""
    rules, repairs = given.settings.reconcilers, acts.repairs
    found: list[Reconciler] = [
        ReleaseReconciler(
            inputs=inputs,
            release_actions=acts.release,
            repairs=repairs,
            uncordon=given.settings.uncordon,
        )
    ]
    if rules.operations:
        found.append(OpenOperationReconciler(inputs=inputs, repairs=repairs))
    found.append(
        QuarantineReconciler(
            inputs=inputs,
            objects=acts.objects,
            cordon=acts.cordon,
            holds=acts.holds,
            restorer=acts.restorer,
        )
    )
    found.append(acts.node_tests)
    if rules.drain:
        found.append(DrainReconciler(inputs=inputs, drain=acts.drain))
    if rules.operations:
        found.append(OperationReconciler(inputs=inputs, repairs=repairs))
    if rules.publish:
        found.append(PublishReconciler(acts.objects))
    return tuple(found)


def _worker(
    given: Given,
    base: _Base,
    acts: _Acts,
    missing: MissingNodes,
    agent_events: AgentEventHandler,
) -> NodeWorker:
    inputs = PlanInputs(
        proposals=acts.proposals,
        queue=base.queue,
        pools=base.pools,
        fleet=given.fleet,
        clocks=given.clocks,
        limits=given.settings.limits,
    )
    reads = NodeReads(
        acts=acts.acts,
        holds=acts.holds,
        release_actions=acts.release,
        adopter=acts.adopter,
        drain=acts.drain,
        missing_nodes=missing,
        agent_events=agent_events,
    )
    worker = NodeWorker(
        admission=AdmissionReconciler(
            inputs=inputs,
            acts=acts.acts,
            holds=acts.holds,
            cordon=acts.cordon,
            objects=acts.objects,
            adopter=acts.adopter,
        ),
        reconcilers=_reconcilers(given, acts, inputs),
        node_tests=acts.node_tests,
        reads=reads,
        new_marks=NewMarksWriter(acts=acts.acts, drain=acts.drain, queue=base.queue),
        inputs=inputs,
        queue=base.queue,
        rng=given.rng,
    )
    evaluator = NodeEvaluator(
        policy=given.policy,
        pools=base.pools,
        reports=base.reports,
        cause_tracker=base.causes,
        queue=base.queue,
        silent_action=given.settings.silence.silent_action,
    )
    base.queue.deliver_to(evaluator, worker)
    return worker


def _parts(
    given: Given,
    base: _Base,
    acts: _Acts,
    worker: NodeWorker,
    missing: MissingNodes,
    agent_events: AgentEventHandler,
) -> Parts:
    cluster, settings, clocks, fleet = given.cluster, given.settings, given.clocks, given.fleet
    registry, queue = base.registry, base.queue
    nodes = NodeRounds(registry=registry, queue=queue, repairs=acts.repairs)
    records = RecordEvents(
        registry=registry,
        record_writer=base.record_writer,
        queue=queue,
        rounds=nodes,
        event_sink=base.event_sink,
        clocks=clocks,
    )
    cluster_events = ClusterEventHandler(
        cluster=cluster,
        policy=given.policy,
        node_registry=registry,
        records=records,
        queue=queue,
        trackers=base.trackers,
        clocks=clocks,
        pools=base.pools,
    )
    report = FleetReport(
        registry=registry,
        record_writer=base.record_writer,
        pools=base.pools,
        causes=base.causes,
        network=base.network,
        limits=settings.limits,
    )
    return Parts(
        registry=registry,
        queue=queue,
        worker=worker,
        agent_events=agent_events,
        cluster_events=cluster_events,
        rounds=ControllerRounds(
            registry=registry,
            queue=queue,
            agent_events=agent_events,
            cluster_events=cluster_events,
            nodes=nodes,
            report=report,
            out_of_service=OutOfService(registry, fleet.stages),
            clocks=clocks,
        ),
        poller=NodePoller(
            cluster=cluster,
            node_registry=registry,
            reports=base.reports,
            queue=queue,
            rng=given.rng,
        ),
        missing_nodes=missing,
        conditions=NodeConditionPublisher(
            cluster=cluster,
            rules=settings.conditions,
            node_registry=registry,
            queue=queue,
            clocks=clocks,
            switch=base.switch,
        ),
        condition_reader=NodeConditionReader(
            cluster=cluster,
            policy=given.policy,
            node_registry=registry,
            own_evidence=base.own_evidence,
            queue=queue,
            clocks=clocks,
        ),
        node_tests=NodeTestRounds(acts.node_tests, queue),
        node_events=base.node_events,
        network=base.network,
        causes=base.causes,
        evictions=base.evictions,
        switch=base.switch,
        record_writer=base.record_writer,
        current_nodes=CurrentNodes(
            cluster=cluster, node_registry=registry, clocks=clocks, queue=queue
        ),
        own_evidence=base.own_evidence,
        repair_permissions=RepairPermissions(
            quarantined=acts.quarantined,
            node_tests=acts.node_tests.checks,
            registry=registry,
        ),
        proposals=acts.proposals,
    )


def _show_settings(given: Given, base: _Base) -> None:
    fleet, settings = given.fleet, given.settings
    fleet.mode = settings.mode.value
    fleet.pools = base.pools.pools
    fleet.limits = limits_for_people(settings)
    fleet.group_labels = group_labels(settings)
    fleet.repairs = RepairPlan(
        settings.repair.rules,
        frozenset(settings.repair.repairers),
        given.policy,
        agents_awaited_until=given.clocks.now() + settings.limits.silent_drain_after,
        test_profiles=settings.repair.test_profiles,
        tests_in_service=settings.repair.tests_in_service,
    )
    fleet.view_lost = NO_NEWS_YET
