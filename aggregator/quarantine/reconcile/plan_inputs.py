"""The inputs of the reconcilers' views, besides the node's own state."""

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.port import Action, Quarantine
from aggregator.quarantine.actions.holds import Proposals
from aggregator.quarantine.decide.admission import Limits
from aggregator.quarantine.decide.intent import OURS, unsaved
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodePools

#: The types of the fields of `EndView`.
EndValues = tuple[Quarantine, Action, bool, bool, bool, bool, bool, bool, bool]


@define(eq=False, repr=False, slots=False, kw_only=True)
class PlanInputs:
    """Time, modes, the record and the stop switch, as a plan needs them for one node."""

    proposals: Proposals
    _queue: WorkQueue
    _pools: NodePools
    fleet: FleetState
    _clocks: Clocks
    _limits: Limits

    def __attrs_post_init__(self) -> None:
        self._started_at = self._clocks.now()
        self.now = self._clocks.now
        self.wall = self._clocks.earliest
        self.in_record = self._queue.in_record
        self.is_entered_by_hand = self._queue.is_entered_by_hand
        self.wanted = self.proposals.wanted_now

    def is_unsaved(self, node_state: NodeState) -> bool:
        """Whether evidence is not durable yet: its object lacks it."""
        quarantine = node_state.quarantine
        if quarantine is None or quarantine.foreign:
            return False
        return unsaved(quarantine, self.wanted(node_state))

    def mode(self, node_state: NodeState, quarantine: Quarantine | None) -> Action:
        """Its pool's mode, as people's requests cap it where no person made the quarantine."""
        if quarantine is not None and quarantine.spec.requester != OURS:
            return self._pools.mode_of(node_state.node)
        return self._pools.most_of(node_state, self.wall())

    def end_values(
        self, node_state: NodeState, quarantine: Quarantine, *, untested: bool
    ) -> EndValues:
        """The values of `EndView`, in the order of its fields."""
        cluster, known = node_state.cluster, node_state.quarantine_view
        exempt = cluster.operator_requests.exempt(self.wall())
        requests = node_state.is_unforced, exempt, untested
        node = cluster.node_gone, known.node_replaced, bool(known.reborn)
        mode = self.mode(node_state, quarantine)
        return quarantine, mode, is_recovered(node_state), *requests, *node

    def knows(self, node_state: NodeState) -> bool:
        """Whether its agent has reported, or this process has waited for that long enough."""
        waited = self.now() - self._started_at
        return node_state.agent.was_received or waited >= self._limits.silent_drain_after

    def is_absent_too_long(self, quarantine: Quarantine) -> bool:
        since = quarantine.status.node_absent_since
        return since > 0 and self.wall() - since >= self._limits.absent_node_after


def is_recovered(node_state: NodeState) -> bool:
    """Whether its agent reports, and every incident is closed by positive signs."""
    return node_state.agent.is_fresh and not node_state.acting
