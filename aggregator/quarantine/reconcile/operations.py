"""The reconcilers of operations: one that may act already comes first, a new one last."""

from aggregator.cluster.port import Quarantine
from aggregator.quarantine.decide.plans.operations import (
    OperationView,
    plan_open_operation,
    plan_operation,
)
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.reconcile.plan_inputs import PlanInputs
from aggregator.quarantine.repair.runner import RepairRunner
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still


class OperationReconciler:
    is_late = True
    _plan = staticmethod(plan_operation)

    def __init__(self, *, inputs: PlanInputs, repairs: RepairRunner) -> None:
        self._inputs = inputs
        self._repairs = repairs

    def plan(self, node_state: NodeState, quarantine: Quarantine) -> NextStep | None:
        waits = self._repairs.waits(node_state)
        return self._plan(self.view(node_state, quarantine)) if waits else None

    def view(self, node_state: NodeState, quarantine: Quarantine) -> OperationView:
        known, inputs = node_state.quarantine_view, self._inputs
        untested = self._repairs.holds_release(node_state)
        return OperationView(
            *inputs.end_values(node_state, quarantine, untested=untested),
            knows=inputs.knows(node_state),
            due=self._repairs.is_due(node_state),
            release_waits=bool(node_state.release_held) and inputs.now() < known.release_poll,
            maintained=bool(node_state.cluster.maintained),
            stopped=bool(inputs.fleet.stop),
        )

    async def carry_out(self, node_state: NodeState, _step: NextStep, _still: Still) -> bool:
        await self._repairs.run(node_state)
        return False


class OpenOperationReconciler(OperationReconciler):
    """Of an order that may reach the node, and of the test before a release."""

    _plan = staticmethod(plan_open_operation)
