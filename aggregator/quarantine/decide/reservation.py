"""The reservation of an operation in the admission record, a repair or a node's test. Pure.

The record is changed by compare-and-set, so its limits hold for any interleaving of replicas.
"""

from dataclasses import replace
from typing import Protocol

from aggregator.cluster.port import RepairAttempt
from aggregator.quarantine.decide.admission import FleetSize, settling, stopped
from aggregator.quarantine.decide.admission_record import Record, RunningOperation
from aggregator.quarantine.decide.held import Held

#: An operation counts for the limits this much longer than its deadline (seconds): until the
#: process that sees the end of it has written that.
LINGERS = 300.0


def running_of(node: str, attempt: RepairAttempt, kind: str, pool: str = "") -> RunningOperation:
    """The reservation that an attempt under way must have. ``kind``: in the record."""
    name, at, until = attempt.operation, attempt.began_at, attempt.deadline_at + LINGERS
    return RunningOperation(node, name, kind, at, until, pool, attempt.domains)


class OperationLimits(Protocol):
    """The limits of one kind of operations."""

    def current(self, record: Record, now: float, /) -> Record:
        """The record without what counts no more for these limits."""
        ...

    def hold(self, record: Record, proposal: RunningOperation, size: FleetSize, /) -> Held | None:
        """Why it may not begin now, or None. ``record`` is a current one."""
        ...


def reserve(
    record: Record,
    proposal: RunningOperation,
    limits: OperationLimits,
    size: FleetSize,
    *,
    now: float,
    stop: str = "",
) -> tuple[Record, Held | None]:
    """The record with the operation under way, or why it may not begin now. Idempotent. Of the
    times of the ``proposal`` only how far they are apart counts: it begins ``now``.
    """
    if stop:
        return record, stopped(stop)
    known = record.operations.get(proposal.operation)
    if known is not None and known.node == proposal.node:
        return record, None
    kept = limits.current(record, now)
    hold = settling(kept, now) or limits.hold(kept, proposal, size)
    if hold is not None:
        return record, hold
    return kept.begin(replace(proposal, at=now, until=now + proposal.until - proposal.at)), None
