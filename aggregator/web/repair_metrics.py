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
    running = gauge(
        "sickbay_repairs_running", "Repairs under way (Ordering, Ordered), by kind.", ["repair"]
    )
    counted = Counter(one.repair for one in repair_view.under_way(quarantines))
    for repair in ATTEMPTS:
        running.add_metric([repair], counted[repair])
    yield running
    exhausted = sum(one.repair is not None and bool(one.repair.exhausted) for one in quarantines)
    yield single_gauge(
        "sickbay_quarantines_repair_exhausted",
        ("Quarantines in which no further repair begins by itself: a person has to go on."),
        exhausted,
    )
    attempts = counter(
        "sickbay_repair_attempts",
        (
            "Attempts at a repair that ended since the start, by kind and outcome: "
            "Succeeded, Failed, Unknown, Cancelled, Inconclusive. Tests have repair test. "
            "The replica that writes the end counts it."
        ),
        ["repair", "outcome"],
    )
    for repair, outcome in product(ATTEMPTS, _OUTCOMES):
        attempts.add_metric([repair, outcome], stages.repair_attempts[repair, outcome])
    yield attempts
    tests = counter(
        "sickbay_tests",
        (
            "Active tests that ended since the start, by reason (new-node, idle, before- "
            "release, by-hand) and outcome."
        ),
        ["reason", "outcome"],
    )
    for reason, outcome in product(_REASONS, _OUTCOMES):
        tests.add_metric([reason, outcome], stages.tests[reason, outcome])
    yield tests
    fresh = gauge(
        "sickbay_new_nodes",
        (
            "Nodes with the startup taint: waiting (no test has begun, or one is due "
            "again), testing, needs_person (no further test begins by itself)."
        ),
        ["state"],
    )
    for state in repair_view.NEW_NODE_STATES:
        fresh.add_metric([state], new_nodes.get(state, 0))
    yield fresh
    yield histogram(
        "sickbay_repair_duration_seconds",
        "From the order of a repair to its end, whatever the outcome.",
        ["repair"],
        {(repair,): found for repair, found in stages.repair_durations.items()},
    )
    yield histogram(
        "sickbay_node_return_duration_seconds",
        (
            "From the taint to the release, of nodes that had a repair in that quarantine; "
            "a ticket or a test is no such repair."
        ),
        [],
        {(): stages.node_return},
    )
