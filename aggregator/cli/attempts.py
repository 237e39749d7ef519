"""One attempt at a repair, or a test, in the shape of the aggregator's API. Pure."""

from typing import Any

from aggregator.cluster.port import BUSY as _BUSY
from aggregator.cluster.port import RepairAttempt
from aggregator.rfc3339 import write_time

#: The states of an attempt that may still act on the node.
BUSY = tuple(state.value for state in _BUSY)

_TEXTS = ("operation", "repair", "request", "message", "profile")
_TIMES = ("began_at", "deadline_at", "ended_at")


def attempt_answer(one: RepairAttempt) -> dict[str, Any]:
    """As `/api/v1/nodes/NAME` has it."""
    return {
        **{name: getattr(one, name) for name in _TEXTS},
        **{name: time_or_none(getattr(one, name)) for name in _TIMES},
        "state": one.state.value,
    }


def time_or_none(at: float) -> str | None:
    """Wall clock seconds as text; 0 is "not yet"."""
    return write_time(at) if at else None
