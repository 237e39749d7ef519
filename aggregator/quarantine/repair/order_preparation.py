"""Prepares an order: the limits count its attempt, and no pod of the GPU operator holds GPUs."""

from collections.abc import Mapping

from aggregator.clock import Clocks
from aggregator.cluster.port import Quarantine, RepairAttempt
from aggregator.quarantine.repair.attempts import POLL_SOON
from aggregator.quarantine.repair.operand_pause import OperandPause
from aggregator.quarantine.repair.protocol import ConfiguredRepairer
from aggregator.quarantine.repair.reservations import RepairReservations
from aggregator.quarantine.repair.status_writer import RepairStatusWriter
from aggregator.quarantine.state.node import NodeState


class OrderPreparation:
    """Writes into the Quarantine why an order waits."""

    def __init__(
        self,
        *,
        clocks: Clocks,
        repairers: Mapping[str, ConfiguredRepairer],
        reservations: RepairReservations,
        operands: OperandPause,
        status: RepairStatusWriter,
    ) -> None:
        self._clocks = clocks
        self._repairers = repairers
        self._reservations = reservations
        self._operands = operands
        self._status = status

    async def finish(
        self, node_state: NodeState, quarantine: Quarantine, attempt: RepairAttempt
    ) -> bool:
        """Whether the limits count the attempt, and the node is ready for its order."""
        entry = self._repairers.get(attempt.repair)
        if entry is None:
            return False
        held = await self._reservations.keep(node_state, attempt)
        if held:
            await self._status.hold(node_state, quarantine, held)
            return False
        waits = await self._operands.stop(node_state, attempt) if entry.pauses_operands else ""
        if waits:
            await self._status.hold(node_state, quarantine, f"{attempt.repair} waits: {waits}")
            node_state.own_quarantine_view().delay_repair(self._clocks.now() + POLL_SOON)
        return not waits

    def lapsed(self, node_state: NodeState, attempt: RepairAttempt) -> str:
        """Why the order must not be sent any more, after its last wait; empty: it may."""
        if self._reservations.counts(node_state, attempt):
            return ""
        return "the admission record does not have the repair any more"
