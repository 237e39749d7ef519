"""The tests of nodes in no quarantine: an Operation each, ours or a person's.

The name of ours follows from the Node, its boot and the number of the test, so that its creation is
the compare-and-set; a person's request begins by a write at its version.
"""

from attrs import define

from aggregator.cluster.operations import DELETED_BY_HAND, OURS, first_tests
from aggregator.cluster.port import (
    BUSY,
    Conflict,
    Operation,
    OperationRequest,
    Operations,
    OperationSpec,
    RepairState,
)
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.node_tests import (
    NodeTest,
    begun_status,
    ended,
    last_test,
    node_test_of,
    status_of,
)
from aggregator.quarantine.repair.operation_creation import DELETED, open_pending


@define(eq=False, slots=False)
class NodeTestStore:
    """Reads the Operations as last seen, and an object itself before an act."""

    _operations: Operations

    def requests(self) -> dict[str, OperationRequest]:
        """The oldest request that has not begun, of each node that has one."""
        return {
            node: OperationRequest(one.name, TEST, one.spec.profile, one.uid)
            for node, one in first_tests(self._operations.requests()).items()
        }

    def tested(self) -> set[str]:
        """The nodes that have a test, or had one."""
        return {one.spec.node for one in self._operations.node_tests()}

    def last(self, node: str, uid: str) -> tuple[NodeTest | None, str]:
        """The last test of the Node with this uid, and why that can't be read."""
        return last_test(self._operations.node_tests(node), uid)

    def lost(self, node: str, uid: str) -> list[Operation]:
        """The tests under way of another Node of this name, which is gone. ``uid``: of the present
        one, empty without one.
        """
        return [
            one
            for one in self._operations.node_tests(node)
            if one.status.phase in BUSY and one.status.node_uid != uid
        ]

    async def end_lost(self, operation: Operation, at: float) -> NodeTest:
        """End one whose Node is gone. ``at``: wall clock seconds."""
        over = ended(node_test_of(operation), RepairState.INCONCLUSIVE, "its Node is gone", at=at)
        await self._go_on(operation, over)
        return over

    def why_ended(self, test: NodeTest, node: str) -> str:
        """Why a person has ended the test, as last seen; empty: it goes on."""
        return _why_ended(self._find(node, test))

    async def why_ended_now(self, test: NodeTest) -> str:
        """The same, read from the cluster: the last read before an act."""
        return _why_ended(await self._read(test))

    async def read(self, test: NodeTest) -> NodeTest | None:
        """The test as it is now."""
        there = await self._read(test)
        return node_test_of(there) if there is not None else None

    async def open(self, node: str, uid: str, test: NodeTest, why: str) -> Operation:
        """The Operation that the test is to become: certainly nothing was ordered by it. Raises
        Conflict. ``why``: for people.
        """
        over = ended(test, RepairState.CANCELLED, DELETED, at=test.began_at)
        there = await open_pending(
            self._operations,
            test.name,
            OperationSpec(node, TEST, profile=test.profile, requester=OURS, reason=why),
            is_request=bool(test.request),
            deleted=begun_status(over, uid, ()),
        )
        if not test.request:
            return there
        if not _is_request_of(test, there):
            raise Conflict(f"operation {test.name} is another request by now")
        return await self._operations.adopt(there)

    async def write(
        self, there: Operation, test: NodeTest, uid: str, domains: tuple[str, ...] = ()
    ) -> None:
        """The operation becomes the test."""
        await self._operations.write_status(there, begun_status(test, uid, domains))

    async def refuse(self, test: NodeTest, uid: str) -> None:
        """The test is the end of its request, which has not begun. Raises Conflict."""
        there = await self._operations.read(test.request)
        open_still = there is not None and not there.deleting and _is_request_of(test, there)
        if there is None or not open_still:
            raise Conflict(f"operation {test.request} is gone, or has begun")
        await self.write(there, test, uid)

    async def change(self, node: str, before: NodeTest, after: NodeTest) -> None:
        """Write the test, unless another process has changed it."""
        there = self._find(node, before)
        if there is None or node_test_of(there) != before:
            raise Conflict("the test was changed by another process")
        await self._go_on(there, after)

    async def _go_on(self, there: Operation, after: NodeTest) -> None:
        """Write one that is known from memory alone, which may be older than the cluster's: the
        next try would fail like this one.
        """
        try:
            await self._operations.write_status(there, status_of(after, there.status))
        except Conflict:
            await self._operations.read(there.name)
            raise

    def _find(self, node: str, test: NodeTest) -> Operation | None:
        found = self._operations.node_tests(node)
        return next((one for one in found if one.name == test.name), None)

    async def _read(self, test: NodeTest) -> Operation | None:
        there = await self._operations.read(test.name)
        same = there is not None and node_test_of(there).operation == test.operation
        return there if same else None


def _why_ended(found: Operation | None) -> str:
    gone = found is None or found.deleting
    return DELETED_BY_HAND if gone else ""


def _is_request_of(test: NodeTest, there: Operation) -> bool:
    """Whether the test was decided on for just this object: another may have got its name since."""
    pending = there.status.phase is RepairState.PENDING
    return pending and f"-{there.uid[:8]}-" in test.operation
