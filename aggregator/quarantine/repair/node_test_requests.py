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
                asked = OperationRequest(one.name, TEST, one.spec.profile)
                found.setdefault(one.spec.node, asked)
        return found

    def name_of(self, node: str) -> str:
        """The name of the oldest one of the node; empty: it has none."""
        found = self.by_node().get(node)
        return found.name if found is not None else ""

    def why_ended(self, test: NodeTest | None) -> str:
        """Why a person has ended the test; empty: it goes on."""
        if test is None or not test.request or not test.is_busy:
            return ""
        found = self._open(test.request)
        gone = found is None or found.deleting
        return "a person deleted its operation" if gone else ""

    async def begin(self, test: NodeTest, node_uid: str) -> None:
        """The Node has the test: its request has begun. Raises Conflict where that is gone."""
        there = await self._operations.read(test.request)
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
        """Once the end of a test is durable its request ends."""
        if test is None or test.is_busy or self._open(test.request) is None:
            return
        there = await self._operations.read(test.request)
        if there is not None and there.is_open:
            ended = cancelled(there.status, test.message, test.ended_at)
            await self._operations.write_status(there, replace(ended, phase=test.state))

    async def end_left(self, tests: Mapping[str, NodeTest]) -> None:
        """End the requests whose test no Node has any more. ``tests``: the last of each node."""
        for one in self._operations.requests():
            if one.status.phase not in BUSY or one.status.quarantine:
                continue
            test = tests.get(one.spec.node)
            if test is None or test.request != one.name:
                ended = cancelled(one.status, "its node has the test no more", one.status.began_at)
                lost = replace(ended, phase=RepairState.INCONCLUSIVE)
                await self._operations.write_status(one, lost)

    def _open(self, name: str) -> Operation | None:
        found = (one for one in self._operations.requests() if one.name == name)
        return next(found, None) if name else None


def _is_new(operation: Operation) -> bool:
    spec, phase = operation.spec, operation.status.phase
    is_open = phase is RepairState.PENDING and not operation.deleting
    return is_open and spec.kind == TEST and not spec.quarantine
