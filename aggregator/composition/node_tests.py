"""Makes the parts of tests of nodes in no quarantine."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from aggregator.clock import Clocks
from aggregator.cluster.port import Cluster
from aggregator.events import EventSink
from aggregator.health.model import Component
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.repair.idle_node_choice import IdleNodeChoice
from aggregator.quarantine.repair.node_test_advance import NodeTestAdvance
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_display import NodeTestDisplay
from aggregator.quarantine.repair.node_test_events import NodeTestEvents
from aggregator.quarantine.repair.node_test_evidence import NodeTestEvidence
from aggregator.quarantine.repair.node_test_permission import NodeTestPermission
from aggregator.quarantine.repair.node_test_steps import NodeTestSteps
from aggregator.quarantine.repair.node_test_watch import NodeTestWatch
from aggregator.quarantine.repair.node_tests import NodeTesting, NodeTestRounds, NodeTests
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.repair.unwanted_tests import UnwantedTests
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodePools, NodeRegistry


@dataclass(frozen=True, slots=True)
class NodeTestParts:
    rounds: NodeTestRounds
    permission: NodeTestPermission


def build_node_tests(
    *,
    cluster: Cluster,
    record_writer: AdmissionRecordWriter,
    clocks: Clocks,
    pools: NodePools,
    settings: RepairSettings,
    node_registry: NodeRegistry,
    fleet: FleetState,
    may_act: Callable[[], bool],
    view: Callable[[], bool],
    event_sink: EventSink,
    emit: Callable[[str, Component], object],
) -> NodeTestParts:
    """Where ``settings`` name no startup taint, no test of idle nodes and none by hand, no test
    begins, and those that are found under way are ended. ``emit`` gives a node evidence in our own
    name.
    """
    rules = settings.rules.new_nodes
    checks = NodeTestChecks(
        cluster=cluster,
        record_writer=record_writer,
        clocks=clocks,
        pools=pools,
        rules=rules,
        node_registry=node_registry,
        owner_kinds=settings.node_owner_kinds,
    )
    events = NodeTestEvents(clocks=clocks, event_sink=event_sink, fleet=fleet, rules=rules)
    steps_by = partial(
        NodeTestSteps,
        cluster=cluster,
        record_writer=record_writer,
        clocks=clocks,
        settings=settings,
        fleet=fleet,
        events=events,
        checks=checks,
    )
    display = NodeTestDisplay(
        cluster=cluster,
        settings=settings,
        node_registry=node_registry,
        fleet=fleet,
        may_act=may_act,
    )
    watch = NodeTestWatch(
        cluster=cluster,
        record_writer=record_writer,
        clocks=clocks,
        settings=settings,
        node_registry=node_registry,
        may_act=may_act,
        requests=checks.requests,
        idle_choice=IdleNodeChoice(
            record_writer=record_writer,
            clocks=clocks,
            test_pause=settings.rules.test_pause,
            node_registry=node_registry,
            may_act=may_act,
            checks=checks,
        ),
    )
    tests: NodeTesting
    wanted = rules.taint or settings.rules.idle_nodes or settings.tests_in_service
    if settings.off or not wanted:
        tests = UnwantedTests(
            cluster=cluster,
            record_writer=record_writer,
            clocks=clocks,
            settings=settings,
            node_registry=node_registry,
            may_act=may_act,
            # Without its key no step can remove a startup taint.
            steps=steps_by(rules=replace(rules, taint="")),
            display=display,
        )
    else:
        tests = NodeTests(
            clocks=clocks,
            settings=settings,
            may_act=may_act,
            watch=watch,
            advance=NodeTestAdvance(
                cluster=cluster,
                record_writer=record_writer,
                clocks=clocks,
                settings=settings,
                node_registry=node_registry,
                checks=checks,
                steps=steps_by(rules=rules),
                display=display,
            ),
            evidence=NodeTestEvidence(
                clocks=clocks, node_registry=node_registry, may_act=may_act, emit=emit
            ),
            display=display,
            events=events,
        )
    permission = NodeTestPermission(cluster, record_writer, rules, checks, watch)
    return NodeTestParts(NodeTestRounds(tests, view), permission)
