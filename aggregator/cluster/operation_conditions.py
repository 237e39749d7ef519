"""The conditions of an Operation, as `kubectl wait` and other controllers read them. Pure.

They follow from the rest of the status, and are written with it.
"""

from dataclasses import replace

from aggregator.cluster.port import ObjectCondition, OperationStatus, RepairState
from aggregator.runtime.text import truncate

#: Its beginning is decided; False with the reason why it does not begin.
ADMITTED = "Admitted"
#: It has ended: the reason is its phase.
COMPLETE = "Complete"
#: Characters of a message, as the definition has them too.
MOST_MESSAGE = 1024


def with_conditions(
    before: OperationStatus, status: OperationStatus, now: float
) -> OperationStatus:
    """The ``status`` that is about to be written, with its conditions, and with texts within their
    bounds. ``now`` (wall clock seconds) is the time of those that change.
    """
    status = replace(status, message=truncate(status.message, MOST_MESSAGE))
    conditions = tuple(
        replace(one, last_transition_time=one.changed_at(before.conditions, round(now, 3)))
        for one in (_admitted(status), _complete(status))
    )
    return replace(status, conditions=conditions)


def _admitted(status: OperationStatus) -> ObjectCondition:
    if status.began_at:
        return ObjectCondition(ADMITTED, "True", "Begun", "it was within the limits, and has begun")
    if status.phase is not RepairState.PENDING:
        return ObjectCondition(ADMITTED, "False", str(status.phase), status.message)
    return ObjectCondition(
        ADMITTED, "False", "Waiting" if status.message else "New", status.message
    )


def _complete(status: OperationStatus) -> ObjectCondition:
    is_open = status.phase in (RepairState.PENDING, RepairState.ORDERING, RepairState.ORDERED)
    text = "" if is_open else status.message
    return ObjectCondition(COMPLETE, "False" if is_open else "True", str(status.phase), text)
