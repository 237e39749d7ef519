"""The next step for one node, as a plan decides it. Pure.

Every step is idempotent, so the next process, after a crash between any two of them, decides the
same and finishes. Order: record, object, node, evictions; and back: phase, node, record, object.
"""

import enum
from dataclasses import dataclass

from aggregator.cluster.port import Phase

#: The node carries no mark yet. An object that was invalid, and was fixed, begins here too.
UNTOUCHED = (Phase.ADMITTED, Phase.INVALID)


class Pause(enum.StrEnum):
    """The steps that any plan may have: nothing is done, and no later reconciler has its turn."""

    WAIT = "wait"
    HOLD = "hold"  # the stop switch keeps the quarantine from going on: report it


@dataclass(frozen=True, slots=True)
class NextStep:
    """The step, its reason, and whether a person has overruled the evidence by it."""

    do: enum.StrEnum
    because: str = ""
    overruled: bool = False


WAIT = NextStep(Pause.WAIT)
HOLD = NextStep(Pause.HOLD)


def unless_stopped(step: NextStep, *, stopped: bool) -> NextStep:
    """The step, which acts on the node or changes the intent: the stop switch holds it."""
    return HOLD if stopped else step
