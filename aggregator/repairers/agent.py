"""A GPU reset, a reboot or a test by the node's agent, where its configuration allows that verb.

The order uses the agent's authenticated stream to this replica, which owns the node. The agent's
journal carries out each operation once, so an order whose answer was lost is sent again. A reset
has succeeded when the agent reports so; a reboot when the Node has another boot id. A test that the
agent refuses, or whose end it does not know, has no verdict about the node.
"""

import json
from collections.abc import Iterable
from dataclasses import astuple

from aggregator.cluster.port import Guard
from aggregator.policy.repairs import GPU_RESET, TEST
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.agent_orders import (
    AgentOrder,
    AgentOrders,
    AgentResult,
    Measured,
    OrderState,
)

#: The most GPUs of one order, by the contract.
_MOST_GPUS = 64
#: Seconds in which an agent answers: it reads its record and writes it.
_ANSWER_WITHIN = 15.0
#: Seconds in which the act must have begun: the agent collects evidence and releases the driver.
_BEGIN_WITHIN = 300.0
#: Characters of the measurements that an event of the history keeps.
_MOST_MEASURED = 3800
_IN_WORDS = {
    "not-allowed": "the node's own configuration does not allow it (repair.allow in agent.toml)",
    "in-use": "a GPU is in use",
    "capped": "the node has had as many as its own configuration allows (repair.max_... in "
    "agent.toml)",
    "busy": "another order or a test by hand is under way",
    "other-boot": "the node is in another boot than the order was for",
    "deadline": "it could not begin in time",
    "unknown-gpu": "the node does not have that GPU",
    "driver-held": "the agent itself can't release the driver",
    "missing-tool": "the node lacks the program for it",
    "no-record": "the agent can't record it",
    "no-evidence": "the agent can't keep the evidence of before",
    "agent-restarted": "the agent was restarted before it began",
    "cancelled": "it was cancelled before it began",
    "not-permitted": "this aggregator did not permit it in time",
    "unknown-error": "nvidia-smi answers Unknown Error, as where a cloud forbids resets",
}
#: Refusals that lie in the moment: the controller has changed, a test by hand runs, the agent was
#: updated, or the node has rebooted since.
_PASSING = frozenset({"not-permitted", "busy", "agent-restarted", "other-boot"})
#: The remedy that a person has.
_ADVICE = {
    "in-use": "; the pods of the GPU operator hold GPUs too, and are stopped for a reset with "
    "pause_gpu_operator: true",
}


class AgentRepairer:
    """Implements `Repairer` for the kinds gpu-reset, reboot and test."""

    sends_twice = True

    def __init__(self, orders: AgentOrders) -> None:
        self._orders = orders

    async def order(self, order: RepairOrder, guard: Guard) -> RepairAnswer:
        known = self._orders.result_of(order.node, order.operation)
        if known is not None:
            return _answer_of(order.repair, known)
        problem = _problem(order)
        if problem:
            return RepairAnswer(_refused(order.repair), problem)
        line = self._orders.line_of(order.node)
        if line is None:
            text = "the node's agent is not connected to this replica, which waits for it"
            return RepairAnswer(AnswerState.NOT_SENT, text)
        if order.repair not in line.repair_verbs:
            if self._orders.is_ours(order.node, order.operation):
                text = "the agent does not allow it any more, and gave no answer when it did"
                return RepairAnswer(AnswerState.UNSURE, text)
            state = _refused(order.repair)
            return RepairAnswer(state, _refusal(order.repair, "not-allowed", ""))
        if order.repair == TEST and order.profile not in line.test_profiles:
            named = ", ".join(line.test_profiles) or "none"
            text = f"the node's agent has no test profile {order.profile}; it has: {named}"
            return RepairAnswer(AnswerState.INCONCLUSIVE, text)
        await guard()
        if self._orders.line_of(order.node) is not line:
            return RepairAnswer(AnswerState.NOT_SENT, "the agent's stream has ended just now")
        self._orders.begin(order.node, order.operation, order.quarantine)
        line.order_repair(
            AgentOrder(
                operation=order.operation,
                verb=order.repair,
                quarantine=order.quarantine or order.node_uid,
                boot_id=order.boot_id,
                within=min(order.lasts, _BEGIN_WITHIN),
                gpus=order.gpus if order.repair == GPU_RESET else (),
                message=order.reason,
                profile=order.profile,
            )
        )
        within = min(order.lasts, _ANSWER_WITHIN)
        answered = await self._orders.answer(order.node, order.operation, within=within)
        if answered is None:
            text = f"the agent's stream ended before its answer, or it gave none in {within:g} s"
            return RepairAnswer(AnswerState.UNSURE, text)
        return _answer_of(order.repair, answered)

    async def read_outcome(self, order: RepairOrder) -> RepairAnswer:
        """The agent's latest word. A reset without an end is not known to have failed."""
        self._orders.follow(order.node, order.operation, order.quarantine)
        known = self._orders.result_of(order.node, order.operation)
        waits = RepairAnswer(
            AnswerState.UNSURE if order.repair == GPU_RESET else AnswerState.TAKEN,
            "the agent has not reported its end",
        )
        return waits if known is None or not known.is_final else _answer_of(order.repair, known)

    async def cancel(self, order: RepairOrder) -> bool:
        """Only an order that has not begun can be taken back, and a test at any time."""
        known = self._orders.result_of(order.node, order.operation)
        if known is None or not known.is_final:
            line = self._orders.line_of(order.node)
            if line is None:
                return False
            line.cancel_repair(order.operation, "cancelled by a person")
            within = min(order.lasts, _ANSWER_WITHIN)
            known = await self._orders.answer(
                order.node, order.operation, within=within, final=True
            )
        ended = (OrderState.REFUSED, OrderState.INCONCLUSIVE)
        return known is not None and known.state in ended

    def withdraw(self, order: RepairOrder) -> None:
        """Request from the agent not to begin, where it is connected; its answer is not waited
        for.
        """
        line = self._orders.line_of(order.node)
        if line is not None:
            line.cancel_repair(order.operation, "the node is released")

    def note_end(self, node: str, operation: str) -> None:
        self._orders.settle(node, operation)


