"""Decides whether a node's agent may begin the act of its order, from the cluster as it is now.

The order left when its attempt was durable, and the agent has prepared its act since. So the guard
of the order is passed once more, by new reads. A refusal needs no certainty; a permission does.
"""

import asyncio

from attrs import define

from aggregator.cluster.port import GuardRefused, GuardUnreadable
from aggregator.policy.repairs import TEST
from aggregator.quarantine.actions.act_guard import NEVER
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.decide.repair_permission import NO_ORDER, open_attempt
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.protocol import PermissionRequest
from aggregator.quarantine.repair.quarantine_case import QuarantineCase, RepairContext
from aggregator.quarantine.state.registry import NodeRegistry
from sickbay.v1.limits import PERMISSION_SECONDS

#: Reads that failed are repeated after this long (seconds).
_AGAIN = 1.0


@define(eq=False, repr=False, slots=False, kw_only=True)
class RepairPermissions:
    """Reads and changes nothing."""

    _quarantined: RepairContext
    _node_tests: NodeTestChecks
    _registry: NodeRegistry

    async def refusal(self, node: str, request: PermissionRequest) -> str:
        """Why the act must not begin; empty: it may, from the last wait of this method on.

        Where the cluster can't be read it is tried again for as long as the answer would count.
        """
        why = "the cluster has not answered"
        try:
            async with asyncio.timeout(PERMISSION_SECONDS):
                while True:
                    try:
                        return await self._decide(node, request)
                    except GuardRefused as error:
                        return str(error)
                    except GuardUnreadable as error:
                        why = str(error)
                    await asyncio.sleep(_AGAIN)
        except TimeoutError:
            return why

    async def _decide(self, node: str, request: PermissionRequest) -> str:
        if self._quarantined.settings.rules.mode is not RepairMode.REPAIR:
            return f"repair.mode is {self._quarantined.settings.rules.mode.value}"
        node_state = self._registry.known(node)
        known = node_state.quarantine if node_state is not None else None
        if node_state is None or known is None or known.uid != request.quarantine:
            return await self._in_service(node, request)
        attempt = open_attempt(known, request.operation)
        if attempt is None or attempt.repair != request.repair:
            return NO_ORDER  # an agent's invention costs no read
        case = QuarantineCase(self._quarantined, node_state, known)
        await case.order_guard(attempt, NEVER)()
        return ""

    async def _in_service(self, node: str, request: PermissionRequest) -> str:
        watched = self._node_tests.shared.nodes.get(node)
        known = watched.test if watched is not None else None
        if known is None or (known.operation, TEST) != (request.operation, request.repair):
            return NO_ORDER  # an agent's invention costs no read
        if known.node_uid != request.quarantine:
            return "the cluster's Node is another one, or none"
        await self._node_tests.order_guard(node, known, NEVER)()
        return ""
