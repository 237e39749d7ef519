"""The ways out of quarantine, most urgent first. No limit, stop or mode holds them. Pure."""

import enum
from dataclasses import dataclass

from aggregator.cluster.port import Phase, Quarantine
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.plans.release_reasons import (
    EndView,
    is_kept,
    is_to_be_tested,
    why_over,
)
from aggregator.quarantine.decide.plans.step import WAIT, NextStep

RECOVERED = "recovered"
UNCORDONED = "opened to new work by a person"
#: A release waits for another write for this long (seconds), and continues without it: a server
#: that is busy or refuses it holds up no release, nor the node's place in the limits.
RELEASE_WAITS = 5.0


class ReleaseStep(enum.StrEnum):
    """Each ends a quarantine."""

    RELEASE = "release"  # change the phase, unless a check holds it; then UNDO
    UNDO = "undo"
    LET_GO = "let-go"  # the definition is being deleted: finalizer off, marks stay


@dataclass(slots=True)
class ReleaseView(EndView):
    """The inputs of a release.

    ``uncordoned``: the node that we cordoned was read and is schedulable again, and that releases
    it. ``release_held``: the cause is over and a check holds the release; ``poll_later``: it is not
    yet time to check again. ``absent_too_long``: the Node has been gone for longer than one of our
    quarantines stays in force for it.
    """

    definition_going: bool = False
    uncordoned: bool = False
    release_held: bool = False
    poll_later: bool = False
    absent_too_long: bool = False


def plan_release(now: ReleaseView) -> NextStep | None:
    """The next step out of the quarantine; None: it stays in force."""
    quarantine = now.quarantine
    if quarantine.foreign:
        return WAIT
    if now.definition_going:
        return NextStep(ReleaseStep.LET_GO) if quarantine.deleting else WAIT
    if quarantine.status.phase is Phase.RELEASING:
        return NextStep(ReleaseStep.UNDO)
    if quarantine.deleting:
        return NextStep(ReleaseStep.RELEASE, "deleted by a person", overruled=True)
    if quarantine.problem:
        return None
    if now.uncordoned:
        return NextStep(ReleaseStep.RELEASE, UNCORDONED, overruled=True)
    waits = now.release_held and now.poll_later
    if quarantine.unread:
        # A repair that can't be read may be under way: a person alone ends the quarantine.
        goes = now.is_withdrawn and not waits
    else:
        goes = not (waits or is_kept(now, quarantine))
    because = _recovery(now, quarantine) if goes else ""
    return NextStep(ReleaseStep.RELEASE, because) if because else None


def _recovery(now: ReleaseView, quarantine: Quarantine) -> str:
    """Why it ends without a person's override; empty: it stays in force."""
    if quarantine.spec.requester == OURS and now.recovered and not is_to_be_tested(now, quarantine):
        return RECOVERED
    return why_over(now, quarantine)
