"""Why the order of a durable attempt must not act now, by all that it rests on, read anew."""

import asyncio

from aggregator.cluster.port import Cluster, RepairAttempt
from aggregator.quarantine.decide.repair_permission import (
    CANCELLED,
    NO_ORDER,
    open_attempt,
    permission_refusal,
)
from aggregator.quarantine.repair.start_checks import RepairStartChecks
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.operation_times import OperationTimes


class OrderChecks:
    """Reads and changes nothing. An order is checked so before it leaves, however long it waited
    for its connection, and once more when its agent requests permission to begin.
    """

    def __init__(
        self, *, cluster: Cluster, checks: RepairStartChecks, times: OperationTimes
    ) -> None:
        self._cluster = cluster
        self._checks = checks
        self._times = times

    async def refusal(
        self, node_state: NodeState, quarantine_uid: str, operation: str, repair: str
    ) -> str:
        """Why not; empty: it may. The Quarantine, the Node with a person's requests, and the pods
        are read. Raises ClusterError.
        """
        quarantine, node = await asyncio.gather(
            self._cluster.read_quarantine(node_state.node),
            self._cluster.read_node(node_state.node),
        )
        if quarantine is not None and quarantine.uid != quarantine_uid:
            return NO_ORDER
        attempt = open_attempt(quarantine, operation)
        began = attempt.began_at if attempt is not None else 0.0
        now = self._times.time_of(operation, began)
        why = permission_refusal(quarantine, node, operation, repair, now)
        if why or quarantine is None or node is None:
            return why
        by_hand = attempt is not None and bool(attempt.request)
        why = await self._checks.against(
            node_state, node, quarantine, repair, by_hand=by_hand, anew=True
        )
        return why or await self._why_cancelled(attempt)

    async def _why_cancelled(self, attempt: RepairAttempt | None) -> str:
        """The last read: the others took their time, and a person may have cancelled meanwhile."""
        there = await self._cluster.operations.read(attempt.name) if attempt is not None else None
        gone = there is None or there.deleting or not there.is_open
        return CANCELLED if gone else ""
