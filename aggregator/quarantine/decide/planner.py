"""The next step for one node, from its durable state and its desired state. Pure.

Every step is idempotent, so the next process, after a crash between any two of them, decides the
same and finishes. Order: record, object, node, evictions; and back: phase, node, record, object.
"""

import enum
from dataclasses import dataclass

from aggregator.cluster.port import Action, Phase, Quarantine
from aggregator.quarantine.decide.intent import (
    OURS,
    DesiredState,
    describe_override,
    is_overridden,
    unsaved,
)
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.quarantine.decide.repair import is_testing
from aggregator.quarantine.decide.uncordon import (
    CORDONED_BY_OTHERS,
    describe_left,
    has_given_up,
    is_left_schedulable,
)
from aggregator.rfc3339 import write_time

RECOVERED = "recovered"
UNCORDONED = "uncordoned by a person"
NODE_ABSENT = "its Node has been gone for longer than limits.absent_node_after"

#: The node carries no mark yet. An object that was invalid, and was fixed, begins here too.
_UNTOUCHED = (Phase.ADMITTED, Phase.INVALID)


class Step(enum.StrEnum):
    """The next step for a node."""

    NOTHING = "nothing"
    PROPOSE = "propose"  # ask for admission
    CREATE = "create"  # make the object that the record already allows
    FORCE = "force"  # make the object, or change it, as an annotation of a person asks
    ENTER = "enter"  # count a hand-made one
    VOID = "void"  # one of ours that was not begun, and has no entry in the record
    RESTART = "restart"  # its Node was deleted and created again: it has no marks yet
    CORDON = "cordon"
    RECORDON = "recordon"  # the node was uncordoned, and that is no release
    REFUSE = "refuse"  # a hand-made one that is not valid: say so in its status
    UNREAD = "unread"  # its status can't be read in whole: say so, and write nothing to it
    UPDATE = "update"  # write the changed intent
    OVERRIDE = "override"  # say in the status that a person has set, or taken back, another action
    TELL_CORDON = "tell-cordon"  # say in the status that the node is, or was, left schedulable
    TELL_MARKS = "tell-marks"  # say in the status which marks are missing, or that all are there
    RESTORE = "restore"  # set marks again that were removed or changed
    ABSENCE = "absence"  # say in the status that its Node is gone, or back
    DRAIN = "drain"
    REPAIR = "repair"  # look at the node's repair: begin one, prove it, end it
    HOLD = "hold"  # the stop switch keeps it from going on: say so
    RELEASE = "release"  # change the phase, unless a check holds it; then UNDO
    CONDITIONS = "conditions"  # write the conditions anew: the spec has changed since, say
    UNHOLD = "unhold"  # the node to release is unhealthy again: its release is not held any more
    UNDO = "undo"
    FORGET = "forget"  # an entry without object and without cause
    LET_GO = "let-go"  # the definition is being deleted: finalizer off, marks stay


@dataclass(frozen=True, slots=True)
class NextStep:
    """The step, its reason, and whether a person has overruled the evidence by it."""

    do: Step
    because: str = ""
    overruled: bool = False


