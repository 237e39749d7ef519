"""Reports on people's Operations why they do not begin, and ends those that a person withdraws, or
a quarantine, before they have begun. It begins none.
"""

from collections.abc import Callable
from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.operations import cancelled, first_tests, is_of_service
from aggregator.cluster.port import (
    ClusterError,
    Conflict,
    Operation,
    OperationRequest,
    Operations,
    Quarantine,
    Refused,
    RepairState,
    RepairStatus,
)
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.repair import why_blocked
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.state.fleet import FleetState

#: Seconds between two rounds.
EVERY = 3.0
#: Writes of one round: the next one has the others.
_MOST = 20
_NO_QUARANTINE = "its node is in no quarantine, and no other node is repaired"
_TAKEN_BACK = "a person deleted it before it began"
_CAME_BETWEEN = (
    "its node came into quarantine before the test began: request it again once that is drained"
)


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
            one for one in self._operations.requests() if one.status.phase is RepairState.PENDING
        ]
        tests = {node: one.name for node, one in first_tests(waiting).items()}
        due = [one for one in waiting if self._is_due(one, tests)]
        for one in due[:_MOST]:
            if not self._may_act():
                return
            try:
                await self._write(one, tests)
            except (Conflict, Refused):
                continue  # it keeps none of the others
            except ClusterError:
                return

    def _is_due(self, request: Operation, tests: dict[str, str]) -> bool:
        return bool(self._end(request)) or self._why(request, tests) != request.status.message

    async def _write(self, request: Operation, tests: dict[str, str]) -> None:
        end = self._end(request)
        if not end:
            status = replace(request.status, message=self._why(request, tests))
            await self._operations.write_status(request, status)
            return
        # The write first: of it and a beginning one fails, and `kubectl wait` sees the end.
        ended = cancelled(request.status, end, self._clocks.wall())
        written = await self._operations.write_status(request, ended)
        if request.deleting:
            await self._operations.drop(written)

    def _quarantine(self, request: Operation) -> Quarantine | None:
        summary = self._fleet.node_summaries.get(request.spec.node)
        return summary.quarantine if summary is not None else None

    def _end(self, request: Operation) -> str:
        """Why it ends now; empty: it does not."""
        if request.deleting:
            return _TAKEN_BACK
        quarantine = self._quarantine(request)
        between = quarantine is not None and is_of_service(request, quarantine)
        return _CAME_BETWEEN if between else ""

    def _why(self, request: Operation, tests: dict[str, str]) -> str:
        """Why it does not begin now. ``tests``: the one that comes first, of each node."""
        spec, plan = request.spec, self._fleet.repairs
        quarantine = self._quarantine(request)
        if quarantine is None or spec.quarantine not in ("", quarantine.uid):
            return self._without_quarantine(request, plan, tests)
        return _in_quarantine(request, quarantine, plan, self._clocks.earliest())

    def _without_quarantine(
        self, request: Operation, plan: RepairPlan, tests: dict[str, str]
    ) -> str:
        spec = request.spec
        if spec.node not in self._fleet.node_summaries:
            return f"neither the cluster nor an agent has a node {spec.node}"
        if spec.quarantine:
            return "its quarantine is no longer in force"
        if spec.kind != TEST:
            return _NO_QUARANTINE
        if tests[spec.node] != request.name:
            return _after(tests[spec.node])
        view = self._fleet.node_tests.get(spec.node)
        if view is not None and view.test is not None and view.test.is_busy:
            return f"test {view.test.operation} is under way"
        if view is not None and (view.requested or view.tainted):
            return view.held
        if plan.tests_in_service:
            return ""
        return "its node is in no quarantine, and no repairer tests nodes in service"


def _in_quarantine(request: Operation, quarantine: Quarantine, plan: RepairPlan, now: float) -> str:
    repair, spec = quarantine.status.repair or RepairStatus(), request.spec
    if plan.is_off:
        return plan.waits(quarantine, now, requested=True)

    def blocked(request_now: OperationRequest) -> str:
        return why_blocked(repair, request_now, plan.kinds, plan.rules)

    why = blocked(OperationRequest(request.name, spec.kind, spec.profile))
    if why:
        return why
    first = next((one.name for one in repair.requests if not blocked(one)), request.name)
    return _after(first) if first != request.name else plan.waits(quarantine, now, requested=True)


def _after(name: str) -> str:
    return f"operation {name} is before it"
