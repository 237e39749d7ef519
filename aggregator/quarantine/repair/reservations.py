"""The reservations of attempts in the admission record, by which the fleet's limits count them.

A ticket has none, as it counts for no limit.
"""

from aggregator.cluster.port import Quarantine, RepairAttempt, RepairState
from aggregator.policy.repairs import ASKS_A_PERSON
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.repair import (
    Do,
    NextRepair,
    RepairLimits,
    operation_id,
    running_of,
)
from aggregator.quarantine.decide.reservation import OperationProposal
from aggregator.quarantine.repair.attempts import held_text
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.state.node import NodeState


class RepairReservations:
    """``pool_label`` names the node label by which the limit of a pool counts; empty: none."""

    def __init__(
        self,
        record_writer: AdmissionRecordWriter,
        settings: RepairSettings,
        pool_label: str,
    ) -> None:
        self._record_writer = record_writer
        self._settings = settings
        self._pool_label = pool_label

    async def reserve(
        self, node_state: NodeState, step: NextRepair, operation: str, domains: tuple[str, ...]
    ) -> str:
        """Reserve an attempt that is to begin. Returns what holds it; empty: it is reserved."""
        if step.repair in ASKS_A_PERSON:
            return ""
        held = await self._record_writer.reserve(
            OperationProposal(
                node_state.node,
                operation,
                step.repair,
                self._settings.repairers[step.repair].timeout,
                self._pool_of(node_state),
                domains,
            ),
            RepairLimits(self._settings.rules, by_hand=bool(step.request)),
        )
        return held_text(step.repair, held) if held is not None else ""

    async def keep(self, node_state: NodeState, attempt: RepairAttempt) -> str:
        """Reserve an attempt again that the record has lost: it has to keep the limits. Returns
        what holds it; empty: it is reserved.
        """
        if self.counts(node_state, attempt):
            return ""
        times = self._record_writer.times
        held = await self._record_writer.reserve(
            OperationProposal(
                node_state.node,
                attempt.operation,
                attempt.repair,
                max(0.0, attempt.deadline_at - times.time_of(attempt.operation, attempt.began_at)),
                self._pool_of(node_state),
                attempt.domains,
            ),
            # It was admitted within the bound of attempts.
            RepairLimits(self._settings.rules, by_hand=True),
        )
        return held_text(attempt.repair, held) if held is not None else ""

    def counts(self, node_state: NodeState, attempt: RepairAttempt) -> bool:
        """Whether the record counts the attempt; a ticket counts for no limit."""
        reserved = self._record_writer.has_operation(node_state.node, attempt.operation)
        return attempt.repair in ASKS_A_PERSON or reserved

    async def restore_lost(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Count a repair under way again that another version's replica has dropped.

        Not an order that may be sent again: it has to keep the limits as they are now.
        """
        repair = quarantine.status.repair
        lost = running_of(quarantine.node, repair, self._pool_of(node_state))
        if lost is None or repair is None:
            return
        entry = self._settings.repairers.get(lost.kind)
        again = entry is not None and entry.repairer.sends_twice
        if not (again and repair.attempts[-1].state is RepairState.ORDERING):
            await self._record_writer.restore_operation(lost)

    async def forget_leftover(
        self, node_state: NodeState, quarantine: Quarantine, step: NextRepair
    ) -> None:
        """Take out a reservation whose attempt has ended, or was never begun.

        A process that died in between leaves it behind.
        """
        known = self._record_writer.record.repairs.get(node_state.node)
        if known is None or not known.operation.startswith(quarantine.uid):
            return
        coming = operation_id(quarantine.uid, quarantine.status.repair, step.repair)
        if step.do is not Do.ORDER or known.operation != coming:
            await self._record_writer.end_operation(known.operation)

    async def end(self, attempt: RepairAttempt) -> None:
        await self._record_writer.end_operation(attempt.operation)

    def _pool_of(self, node_state: NodeState) -> str:
        """The pool for the limits, by the labels as last seen."""
        labels = node_state.cluster.labels or {}
        return labels.get(self._pool_label, "") if self._pool_label else ""
