"""One node's details, from memory."""

import msgspec

from aggregator.health.node import gpu_name
from aggregator.quarantine.state.fleet import FleetState
from aggregator.web import models, node_view, outlier_view
from aggregator.web.snapshot_cache import SnapshotCache


def node_detail(fleet: FleetState, snapshots: SnapshotCache, name: str) -> models.Node | None:
    """The details without the timeline, or None where the fleet does not know the node."""
    node_summary = fleet.node_summaries.get(name)
    if node_summary is None:
        return None
    moment = snapshots.moment()
    found = [
        msgspec.structs.replace(one, device=gpu_name(node_summary.agent.health, one.component))
        for one in outlier_view.outliers(fleet.measurements, name, moment)
    ]
    return node_view.node(fleet, node_summary, moment, found)
