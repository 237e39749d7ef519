"""The next step for a node without a Quarantine: a proposal, or what the record has begun. Pure."""

import enum
from dataclasses import dataclass

from aggregator.cluster.port import Action
from aggregator.quarantine.decide.intent import DesiredState
from aggregator.quarantine.decide.plans.step import NextStep


class AdmissionStep(enum.StrEnum):
    """A step that makes a Quarantine, or removes its entry from the record."""

    PROPOSE = "propose"  # request admission
    CREATE = "create"  # make the object that the record already allows
    FORCE = "force"  # make the object, or change it, by an annotation of a person
    FORGET = "forget"  # an entry without object and without cause


@dataclass(slots=True)
class AdmissionView:
    """The inputs of the begin of a quarantine.

    ``fresh``: the agent is attached and has reported since. ``forced`` is the action in a person's
    annotation. ``entered_by_hand``: the entry in the record is of a person's quarantine.
    ``unclaimed``: our marks are set without an object, and the mode keeps us from making it.
    """

    in_record: bool
    wanted: DesiredState | None
    fresh: bool
    entered_by_hand: bool = False
    forced: Action | None = None
    conflict: bool = False
    definition_going: bool = False
    unclaimed: bool = False
    node_gone: bool = False
    stopped: bool = False


def plan_admission(now: AdmissionView) -> NextStep | None:
    """The next step towards a quarantine; None: there is none to begin."""
    if now.conflict or now.definition_going or now.unclaimed:
        return None
    if now.forced is not None and not now.stopped:
        return NextStep(AdmissionStep.FORCE)
    if (
        now.wanted is not None
        and now.wanted.spec.action is not Action.OBSERVE
        and now.wanted.in_force is not Action.OBSERVE
    ):
        if now.in_record and now.entered_by_hand:
            # A person's entry was refused by no limit: evidence needs an admission of its own.
            because = "a person's quarantine is gone before it was acted on"
            return NextStep(AdmissionStep.FORGET, because)
        # Admitted before a stop, and not begun: admission holds it, and reports that.
        begun = now.in_record and not now.stopped
        return NextStep(AdmissionStep.CREATE if begun else AdmissionStep.PROPOSE)
    if now.in_record and (now.fresh or now.node_gone):
        return NextStep(AdmissionStep.FORGET, "its cause has gone before it was acted on")
    return None
