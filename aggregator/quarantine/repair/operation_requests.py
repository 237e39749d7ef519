"""Reports on people's Operations why they do not begin, and ends those that a person withdraws, or
a quarantine, before they have begun. It begins none. Tests that people delete are removed.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.operations import (
    OURS,
    cancelled,
    first_tests,
    is_of_service,
    is_unread,
    test_order,
)
from aggregator.cluster.port import (
    Cluster,
    ClusterError,
    Conflict,
    Operation,
    OperationRequest,
    OperationSpec,
    Quarantine,
    Refused,
    RepairState,
)
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.node_tests import begun_status, node_test_of, operation_of
from aggregator.quarantine.decide.repair import why_blocked
from aggregator.quarantine.decide.repair_plan import RepairPlan
from aggregator.quarantine.repair.operation_creation import open_pending
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


@define(eq=False, repr=False, slots=False)
class OperationRequests:
    """``may_act``: whether this process is the controller now."""

    _cluster: Cluster
    _fleet: FleetState
    _clocks: Clocks
    _may_act: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._operations = self._cluster.operations
        #: The round of the last write of each that is due: one that is refused again and again
        #: comes after the others.
        self._tried: dict[str, int] = {}
        self._round = 0

    async def go_round(self) -> None:
        """Write what has changed since the last round; a write that fails comes with the next."""
        if self._fleet.view_lost:
            return
        known = self._operations.known
        pending = (o for o in known.requests if o.status.phase is RepairState.PENDING)
        waiting = [o for o in pending if o.status.installation or not self._is_foreign(o)]
        tests = {node: one.name for node, one in first_tests(waiting).items()}
        changed = (one for one in waiting if self._is_due(one, tests))
        due = {one.name: partial(self._write, one, tests) for one in changed}
        due |= {one.name: partial(self._forget, one) for one in known.deleted_tests}
        self._round += 1
        self._tried = {name: self._tried.get(name, 0) for name in due}
        for name in sorted(due, key=self._tried.__getitem__)[:_MOST]:
            if not self._may_act():
                return
            self._tried[name] = self._round
            try:
                await due[name]()
            except (Conflict, Refused):
                continue  # it keeps none of the others
            except ClusterError:
                return

    def _is_due(self, request: Operation, tests: dict[str, str]) -> bool:
        if self._end(request) or self._why(request, tests) != request.status.message:
            return True
        return bool(request.status.installation) and not self._is_tested_here(request)

    async def _write(self, request: Operation, tests: dict[str, str]) -> None:
        end = self._end(request)
        if not end:
            # Without a claim each installation reports on it, and one ends it.
            whose = self._cluster.installation if self._is_tested_here(request) else ""
            why = self._why(request, tests)
            status = replace(request.status, message=why, installation=whose)
            await self._operations.write_status(request, status)
            return
        # The write first: of it and a beginning one fails, and `kubectl wait` sees the end.
        ended = cancelled(request.status, end, self._clocks.wall())
        written = await self._operations.write_status(request, ended)
        if request.deleting:
            await self._operations.drop(written)

    async def _forget(self, test: Operation) -> None:
        """A person has deleted a test that has ended. The newest one of a Node comes again under
        the next number: else an earlier failure would be open again, a failure that is open would
        be over, and the number would be used again.
        """
        node, uid = test.spec.node, test.status.node_uid
        known = self._operations.known.node_tests(node)
        others = [one for one in known if one.status.node_uid == uid]
        newest = max((one for one in others if not is_unread(one)), key=test_order, default=None)
        is_newest = newest is not None and newest.name == test.name
        if is_newest and node not in self._fleet.node_summaries:
            return  # its Node may only not be listed yet: `OperationRetention` drops it later
        if is_newest:
            whose = test.status.installation or test.spec.installation
            number, boot = test.status.number + 1, test.status.boot_id
            name = operation_of(uid, boot, number, installation=whose)
            again = replace(node_test_of(test), number=number, operation=name, request="")
            why = f"the verdict of {test.name}, which a person has deleted"
            spec = OperationSpec(node, TEST, "", again.profile, OURS, why, whose)
            status = begun_status(again)
            made = await open_pending(
                self._operations, name, spec, is_request=False, deleted=status
            )
            await self._operations.write_status(made, status)
        await self._operations.drop(test)

    def _quarantine(self, request: Operation) -> Quarantine | None:
        summary = self._fleet.node_summaries.get(request.spec.node)
        return summary.quarantine if summary is not None else None

    def _is_foreign(self, request: Operation) -> bool:
        """Whether another installation has its node in quarantine, and reports on it."""
        quarantine = self._quarantine(request)
        return quarantine is not None and bool(quarantine.foreign)

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

    def _is_tested_here(self, request: Operation) -> bool:
        """Whether this installation may test its node, which is in no quarantine."""
        spec, view = request.spec, self._fleet.node_tests.get(request.spec.node)
        if spec.kind != TEST or spec.quarantine or self._quarantine(request) is not None:
            return False
        return self._fleet.repairs.tests_in_service or (view is not None and view.tainted)


def _in_quarantine(request: Operation, quarantine: Quarantine, plan: RepairPlan, now: float) -> str:
    repair, spec = quarantine.status.repair, request.spec
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
