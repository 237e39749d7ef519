"""The reconciler that ends quarantines: phase Releasing, undo, the object's end."""

from attrs import define

from aggregator.cluster.port import Quarantine
from aggregator.quarantine.actions.release import ReleaseActions
from aggregator.quarantine.decide.plans.release import (
    RECOVERED,
    ReleaseStep,
    ReleaseView,
    plan_release,
)
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.decide.uncordon import UncordonRules
from aggregator.quarantine.reconcile.plan_inputs import PlanInputs
from aggregator.quarantine.repair.runner import RepairRunner
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still


@define(eq=False, repr=False, slots=False, kw_only=True)
class ReleaseReconciler:
    is_late = False

    _inputs: PlanInputs
    _release_actions: ReleaseActions
    _repairs: RepairRunner
    _uncordon: UncordonRules

    def plan(self, node_state: NodeState, quarantine: Quarantine) -> NextStep | None:
        return plan_release(self.view(node_state, quarantine))

    def view(self, node_state: NodeState, quarantine: Quarantine) -> ReleaseView:
        known, inputs = node_state.quarantine_view, self._inputs
        untested = self._repairs.holds_release(node_state)
        return ReleaseView(
            *inputs.end_values(node_state, quarantine, untested=untested),
            definition_going=known.definition_going,
            uncordoned=node_state.is_released_by_uncordon(self._uncordon),
            release_held=bool(node_state.release_held),
            poll_later=inputs.now() < known.release_poll,
            absent_too_long=inputs.is_absent_too_long(quarantine),
        )

    async def carry_out(self, node_state: NodeState, step: NextStep, _still: Still) -> bool:
        quarantine = node_state.quarantine
        if step.do is ReleaseStep.UNDO:
            await self._repairs.withdraw(node_state)
            await self._release_actions.undo(node_state)
            node_state.work.request_evaluation()
        elif quarantine is None:
            pass
        elif step.do is ReleaseStep.LET_GO:
            await self._release_actions.drop_finalizer(node_state, quarantine)
        else:
            if step.because == RECOVERED:
                self._repairs.note_release(node_state)
            lost = "" if step.overruled else await self._repairs.lost_order(node_state, quarantine)
            if lost is not None:
                await self._release_actions.release(node_state, quarantine, step, lost=lost)
        return False