# Not frozen: a frozen one takes 2 us more to make, and each look at a node makes one.
@dataclass(slots=True)
class Situation:
    """All that the next step depends on.

    ``knows``: a snapshot has come since this process started, or the node has been silent for so
    long that an admitted drain goes on with the recorded evidence. ``fresh``: the agent is attached
    and has reported since. ``recovered``: every incident is closed by positive signs.
    ``uncordoned``: the node that we cordoned was read and is schedulable again, and that releases
    it. ``schedulable``: it is schedulable, for any reason; ``recordon``: cordoning it again, if
    that follows, is due. ``evictions_wait`` until the response to an uncordon is decided.
    ``reborn``: it is another Node, in another boot, which ends all that the quarantine stands on.
    ``maintained``: another party is at work on the node; a quarantine made by hand goes on
    meanwhile, ours does not. ``release_held``: the cause is over and a check holds the release;
    ``look_later``: it is not yet time to look again. ``forced`` is the action that a person's
    annotation asks for; ``unforced``: it is gone. ``exempt``: people want the node left alone.
    ``repair_busy``: a repair may still act on the node, which keeps it from being released by
    itself; ``repair_replaces``: that one replaces the Node; ``repair_due``: it is time to look at
    its repair. ``untested``: it has to pass a test before it is released by recovery.
    ``unclaimed``: our marks stand without an object, and the mode keeps us from making it.
    ``marks_untold``: the object does not say which of our marks the node lacks; ``restore_due``: it
    is time to set them again. ``conditions_old``: the object's conditions are not those of its spec
    and status. ``entered_by_hand``: the entry in the record is of a person's quarantine.
    ``node_gone`` and ``node_found`` are the result of the last read of
    the node; ``absent_too_long``: it has been gone for longer than one of our quarantines stands
    for it.
    """

    quarantine: Quarantine | None
    in_record: bool
    wanted: DesiredState | None
    mode: Action
    knows: bool
    fresh: bool
    recovered: bool
    uncordoned: bool = False
    schedulable: bool = False
    recordon: bool = False
    recordon_at: float = 0.0
    evictions_wait: bool = False
    node_replaced: bool = False
    reborn: bool = False
    node_gone: bool = False
    node_found: bool = False
    absent_too_long: bool = False
    maintained: bool = False
    stopped: bool = False
    conflict: bool = False
    definition_going: bool = False
    release_held: bool = False
    look_later: bool = False
    forced: Action | None = None
    unforced: bool = False
    exempt: bool = False
    unclaimed: bool = False
    marks_untold: bool = False
    restore_due: bool = False
    conditions_old: bool = False
    entered_by_hand: bool = False
    repair_busy: bool = False
    repair_replaces: bool = False
    repair_due: bool = False
    untested: bool = False


def next_step(now: Situation) -> NextStep:
    """The next step; the caller carries it out, reads the state again, and asks again."""
    quarantine = now.quarantine
    if quarantine is None:
        return _without_object(now)
    if quarantine.foreign:
        return NextStep(Step.NOTHING)
    ending = _ending(now, quarantine)
    if ending is not None:
        return ending
    if quarantine.unread or quarantine.problem:
        return NextStep(_unclear(quarantine))
    absent = quarantine.status.node_absent_since > 0
    if (now.node_gone and not absent) or (now.node_found and absent):
        return NextStep(Step.ABSENCE)  # first: the limits' counts depend on it
    if now.node_replaced:
        return NextStep(Step.RESTART)  # stop or not: no phase may tell of a Node that is gone
    if now.conflict:
        return NextStep(Step.NOTHING)
    if not now.in_record:
        # A Quarantine whose name is no node's is not counted.
        if quarantine.spec.requester != OURS:
            return NextStep(Step.NOTHING if now.node_gone else Step.ENTER)
        # Ours comes after its entry. Without one, and without a mark on the node, a superseded
        # replica made it late, after the entry had been taken out again.
        return NextStep(Step.VOID if quarantine.status.phase in _UNTOUCHED else Step.ENTER)
    unwritten = _unwritten(now, quarantine)
    if unwritten is not None:
        return NextStep(unwritten)
    untold = _untold_cordon(now, quarantine)
    if untold:
        return NextStep(Step.TELL_CORDON, untold)
    step = _forth(now, quarantine)
    if now.conditions_old and step.do is Step.NOTHING:
        return NextStep(Step.CONDITIONS)  # last: no other step waits for it
    return NextStep(Step.HOLD) if now.stopped and step.do is not Step.NOTHING else step


def _unclear(quarantine: Quarantine) -> Step:
    """The step for an object that can't be understood: to say so, once."""
    if quarantine.unread:
        return Step.UNREAD  # before the other, which would write to that status
    return Step.NOTHING if quarantine.status.phase is Phase.INVALID else Step.REFUSE


def _forth(now: Situation, quarantine: Quarantine) -> NextStep:
    """Steps that act on the node, or change the intent. A stop holds all of them."""
    forced_here = now.forced is not None and quarantine.spec.requester == FORCED
    if forced_here and now.forced is not (quarantine.spec.intent_action or quarantine.spec.action):
        return NextStep(
            Step.FORCE
        )  # an edit of the object's action stands until the annotation changes
    return NextStep(_on_node(now, quarantine))


