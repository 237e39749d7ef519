"""Removes what the order of an attempt has left in the cluster, at its end and at a release."""

import asyncio
import contextlib
import logging

from aggregator.cluster.port import Quarantine, RepairAttempt, RepairState
from aggregator.quarantine.repair.operand_pause import OperandPause
from aggregator.quarantine.repair.orders import RepairOrders
from aggregator.quarantine.repair.outcome import AttemptOutcome
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairSettings
from aggregator.quarantine.repair.repairer_calls import REMOVE_WITHIN
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.operation_times import OperationTimes

log = logging.getLogger("sickbay.quarantine")

#: This long a release waits for the same (seconds): it must not be held up.
_WITHDRAWS = 5.0
_CANCELLED = AttemptOutcome(RepairState.CANCELLED, "the node is released")
_MAY_COME = AttemptOutcome(
    RepairState.UNKNOWN,
    "the node is released, and the order can't be taken back: it may still reach the node",
)


class RepairLeftovers:
    """Objects, and operands of the GPU operator that were stopped: the kind distinguishes them."""

    def __init__(
        self,
        *,
        settings: RepairSettings,
        orders: RepairOrders,
        operands: OperandPause,
        times: OperationTimes,
    ) -> None:
        self._settings = settings
        self._orders = orders
        self._operands = operands
        self._times = times
        #: The attempts whose orders a person's release has withdrawn, by node.
        self._withdrawn: dict[str, str] = {}

    def may_exist(self, attempt: RepairAttempt) -> bool:
        """Whether an order of its kind leaves something."""
        entry = self._settings.repairers.get(attempt.repair)
        return entry is not None and (entry.clean_up is not None or entry.pauses_operands)

    async def remove(
        self, node_state: NodeState, attempt: RepairAttempt, state: RepairState
    ) -> str | None:
        """The leftovers of the order, in words; None: its removal is to be tried again.

        ``state``: in which the attempt ends.
        """
        entry = self._settings.repairers.get(attempt.repair)
        quarantine = node_state.quarantine
        now = self._times.time_of(attempt.operation, attempt.began_at)
        late = now > attempt.deadline_at + REMOVE_WITHIN
        if entry is not None and entry.pauses_operands:
            stopped_for = await self._operands.resume(node_state, attempt)
            if stopped_for:  # the release starts them too
                return f"GPU operands are still stopped: {stopped_for}" if late else None
        if entry is None or entry.clean_up is None or quarantine is None:
            return ""
        if state is RepairState.CANCELLED:  # the cancellation has removed it
            return ""
        answer = await entry.clean_up(self._orders.order_of(quarantine, attempt))
        if answer.state is AnswerState.DONE:
            return ""
        if answer.state is AnswerState.NOT_SENT and not late:
            return None
        _log_left(node_state, attempt, answer.text)
        return f"what it left in the cluster can't be removed: {answer.text}"

    async def withdraw(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt
    ) -> AttemptOutcome | None:
        """The node is released while the attempt may act on it: cancel its order, once.

        A failure holds up no release. Returns what is known of the order then; None: it was
        cancelled before.
        """
        if self._withdrawn.get(node_state.node) == attempt.operation:
            return None
        entry = self._settings.repairers.get(attempt.repair)
        if entry is None:
            return _MAY_COME
        self._withdrawn[node_state.node] = attempt.operation
        order, late = self._orders.order_of(quarantine, attempt), f"no answer in {_WITHDRAWS:g} s"
        cancelled = False
        if entry.withdraw is not None:
            entry.withdraw(order)
        if entry.clean_up is not None:
            answer = RepairAnswer(AnswerState.NOT_SENT, late)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WITHDRAWS):
                    answer = await entry.clean_up(order)
            cancelled = answer.state is AnswerState.DONE
            if not cancelled:
                _log_left(node_state, attempt, answer.text)
        elif entry.withdraw is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WITHDRAWS):
                    cancelled = await entry.repairer.cancel(order)
        if entry.by_agent:
            return AttemptOutcome(
                RepairState.UNKNOWN,
                "the node is released; what its agent has begun goes on, and nothing else begins",
            )
        return _CANCELLED if cancelled else _MAY_COME


def _log_left(node_state: NodeState, attempt: RepairAttempt, why: str) -> None:
    log.warning(
        "an object of a repair can't be removed",
        extra={
            "event": "repair.left_behind",
            "node": node_state.node,
            "operation": attempt.operation,
            "error": why,
        },
    )
