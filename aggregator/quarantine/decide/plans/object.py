"""What the object of a Quarantine in force, or the record, lacks of what is known. Pure."""

import enum
from dataclasses import dataclass

from aggregator.cluster.port import Action, Phase, Quarantine
from aggregator.quarantine.decide.intent import OURS, DesiredState, describe_override, unsaved
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.quarantine.decide.plans.release_reasons import why_over
from aggregator.quarantine.decide.plans.step import UNTOUCHED, WAIT, NextStep


class ObjectStep(enum.StrEnum):
    """A step that writes to the object or to the record. The stop switch holds none of them."""

    REFUSE = "refuse"  # a hand-made one that is not valid: its status reports that
    UNREAD = "unread"  # its status can't be read in whole: report that, and write nothing to it
    ABSENCE = "absence"  # its status reports that its Node is gone, or back
    RESTART = "restart"  # its Node was deleted and created again: it has no marks yet
    ENTER = "enter"  # count a hand-made one
    VOID = "void"  # one of ours that was not begun, and has no entry in the record
    UNHOLD = "unhold"  # the node to release is unhealthy again: its release is not held any more
    UPDATE = "update"  # write the changed intent
    OVERRIDE = "override"  # its status reports a person's action, and that a drain is a cordon now
    REPORT_MARKS = "report-marks"  # its status reports which marks are missing, or that none is


@dataclass(slots=True)
class ObjectView:
    """What the object's contents are compared with.

    ``marks_unreported``: the object does not report which marks the node lacks. ``node_gone``
    and ``node_found`` are the result of the last read of the node. The rest as in `AdmissionView`
    and `ReleaseView`.
    """

    quarantine: Quarantine
    in_record: bool
    wanted: DesiredState | None
    recovered: bool
    conflict: bool = False
    forced: Action | None = None
    unforced: bool = False
    exempt: bool = False
    release_held: bool = False
    marks_unreported: bool = False
    node_gone: bool = False
    node_found: bool = False
    node_replaced: bool = False
    reborn: bool = False
    absent_too_long: bool = False


def plan_object(now: ObjectView) -> NextStep | None:
    """The first write; None: object and record are up to date."""
    quarantine = now.quarantine
    if quarantine.unread:
        return NextStep(ObjectStep.UNREAD)  # before the other, which would write to that status
    if quarantine.problem:
        return WAIT if quarantine.status.phase is Phase.INVALID else NextStep(ObjectStep.REFUSE)
    absent = quarantine.status.node_absent_since > 0
    if (now.node_gone and not absent) or (now.node_found and absent):
        return NextStep(ObjectStep.ABSENCE)  # first: the limits' counts depend on it
    if now.node_replaced:
        return NextStep(ObjectStep.RESTART)  # stop or not: no phase may be of a Node that is gone
    if now.conflict:
        return WAIT
    if not now.in_record:
        # A Quarantine whose name is no node's is not counted.
        if quarantine.spec.requester != OURS:
            return WAIT if now.node_gone else NextStep(ObjectStep.ENTER)
        # Ours comes after its entry. Without one, and without a mark on the node, a superseded
        # replica made it late, after the entry had been taken out again.
        untouched = quarantine.status.phase in UNTOUCHED
        return NextStep(ObjectStep.VOID if untouched else ObjectStep.ENTER)
    unwritten = _unwritten(now, quarantine)
    return NextStep(unwritten) if unwritten is not None else None


def _unwritten(now: ObjectView, quarantine: Quarantine) -> ObjectStep | None:
    """Known state that the object lacks."""
    if now.release_held and _is_wanted_again(now, quarantine):
        return ObjectStep.UNHOLD
    if unsaved(quarantine, now.wanted):
        return ObjectStep.UPDATE  # a positive sign that is not written is lost with this process
    spec, status = quarantine.spec, quarantine.status
    cordon = spec.action is not Action.DRAIN and status.phase is Phase.DRAINING
    if cordon or describe_override(spec) != status.override:
        return ObjectStep.OVERRIDE
    return ObjectStep.REPORT_MARKS if now.marks_unreported else None


def _is_wanted_again(now: ObjectView, quarantine: Quarantine) -> bool:
    """Whether a node whose release was held is to stay in quarantine for its own fault again."""
    if why_over(now, quarantine) or (quarantine.spec.requester == OURS and now.recovered):
        return False
    if quarantine.spec.requester == FORCED:
        return now.forced is not None
    return now.wanted is not None and now.wanted.in_force is not Action.OBSERVE