def _on_node(now: Situation, quarantine: Quarantine) -> Step:
    """The next action on the node or its pods, for a standing quarantine."""
    ours = quarantine.spec.requester == OURS
    held = now.node_gone or (ours and (now.mode is Action.OBSERVE or now.maintained))
    if quarantine.status.phase in _UNTOUCHED:
        return Step.NOTHING if held else Step.CORDON
    if now.schedulable and now.recordon and not held:
        return Step.RECORDON
    if now.restore_due and not now.schedulable and not held:
        return Step.RESTORE
    if _may_evict(now, quarantine):
        return Step.DRAIN
    # After a start no agent has reported yet: what the object records may be over.
    return Step.REPAIR if now.repair_due and now.knows and not held else Step.NOTHING


def _without_object(now: Situation) -> NextStep:
    if now.conflict or now.definition_going or now.unclaimed:
        return NextStep(Step.NOTHING)
    if now.forced is not None and not now.stopped:
        return NextStep(Step.FORCE)
    if (
        now.wanted is not None
        and now.wanted.spec.action is not Action.OBSERVE
        and now.wanted.in_force is not Action.OBSERVE
    ):
        if now.in_record and now.entered_by_hand:
            # A person's entry was refused by no limit: evidence needs an admission of its own.
            return NextStep(Step.FORGET, "a person's quarantine is gone before it was acted on")
        # Admitted before a stop, and not begun: admission holds it, and says so.
        return NextStep(Step.CREATE if now.in_record and not now.stopped else Step.PROPOSE)
    if now.in_record and (now.fresh or now.node_gone):
        return NextStep(Step.FORGET, "its cause has gone before it was acted on")
    return NextStep(Step.NOTHING)


def _ending(now: Situation, quarantine: Quarantine) -> NextStep | None:
    """The ways out, most urgent first. Neither a limit nor a stop nor a mode holds them."""
    if now.definition_going:
        return NextStep(Step.LET_GO) if quarantine.deleting else NextStep(Step.NOTHING)
    if quarantine.status.phase is Phase.RELEASING:
        return NextStep(Step.UNDO)
    if quarantine.deleting:
        return NextStep(Step.RELEASE, "deleted by a person", overruled=True)
    if quarantine.problem:
        return None
    if now.uncordoned:
        return NextStep(Step.RELEASE, UNCORDONED, overruled=True)
    if quarantine.unread:
        # A repair that can't be read may be under way: a person alone ends the quarantine.
        waits = now.release_held and now.look_later
        goes = _is_withdrawn(now, quarantine) and not waits
        return _recovery(now, quarantine) if goes else None
    if now.repair_busy and not (_is_withdrawn(now, quarantine) or _is_left_alone(now, quarantine)):
        # The node must not be in use while an order may still reach it.
        if now.repair_due:
            return NextStep(Step.REPAIR)
        # The Node in place of the replaced one proves the repair, and is not marked before.
        new = now.repair_replaces and (now.reborn or now.node_replaced)
        return NextStep(Step.NOTHING) if new else None
    if now.release_held and now.look_later:
        return None
    way = _recovery(now, quarantine)
    if way is None and _is_to_be_tested(now, quarantine) and now.repair_due and not now.node_gone:
        return NextStep(Step.REPAIR)  # a stop holds its order; a mode and a person's word end it
    return way


def _is_left_alone(now: Situation, quarantine: Quarantine) -> bool:
    """Whether people want a recovered node left alone that a test alone keeps."""
    return now.exempt and now.recovered and is_testing(quarantine.status.repair)


def _is_to_be_tested(now: Situation, quarantine: Quarantine) -> bool:
    """Whether a recovered node is kept until it has passed a test."""
    if quarantine.spec.requester != OURS or not (now.recovered and now.untested):
        return False
    return not (now.exempt or now.reborn or now.mode is Action.OBSERVE)


def _is_withdrawn(now: Situation, quarantine: Quarantine) -> bool:
    """Whether a person has taken their force back, on the very Node that they had forced."""
    same = not (now.node_gone or now.node_replaced or now.reborn)
    return quarantine.spec.requester == FORCED and now.unforced and same


