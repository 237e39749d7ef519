"""One node as the controller works on it: the patient, and what only the controller needs."""

import asyncio
from dataclasses import dataclass, field, replace

from aggregator.health.model import Cleared
from aggregator.health.node import REMEMBERED
from aggregator.policy.incident import Evidence, Incident
from aggregator.policy.judge import judge
from aggregator.policy.rules import Policy
from aggregator.policy.silent import silent_match
from aggregator.quarantine.again import Again
from aggregator.quarantine.cluster import Action, Node, Phase, Quarantine, is_older
from aggregator.quarantine.decide.intent import (
    OURS,
    Wanted,
    ended_by_birth,
    incidents_of,
    wanted_of,
)
from aggregator.quarantine.decide.maintenance import maintained_by
from aggregator.quarantine.decide.marks import foreign_hands, read_overruled, words_of
from aggregator.quarantine.decide.steps import Situation
from aggregator.quarantine.decide.wishes import NONE, Wishes, describe, read_wishes
from aggregator.quarantine.decide.words import Word, ended_by, stands
from aggregator.quarantine.fleet import Patient
from aggregator.sharing import NOTHING

#: From here on the node carries our marks.
MARKED = (Phase.CORDONED, Phase.DRAINING, Phase.DRAINED)


@dataclass(slots=True)
class Case:
    """The controller's side of a patient.

    ``restored``: the uid of the quarantine whose evidence was taken back into memory.
    ``ended``: the uid of the last quarantine that is no more; news of it, and answers, come late.
    ``suspect``: the news hint that the node may be schedulable again, or gone; a read decides.
    ``orphan``: the uid of a quarantine that vanished without its undo.
    ``counted``: the census counts it among those that have reported.
    ``silent``: it was told that the agent has been gone for too long.
    ``claimed``: the UID of the Node that the agent's identity proves; empty where it proves none.
    ``misnamed``: the node was read, and what is known of it is of another Node of its name.
    ``reborn``: the boot of the Node that came in place of the quarantined one; empty: none did.
    ``over``: people's words that have ended, and that the node still remembers.
    ``signs``: what ended before the node's own memory of people's words was read.
    ``wishes``: what people ask of the node in its annotations, as last read in full, or listed.
    ``release_look``: when to look again at what speaks against its release (monotonic).
    ``looked_at``: when the node was last read for what nothing tells of (monotonic).
    ``ours``: whether the node is our shard's, as last looked at, None before that; ``ours_since``
    when it became ours (monotonic).
    ``unread``: what the node remembers of people's words may have changed while it was another's.
    ``silent_failing``: what was failing when its agent fell silent, while its kubelet is ready.
    """

    patient: Patient
    task: asyncio.Task[None] | None = None
    again: Again = field(default_factory=Again)
    timer: asyncio.TimerHandle | None = None
    waiters: tuple[asyncio.Future[None], ...] = ()
    restored: str = ""
    ended: str = ""
    suspect: bool = False
    uncordoned: bool = False
    node_replaced: bool = False
    reborn: str = ""
    node_gone: bool = False
    definition_going: bool = False
    orphan: str = ""
    counted: bool = False
    silent: bool = False
    claimed: str = ""
    misnamed: bool = False
    over: frozenset[Word] = frozenset()
    signs: tuple[Cleared, ...] = ()
    wishes: Wishes = NONE
    wishes_known: bool = False
    release_look: float = 0.0
    looked_at: float = float("-inf")
    ours: bool | None = None
    ours_since: float = float("-inf")
    unread: bool = False
    silent_failing: str = ""
    silent_failing_since: float = 0.0
    wanted: Wanted | None = None
    trail: asyncio.Task[None] | None = None

    @property
    def node(self) -> str:
        return self.patient.node

    @property
    def heard(self) -> bool:
        """Its agent has given a snapshot since this process started, and may be gone since."""
        health = self.patient.health
        return health is not None and health.has_snapshot

    @property
    def fresh(self) -> bool:
        """The agent is attached and has given its snapshot since."""
        return self.patient.attached and self.heard

    @property
    def acting(self) -> bool:
        """Whether an open incident asks for more than being looked at."""
        return any(incident.action != "observe" for incident in self.patient.incidents.values())

    def take_quarantine(self, quarantine: Quarantine, policy: Policy, now: float) -> None:
        """The object as last read or written.

        Its evidence comes back into memory when it is first seen, and where another has written it
        since: a replica that had the node before us, say. Until the agent has spoken here, there is
        no other evidence than the object's.
        """
        if quarantine.uid == self.ended:
            return
        known = self.patient.quarantine
        if known is not None and _is_past(quarantine, known):
            return
        if known is not None and known.uid != quarantine.uid:
            self.patient.release_held, self.release_look = "", 0.0  # that was the other's
        self.patient.quarantine = quarantine
        if self.restored == quarantine.uid and known is not None and known.spec == quarantine.spec:
            return
        self.restored = quarantine.uid
        before, found = self.patient.incidents, incidents_of(quarantine, policy, now)
        if self.patient.health is None:
            self.patient.incidents = {
                ident: replace(one, since=before[ident].since) if ident in before else one
                for ident, one in found.items()
            }
            return
        self.patient.incidents = {**before} | {
            ident: _joined(before[ident], one) if ident in before else one
            for ident, one in found.items()
        }

    def is_news(self, quarantine: Quarantine) -> bool:
        """Whether it says more than is known: what we wrote ourselves comes back as news."""
        known = self.patient.quarantine
        if known is None or known.uid != quarantine.uid:
            return True
        return known.version != quarantine.version and not _is_past(quarantine, known)

    def wrote(self, quarantine: Quarantine) -> None:
        """The object as we have just written it; the news that it is gone may have come before."""
        if quarantine.uid != self.ended:
            self.patient.quarantine = quarantine

    def bears_out(self, node: Node | None) -> bool:
        """Whether a picture that may be old says nothing that is not known of the node already.

        Such a one may be taken for a patch that its version fences; see docs/fences.md.
        """
        patient = self.patient
        return (
            node is not None
            and not (self.unread or self.node_gone or self.misnamed)
            and patient.quarantine is None
            and self.claimed in ("", node.uid)
            and maintained_by(node) == patient.maintained == ""
            and read_wishes(node.annotations) == self.wishes
            and read_overruled(node.annotations) - self.over == patient.overruled
        )

    def take_node(self, node: Node | None) -> None:
        """The node as just read: the base for what people did to it."""
        quarantine = self.patient.quarantine
        self.node_gone = node is None
        self.misnamed = node is not None and self.claimed not in ("", node.uid)
        self.unread = False
        self.node_replaced = self.uncordoned = False
        self.reborn = ""
        if node is None:
            self.patient.foreign = self.patient.maintained = ""
            self.wishes, self.wishes_known = NONE, False  # they stood on it
            return
        self.patient.foreign = foreign_hands(node)
        self.patient.maintained = maintained_by(node)
        self.wishes, self.wishes_known = read_wishes(node.annotations), True
        self.take_overruled(read_overruled(node.annotations))
        if quarantine is None:
            return
        another = quarantine.status.node_uid not in ("", node.uid)
        if another and ended_by_birth(quarantine.spec, node.boot_id):
            self.reborn = node.boot_id
        if quarantine.status.phase in MARKED:
            self.node_replaced = node.uid != quarantine.status.node_uid
            self.uncordoned = not self.node_replaced and not node.unschedulable

    def disown(self, policy: Policy, now: float) -> None:
        """What the agent of another Node of this name said is not this node's evidence.

        What a quarantine stands on stays: it is durable, and may be of the same machine and boot.
        """
        self.claimed, self.misnamed = "", False
        self.patient.attached = False
        self.patient.health = None
        self.patient.incidents = NOTHING
        self.wanted = None
        quarantine, self.restored = self.patient.quarantine, ""
        if quarantine is not None:
            self.take_quarantine(quarantine, policy, now)

    def hand_over(self, policy: Policy, now: float) -> None:
        """The node is another shard's now: what its agent said here is evidence no more.

        What the cluster tells of it stays, for the page, and for the day when it is ours again.
        """
        self.disown(policy, now)
        patient = self.patient
        # What the node remembers stays known. Which of it is over its next owner finds out, and by
        # the time that the node is ours again, the same words may have been said anew.
        patient.overruled, self.over = patient.overruled | self.over, frozenset()
        patient.last_heard, patient.hold, patient.conflict = None, None, ""
        patient.would = patient.spared = patient.release_held = patient.last_error = ""
        self.silent, self.silent_failing, self.orphan, self.signs = False, "", "", ()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def hear_wishes(self, wall: float) -> tuple[str, ...]:
        """What people ask of the node, for whoever shows it. Returns what was not so before."""
        before, self.patient.wishes = self.patient.wishes, describe(self.wishes, wall)
        self.patient.exempt = self.wishes.exempt(wall)
        new = tuple(one for one in self.patient.wishes if one not in before)
        return new or (
            ("nobody asks anything special of it any more",)
            * bool(before and not self.patient.wishes)
        )

    @property
    def release_held(self) -> str:
        """Why it is not released although its cause is over; empty: nothing speaks against it."""
        quarantine = self.patient.quarantine
        if quarantine is None:
            return ""
        return self.patient.release_held or quarantine.status.release_held

    def take_overruled(self, remembered: frozenset[Word]) -> None:
        """People's words as the node remembers them: read from it, or just written."""
        self.over &= remembered
        self.patient.overruled = remembered - self.over
        if self.signs:
            self._end_words(self.signs)
            self.signs = ()

    def take_signs(self, signs: tuple[Cleared, ...], *, node_read: bool) -> None:
        """What the agent says has ended; a person's word about it ends too.

        ``node_read``: what the node remembers is known. Until then the signs are kept for it.
        """
        self._end_words(signs)
        if not node_read:
            self.signs = (*self.signs, *signs)[-REMEMBERED:]

    def _end_words(self, signs: tuple[Cleared, ...]) -> None:
        self._forget_words({word for word in self.patient.overruled if ended_by(word, signs)})

    def _forget_words(self, ended: set[Word]) -> None:
        if not ended:
            return  # at nearly every message; an empty set made anew is 216 bytes
        self.over |= ended
        self.patient.overruled -= ended

    def rejudge(
        self, policy: Policy, mode: Action, now: float, *, silent_action: str = "observe"
    ) -> tuple[list[Incident], float | None]:
        """Judge anew. Returns what closed, and when time alone may change the judgement."""
        health = self.patient.health
        if health is None:
            return [], None
        more = []
        if self.silent_failing:
            since = self.silent_failing_since
            more.append(silent_match(health, self.silent_failing, since, silent_action))
        judgement = judge(
            policy, health, self.patient.incidents, now, speaking=self.fresh, more=more
        )
        self.patient.incidents = judgement.incidents
        if self.fresh:
            self._forget_words({w for w in self.patient.overruled if not stands(w, health)})
        overruled = frozenset(word.key for word in self.patient.overruled)
        self.wanted = wanted_of(self.patient.incidents, overruled, mode, policy.hash)
        return list(judgement.closed), judgement.look_again

    def overrule(self, remembered: frozenset[Word] = frozenset()) -> frozenset[Word]:
        """All that the quarantine stands on and that is not over, as overruled by a person.

        ``remembered`` is what the node's marks say of it. Of what has recovered, and waits for its
        release, there is nothing left to overrule: it would silence the next fault.
        """
        quarantine = self.patient.quarantine
        recovered = self.fresh and not self.acting
        spec = quarantine.spec.evidence if quarantine is not None and not recovered else ()
        wanted = self.wanted.spec.evidence if self.wanted is not None else ()
        latest = {(item.code, item.component): item for item in (*spec, *wanted)}
        over = {
            item.key
            for incident in self.patient.incidents.values()
            for item in incident.evidence
            if item.over
        }
        words = words_of(latest.values()) | remembered
        return frozenset(word for word in words if word.key not in over)

    def situation(
        self,
        *,
        mode: Action,
        wanted: Wanted | None,
        in_record: bool,
        stopped: bool,
        patient_enough: bool,
        now: float,
        wall: float,
    ) -> Situation:
        """``wanted`` is what is wanted of it now, ``patient_enough``: this process has waited for
        the node's agent as long as it has to.
        """
        quarantine = self.patient.quarantine
        if quarantine is None or quarantine.spec.requester == OURS:
            mode = min(mode, self.wishes.cap(wall), key=lambda action: action.strength)
        return Situation(
            quarantine=self.patient.quarantine,
            in_record=in_record,
            wanted=wanted,
            mode=mode,
            knows=self.heard or patient_enough,
            fresh=self.fresh,
            recovered=self.fresh and not self.acting,
            uncordoned=self.uncordoned,
            node_replaced=self.node_replaced,
            reborn=bool(self.reborn),
            node_gone=self.node_gone,
            maintained=bool(self.patient.maintained),
            stopped=stopped,
            conflict=bool(self.patient.conflict),
            definition_going=self.definition_going,
            release_held=bool(self.release_held),
            look_later=now < self.release_look,
            forced=self.wishes.forced(wall),
            unforced=self.node_gone or (self.wishes_known and not self.wishes.force_asked),
            exempt=self.wishes.exempt(wall),
        )


def _is_past(one: Quarantine, other: Quarantine) -> bool:
    """Whether one is an earlier version of the same object."""
    return one.uid == other.uid and is_older(one.version, other.version)


def _joined(mine: Incident, remembered: Incident) -> Incident:
    """Mine, with all that is remembered: evidence, and signs. A fault that is there again, after
    its sign, is in force as soon as it is judged.
    """
    ended = {item.key: item.over for item in remembered.evidence}
    known = {item.key for item in mine.evidence}
    more: tuple[Evidence, ...] = tuple(
        item for item in remembered.evidence if item.key not in known
    )
    signed = tuple(
        replace(item, over=item.over or ended.get(item.key, "")) for item in mine.evidence
    )
    return Incident(
        id=mine.id,
        node=mine.node,
        boot_id=remembered.boot_id,
        kind=mine.kind,
        action=mine.action,
        summary=mine.summary,
        since=min(mine.since, remembered.since),
        evidence=(*signed, *more),
        healthy_for=max(mine.healthy_for, remembered.healthy_for),
        recovering_since=mine.recovering_since,
    )
