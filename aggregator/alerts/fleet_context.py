"""The facts that alerts need of a node, from the fleet's state in memory."""

from collections.abc import Sequence

from aggregator.alerts.routes import NO_CONTEXT, NodeContext
from aggregator.quarantine.state.fleet import FleetState


class FleetContext:
    """``pool_label`` and ``domain_labels`` are those of the limits.

    Without a ``pool_label`` a node's pool is that of the section ``pools``.
    """

    def __init__(self, fleet: FleetState, pool_label: str, domain_labels: Sequence[str]) -> None:
        self._fleet = fleet
        self._pool_label = pool_label
        # A leaf switch may have several racks: a label of racks is read first.
        self._domain_labels = sorted(domain_labels, key=lambda key: not key.endswith("rack"))

    def __call__(self, node: str) -> NodeContext:
        found = self._fleet.node_summaries.get(node)
        if found is None:
            return NO_CONTEXT
        labels = found.cluster.meta.labels if found.cluster.meta is not None else {}
        rules = {
            evidence.rule
            for incident in found.decision.incidents.values()
            for evidence in incident.evidence
            if evidence.rule
        }
        racks = (labels[key] for key in self._domain_labels if labels.get(key))
        return NodeContext(
            labels=labels,
            pool=labels.get(self._pool_label, "")
            if self._pool_label
            else self._fleet.pool_of(found),
            rack=next(racks, ""),
            rules=tuple(sorted(rules)),
            exempt_until=found.cluster.operator_requests.exempt_until,
            mode=self._fleet.mode_of(found),
        )