def _recovery(now: Situation, quarantine: Quarantine) -> NextStep | None:
    """The ways out without a person's override. The release step checks for objections to them."""
    if quarantine.spec.requester == FORCED and now.unforced:
        return NextStep(Step.RELEASE, "the force was taken back")
    if quarantine.spec.requester != OURS:
        return None
    if now.recovered and not _is_to_be_tested(now, quarantine):
        return NextStep(Step.RELEASE, RECOVERED)
    if now.absent_too_long and now.node_gone:
        return NextStep(Step.RELEASE, NODE_ABSENT)
    if now.reborn:
        return NextStep(Step.RELEASE, "the node was made anew, in another boot")
    if now.exempt and quarantine.status.phase is Phase.ADMITTED:
        return NextStep(Step.RELEASE, "exempted by a person before it was begun")
    return None


def _unwritten(now: Situation, quarantine: Quarantine) -> Step | None:
    """Known state that the object lacks; the stop switch does not hold these writes."""
    if _wanted_again(now, quarantine):
        return Step.UNHOLD
    if unsaved(quarantine, now.wanted):
        return Step.UPDATE  # a positive sign that is not written is lost with this process
    if describe_override(quarantine.spec) != quarantine.status.override:
        return Step.OVERRIDE
    return Step.TELL_MARKS if now.marks_untold else None


def _untold_cordon(now: Situation, quarantine: Quarantine) -> str:
    """The text about the node's cordon that the status lacks; empty: it is up to date.

    The step that undoes an uncordon at once reports it itself. This text is about a node that is
    left schedulable.
    """
    if quarantine.status.phase in _UNTOUCHED or now.node_gone:
        return ""
    left = is_left_schedulable(quarantine.status)
    if not now.schedulable:
        return CORDONED_BY_OTHERS if left else ""
    why = _keeps_it_schedulable(now, quarantine)
    if not why:
        return ""
    text = describe_left(quarantine, why)
    return text if text != quarantine.status.uncordoned else ""


def _keeps_it_schedulable(now: Situation, quarantine: Quarantine) -> str:
    """Why an uncordoned node is not cordoned again now; empty: it is, or that is reported."""
    ours = quarantine.spec.requester == OURS
    if now.stopped:
        return "it is not cordoned again while the stop switch is set"
    if ours and now.maintained:
        return "it is not cordoned again while another tool or person is at work on it"
    if ours and now.exempt:
        return "it is not cordoned again while people want it left alone (sickbay.dev/exempt)"
    if ours and now.mode is Action.OBSERVE:
        return "it is not cordoned again in mode observe"
    if now.recordon or (
        has_given_up(quarantine.status) and not is_left_schedulable(quarantine.status)
    ):
        return ""
    return f"it is cordoned again at {write_time(now.recordon_at)}"


def _wanted_again(now: Situation, quarantine: Quarantine) -> bool:
    """Whether a node whose release was held is to stay in quarantine for its own fault again."""
    if not now.release_held or _recovery(now, quarantine) is not None:
        return False
    if quarantine.spec.requester == FORCED:
        return now.forced is not None
    return now.wanted is not None and now.wanted.in_force is not Action.OBSERVE


def _may_evict(now: Situation, quarantine: Quarantine) -> bool:
    """Evictions need intent, the mode's permission, and evidence that is known to stand."""
    if quarantine.spec.action is not Action.DRAIN or quarantine.status.phase is Phase.DRAINED:
        return False
    if now.mode is not Action.DRAIN or now.node_gone or now.release_held or now.evictions_wait:
        return False
    if quarantine.spec.requester != OURS:
        return True
    if now.maintained:
        return False
    if now.wanted is not None:
        if is_overridden(quarantine.spec):  # a person set the drain: any evidence in force will do
            return now.knows and now.wanted.in_force is not Action.OBSERVE
        return now.knows and now.wanted.in_force is Action.DRAIN
    recorded = any(not item.cleared for item in quarantine.spec.evidence)
    return now.knows and not now.fresh and recorded
