"""Reports on people's Operations why they do not begin. It begins none."""

from collections.abc import Callable
from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    ClusterError,
    Conflict,
    Operation,
    Operations,
    Quarantine,
    RepairState,
)
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.state.fleet import FleetState

#: Seconds between two rounds.
EVERY = 3.0
#: Reports of one round: the next one has the others.
_MOST = 20
_NO_QUARANTINE = "its node is in no quarantine, and no other node is repaired"


class OperationRequests:
    """``may_act``: whether this process is the controller now."""

    def __init__(
        self,
        operations: Operations,
        fleet: FleetState,
        clocks: Clocks,
        may_act: Callable[[], bool],
    ) -> None:
        self._operations = operations
        self._fleet = fleet
        self._clocks = clocks
        self._may_act = may_act

    async def go_round(self) -> None:
        """Write what has changed since the last round; a write that fails comes with the next."""
        if self._fleet.view_lost:
            return
        waiting = [
            one
            for one in self._operations.requests()
            if one.status.phase is RepairState.PENDING and not one.deleting
        ]
        changed = [(one, why) for one in waiting if (why := self._why(one)) != one.status.message]
        for one, why in changed[:_MOST]:
            if not self._may_act():
                return
            try:
                await self._operations.write_status(one, replace(one.status, message=why))
            except Conflict:
                continue
            except ClusterError:
                return

    def _why(self, request: Operation) -> str:
        spec, plan = request.spec, self._fleet.repairs
        summary = self._fleet.node_summaries.get(spec.node)
        quarantine = summary.quarantine if summary is not None else None
        if quarantine is None or spec.quarantine not in ("", quarantine.uid):
            return self._without_quarantine(request, plan)
        return _in_quarantine(request, quarantine, plan, self._clocks.earliest())

    def _without_quarantine(self, request: Operation, plan: RepairPlan) -> str:
        spec = request.spec
        if spec.node not in self._fleet.node_summaries:
            return f"neither the cluster nor an agent has a node {spec.node}"
        if spec.quarantine:
            return "its quarantine is no longer in force"
        if spec.kind != TEST:
            return _NO_QUARANTINE
        view = self._fleet.node_tests.get(spec.node)
        if view is not None and (view.requested or view.tainted):
            return view.held
        if plan.tests_in_service:
            return ""
        return "its node is in no quarantine, and no repairer tests nodes in service"


def _in_quarantine(request: Operation, quarantine: Quarantine, plan: RepairPlan, now: float) -> str:
    repair = quarantine.status.repair
    first = repair.requests[0].name if repair is not None and repair.requests else request.name
    if first != request.name:
        return f"operation {first} is before it"
    if not plan.is_off and request.spec.kind not in plan.kinds:
        return f"repair.repairers has no {request.spec.kind}"
    return plan.waits(quarantine, now, requested=True)
