"""People's Operations for tests of nodes in no quarantine.

The Node's annotation has the test itself, with the name of the Operation that requested it; the
Operation follows that.
"""

from collections.abc import Mapping
from dataclasses import replace

from aggregator.cluster.operations import cancelled
from aggregator.cluster.port import (
    BUSY,
    Conflict,
    Operation,
    OperationRequest,
    Operations,
    OperationStatus,
    RepairState,
)
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.node_tests import NodeTest


class NodeTestRequests:
    """Reads the Operations as last seen, and an object itself where it writes that."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def by_node(self) -> dict[str, OperationRequest]:
        """The oldest request that has not begun, of each node that has one."""
        found: dict[str, OperationRequest] = {}
        for one in self._operations.requests():
            if _is_new(one):
                request = OperationRequest(one.name, TEST, one.spec.profile, one.uid)
                found.setdefault(one.spec.node, request)
        return found

    def why_ended(self, test: NodeTest | None) -> str:
        """Why a person has ended the test, as last seen; empty: it continues."""
        if test is None or not test.request or not test.is_busy:
            return ""
        return _why_ended(self._open(test))

    async def why_ended_now(self, test: NodeTest) -> str:
        """The same, read from the cluster: the last read before an act."""
        return _why_ended(await self._read(test)) if test.request else ""

    async def begin(self, test: NodeTest, node_uid: str) -> None:
        """The Node has the test: its request has begun. Raises Conflict where that is gone."""
        there = await self._read(test)
        if there is None or there.deleting or not there.is_open:
            raise Conflict(f"operation {test.request} was deleted, or has ended")
        if there.status.phase in BUSY:
            return
        begun = OperationStatus(
            phase=RepairState.ORDERING,
            operation=test.operation,
            boot_id=test.boot_id,
            node_uid=node_uid,
            profile=test.profile,
            began_at=test.began_at,
            deadline_at=test.deadline_at,
        )
        await self._operations.write_status(await self._operations.adopt(there), begun)

    async def settle(self, test: NodeTest | None) -> None:
        """Once it is durable that the order of a test was taken, or its end, its request has that
        phase.
        """
        known = self._open(test) if test is not None else None
        if test is None or known is None or not _is_behind(known, test):
            return
        there = await self._read(test)
        if there is None or not _is_behind(there, test):
            return
        status = replace(there.status, message=test.message)
        if not test.is_busy:
            status = cancelled(there.status, test.message, test.ended_at)
        await self._operations.write_status(there, replace(status, phase=test.state))

    def left(self, tests: Mapping[str, NodeTest]) -> list[Operation]:
        """The begun requests that no known test is of. ``tests``: the last of each node."""
        return [
            one
            for one in self._operations.requests()
            if one.status.phase in BUSY
            and not one.status.quarantine
            and not is_test_of(one, tests.get(one.spec.node))
        ]

    async def end_lost(self, request: Operation) -> None:
        """End one whose test its node has no more."""
        text = "its node has the test no more"
        ended = cancelled(request.status, text, request.status.began_at)
        lost = replace(ended, phase=RepairState.INCONCLUSIVE)
        await self._operations.write_status(request, lost)

    def _open(self, test: NodeTest) -> Operation | None:
        requests = self._operations.requests() if test.request else []
        return next((one for one in requests if is_test_of(one, test)), None)

    async def _read(self, test: NodeTest) -> Operation | None:
        there = await self._operations.read(test.request) if test.request else None
        return there if there is not None and is_test_of(there, test) else None


def is_test_of(request: Operation, test: NodeTest | None) -> bool:
    """Whether the test is that of the request: the same object, which no quarantine has taken."""
    same = test is not None and (test.request, test.request_uid) == (request.name, request.uid)
    return same and not request.status.quarantine


def _is_behind(request: Operation, test: NodeTest) -> bool:
    """Whether the test has come further. One under way whose request has not begun is sent again,
    which begins that.
    """
    taken = request.status.phase is RepairState.ORDERING and test.state is RepairState.ORDERED
    return request.is_open and (taken or not test.is_busy)


def _why_ended(found: Operation | None) -> str:
    return "a person deleted its operation" if found is None or found.deleting else ""


def _is_new(operation: Operation) -> bool:
    spec, phase = operation.spec, operation.status.phase
    is_open = phase is RepairState.PENDING and not operation.deleting
    return is_open and spec.kind == TEST and not spec.quarantine
