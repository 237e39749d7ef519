"""Reads how an attempt has come out: by the Node, and by what its repairer reports."""

from collections.abc import Mapping
from typing import NamedTuple

from aggregator.cluster.port import Node, NodesAndPods, Quarantine, RepairAttempt, RepairState
from aggregator.policy.repairs import REBOOT, REPLACE, TEST
from aggregator.quarantine.repair.attempts import is_proved_by_node
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.repair.orders import RepairOrders
from aggregator.quarantine.repair.protocol import AnswerState, ConfiguredRepairer, RepairAnswer
from aggregator.quarantine.repair.repairer_calls import RepairerCalls, end_state
from aggregator.quarantine.state.node import NodeState


class AttemptOutcome(NamedTuple):
    """The state in which an attempt ends, and why, for people."""

    state: RepairState
    text: str


def known_outcome(attempt: RepairAttempt) -> AttemptOutcome | None:
    """The outcome of an attempt that is over, where its end only waits for what its order left."""
    return AttemptOutcome(attempt.ends_as, attempt.message) if attempt.ends_as is not None else None


def outcome_of(attempt: RepairAttempt, answer: RepairAnswer) -> AttemptOutcome | None:
    """The outcome that the repairer's answer gives the attempt, or None while it gives none."""
    state = end_state(attempt.repair, answer)
    return AttemptOutcome(state, answer.text) if state is not None else None


class RepairOutcomes:
    """Reads the Node and queries the repairer; changes nothing."""

    def __init__(
        self,
        cluster: NodesAndPods,
        repairers: Mapping[str, ConfiguredRepairer],
        orders: RepairOrders,
        calls: RepairerCalls,
    ) -> None:
        self._cluster = cluster
        self._repairers = repairers
        self._orders = orders
        self._calls = calls

    async def proved(self, node_state: NodeState, attempt: RepairAttempt) -> AttemptOutcome | None:
        """The success that the Node itself shows, or None while it shows none."""
        if not is_proved_by_node(attempt.repair):
            return None
        node = await self._cluster.read_node(node_state.node)
        node_state.take_node(node)
        replaced = attempt.repair == REPLACE and (node is None or node.uid != attempt.node_uid)
        rebooted = attempt.repair == REBOOT and _is_in_another_boot(node_state, node, attempt)
        if not (replaced or rebooted) or not await self._is_over(node_state, attempt):
            return None
        proof = "another machine, or none" if replaced else "another boot"
        return AttemptOutcome(RepairState.SUCCEEDED, proof)

    async def _is_over(self, node_state: NodeState, attempt: RepairAttempt) -> bool:
        """Whether the controller that carries it out has finished: it may still act on the node,
        and delete pods there, after the node has returned.
        """
        entry = self._repairers.get(attempt.repair)
        quarantine = node_state.quarantine
        if entry is None or entry.is_over is None or quarantine is None:
            return True
        return await entry.is_over(self._orders.order_of(quarantine, attempt))

    async def answer(self, quarantine: Quarantine, attempt: RepairAttempt) -> RepairAnswer:
        """How far an order has come. One that may not have arrived is not queried: a repairer that
        keeps ids would take the query for the order.
        """
        if attempt.state is not RepairState.ORDERED:
            return RepairAnswer(AnswerState.UNSURE)
        return await self._calls.outcome(self._orders.order_of(quarantine, attempt))

    async def elsewhere(
        self, node_state: NodeState, attempt: RepairAttempt
    ) -> AttemptOutcome | None:
        """The outcome of a test whose node is another one now, or in another boot: no verdict."""
        if attempt.repair != TEST:
            return None
        node = await self._cluster.read_node(node_state.node)
        node_state.take_node(node)
        if node is not None and node.uid == attempt.node_uid:
            boots = {node.boot_id, attempt.boot_id} - {""}
            if len(boots) < 2:
                return None
        text = "the node is another one, or in another boot"
        return AttemptOutcome(RepairState.INCONCLUSIVE, text)


def _is_in_another_boot(node_state: NodeState, node: Node | None, attempt: RepairAttempt) -> bool:
    """Whether the node has returned in another boot than the attempt's.

    A cluster that knows no boots and no readiness has the word of the node's agent alone.
    """
    if node is None:
        return False
    by_agent = not node.boot_id and node.ready is None
    boot = boot_of(node_state) if by_agent else node.boot_id
    other = bool(boot and attempt.boot_id) and boot != attempt.boot_id
    return other and (by_agent or node.ready is True)
