"""Decides whether a node's agent may begin the act of its order, from the cluster as it is now.

The order left when its attempt was durable, and the agent has prepared its act since. So each
object is read anew, and the guard comes last. A refusal needs no certainty; a permission does.
"""

import asyncio
from functools import partial

from attrs import define

from aggregator.cluster.port import ClusterError, GuardRefused
from aggregator.policy.repairs import TEST
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.decide.repair_permission import CANCELLED, NO_ORDER, open_attempt
from aggregator.quarantine.repair.node_test_checks import NodeTestChecks
from aggregator.quarantine.repair.protocol import PermissionRequest
from aggregator.quarantine.repair.quarantine_case import RepairContext
from aggregator.quarantine.state.node import NodeState
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
                    except ClusterError as error:
                        why = f"the cluster can't be read: {error}"
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
        if open_attempt(known, request.operation) is None:
            return NO_ORDER  # an agent's invention costs no read
        return await self._in_quarantine(node_state, request)

    async def _in_service(self, node: str, request: PermissionRequest) -> str:
        watched = self._node_tests.shared.nodes.get(node)
        known = watched.test if watched is not None else None
        if known is None or (known.operation, TEST) != (request.operation, request.repair):
            return NO_ORDER  # an agent's invention costs no read
        if known.node_uid != request.quarantine:
            return "the cluster's Node is another one, or none"
        why = await self._node_tests.refusal(node, known)
        if not why:
            await self._node_tests.order_guard(node, known)()
        return why

    async def _in_quarantine(self, node_state: NodeState, request: PermissionRequest) -> str:
        why = await self._quarantined.refusal(
            node_state, request.quarantine, request.operation, request.repair
        )
        if why:
            return why
        cancelled = partial(_why_cancelled, node_state, request.operation)
        await self._quarantined.acts.guard(node_state, against=cancelled)()
        if not self._quarantined.record_writer.has_operation(node_state.node, request.operation):
            return "the admission record does not have the repair any more"
        return ""


def _why_cancelled(node_state: NodeState, operation: str) -> str:
    """Why the order is not to be carried out, as last seen: the guard waits for the stop switch."""
    attempt = open_attempt(node_state.quarantine, operation)
    return NO_ORDER if attempt is None else CANCELLED if attempt.deleted else ""
