"""Operations: one reset, reboot, replacement, ticket or test of a quarantined node, an object each.

Its name follows from the quarantine, a number and the kind, so that creating it is the
compare-and-set: two processes that decide on the same step compute the same name, and one of them
gets a `Conflict`. A `Quarantine` is read with the attempts that its operations are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aggregator.cluster.port import (
    Operation,
    OperationSpec,
    OperationStatus,
    Quarantine,
    RepairAttempt,
    RepairState,
    RepairStatus,
    is_older,
)


class KnownOperations:
    """The operations as last read, seen or written: none goes back to an earlier version."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, Operation]] = {}

    def has(self, node: str) -> bool:
        """Whether the node has any."""
        return node in self._by_node

    def take(self, operation: Operation) -> bool:
        """Take one that was seen or written. Returns whether it is new, or changed."""
        there = self._by_node.setdefault(operation.spec.node, {})
        known = there.get(operation.name)
        same = known is not None and known.uid == operation.uid
        if known is not None and same and not is_older(known.version, operation.version):
            return False
        there[operation.name] = operation
        return True

    def take_read(self, operations: Iterable[Operation], node: str = "") -> None:
        """These are all that there are of the node, or of the fleet: versions go backwards when
        etcd is restored.
        """
        if node:
            self._by_node.pop(node, None)
        else:
            self._by_node.clear()
        for one in operations:
            self._by_node.setdefault(one.spec.node, {})[one.name] = one

    def drop(self, operation: Operation) -> None:
        """It is gone."""
        there = self._by_node.get(operation.spec.node, {})
        known = there.get(operation.name)
        if known is not None and known.uid == operation.uid:
            del there[operation.name]
        if not there:
            self._by_node.pop(operation.spec.node, None)

    def join(self, quarantine: Quarantine) -> Quarantine:
        return with_attempts(quarantine, self._by_node.get(quarantine.node, {}).values())


def with_attempts(quarantine: Quarantine, operations: Iterable[Operation]) -> Quarantine:
    """The Quarantine with the attempts that its operations are, the oldest first."""
    begun = (
        one
        for one in operations
        if one.spec.quarantine == quarantine.uid and one.status.phase is not RepairState.PENDING
    )
    attempts = tuple(attempt_of(one) for one in sorted(begun, key=lambda one: one.spec.number))
    status = quarantine.status
    if attempts == (status.repair.attempts if status.repair is not None else ()):
        return quarantine
    repair = replace(status.repair or RepairStatus(), attempts=attempts)
    return replace(quarantine, status=replace(status, repair=repair))


def attempt_of(operation: Operation) -> RepairAttempt:
    """The attempt that an operation is."""
    spec, status = operation.spec, operation.status
    return RepairAttempt(
        operation=operation.name,
        repair=spec.kind,
        state=status.phase,
        boot_id=spec.boot_id,
        node_uid=spec.node_uid,
        request=status.request,
        began_at=status.began_at,
        deadline_at=status.deadline_at,
        ended_at=status.ended_at,
        message=status.message,
        domains=spec.domains,
        profile=spec.profile,
        ends_as=status.ends_as,
        deleted=operation.deleting,
    )


def spec_of(quarantine: Quarantine, attempt: RepairAttempt, number: int) -> OperationSpec:
    """The spec of the operation that an attempt is to become."""
    return OperationSpec(
        node=quarantine.node,
        kind=attempt.repair,
        quarantine=quarantine.uid,
        number=number,
        boot_id=attempt.boot_id,
        node_uid=attempt.node_uid,
        profile=attempt.profile,
        domains=attempt.domains,
    )


def status_of(attempt: RepairAttempt) -> OperationStatus:
    """The status by which an operation is that attempt."""
    return OperationStatus(
        phase=attempt.state,
        message=attempt.message,
        request=attempt.request,
        began_at=attempt.began_at,
        deadline_at=attempt.deadline_at,
        ended_at=attempt.ended_at,
        ends_as=attempt.ends_as,
    )


def pending_of(quarantine: Quarantine, operations: Iterable[Operation]) -> list[Operation]:
    """The operations of the quarantine of which certainly nothing was ordered, and that may begin
    at any moment.
    """
    return [
        one
        for one in operations
        if one.spec.quarantine == quarantine.uid and one.status.phase is RepairState.PENDING
    ]


def outdated(
    operations: Iterable[Operation], *, now: float, window: float, per_node: int, most: int
) -> list[Operation]:
    """The ended operations that may be removed, oldest first.

    None that has not ended, and none within ``window`` of its beginning. Beyond that each node
    keeps its newest ``per_node``, and the fleet ``most``.
    """
    ended = sorted(
        (one for one in operations if not one.is_open), key=lambda one: one.status.ended_at
    )
    newest = {id(one) for one in _newest_of_each(ended, per_node)}
    removable, left = [], len(ended)
    for one in ended:
        if abs(now - one.status.began_at) < window:
            continue
        if id(one) not in newest or left > most:
            removable.append(one)
            left -= 1
    return removable


def _newest_of_each(ended: Sequence[Operation], per_node: int) -> list[Operation]:
    """``ended``: oldest first."""
    counts: dict[str, int] = {}
    kept = []
    for one in reversed(ended):
        counts[one.spec.node] = counts.get(one.spec.node, 0) + 1
        if counts[one.spec.node] <= per_node:
            kept.append(one)
    return kept
