"""A node's quarantine as this replica knows it: the object, its marks on the node, its traces."""

import asyncio
import math
from dataclasses import dataclass

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    Node,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.cluster.quarantine_conditions import are_conditions_current
from aggregator.quarantine.decide.intent import ended_by_birth
from aggregator.quarantine.decide.lost_marks import CONDITION, missing_marks
from aggregator.quarantine.decide.uncordon import Uncordoned, whose_uncordon

#: From here on the node carries our marks.
MARKED = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)
#: No other write of the object is to be expected in these.
_AT_REST = (Phase.CORDONED, Phase.DRAINED)
#: Between two polls of a repair that recoveries cause (seconds).
_BETWEEN_RECOVERIES = 15.0
#: Between two checks of what holds a release, the second of which is hastened (seconds).
_SHORTEST_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class NewMarks:
    """Marks that were just set, and that the Quarantine does not have yet.

    ``quarantine``: the object as they were set for it. ``status``: phase Cordoned. ``node``: the
    Node with the marks. ``at``: when they were set (monotonic seconds).
    """

    quarantine: Quarantine
    status: QuarantineStatus
    node: Node
    at: float


@dataclass(slots=True)
class QuarantineView:
    """Changed by events, reads and our own writes of the object, and by reads of its Node.

    ``restored``: the uid of the quarantine whose evidence was restored into memory.
    ``ended``: the uid of the last quarantine that is gone; its events and answers may come late.
    ``orphan``: the uid of a quarantine that a person deleted without its undo; ``orphaned``: its
    object, whose orders are still open.
    ``vanished``: the uid of one that a read no longer found; a watch event shows its fate.
    ``to_adopt``: our marks, or an entry made by hand, may have lost their object: to be adopted.
    ``unclaimed``: our marks are on it without an object, and we make no new one; else empty.
    ``remains``: the intent of one that went with its definition.
    ``uncordoned``: who made the marked node schedulable, if it is.
    ``node_replaced``: the Node is another one than the one that was marked.
    ``reborn``: the boot of the Node that replaced the quarantined one; else empty.
    ``missing``: our marks that it lacks although its quarantine is in force.
    ``release_held``: its cause is over, and this holds its release; ``release_poll``: when to check
    that again, ``release_polled``: when it was checked (monotonic). ``release_pause``: a hastened
    check comes at least this long after that (seconds). ``most_pods``: the most pods that were left
    in its drain since this replica knows of it. ``conditions_of``: the version whose conditions
    were written last for their own sake. ``trail`` writes the node's condition; ``trail_aged``: it
    had ended by the last round; ``condition_seen``: the last read of the node since then has it.
    ``repair_poll``: when to poll its repair again; ``repair_hastened``: when its recovery last
    caused such a poll (monotonic). ``empty_at``: when the read began that found the node empty at
    the end of its drain (monotonic). ``begun``: the uid of the quarantine that this process
    created, and when it had marked the node for it (monotonic). It is None where the node lacked a
    mark since or may have had another owner. ``reported_marks``: the uid of the quarantine whose
    marks this process has set and reported, unless a read since found the node without.
    ``new_marks``: to be written by the next write of the status. A process that loses them before
    sets the marks again.
    """

    quarantine: Quarantine | None = None
    restored: str = ""
    ended: str = ""
    orphan: str = ""
    orphaned: Quarantine | None = None
    vanished: str = ""
    to_adopt: bool = False
    unclaimed: str = ""
    remains: QuarantineSpec | None = None
    definition_going: bool = False
    uncordoned: Uncordoned = Uncordoned.NO
    node_replaced: bool = False
    reborn: str = ""
    missing: tuple[str, ...] = ()
    release_held: str = ""
    release_poll: float = 0.0
    release_polled: float = -math.inf
    release_pause: float = 0.0
    most_pods: int = 0
    conditions_of: str = ""
    trail: asyncio.Task[None] | None = None
    trail_aged: bool = False
    condition_seen: bool = False
    repair_poll: float = 0.0
    repair_hastened: float = -math.inf
    empty_at: float | None = None
    begun: tuple[str, float] | None = None
    reported_marks: str = ""
    new_marks: NewMarks | None = None

    # -- the object -------------------------------------------------------------------------------

    def take(self, quarantine: Quarantine) -> bool:
        """The object as it is now. Returns whether its evidence is not in memory yet."""
        known = self.quarantine
        is_other = known is None or known.uid != quarantine.uid
        if known is not None and is_other:
            self.unhold_release()  # that was the other's
        if is_other:
            self.missing, self.most_pods, self.empty_at = quarantine.status.marks.missing, 0, None
        requests = quarantine.status.repair.requests
        if known is None or is_other or known.status.repair.requests != requests:
            self.repair_poll = 0.0
        self.write(quarantine)
        self.orphan = self.vanished = self.unclaimed = ""
        self.orphaned = None
        self.to_adopt, self.remains = False, None
        if self.restored == quarantine.uid and known is not None and known.spec == quarantine.spec:
            return False
        self.restored = quarantine.uid
        return True

    def write(self, quarantine: Quarantine) -> None:
        """The object as it is now, or as we have just written it."""
        self.quarantine = quarantine
        if quarantine.status.phase is Phase.DRAINING:
            self.most_pods = max(self.most_pods, quarantine.status.pods_remaining or 0)

    def forget_evidence(self) -> None:
        """Its evidence is taken back into memory when the object is taken next, and the marks that
        the node lacks are those that the object lists.
        """
        self.restored = ""
        if self.quarantine is not None:
            self.missing = self.quarantine.status.marks.missing

    def miss(self) -> None:
        """A read found no object: the watch shows whether a person deleted it."""
        known, self.quarantine = self.quarantine, None
        if known is not None and known.uid != self.ended:
            self.vanished, self.orphaned = known.uid, known

    def end(self, uid: str, *, with_definition: bool) -> None:
        """A watch event: the object is gone, by itself or with its definition."""
        known, self.quarantine, self.vanished = self.quarantine, None, ""
        self.unhold_release()
        self.definition_going = with_definition
        is_foreign = known is not None and known.foreign
        if with_definition and known is not None and not is_foreign:
            self.lose_definition(known)
        elif with_definition and not is_foreign:
            self.to_adopt = True
        elif not is_foreign and uid != self.ended:
            self.orphan = uid  # of another replica's node too: it may become ours
            self.orphaned = known or self.orphaned
        self.ended = uid

    def lose_definition(self, quarantine: Quarantine) -> None:
        """Its definition was deleted, which is no release: it is made again when possible.

        A release that was decided is still carried out.
        """
        if quarantine.status.phase is Phase.RELEASING:
            self.orphan = quarantine.uid
        else:
            self.to_adopt, self.remains = True, quarantine.spec
        self.definition_going = True

    def drop(self) -> str:
        """The object was dropped. Returns the boot of a Node that replaced its own."""
        reborn, self.reborn = self.reborn, ""
        self.quarantine = None
        self.unhold_release()
        self.uncordoned, self.node_replaced = Uncordoned.NO, False
        return reborn

    # -- marks without an object ------------------------------------------------------------------

    def adopt_vanished(self) -> None:
        """The watch began anew, and will not report the fate of the vanished object."""
        self.vanished, self.to_adopt = "", True

    def drop_remains(self) -> None:
        """There is nothing to adopt."""
        self.unclaimed, self.remains = "", None

    def forget_orphan(self) -> None:
        self.orphan, self.orphaned = "", None

    # -- its node ---------------------------------------------------------------------------------

    def take_node(self, node: Node | None) -> None:
        """The Node as just read: changes by people are found from it."""
        self.node_replaced, self.uncordoned, self.reborn = False, Uncordoned.NO, ""
        quarantine = self.quarantine
        if node is None or quarantine is None:
            self.begun, self.reported_marks = None, ""
            return
        # Until the node is marked, the spec alone names which Node it was.
        known = quarantine.status.node_uid or quarantine.spec.node_uid
        another = known not in ("", node.uid)
        if another and ended_by_birth(quarantine.spec, node.boot_id):
            self.reborn = node.boot_id
        if not is_marked(node):
            self.begun, self.reported_marks = None, ""
        if quarantine.status.phase in MARKED:
            self.missing = self.lacks(node, quarantine)
            self.node_replaced = node.uid != quarantine.status.node_uid
            if not self.node_replaced:
                self.uncordoned = whose_uncordon(node, quarantine)
            if self.missing or self.node_replaced or self.uncordoned is not Uncordoned.NO:
                self.begun = None

    def lacks(self, node: Node, quarantine: Quarantine) -> tuple[str, ...]:
        """Which of our marks the node lacks. The condition trails: while it is being written, and
        a little longer (this read may be older), the node need not have it.
        """
        missing = missing_marks(node, quarantine)
        trails = self.trail is not None
        self.condition_seen = CONDITION not in missing
        if trails and CONDITION in missing and node.uid == quarantine.status.node_uid:
            return tuple(name for name in missing if name != CONDITION)
        return missing

    def note_marks(self, marks: NewMarks) -> None:
        """Our marks were just written."""
        self.node_replaced, self.missing = False, ()
        self.new_marks, self.reported_marks = marks, marks.quarantine.uid

    def take_new_marks(self) -> NewMarks | None:
        """Those that the object does not have yet; they are forgotten here."""
        marks, self.new_marks = self.new_marks, None
        return marks

    def begun_at(self, uid: str) -> float:
        """When this process marked the node for this quarantine of its own; infinite: unknown."""
        return self.begun[1] if self.begun is not None and self.begun[0] == uid else math.inf

    def are_conditions_old(self) -> bool:
        """Whether the object's conditions are to be written anew."""
        found = self.quarantine
        if found is None or not found.generation or found.version == self.conditions_of:
            return False
        return found.status.phase in _AT_REST and not are_conditions_current(found)

    def start_trail(self, trail: asyncio.Task[None]) -> None:
        self.trail, self.condition_seen = trail, False

    def age_trail(self) -> bool:
        """Called in each round: the condition trails until the second after it was written. Returns
        whether a marked node was not seen with it until then, so that a read has to find out.
        """
        if self.trail is None or not self.trail.done():
            self.trail_aged = False
        elif not self.trail_aged:
            self.trail_aged = True
        else:
            self.trail, self.trail_aged = None, False
            found = self.quarantine
            marked = found is not None and found.status.phase in MARKED
            return marked and not self.condition_seen
        return False

    # -- its repair ------------------------------------------------------------------------------

    def note_recovery(self, now: float) -> None:
        """All its incidents that act have ended: its repair is polled now, unless the last such
        poll was just before. An agent may report a recovery at each moment.
        """
        if now >= self.repair_hastened + _BETWEEN_RECOVERIES:
            self.repair_hastened = self.repair_poll = now

    def was_just_empty(self, now: float, within: float) -> bool:
        """Whether that read began at most ``within`` seconds ago."""
        return self.empty_at is not None and now - self.empty_at <= within

    # -- its release ------------------------------------------------------------------------------

    def delay_release_check(self, now: float, after: float) -> None:
        """The objections to its release are checked now, and again after this long (seconds).

        A check that was hastened doubles the pause before the next one may be: an agent's checks
        may change for ever.
        """
        hastened = now < self.release_polled + after
        self.release_pause = 2 * self.release_pause if hastened else _SHORTEST_PAUSE
        self.release_polled, self.release_poll = now, now + after

    def hasten_release_check(self, until: float) -> None:
        """They are checked again by then, or after the pause: its evidence has changed."""
        soonest = max(until, self.release_polled + self.release_pause)
        self.release_poll = min(self.release_poll, soonest)

    def unhold_release(self) -> None:
        self.release_held, self.release_poll = "", 0.0
