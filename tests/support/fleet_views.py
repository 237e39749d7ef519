"""The view models of a whole fleet in one call; the page adds its nodes in chunks."""

from aggregator.quarantine.state.fleet import FleetState
from aggregator.runtime.text import natural
from aggregator.web.fleet_view import FleetViewBuilder, FleetViewFindings
from aggregator.web.node_view import ViewMoment


def view_fleet(fleet: FleetState, moment: ViewMoment) -> FleetViewFindings:
    """All nodes at once."""
    builder = FleetViewBuilder(fleet, moment)
    for node_summary in fleet.node_summaries.values():
        builder.add(node_summary)
    return builder.conclude(sorted(fleet.node_summaries, key=natural))
