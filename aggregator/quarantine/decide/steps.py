"""The next step for one node, from what is durable and what is wanted. Pure.

Every step is idempotent, so whoever comes next, after a crash between any two of them, decides the
same and finishes. Order: record, object, node, evictions; and back: phase, node, record, object.
"""

import enum
from dataclasses import dataclass

from aggregator.quarantine.cluster import Action, Phase, Quarantine
from aggregator.quarantine.decide.intent import OURS, Wanted, unsaved
from aggregator.quarantine.decide.wishes import FORCED

UNCORDONED = "uncordoned by a person"

#: The node carries no mark yet. An object that made no sense, and was mended, begins here too.
_UNTOUCHED = (Phase.ADMITTED, Phase.INVALID)


class Do(enum.StrEnum):
    """What to do next for a node."""

    NOTHING = "nothing"
    PROPOSE = "propose"  # ask for admission
    CREATE = "create"  # make the object that the record already allows
    FORCE = "force"  # make the object, or change it, as an annotation of a person asks
    ENTER = "enter"  # count a hand-made one
    VOID = "void"  # one of ours that nothing was done for, and that the record knows nothing of
    CORDON = "cordon"
    REFUSE = "refuse"  # a hand-made one that makes no sense: say so in its status
    UPDATE = "update"  # write what has changed in the intent
    DRAIN = "drain"
    RELEASE = "release"  # change the phase, unless something speaks against it; then UNDO
    UNHOLD = "unhold"  # what was to be released is ill again: it is not held for that any more
    UNDO = "undo"
    FORGET = "forget"  # an entry without object and without cause
    LET_GO = "let-go"  # the definition is being deleted: finalizer off, nothing undone


