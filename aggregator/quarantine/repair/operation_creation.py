"""The Operation that an attempt or a test is to become: its creation is the compare-and-set."""

import contextlib
from dataclasses import replace

from aggregator.cluster.operations import DELETED_BY_HAND, cancelled
from aggregator.cluster.port import (
    Conflict,
    Operation,
    Operations,
    OperationSpec,
    OperationStatus,
    Refused,
    RepairState,
)

DELETED = f"{DELETED_BY_HAND} before its order"


async def open_pending(
    operations: Operations,
    name: str,
    spec: OperationSpec,
    *,
    is_request: bool,
    deleted: OperationStatus,
) -> Operation:
    """An operation in phase Pending, of which certainly nothing was ordered: a person's request,
    which the caller adopts, or one of ours, made here or by a process that has died. Raises
    Conflict.

    ``deleted``: the status with which ours ends if a person has deleted it, for `DELETED`. It
    counts, as its name is taken.
    """
    if not is_request:
        with contextlib.suppress(Conflict):
            return await operations.create(name, spec)
    there = await operations.read(name)
    if there is None or there.status.phase is not RepairState.PENDING:
        raise Conflict(f"operation {name} is gone, or has begun")
    if not (is_request or there.held):
        raise Refused(f"operation {name} is not sickbay's, and has its name: delete it")
    if there.deleting:  # a person has cancelled what never began
        over = cancelled(there.status, DELETED, deleted.ended_at) if is_request else deleted
        await operations.write_status(there, over)
        raise Conflict(DELETED)
    if not is_request and replace(there.spec, reason=spec.reason) != spec:
        await operations.drop(there)
        raise Conflict(f"operation {name} was another one, and is made anew")
    return there
