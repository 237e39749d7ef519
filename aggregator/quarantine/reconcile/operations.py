"""The reconcilers of operations: one that may act already comes first, a new one last."""

from aggregator.cluster.port import Quarantine
from aggregator.quarantine.decide.plans.operations import (
    OperationView,
    plan_open_operation,
    plan_operation,
)
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.reconcile.plan_inputs import PlanInputs, is_recovered, is_unforced
from aggregator.quarantine.repair.runner import RepairRunner
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still


class OperationReconciler:
    is_late = True

    def __init__(self, *, inputs: PlanInputs, repairs: RepairRunner) -> None:
        self._inputs = inputs
        self._repairs = repairs

    def plan(self, node_state: NodeState, quarantine: Quarantine) -> NextStep | None:
        if not self._repairs.waits(node_state):
            return None
        return plan_operation(self.view(node_state, quarantine))

    def view(self, node_state: NodeState, quarantine: Quarantine) -> OperationView:
        known, cluster, inputs = node_state.quarantine_view, node_state.cluster, self._inputs
        return OperationView(
            quarantine=quarantine,
            mode=inputs.mode(node_state, quarantine),
            recovered=is_recovered(node_state),
            knows=inputs.knows(node_state),
            due=self._repairs.is_due(node_state),
            untested=self._repairs.holds_release(node_state),
            release_waits=bool(node_state.release_held) and inputs.now() < known.release_poll,
            unforced=is_unforced(node_state),
            exempt=cluster.operator_requests.exempt(inputs.wall()),
            maintained=bool(cluster.maintained),
            stopped=bool(inputs.fleet.stop),
            node_gone=cluster.node_gone,
            node_replaced=known.node_replaced,
            reborn=bool(known.reborn),
        )

    async def carry_out(self, node_state: NodeState, _step: NextStep, _still: Still) -> bool:
        await self._repairs.run(node_state)
        return False


class OpenOperationReconciler(OperationReconciler):
    """Of an order that may reach the node, and of the test before a release."""

    def plan(self, node_state: NodeState, quarantine: Quarantine) -> NextStep | None:
        if not self._repairs.waits(node_state):
            return None
        return plan_open_operation(self.view(node_state, quarantine))