@dataclass(frozen=True, slots=True)
class Step:
    """What to do, why, and whether a person has overruled the evidence by it."""

    do: Do
    because: str = ""
    overruled: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the next step depends on.

    ``knows``: a snapshot has come since this process started, or the node has been silent for so
    long that an admitted drain goes on with the recorded evidence. ``fresh``: the agent is attached
    and has spoken since. ``recovered``: every incident is closed by positive signs. ``uncordoned``:
    the node that we cordoned was read and is schedulable again. ``reborn``: it is another Node, in
    another boot, which ends all that the quarantine stands on. ``maintained``: somebody else is at
    work on the node; what a person made by hand goes on beside them, ours does not.
    ``release_held``: the cause is over and something speaks against the release; ``look_later``: it
    is not yet time to look again. ``forced`` is what a person's annotation asks for; ``unforced``:
    it is gone. ``exempt``: people want the node left alone.
    """

    quarantine: Quarantine | None
    in_record: bool
    wanted: Wanted | None
    mode: Action
    knows: bool
    fresh: bool
    recovered: bool
    uncordoned: bool = False
    node_replaced: bool = False
    reborn: bool = False
    node_gone: bool = False
    maintained: bool = False
    stopped: bool = False
    conflict: bool = False
    definition_going: bool = False
    release_held: bool = False
    look_later: bool = False
    forced: Action | None = None
    unforced: bool = False
    exempt: bool = False


def next_step(now: Situation) -> Step:
    """What to do next; the caller does it, looks again, and asks again."""
    quarantine = now.quarantine
    if quarantine is None:
        return _without_object(now)
    ending = _ending(now, quarantine)
    if ending is not None:
        return ending
    if quarantine.problem:
        refused = quarantine.status.phase is Phase.INVALID
        return Step(Do.NOTHING if refused else Do.REFUSE)
    if now.conflict:
        return Step(Do.NOTHING)
    if not now.in_record:
        # A name that is no node's has nothing to be counted for.
        if quarantine.spec.requester != OURS:
            return Step(Do.NOTHING if now.node_gone else Do.ENTER)
        # Ours comes after its entry. Without one, and without a mark on the node, it was made late,
        # by who was superseded, after the entry had gone again.
        return Step(Do.VOID if quarantine.status.phase in _UNTOUCHED else Do.ENTER)
    if _wanted_again(now, quarantine):
        return Step(Do.UNHOLD)
    if unsaved(quarantine, now.wanted):
        return Step(Do.UPDATE)  # stop or not: a sign that is not written is lost with us
    if now.stopped:
        return Step(Do.NOTHING)
    forced_here = now.forced is not None and quarantine.spec.requester == FORCED
    if forced_here and now.forced is not quarantine.spec.action:
        return Step(Do.FORCE)
    if quarantine.status.phase in _UNTOUCHED or now.node_replaced:
        ours = quarantine.spec.requester == OURS
        held = ours and (now.mode is Action.OBSERVE or now.maintained)
        return Step(Do.NOTHING) if now.node_gone or held else Step(Do.CORDON)
    if _may_evict(now, quarantine):
        return Step(Do.DRAIN)
    return Step(Do.NOTHING)


def _without_object(now: Situation) -> Step:
    if now.conflict or now.definition_going:
        return Step(Do.NOTHING)
    if now.forced is not None and not now.stopped:
        return Step(Do.FORCE)
    if (
        now.wanted is not None
        and now.wanted.spec.action is not Action.OBSERVE
        and now.wanted.in_force is not Action.OBSERVE
    ):
        # Admitted before a stop, and not begun: admission holds it, and says so.
        return Step(Do.CREATE if now.in_record and not now.stopped else Do.PROPOSE)
    if now.in_record and (now.fresh or now.node_gone):
        return Step(Do.FORGET, "its cause has gone before it was acted on")
    return Step(Do.NOTHING)


def _ending(now: Situation, quarantine: Quarantine) -> Step | None:
    """The ways out, most urgent first. None is held by a limit, a stop or a mode."""
    if now.definition_going:
        return Step(Do.LET_GO) if quarantine.deleting else Step(Do.NOTHING)
    if quarantine.status.phase is Phase.RELEASING:
        return Step(Do.UNDO)
    if quarantine.deleting:
        return Step(Do.RELEASE, "deleted by a person", overruled=True)
    if quarantine.problem:
        return None
    if now.uncordoned:
        return Step(Do.RELEASE, UNCORDONED, overruled=True)
    if now.release_held and now.look_later:
        return None
    return _recovery(now, quarantine)


def _recovery(now: Situation, quarantine: Quarantine) -> Step | None:
    """The ways out that nobody's word takes. What speaks against them is looked for on the way."""
    if quarantine.spec.requester == FORCED and now.unforced:
        return Step(Do.RELEASE, "the force was taken back")
    if quarantine.spec.requester != OURS:
        return None
    if now.recovered:
        return Step(Do.RELEASE, "recovered")
    if now.reborn:
        return Step(Do.RELEASE, "the node was made anew, in another boot")
    if now.exempt and quarantine.status.phase is Phase.ADMITTED:
        return Step(Do.RELEASE, "exempted by a person before it was begun")
    return None


def _wanted_again(now: Situation, quarantine: Quarantine) -> bool:
    """Whether what was to be released, and was held, stays in for its own sake again."""
    if not now.release_held or _recovery(now, quarantine) is not None:
        return False
    if quarantine.spec.requester == FORCED:
        return now.forced is not None
    return now.wanted is not None and now.wanted.in_force is not Action.OBSERVE


def _may_evict(now: Situation, quarantine: Quarantine) -> bool:
    """Evictions need intent, the mode's leave, and evidence that is known to stand."""
    if quarantine.spec.action is not Action.DRAIN or quarantine.status.phase is Phase.DRAINED:
        return False
    if now.mode is not Action.DRAIN or now.node_gone or now.release_held:
        return False
    if quarantine.spec.requester != OURS:
        return True
    if now.maintained:
        return False
    if now.wanted is not None:
        return now.knows and now.wanted.in_force is Action.DRAIN
    recorded = any(not item.cleared for item in quarantine.spec.evidence)
    return now.knows and not now.fresh and recorded
