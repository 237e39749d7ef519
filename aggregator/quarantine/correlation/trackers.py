"""The parts that compare the nodes of the fleet with each other."""

from dataclasses import dataclass
from typing import Any

from aggregator.quarantine.correlation.common_cause import CommonCauseTracker
from aggregator.quarantine.correlation.measurements import MeasurementTracker
from aggregator.quarantine.correlation.network import NetworkTracker
from aggregator.quarantine.state.node import NodeState


@dataclass(frozen=True, slots=True)
class FleetTrackers:
    causes: CommonCauseTracker
    network: NetworkTracker
    measurements: tuple[MeasurementTracker[Any], ...]

    def forget_node(self, node_state: NodeState) -> None:
        """The node is gone."""
        self.causes.forget_node(node_state)
        self.network.forget_node(node_state.node)
        for tracker in self.measurements:
            tracker.forget_node(node_state.node)
