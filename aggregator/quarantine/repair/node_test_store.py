"""Reads the tests of nodes in no quarantine: an Operation each, ours or a person's."""

from attrs import define

from aggregator.cluster.operations import DELETED_BY_HAND, first_tests
from aggregator.cluster.port import BUSY, Operation, OperationRequest, Operations
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.node_tests import NodeTest, last_test, node_test_of


@define(eq=False, repr=False, slots=False)
class NodeTestStore:
    """Reads the Operations as last seen, and an object itself before an act."""

    _operations: Operations

    def requests(self) -> dict[str, OperationRequest]:
        """The oldest request that has not begun, of each node that has one."""
        first = first_tests(self._operations.known.requests).items()
        return {node: OperationRequest(o.name, TEST, o.spec.profile, o.uid) for node, o in first}

    def tested(self) -> set[str]:
        """The nodes that have a test, or had one."""
        return {one.spec.node for one in self._operations.known.node_tests()}

    def last(self, node: str, uid: str) -> tuple[NodeTest | None, str]:
        """The last test of the Node with this uid, and why that can't be read."""
        return last_test(self._operations.known.node_tests(node), uid)

    def lost(self, node: str, uid: str) -> list[Operation]:
        """The tests under way of another Node of this name, which is gone. ``uid``: of the present
        one, empty without one.
        """
        busy = (one for one in self._operations.known.node_tests(node) if one.status.phase in BUSY)
        return [one for one in busy if one.status.node_uid != uid]

    def why_ended(self, test: NodeTest, node: str) -> str:
        """Why a person has ended the test, as last seen; empty: it goes on."""
        going = (one.name for one in self._operations.known.node_tests(node) if not one.deleting)
        return "" if test.name in going else DELETED_BY_HAND

    async def read(self, test: NodeTest) -> NodeTest | None:
        """The test as it is now; None: it is gone."""
        there = await self._operations.read(test.name)
        found = node_test_of(there) if there is not None else None
        return found if found is not None and found.operation == test.operation else None
