"""One node's details, from memory."""

import msgspec

from aggregator.health.node import gpu_name
from aggregator.quarantine.state.fleet import FleetState
from aggregator.web import models, node_view, outlier_view
from aggregator.web.snapshot_cache import SnapshotCache


class NodeDetails:
    """Of the nodes that the fleet holds."""

    def __init__(self, *, fleet: FleetState, snapshots: SnapshotCache) -> None:
        self._fleet = fleet
        self._snapshots = snapshots

    def of(self, name: str) -> models.Node | None:
        """The details without the timeline, or None where the node is not known."""
        node_summary = self._fleet.node_summaries.get(name)
        if node_summary is None:
            return None
        fleet, moment = self._fleet, self._snapshots.moment()
        found = [
            msgspec.structs.replace(one, device=gpu_name(node_summary.agent.health, one.component))
            for one in outlier_view.outliers(fleet.measurements, node_summary.node, moment)
        ]
        return node_view.node(fleet, node_summary, moment, found)
