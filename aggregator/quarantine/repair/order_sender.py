"""Sends the order of an attempt that is durable, unless its purpose is gone."""

from collections.abc import Mapping

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    GuardRefused,
    Phase,
    Quarantine,
    RepairAttempt,
    RepairState,
)
from aggregator.quarantine.actions.act_guard import FreshRead
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.repair.attempts import POLL_SOON
from aggregator.quarantine.repair.before_release import TestsBeforeRelease
from aggregator.quarantine.repair.operand_pause import OperandPause
from aggregator.quarantine.repair.order_checks import OrderChecks
from aggregator.quarantine.repair.orders import RepairOrders
from aggregator.quarantine.repair.protocol import ConfiguredRepairer, RepairAnswer
from aggregator.quarantine.repair.repairer_calls import SEND_WITHIN, RepairerCalls
from aggregator.quarantine.repair.reservations import RepairReservations
from aggregator.quarantine.repair.status_writer import RepairStatusWriter
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import while_in_force


class OrderSender:
    """Remembers which orders this process has certainly not sent."""

    def __init__(
        self,
        *,
        acts: NodeActions,
        clocks: Clocks,
        repairers: Mapping[str, ConfiguredRepairer],
        orders: RepairOrders,
        calls: RepairerCalls,
        tests: TestsBeforeRelease,
        reservations: RepairReservations,
        operands: OperandPause,
        status: RepairStatusWriter,
        checks: OrderChecks,
    ) -> None:
        self._acts = acts
        self._clocks = clocks
        self._repairers = repairers
        self._orders = orders
        self._calls = calls
        self._tests = tests
        self._reservations = reservations
        self._operands = operands
        self._status = status
        self._checks = checks
        #: The operation of each node that this process began and has certainly not ordered.
        self._unsent: dict[str, str] = {}

    def note_begun(self, node_state: NodeState, attempt: RepairAttempt) -> None:
        """The attempt is durable, and its order has not been sent."""
        self._unsent[node_state.node] = attempt.operation

    def is_unsent(self, node_state: NodeState, attempt: RepairAttempt) -> bool:
        """Whether nobody can have sent the order."""
        ours = self._unsent.get(node_state.node) == attempt.operation
        return ours and attempt.state is RepairState.ORDERING

    async def send(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt, written: float
    ) -> RepairAnswer | None:
        """Send the order. ``written``: when it was made durable. Returns the repairer's answer, or
        None where the order was not sent or its answer is not waited for any more.
        """
        entry = self._repairers.get(attempt.repair)
        if entry is None or not await self._is_prepared(node_state, quarantine, attempt, entry):
            return None
        if self._clocks.now() - written > SEND_WITHIN:
            return None  # the process was paused in between
        order = self._orders.order_of(quarantine, attempt)

        def still() -> bool:
            return self._is_wanted(node_state, quarantine.uid)

        def against() -> str:
            if not self._reservations.counts(node_state, attempt):
                return "the admission record does not have the repair any more"
            return (
                "" if still() else f"{attempt.repair} of {node_state.node} is not wanted any more"
            )

        async def read() -> str:
            return await self._checks.refusal(
                node_state, quarantine.uid, attempt.operation, attempt.repair
            )

        fresh = FreshRead(read, now=self._clocks.now, began=written)
        guard = self._acts.guard(node_state, against=against, fresh=fresh)
        try:
            await (
                guard()
            )  # before the repairer's first step; the repairer repeats it after its last
        except GuardRefused:
            if still():
                raise
            return None
        unsent = self._take_unsent(node_state, attempt)

        def note_unsent() -> None:
            if unsent is not None:
                self._unsent[node_state.node] = unsent

        ordering = self._calls.order(order, guard, on_unsent=note_unsent)
        return await while_in_force(node_state, ordering, still)

    async def _is_prepared(
        self,
        node_state: NodeState,
        quarantine: Quarantine,
        attempt: RepairAttempt,
        entry: ConfiguredRepairer,
    ) -> bool:
        """Whether the limits count the attempt, and the node is ready for its order."""
        held = await self._reservations.keep(node_state, attempt)
        if held:
            await self._status.hold(node_state, quarantine, held)
            return False
        waits = await self._operands.stop(node_state, attempt) if entry.pauses_operands else ""
        if waits:
            await self._status.hold(node_state, quarantine, f"{attempt.repair} waits: {waits}")
            node_state.own_quarantine_view().delay_repair(self._clocks.now() + POLL_SOON)
        return not waits

    def _is_wanted(self, node_state: NodeState, quarantine_uid: str) -> bool:
        """Whether the quarantine still stands that the order is for."""
        known = node_state.quarantine
        if known is None or known.uid != quarantine_uid or known.deleting:
            return False
        self._tests.note_evidence(node_state, known)
        return known.status.phase is not Phase.RELEASING

    def _take_unsent(self, node_state: NodeState, attempt: RepairAttempt) -> str | None:
        """Forget that the order was not sent. Returns what was known of it."""
        if self._unsent.get(node_state.node) != attempt.operation:
            return None
        return self._unsent.pop(node_state.node)
