"""Ends operations whose quarantine is gone, and requests that can't begin, and removes old ones,
those that a person has deleted first.

An operation of a quarantine in force is never removed: the ladder counts it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from attrs import define

from aggregator.clock import Clocks
from aggregator.cluster.operations import (
    is_node_test,
    is_request,
    is_unread,
    newest_tests,
    outdated,
)
from aggregator.cluster.port import (
    BUSY,
    Cluster,
    ClusterError,
    Conflict,
    Operation,
    OperationSpec,
    OperationStatus,
    Refused,
    RepairState,
)
from aggregator.policy.repairs import TEST
from aggregator.quarantine.state.fleet import FleetState

log = logging.getLogger("sickbay.quarantine")

#: Seconds between two rounds.
EVERY = 300.0
#: An open operation without its quarantine is ended this long after its creation (seconds): its
#: quarantine may be newer than what is known of it.
_SETTLED = 600.0
_GONE = "its quarantine is gone"
_NONE = "its node is in no quarantine"
#: Ended operations that each node keeps beyond the window of the limits, and the fleet.
PER_NODE, MOST = 20, 2000


@define(eq=False, repr=False, slots=False, kw_only=True)
class OperationRetention:
    """``window`` is `repair.window`, in seconds. ``may_act``: whether we are the controller now."""

    _cluster: Cluster
    _fleet: FleetState
    _clocks: Clocks
    _window: float
    _may_act: Callable[[], bool]

    def __attrs_post_init__(self) -> None:
        self._operations = self._cluster.operations
        #: The last error of the last round, and of this one.
        self._trouble = self._failed = ""

    async def go_round(self) -> None:
        """Once every `EVERY`, where this process may act."""
        if self._fleet.view_lost or not self._may_act():
            return
        self._failed = ""
        try:
            await self._retain()
        except ClusterError as error:
            self._failed = str(error)
        if self._failed and self._failed != self._trouble:
            log.warning("old operations can't be removed", extra={"error": self._failed})
        self._trouble = self._failed

    async def _try(self, operation: Operation, status: OperationStatus | None = None) -> None:
        """Write the status, or remove it. One that can't be changed keeps none of the others.

        A process that was paused since the list knows quarantines of then: it changes nothing.
        """
        if not self._may_act():
            return
        try:
            if status is None:
                if not await self._keeps_a_verdict(operation):
                    await self._operations.drop(operation)
            else:
                await self._operations.write_status(operation, status)
        except Conflict:
            pass  # the next round decides anew
        except Refused as error:
            self._failed = str(error)

    async def _retain(self) -> None:
        there, ours = await self._operations.all(), self._cluster.installation
        found = [one for one in there if one.is_of(ours)]
        quarantines = (one.quarantine for one in self._fleet.node_summaries.values())
        in_force = {one.uid: one.node for one in quarantines if one is not None}
        left = [one for one in found if self._is_left(one, in_force)]
        now = self._clocks.earliest()
        for one in left:
            if one.is_open and not _is_engines(one) and now - one.created_at > _SETTLED:
                await self._try(one, None if _is_unbegun_test(one) else _ended(one, now))
        # What is known of a node is in its newest test, also in one that a person has deleted:
        # without it an earlier failure would be open again, and its number would be used again.
        tests = [one for one in found if is_node_test(one) and self._is_known(one.spec.node)]
        last = {one.name for one in newest_tests(one for one in tests if not is_unread(one))}
        # One that can't be read lets none begin until a person has deleted it.
        last |= {one.name for one in tests if is_unread(one) and not one.deleting}
        ended = [one for one in left if not one.is_open and one.name not in last]
        for one in ended:
            if one.deleting:
                await self._try(one)
        kept = [one for one in ended if not one.deleting]
        for one in outdated(kept, now=now, window=self._window, per_node=PER_NODE, most=MOST):
            await self._try(one)

    def _is_known(self, node: str) -> bool:
        return node in self._fleet.node_summaries

    async def _keeps_a_verdict(self, operation: Operation) -> bool:
        """Whether it may be the newest test of a Node that only could not be listed."""
        if not is_node_test(operation) or self._is_known(operation.spec.node):
            return False
        return await self._cluster.read_node(operation.spec.node, background=True) is not None

    def _is_left(self, operation: Operation, in_force: Mapping[str, str]) -> bool:
        """Whether no quarantine keeps it. ``in_force``: the node of each, by uid."""
        spec, status = operation.spec, operation.status
        pending = status.phase is RepairState.PENDING
        if pending and operation.deleting:
            return True
        if _is_unbegun_test(operation):
            return True
        if pending and not spec.quarantine:
            return not self._may_test(spec) and spec.node not in in_force.values()
        # One that has ended before it began is no attempt.
        return (spec.quarantine if pending else status.quarantine) not in in_force

    def _may_test(self, spec: OperationSpec) -> bool:
        """Whether the request waits for a test of its node in no quarantine, its own or another."""
        if spec.kind != TEST:
            return False
        view = self._fleet.node_tests.get(spec.node)
        if view is None:  # no node is watched for a moment after a pause of this process
            return self._is_known(spec.node) and self._fleet.repairs.tests_in_service
        busy = view.test is not None and view.test.is_busy
        return bool(view.requested) or view.tainted or busy


def _ended(operation: Operation, now: float) -> OperationStatus:
    pending = operation.status.phase is RepairState.PENDING
    has_quarantine = operation.spec.quarantine or operation.status.quarantine
    return replace(
        operation.status,
        phase=RepairState.CANCELLED if pending else RepairState.UNKNOWN,
        message=_GONE if has_quarantine else (operation.status.message or _NONE),
        ended_at=round(now, 3),
    )


def _is_engines(operation: Operation) -> bool:
    """Whether it is a test under way of a node in no quarantine: `NodeTestReconciler` alone ends
    it, since it may have a verdict that could not be written yet. One without a deadline it can't
    end.
    """
    status = operation.status
    return status.node_test is not None and status.phase in BUSY and bool(status.deadline_at)


def _is_unbegun_test(operation: Operation) -> bool:
    """Whether it is our own test of a node in no quarantine, which was held before it began."""
    pending = operation.status.phase is RepairState.PENDING
    return pending and not (operation.spec.quarantine or is_request(operation))
