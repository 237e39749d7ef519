"""The reconciler of what is only reported: the object's conditions."""

from aggregator.cluster.port import Quarantine
from aggregator.quarantine.actions.object_writes import ObjectWrites
from aggregator.quarantine.decide.plans.publish import PublishView, plan_publish
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still


class PublishReconciler:
    is_late = False

    def __init__(self, objects: ObjectWrites) -> None:
        self._objects = objects

    def plan(self, node_state: NodeState, quarantine: Quarantine) -> NextStep | None:
        old = node_state.quarantine_view.are_conditions_old()
        return plan_publish(PublishView(quarantine, old))

    async def carry_out(self, node_state: NodeState, _step: NextStep, _still: Still) -> bool:
        quarantine = node_state.quarantine
        if quarantine is not None:
            await self._objects.write_conditions(node_state, quarantine)
        return False
