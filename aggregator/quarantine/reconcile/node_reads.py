"""What goes before a node's plans, and what follows a step or the lack of one."""

from attrs import define

from aggregator.cluster.port import Cluster, Phase
from aggregator.quarantine.actions.adoption import MarkAdopter
from aggregator.quarantine.actions.holds import NodeHolds
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.actions.release import ReleaseActions
from aggregator.quarantine.decide.plans.step import NextStep, Pause
from aggregator.quarantine.drain.drainer import Drainer
from aggregator.quarantine.reconcile.agent_events import AgentEventHandler
from aggregator.quarantine.reconcile.missing_nodes import MissingNodes
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.node_pools import NodePools


@define(eq=False, slots=False, kw_only=True)
class ReadResults:
    """What a step's reads have shown counts also where the step failed in the end."""

    _pools: NodePools
    _missing_nodes: MissingNodes
    _agent_events: AgentEventHandler

    def known(self, node_state: NodeState) -> object:
        """The inputs of an evaluation besides evidence: people's requests, and the pool."""
        cluster = node_state.cluster
        place = self._pools.place_of(node_state.node)
        return cluster.overruled, cluster.operator_requests, place

    def take(self, node_state: NodeState, before: object) -> None:
        """``before``: what was known when the step began."""
        if node_state.cluster.node_gone:
            self._missing_nodes.follow(node_state)
        if node_state.agent.misnamed:
            self._agent_events.reject(node_state)
        if self.known(node_state) != before:
            node_state.work.request_evaluation()


@define(eq=False, slots=False, kw_only=True)
class NodeReads:
    """Requested reads, another installation's objects, marks without one: before any plan."""

    _cluster: Cluster
    acts: NodeActions
    _holds: NodeHolds
    _release_actions: ReleaseActions
    _adopter: MarkAdopter
    _drain: Drainer
    results: ReadResults

    async def begin(self, node_state: NodeState) -> bool | None:
        """What comes before the plans. Returns None where nothing does; True: no step is left."""
        quarantine, view = node_state.quarantine, node_state.quarantine_view
        if quarantine is not None and quarantine.foreign:
            await self._holds.leave_foreign(node_state)
            return True
        self._drain.report_phase(node_state)
        if node_state.work.needs_read:
            await self.acts.read_node(node_state)
            await self._drain.explain(node_state)
            return False
        if node_state.work.begin_pods():
            await self._drain.recheck(node_state)
        quarantine = node_state.quarantine
        if quarantine is not None and quarantine.deleting:
            going = await self._cluster.definition_is_going()
            node_state.own_quarantine_view().set_definition_going(going=going)
        view = node_state.quarantine_view
        if quarantine is None and view.vanished:
            return True  # the watch reports who took it away
        if quarantine is None and view.orphan:
            await self._adopter.sweep(node_state)
            return False
        if quarantine is None and view.to_adopt and not view.definition_going:
            await self._adopter.adopt(node_state)
            return False
        if node_state.cluster.ended_overrides and (
            quarantine is None or quarantine.status.phase is not Phase.RELEASING
        ):
            await self._release_actions.clear_overrides(node_state)
            return False
        self._holds.unhold_resumed(node_state)
        return None

    async def rest(self, node_state: NodeState, step: NextStep) -> None:
        """Report why no step is left now: the stop switch, or what a drain waits for."""
        quarantine = node_state.quarantine
        if step.do is Pause.HOLD:
            self._holds.hold_stopped(node_state)
        elif quarantine is not None and quarantine.status.phase in (
            Phase.CORDONED,
            Phase.DRAINING,
        ):
            await self._drain.explain(node_state)
