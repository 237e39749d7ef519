"""Metrics of the repairs of nodes in quarantine."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from prometheus_client.metrics_core import Metric

from aggregator.cluster.port import BUSY, RepairState
from aggregator.policy.repairs import ATTEMPTS
from aggregator.quarantine.decide.node_tests import BY_HAND, IDLE, NEW_NODE
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.web import models, repair_view
from aggregator.web.metric_families import counter, gauge, histogram, single_gauge

#: How an attempt ends, and why a test was begun: each series begins at 0.
_OUTCOMES = tuple(state.value for state in RepairState if state not in BUSY)
_REASONS = (NEW_NODE, IDLE, "before-release", BY_HAND)


def repair_metrics(
    stages: StageTimes, quarantines: Sequence[models.Quarantine], new_nodes: Mapping[str, int]
) -> Iterator[Metric]:
    """``quarantines`` and ``new_nodes`` are those of this replica's nodes."""
    counted = Counter(one.repair for one in repair_view.under_way(quarantines))
    yield gauge(
        "sickbay_repairs_running",
        "Repairs under way (Ordering, Ordered), by kind.",
        ["repair"],
        {repair: counted[repair] for repair in ATTEMPTS},
    )
    exhausted = sum(one.repair is not None and bool(one.repair.exhausted) for one in quarantines)
    yield single_gauge(
        "sickbay_quarantines_repair_exhausted",
        "Quarantines in which no further repair begins by itself: a person has to go on.",
        exhausted,
    )
    yield counter(
        "sickbay_repair_attempts",
        "Attempts at a repair that ended since the start, by kind and outcome: "
        "Succeeded, Failed, Unknown, Cancelled, Inconclusive. Tests have repair test. "
        "The replica that writes the end counts it.",
        ["repair", "outcome"],
        {
            (repair, outcome): stages.repair_attempts[repair, outcome]
            for repair, outcome in product(ATTEMPTS, _OUTCOMES)
        },
    )
    yield counter(
        "sickbay_tests",
        "Active tests that ended since the start, by reason (new-node, idle, before- "
        "release, by-hand) and outcome.",
        ["reason", "outcome"],
        {
            (reason, outcome): stages.tests[reason, outcome]
            for reason, outcome in product(_REASONS, _OUTCOMES)
        },
    )
    yield gauge(
        "sickbay_new_nodes",
        "Nodes with the startup taint: waiting (no test has begun, or one is due "
        "again), testing, needs_person (no further test begins by itself).",
        ["state"],
        {state: new_nodes.get(state, 0) for state in repair_view.NEW_NODE_STATES},
    )
    yield histogram(
        "sickbay_repair_duration_seconds",
        "From the order of a repair to its end, whatever the outcome.",
        ["repair"],
        {(repair,): found for repair, found in stages.repair_durations.items()},
    )
    yield histogram(
        "sickbay_node_return_duration_seconds",
        "From the marks to the release, of nodes that had a repair in that quarantine; "
        "a ticket or a test is no such repair.",
        [],
        {(): stages.node_return},
    )
