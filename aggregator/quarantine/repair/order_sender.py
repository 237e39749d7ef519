"""Sends the order of an attempt that is durable, unless its purpose is gone."""

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    GuardRefused,
    Phase,
    Quarantine,
    RepairAttempt,
)
from aggregator.quarantine.actions.act_guard import FreshRead
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.repair.before_release import TestsBeforeRelease
from aggregator.quarantine.repair.order_checks import OrderChecks
from aggregator.quarantine.repair.order_preparation import OrderPreparation
from aggregator.quarantine.repair.orders import RepairOrders
from aggregator.quarantine.repair.protocol import RepairAnswer
from aggregator.quarantine.repair.repairer_calls import SEND_WITHIN, RepairerCalls
from aggregator.quarantine.repair.unsent_orders import UnsentOrders
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import while_in_force


class OrderSender:
    """Checks once more before the order leaves, however long it waited."""

    def __init__(
        self,
        *,
        acts: NodeActions,
        clocks: Clocks,
        orders: RepairOrders,
        calls: RepairerCalls,
        tests: TestsBeforeRelease,
        checks: OrderChecks,
        preparation: OrderPreparation,
        unsent: UnsentOrders,
    ) -> None:
        self._acts = acts
        self._clocks = clocks
        self._orders = orders
        self._calls = calls
        self._tests = tests
        self._checks = checks
        self._preparation = preparation
        self._unsent = unsent

    async def send(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt, written: float
    ) -> RepairAnswer | None:
        """Send the order. ``written``: when it was made durable. Returns the repairer's answer, or
        None where the order was not sent or its answer is not waited for any more.
        """
        if not await self._preparation.finish(node_state, quarantine, attempt):
            return None
        if self._clocks.now() - written > SEND_WITHIN:
            return None  # the process was paused in between
        order = self._orders.order_of(quarantine, attempt)

        def still() -> bool:
            return self._is_wanted(node_state, quarantine.uid)

        def against() -> str:
            gone = f"{attempt.repair} of {node_state.node} is not wanted any more"
            return self._preparation.lapsed(node_state, attempt) or ("" if still() else gone)

        async def read() -> str:
            return await self._checks.refusal(
                node_state, quarantine.uid, attempt.operation, attempt.repair
            )

        fresh = FreshRead(read, clocks=self._clocks, began=written)
        guard = self._acts.guard(node_state, against=against, fresh=fresh)
        try:
            await (
                guard()
            )  # before the repairer's first step; the repairer repeats it after its last
        except GuardRefused:
            if still():
                raise
            return None
        known = self._unsent.take(node_state, attempt)

        def note_unsent() -> None:
            if known:
                self._unsent.note_begun(node_state, attempt)

        ordering = self._calls.order(order, guard, on_unsent=note_unsent)
        return await while_in_force(node_state, ordering, still)

    def _is_wanted(self, node_state: NodeState, quarantine_uid: str) -> bool:
        """Whether the quarantine that the order is for is still in force."""
        known = node_state.quarantine
        if known is None or known.uid != quarantine_uid or known.deleting:
            return False
        self._tests.note_evidence(node_state, known)
        return known.status.phase is not Phase.RELEASING
