"""Makes the acting core: the state, what correlates nodes, the acts, the reconcilers, the loops."""

import asyncio
import random
from collections.abc import Callable

from aggregator.clock import Clocks
from aggregator.cluster.port import Cluster, NodesAndPods, Operations, SharedObjects
from aggregator.composition.assembler import Assembler, arguments
from aggregator.events import EventSink, EvidenceRecording
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.adoption import OpenOrders
from aggregator.quarantine.actions.cordon import CordonActions
from aggregator.quarantine.actions.release import ReleaseHook
from aggregator.quarantine.admission.record_writer import CauseCount
from aggregator.quarantine.admission.stop_switch import StopSwitch
from aggregator.quarantine.controller import Controller
from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.followers import EvictionMemory
from aggregator.quarantine.correlation.measurements import NodeEvidence
from aggregator.quarantine.correlation.network import Evaluations, NetworkTracker
from aggregator.quarantine.correlation.outliers import OutlierTracker
from aggregator.quarantine.correlation.precursors import PrecursorTracker
from aggregator.quarantine.correlation.trackers import FleetTrackers
from aggregator.quarantine.decide.agentless import AgentlessNodes
from aggregator.quarantine.decide.node_marks import MarkRules
from aggregator.quarantine.decide.pools import Pools
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.drain.drainer import Drainer
from aggregator.quarantine.drain.evictor import EvictionLanes
from aggregator.quarantine.drain.hooks import HookRunner
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler
from aggregator.quarantine.reconcile.drain import DrainReconciler
from aggregator.quarantine.reconcile.node_conditions import NodeConditionPublisher
from aggregator.quarantine.reconcile.node_events import NodeEventPublisher
from aggregator.quarantine.reconcile.node_tests import NodeTestReconciler
from aggregator.quarantine.reconcile.operations import (
    OpenOperationReconciler,
    OperationReconciler,
)
from aggregator.quarantine.reconcile.own_evidence import OwnEvidence
from aggregator.quarantine.reconcile.publish import PublishReconciler
from aggregator.quarantine.reconcile.quarantine import QuarantineReconciler
from aggregator.quarantine.reconcile.reconciler import Reconciler
from aggregator.quarantine.reconcile.release import ReleaseReconciler
from aggregator.quarantine.reconcile.work_queue import NodeEvaluator, WorkQueue
from aggregator.quarantine.reconcile.worker import NodeWorker
from aggregator.quarantine.repair.quarantine_case import RepairContext
from aggregator.quarantine.repair.runner import RepairRunner
from aggregator.quarantine.repair.start_checks import RepairStartChecks
from aggregator.quarantine.settings import (
    ReconcilerRules,
    Settings,
    group_labels,
    limits_for_people,
)
from aggregator.quarantine.state.cluster_view import OthersMarks
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodePools, NodeRegistry
from aggregator.quarantine.state.stage_times import StageTimes

#: Why the cluster's state is unknown before its first event.
NO_NEWS_YET = "not connected yet"


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
    assembler = Assembler(
        {kind: getattr(settings, name) for name, kind in arguments(Settings.__init__).items()}
        | dict.fromkeys((Cluster, NodesAndPods, SharedObjects), cluster)
        | {FleetState: fleet, StageTimes: fleet.stages, Policy: policy, Clocks: clocks}
        | {random.Random: rng, MarkRules: settings.marks, Operations: cluster.operations}
    )
    others = OthersMarks(settings.maintenance, clocks=clocks, words=cluster.words)
    registry = assembler.make(
        NodeRegistry,
        pool_label=settings.limits.pool_label,
        lists_all=cluster.lists_all,
        agentless=AgentlessNodes(settings.silence.none_on),
        others=others,
    )
    pools = Pools(settings.pools, settings.mode)
    assembler.give(NodePools(pools, registry, policy))
    _make_sinks(assembler, event_sink, settings)
    assembler.make(StopSwitch, may_act=may_act)
    _make_state(assembler, settings)
    _make_acts(assembler, settings)
    assembler.make(
        AgentEventHandler,
        silent_after=settings.silence.silent_after,
        recording=evidence_recording,
    )
    assembler.make(NodeConditionPublisher, rules=settings.conditions)
    worker = assembler.make(NodeWorker, reconcilers=_reconcilers(assembler, settings.reconcilers))
    evaluator = assembler.make(NodeEvaluator, silent_action=settings.silence.silent_action)
    assembler.make(WorkQueue).deliver_to(evaluator, worker)
    _show_settings(fleet, settings, policy, pools, clocks)
    return assembler.make(Controller)


def _make_sinks(assembler: Assembler, event_sink: EventSink, settings: Settings) -> None:
    """Events are seen by the memory of evictions, and by the writer of Events behind it."""
    events = assembler.make(NodeEventPublisher, sink=event_sink)

    def fabrics_of(node: str) -> frozenset[str]:
        return assembler.make(CommonCauseTracker).fabrics_of(node)

    sink = events if settings.reconcilers.publish else event_sink
    assembler.give(assembler.make(EvictionMemory, sink=sink, fabrics_of=fabrics_of), EventSink)


def _make_state(assembler: Assembler, settings: Settings) -> None:
    """The record, the queue, and what correlates nodes."""
    assembler.give(assembler.make(CommonCauseTracker), CauseCount)
    assembler.give(assembler.make(WorkQueue), Evaluations)
    assembler.make(NetworkTracker, labels=settings.common.domain_labels)
    assembler.give(assembler.make(OwnEvidence), NodeEvidence)
    measurements = (assembler.make(OutlierTracker), assembler.make(PrecursorTracker))
    assembler.make(FleetTrackers, measurements=measurements)


def _make_acts(assembler: Assembler, settings: Settings) -> None:
    """What acts on a node, as far as its arguments are not all known by their types."""
    off, test_pods = settings.drain.off_load_balancers, settings.repair.test_namespace
    assembler.make(CordonActions, off_load_balancers=off)
    assembler.give(assembler.make(HookRunner), ReleaseHook)
    most = settings.limits.evictions_at_once
    # Retries have a fifth, so that first requests find the rest free.
    retries = asyncio.Semaphore(max(1, most // 5))
    assembler.give(EvictionLanes(at_once=asyncio.Semaphore(most), retries=retries))
    assembler.make(Drainer, test_namespace=test_pods)
    assembler.make(RepairStartChecks, test_namespace=test_pods)
    assembler.make(RepairContext, pool_label=settings.limits.pool_label)
    assembler.give(assembler.make(RepairRunner), OpenOrders)


def _reconcilers(assembler: Assembler, rules: ReconcilerRules) -> tuple[Reconciler, ...]:
    """In the order in which a node's next step is looked for, without those left out."""
    order: tuple[tuple[type[Reconciler], bool], ...] = (
        (ReleaseReconciler, True),
        (OpenOperationReconciler, rules.operations),
        (QuarantineReconciler, True),
        (NodeTestReconciler, True),
        (DrainReconciler, rules.drain),
        (OperationReconciler, rules.operations),
        (PublishReconciler, rules.publish),
    )
    return tuple(assembler.make(kind) for kind, wanted in order if wanted)


def _show_settings(
    fleet: FleetState, settings: Settings, policy: Policy, pools: Pools, clocks: Clocks
) -> None:
    fleet.mode = settings.mode.value
    fleet.pools = pools
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
