"""The facts that alerts need of a node, from the fleet's state in memory."""

from collections.abc import Callable, Sequence

from attrs import define

from aggregator.alerts.alert import LASTING
from aggregator.alerts.routes import NO_CONTEXT, NodeContext
from aggregator.cluster.port import QuarantineStatus
from aggregator.events import EventKind
from aggregator.quarantine.decide.maintenance import STALE
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


_OF_QUARANTINE = ("quarantine.", "work.", "repair.")


@define(eq=False, repr=False, kw_only=True)
class FleetEnds:
    """Whether an alert that lasts is over by the fleet's state: a transition that is lost, or that
    came while no controller ran, ends no alert. ``lists_all``: a node that is not known is none.
    """

    _fleet: FleetState
    _lists_all: bool
    _record_problem: Callable[[], str]

    def __call__(self, kind: str, node: str, incident: str) -> bool:
        fleet = self._fleet
        if kind not in LASTING or fleet.view_lost or fleet.waiting_for_quorum:
            return False
        if not node:
            lasts = {
                EventKind.STOPPED: bool(fleet.stop),
                EventKind.COOLDOWN: bool(fleet.cooling),
                EventKind.RECORD_LOST: bool(self._record_problem()),
                EventKind.COMMON_CAUSE: incident in fleet.causes,
                EventKind.NETWORK_BLAMED: incident in fleet.network,
            }
            return not lasts.get(EventKind(kind), True)
        found = fleet.node_summaries.get(node)
        if found is None:
            return self._lists_all
        if kind.startswith(_OF_QUARANTINE) and kind != EventKind.HELD:
            marked = found.cluster.marked or found.quarantine_view.unclaimed
            return found.quarantine is None and not marked
        if not found.agent.is_fresh:
            return False
        if kind == EventKind.INCIDENT_OPENED:
            return incident not in found.decision.incidents
        if kind != EventKind.HELD:
            return True
        status = found.quarantine.status if found.quarantine is not None else QuarantineStatus()
        held = status.repair.held or STALE in status.message  # a repair, or the drain
        return found.decision.hold is None and not held
