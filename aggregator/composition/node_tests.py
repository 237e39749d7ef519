"""Makes the parts of tests of nodes in no quarantine."""

from collections.abc import Callable
from dataclasses import dataclass

from aggregator.events import EventSink
from aggregator.health.model import Component
from aggregator.quarantine.repair.engine import OperationEngine
from aggregator.quarantine.repair.idle_node_choice import IdleNodeChoice
from aggregator.quarantine.repair.node_test_advance import NodeTestAdvance
from aggregator.quarantine.repair.node_test_case import NodeTestParts
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_display import NodeTestDisplay
from aggregator.quarantine.repair.node_test_events import NodeTestEvents
from aggregator.quarantine.repair.node_test_evidence import NodeTestEvidence
from aggregator.quarantine.repair.node_test_state import NodeTestContext
from aggregator.quarantine.repair.node_test_watch import NodeTestWatch
from aggregator.quarantine.repair.node_tests import NodeTests
from aggregator.quarantine.state.registry import NodePools


@dataclass(frozen=True, slots=True)
class BuiltNodeTests:
    tests: NodeTests
    checks: NodeTestChecks
    watch: NodeTestWatch


def build_node_tests(
    shared: NodeTestContext,
    *,
    engine: OperationEngine,
    pools: NodePools,
    view: Callable[[], bool],
    event_sink: EventSink,
    emit: Callable[[str, Component], object],
) -> BuiltNodeTests:
    """``emit`` gives a node evidence in our own name."""
    checks = NodeTestChecks(shared=shared, pools=pools)
    events = NodeTestEvents(shared=shared, event_sink=event_sink)
    display = NodeTestDisplay(shared=shared)
    watch = NodeTestWatch(
        shared=shared,
        store=checks.store,
        idle_choice=IdleNodeChoice(shared=shared, checks=checks),
    )
    tests = NodeTests(
        shared=shared,
        view=view,
        watch=watch,
        advance=NodeTestAdvance(
            parts=NodeTestParts(shared=shared, checks=checks, events=events, engine=engine),
            display=display,
        ),
        evidence=NodeTestEvidence(shared=shared, emit=emit),
        display=display,
        events=events,
    )
    return BuiltNodeTests(tests, checks, watch)