def _problem(order: RepairOrder) -> str:
    """Why no agent could carry it out; empty: it could."""
    if not order.boot_id:
        return "the cluster does not report the node's boot id, to which an agent's order is bound"
    if order.repair != GPU_RESET:
        return ""
    if not order.gpus:
        return (
            "no evidence of the quarantine names a GPU by its UUID, and an agent resets no others; "
            "expected a reboot"
        )
    if len(order.gpus) > _MOST_GPUS:
        return f"{len(order.gpus)} GPUs have evidence, and an agent resets {_MOST_GPUS} at most"
    return ""


def _answer_of(repair: str, result: AgentResult) -> RepairAnswer:
    match result.state:
        case OrderState.ACCEPTED:
            return RepairAnswer(AnswerState.TAKEN, "the agent has accepted it")
        case OrderState.RUNNING:
            return RepairAnswer(AnswerState.TAKEN, "the agent has begun it")
        case OrderState.SUCCEEDED:
            return RepairAnswer(AnswerState.DONE, result.message, _measured(result.measured))
        case OrderState.REFUSED:
            text = _refusal(repair, result.reason, result.message)
            return RepairAnswer(_refused(repair, result.reason), text)
    state = AnswerState.FAILED
    if result.state is not OrderState.FAILED:
        state = AnswerState.INCONCLUSIVE if repair == TEST else AnswerState.UNSURE
    text = _describe(result.reason, result.message)
    return RepairAnswer(state, text, _measured(result.measured))


def _refused(repair: str, reason: str = "") -> AnswerState:
    """The answer that a refusal by the agent is. One that lay in the moment is no result of this
    repair, and calls for no stronger one.
    """
    none = repair == TEST or reason in _PASSING
    return AnswerState.INCONCLUSIVE if none else AnswerState.FAILED


def _measured(found: Iterable[Measured]) -> dict[str, str]:
    """The measurements for the history: rows of measure, component, value and unit, as JSON."""
    text = ""
    for one in found:
        row = json.dumps(astuple(one), separators=(",", ":"))
        if len(text) + len(row) + 3 > _MOST_MEASURED:
            break
        text = f"{text},{row}" if text else row
    return {"measurements": f"[{text}]"} if text else {}


def _refusal(repair: str, reason: str, message: str) -> str:
    return f"the agent refuses {repair}: {_describe(reason, message)}"


def _describe(reason: str, message: str) -> str:
    words = _IN_WORDS.get(reason, reason)
    text = f"{words}: {message}" if words and message else words or message
    return f"{text}{_ADVICE.get(reason, '')}"
