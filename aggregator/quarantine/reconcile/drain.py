"""The reconciler of drains."""

from aggregator.cluster.port import Action, Quarantine
from aggregator.quarantine.decide.plans.drain import DrainView, plan_drain_step
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.decide.uncordon import Uncordoned, has_given_up
from aggregator.quarantine.drain.drainer import Drainer
from aggregator.quarantine.reconcile.plan_inputs import PlanInputs
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still


class DrainReconciler:
    is_late = True

    def __init__(self, *, inputs: PlanInputs, drain: Drainer) -> None:
        self._inputs = inputs
        self._drain = drain

    def plan(self, node_state: NodeState, quarantine: Quarantine) -> NextStep | None:
        if quarantine.spec.action is not Action.DRAIN:
            return None
        return plan_drain_step(self.view(node_state, quarantine))

    def view(self, node_state: NodeState, quarantine: Quarantine) -> DrainView:
        cluster, inputs, status = node_state.cluster, self._inputs, quarantine.status
        # Evictions wait until the response to an uncordon is decided, and for a while after that.
        schedulable = node_state.quarantine_view.uncordoned is not Uncordoned.NO
        waits = schedulable and not has_given_up(status)
        waits = waits or inputs.wall() < status.evictions_held_until
        return DrainView(
            quarantine=quarantine,
            wanted=inputs.wanted(node_state),
            mode=inputs.mode(node_state, quarantine),
            knows=inputs.knows(node_state),
            fresh=node_state.agent.is_fresh,
            release_held=bool(node_state.release_held),
            evictions_wait=node_state.evictions_are_forbidden or waits,
            maintained=bool(cluster.maintained),
            stopped=bool(inputs.fleet.stop),
            node_gone=cluster.node_gone,
        )

    async def carry_out(self, node_state: NodeState, _step: NextStep, still: Still) -> bool:
        await self._drain.run(node_state, still)
        return False
