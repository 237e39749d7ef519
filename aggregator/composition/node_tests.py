"""Makes the parts of tests of nodes in no quarantine."""

from collections.abc import Callable

from aggregator.events import EventSink
from aggregator.health.model import Component
from aggregator.quarantine.reconcile.node_tests import NodeTestReconciler
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.node_test_display import NodeTestDisplay
from aggregator.quarantine.repair.node_test_events import NodeTestEvents
from aggregator.quarantine.repair.node_test_evidence import NodeTestEvidence
from aggregator.quarantine.repair.node_test_state import NodeTestContext
from aggregator.quarantine.state.registry import NodePools


def build_node_tests(
    shared: NodeTestContext,
    *,
    pools: NodePools,
    event_sink: EventSink,
    emit: Callable[[str, Component], object],
) -> NodeTestReconciler:
    """``emit`` gives a node evidence in our own name."""
    return NodeTestReconciler(
        shared=shared,
        checks=NodeTestChecks(shared=shared, pools=pools),
        events=NodeTestEvents(shared=shared, event_sink=event_sink),
        display=NodeTestDisplay(shared=shared),
        evidence=NodeTestEvidence(shared=shared, emit=emit),
    )
