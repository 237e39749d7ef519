"""How replicas confer: admission, common causes and triangulation decided by one, for all.

Whoever leads by the council counts over all nodes and asks the record; the others say what they
know of their nodes (`reporting`), ask before they quarantine, and go by the leader's answers. The
leader merely tries: the record decides, so each replica looks there before it acts. One replica
alone goes none of these ways.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from aggregator.quarantine.acts import Clocks
from aggregator.quarantine.apart import Apart
from aggregator.quarantine.case import Case
from aggregator.quarantine.census import Census
from aggregator.quarantine.cluster import ClusterError
from aggregator.quarantine.decide.admission import Held, Proposal
from aggregator.quarantine.decide.doubt import CERTAIN, Doubt
from aggregator.quarantine.decide.sayings import (
    Answer,
    Findings,
    Outlook,
    turn_findings,
    turn_outlook,
)
from aggregator.quarantine.elsewhere import Elsewhere, Unsaid
from aggregator.quarantine.fleet import Fleet
from aggregator.quarantine.ledger import Ledger
from aggregator.quarantine.presiding import NotHere, Presiding, Seat
from aggregator.quarantine.registrar import Registrar
from aggregator.quarantine.reporting import Reporter, Voice, VoiceLost
from aggregator.quarantine.suspecting import Suspecting
from aggregator.quarantine.triangulating import Triangulating
from aggregator.shards.council import Member, Shards

#: The leader counts anew so often (seconds) where others go by it.
TICK = 0.5
#: The same where there are no others: time alone changes little.
_ALONE = 2.0
#: How many have reported is counted every so many ticks: it goes through all the others' nodes.
COUNT_EVERY = 4
#: A new leader blames nobody for the network before so many seconds: agents whose replica is gone
#: are on their way to another, and nobody knows what they see.
TRIANGULATES_AFTER = 60.0
#: Nodes asked for again between two looks at whatever else is to be done.
_SLICE = 50

log = logging.getLogger("sickbay.quarantine")


class Conferring:
    """`acts.Admission` for this replica. ``again`` has a node seen to that was held."""

    def __init__(
        self,
        *,
        shards: Shards,
        census: Census,
        elsewhere: Elsewhere,
        unsaid: Unsaid,
        suspecting: Suspecting,
        triangulating: Triangulating,
        registrar: Registrar,
        fleet: Fleet,
        ledger: Ledger,
        clocks: Clocks,
        again: Callable[[Case], None],
    ) -> None:
        self._shards = shards
        self._census = census
        self._elsewhere = elsewhere
        self._suspecting = suspecting
        self._triangulating = triangulating
        self._registrar = registrar
        self._fleet = fleet
        self._clocks = clocks
        self._again = again
        self._apart = Apart(ledger, clocks)
        self._reporter = Reporter(
            census=census,
            suspecting=suspecting,
            triangulating=triangulating,
            owns=shards.owns,
            unsaid=unsaid,
            clocks=clocks,
        )
        self._presiding = Presiding(
            shards=shards,
            census=census,
            elsewhere=elsewhere,
            suspecting=suspecting,
            triangulating=triangulating,
            registrar=registrar,
            fleet=fleet,
            clocks=clocks,
            settled=self._doubt_changed,
        )
        self._voice: Voice | None = None
        self._outlook: Outlook | None = None
        self._unreached: tuple[Member, str] | None = None
        self._leading = True
        self._network_from = float("-inf")
        self._doubted = CERTAIN
        self._reported = 0
        self._asking: asyncio.Task[None] | None = None
        shards.on_change(self._council_changed)
        self._council_changed()

    # -- who leads ---------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether we lead by the council as last known: we hear the others, and tell people."""
        return self._leading

    @property
    def leader(self) -> Member | None:
        """Whom to open a stream to. None: we lead, or nobody is known to."""
        leader = self._shards.council.leader
        return None if leader is None or leader.name == self._shards.council.me else leader

    def _council_changed(self) -> None:
        council = self._shards.council
        leader = council.leader
        if leader is not None and leader.name == council.me:
            self._lead()
        else:
            self._follow()
        if self._voice is not None and self._voice.leader != leader:
            self._voice.close(f"{self._voice.leader.name} does not lead any more")
            self._voice = None
        self._presiding.members_changed()
        self._doubt_changed()

    def _lead(self) -> None:
        if self._leading:
            return
        self._leading = True
        self._network_from = self._clocks.now() + TRIANGULATES_AFTER
        self._elsewhere.reported = 0
        self._outlook = None
        self._suspecting.lead()
        self._triangulating.lead(self._network_from)
        log.info("this replica leads", extra={"replica": self._shards.council.me})

    def _follow(self) -> None:
        if not self._leading:
            return
        self._leading = False
        self._presiding.close("it does not lead any more")
        self._apart.forget()
        self._suspecting.follow()
        self._triangulating.follow()
        for node in self._elsewhere.take_all():
            self._forget(node)

    def _forget(self, node: str) -> None:
        self._suspecting.untold(node)
        self._triangulating.untold(node)

    # -- for the transport -------------------------------------------------------------------

    def seat(self, name: str, epoch: str) -> Seat:
        """A replica speaks to us as the leader. Raises `NotHere`."""
        return self._presiding.seat(name, epoch)

    def speak(self, leader: Member) -> Voice:
        """A stream to the leader is open. Raises `NotHere` where it leads no more."""
        if self.leader != leader:
            raise NotHere(f"{leader.name} does not lead any more")
        if self._voice is not None:
            self._voice.close("another stream was opened")
        self._outlook = self._unreached = None
        self._voice = Voice(leader, self._reporter, self._heard)
        return self._voice

    def unreached(self, leader: Member, reason: str) -> None:
        """There is no stream to the leader; why, for people."""
        self._unreached = (leader, reason)
        self._doubt_changed()

    def _heard(self, voice: Voice, answer: Answer) -> None:
        if voice is not self._voice:
            return
        now = self._clocks.now()
        if isinstance(answer, Findings):
            self._triangulating.answered(turn_findings(answer, now).findings)
        elif isinstance(answer, Outlook):
            self._outlook = turn_outlook(answer, now)
            self._elsewhere.reported = answer.reported
            self._suspecting.answered(self._outlook.causes)
            self._fleet.network = {one.subject: one for one in self._outlook.network}
            self._doubt_changed()

    # -- admission -----------------------------------------------------------------------------

    def doubt(self) -> Doubt:
        """What is not known of the others: by our own look where we lead, else by the leader's."""
        council = self._shards.council
        if self._leading:
            early = self._clocks.now() < self._network_from
            text = "who reaches whom is not judged yet: the leader is new" if early else ""
            if len(council.members) < 2:  # what another found when it led is old here, too
                return Doubt(network=text)
            if not self._shards.leads():  # it was paused, say: another may lead by now
                return Doubt(unsure="this replica's own place among the others is not certain")
            return Doubt("", council.differing, self._presiding.missing(), text)
        outlook, silent = self._outlook, self._no_answer()
        if silent and self._unreached is not None and self._unreached[0] == self.leader:
            silent = f"{silent}: {self._unreached[1]}"
        if outlook is None or silent:
            return Doubt("", council.differing, silent or "the leader has not told anything yet")
        theirs = outlook.doubt
        return replace(theirs, differing=council.differing or theirs.differing)

    def _no_answer(self) -> str:
        """Why the leader can't be asked; empty: it can."""
        voice, leader = self._voice, self.leader
        if leader is None:
            return "no replica is known to lead"
        if voice is None or voice.lost:
            return f"{leader.name}, which leads, is not reached"
        return ""

    def restrained(self, proposal: Proposal) -> Held | None:
        silent = "" if self._leading else self._no_answer()
        return _unanswered(silent) if silent else self._registrar.restrained(proposal)

    def likely(self, proposal: Proposal) -> bool:
        return (self._leading or not self._no_answer()) and self._registrar.likely(proposal)

    async def propose(self, proposal: Proposal) -> Held | None:
        if self._leading:
            if self._shards.leads():
                return await self._registrar.propose(proposal)
            return _unanswered("this replica leads, and its own place is not certain")
        silent, voice = self._no_answer(), self._voice
        if silent or voice is None:
            return _unanswered(silent)
        try:
            decision = await voice.ask(proposal)
        except VoiceLost as lost:
            return _unanswered(str(lost))
        if decision.failed:
            raise ClusterError(decision.failed)
        if decision.held is not None:
            return decision.held
        return await self._registrar.stands(proposal.node)

    # -- in time -------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever: what the leader does for the others."""
        turn = 0
        while True:
            await asyncio.sleep(TICK if len(self._shards.council.members) > 1 else _ALONE)
            for node in self._elsewhere.take_expired(self._clocks.now()):
                self._forget(node)
            if self._leading and len(self._shards.council.members) > 1:
                if turn % COUNT_EVERY == 0:
                    self._reported = self._census.size().reported
                turn += 1
                if self._is_certain():
                    self._suspecting.look()
                doubt = self.doubt()
                self._presiding.look(doubt, self._reported)
                if self._shards.leads():
                    self._apart.look(doubt)
            self._doubt_changed()

    def go_round(self) -> None:
        """What time alone brings, in each of the controller's rounds."""
        record = self._registrar.record
        if self._voice is not None and not self._voice.lost:
            self._voice.note_silence()
        if not self._leading or self._is_certain():
            lasting = self._leading and bool(self._presiding.missing())
            self._suspecting.go_round(record, lasting=lasting)
            self._triangulating.go_round()

    def _is_certain(self) -> bool:
        """Whether what we hear, and don't hear, means something.

        A process that was paused finds all silent on waking, before it knows that it does not lead
        any more. (Where the API server is away we do lead, and people are told.)
        """
        return self._shards.leads() or bool(self._shards.council.frozen)

    def _doubt_changed(self) -> None:
        """What was held for what we did not know is looked at again as soon as we know it."""
        doubt = self.doubt()
        if doubt == self._doubted:
            return
        self._doubted = doubt
        self._fleet.incomplete = doubt.unsure or doubt.missing
        if self._leading and len(self._shards.council.members) > 1:
            self._presiding.look(doubt, self._reported)
        waits = any(case.patient.hold is not None for case in self._census.cases())
        if waits and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask_again(), name="ask again")

    async def _ask_again(self) -> None:
        held = [one for one in self._census.cases() if _held_by_shards(one)]
        for count, case in enumerate(held, 1):
            if _held_by_shards(case):
                self._again(case)
            if count % _SLICE == 0:
                await asyncio.sleep(0)

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        if self._voice is not None:
            self._voice.close("the aggregator stops")
        self._presiding.close("the aggregator stops")


def _held_by_shards(case: Case) -> bool:
    return case.patient.hold is not None and case.patient.hold.limit == "shards"


def _unanswered(why: str) -> Held:
    return Held("shards", "no answer", f"{why}; asked again in a moment")
