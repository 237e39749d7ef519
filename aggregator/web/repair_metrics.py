"""Metrics of the repairs of nodes in quarantine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

from aggregator.cluster.port import BUSY, RepairState
from aggregator.policy.repairs import ATTEMPTS
from aggregator.quarantine.decide.node_tests import BY_HAND, IDLE, NEW_NODE
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.web import models, repair_view
from aggregator.web.metric_families import Values

#: How an attempt ends, and why a test was begun: each series begins at 0.
_OUTCOMES = tuple(state.value for state in RepairState if state not in BUSY)
_REASONS = (NEW_NODE, IDLE, "before-release", BY_HAND)


def repair_values(
    stages: StageTimes, quarantines: Sequence[models.Quarantine], new_nodes: Mapping[str, int]
) -> Mapping[str, Values]:
    """``quarantines`` and ``new_nodes`` are those of this replica's nodes."""
    counted = Counter(one.repair for one in repair_view.under_way(quarantines))
    exhausted = sum(one.repair is not None and bool(one.repair.exhausted) for one in quarantines)
    return {
        "sickbay_repairs_running": {repair: counted[repair] for repair in ATTEMPTS},
        "sickbay_quarantines_repair_exhausted": exhausted,
        "sickbay_repair_attempts": {
            pair: stages.repair_attempts[pair] for pair in product(ATTEMPTS, _OUTCOMES)
        },
        "sickbay_tests": {pair: stages.tests[pair] for pair in product(_REASONS, _OUTCOMES)},
        "sickbay_new_nodes": {
            state: new_nodes.get(state, 0) for state in repair_view.NEW_NODE_STATES
        },
        "sickbay_repair_duration_seconds": stages.repair_durations,
        "sickbay_node_return_duration_seconds": stages.node_return,
    }
