"""The steps of a quarantine, carried out. Each is idempotent and fenced; see docs/fences.md.

The fence: the node is read in full before the Quarantine is seen to stand (read again, or just
created), and patched with the version and uid of that read. An undo always changes the node. So
whoever acts on an older picture fails with `Conflict`, reads again, and decides again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from aggregator.policy.rules import Policy
from aggregator.quarantine.case import Case
from aggregator.quarantine.cluster import (
    Action,
    Cluster,
    ClusterError,
    Conflict,
    Node,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Unreachable,
)
from aggregator.quarantine.decide.admission import Held, Proposal
from aggregator.quarantine.decide.doubt import Basis
from aggregator.quarantine.decide.intent import OURS, Wanted, changed_intent
from aggregator.quarantine.decide.marks import cordon_change
from aggregator.quarantine.decide.record import Entry
from aggregator.quarantine.decide.wishes import FORCED
from aggregator.quarantine.fleet import Hold
from aggregator.quarantine.ledger import Kind, Ledger, Transition
from aggregator.quarantine.registrar import Registrar
from aggregator.quarantine.timekeeper import Timekeeper

log = logging.getLogger("sickbay.quarantine")

#: An announcement trails; after so many tries the next transition tells the truth again.
_ANNOUNCE_TRIES = 6
_NO_NODE = "the cluster has no node of this name"


@dataclass(frozen=True, slots=True)
class Clocks:
    """Monotonic seconds for judging, wall clock seconds for people and for what is durable.

    While the wall clock is doubted (`timekeeper`), what can't be taken back is not due before it is
    by `earliest`, and counts from `latest`. Where it is believed both are the wall clock's time.
    """

    now: Callable[[], float]
    wall: Callable[[], float]
    _keeper: Timekeeper = field(default_factory=Timekeeper, init=False, repr=False, compare=False)

    def even(self) -> float:
        """The wall clock's time, but for a jump that is not believed yet."""
        return self._keeper.even(self.now(), self.wall())

    def earliest(self) -> float:
        """What time it is at the earliest."""
        return min(self.wall(), self.even())

    def latest(self) -> float:
        """What time it is at the latest."""
        return max(self.wall(), self.even())

    def doubt(self) -> str:
        """Why the wall clock is not believed now; empty: it is."""
        return self._keeper.doubt(self.now(), self.wall())


class Admission(Protocol):
    """Whom to ask whether a node may be quarantined: our own registrar, or the leader's."""

    def restrained(self, proposal: Proposal) -> Held | None:
        """What keeps a cordon that stands from becoming a drain; None: nothing does."""

    def likely(self, proposal: Proposal) -> bool:
        """Whether it will be admitted, as far as can be told without asking."""

    async def propose(self, proposal: Proposal) -> Held | None:
        """None when the node's entry stands in the record now; else what holds it."""


class Acts:
    """Carries out steps for one node at a time; the controller runs many nodes at once."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        registrar: Registrar,
        admission: Admission,
        ledger: Ledger,
        clocks: Clocks,
        policy: Policy,
        pool_of: Callable[[str], str],
        suspects: Callable[[Case], tuple[frozenset[str], ...]],
        drain_suspects: Callable[[Case], tuple[frozenset[str], ...]],
        unsettled: Callable[[Case], str],
        basis: Callable[[Case], Basis],
        off_balancers: bool,
        may_act: Callable[[str], bool],
    ) -> None:
        """``may_act`` tells whether the node is ours to act for at this moment."""
        self._cluster = cluster
        self._registrar = registrar
        self._admission = admission
        self._ledger = ledger
        self._clocks = clocks
        self._policy = policy
        self._pool_of = pool_of
        self._suspects = suspects
        self._drain_suspects = drain_suspects
        self._unsettled = unsettled
        self._basis = basis
        self._off_balancers = off_balancers
        self._may_act = may_act

    def wanted_now(self, case: Case) -> Wanted | None:
        """What is wanted of the node. What many nodes share makes no cordon that stands a drain."""
        wanted, quarantine = case.wanted, case.patient.quarantine
        if quarantine is None or quarantine.spec.requester != OURS:
            return wanted
        if wanted is None or wanted.spec.action.strength <= quarantine.spec.action.strength:
            case.patient.hold = None
            return wanted
        proposal = replace(self._proposal(case, wanted), suspects=self._drain_suspects(case))
        held = self._admission.restrained(proposal)
        if held is None:
            case.patient.hold = None
            return wanted
        self._hold(case, held, wanted)
        return replace(wanted, spec=replace(wanted.spec, action=quarantine.spec.action))

    async def propose(self, case: Case, wanted: Wanted) -> bool:
        """Ask for admission and, when admitted, make the object and mark the node.

        The node is read while the record is written: both come before the object is made, whose
        making proves that no other stands. Thousands that are held read nothing.
        """
        if case.node_gone:  # first: a record written and undone is news to us again
            case.take_node(await self._cluster.read_node(case.node))
        if self._is_nowhere(case, wanted) or self._leave_alone(case, wanted):
            return False
        proposal = self._proposal(case, wanted)
        reading = None
        if self._admission.likely(proposal):
            reading = asyncio.create_task(self._picture(case))
        try:
            held = await self._admission.propose(proposal)
        except BaseException:
            await _given_up(reading)
            raise
        if held is not None:
            await _given_up(reading)
            self._hold(case, held, wanted)
            return False
        case.patient.hold = None
        words = case.patient.overruled
        entry = self._registrar.record.entries.get(case.node)
        node = await self._taken(case, await (reading or self._picture(case)))
        if node is None:
            await self._registrar.withdraw(entry)
            self._is_nowhere(case, wanted)
            return False
        if case.misnamed or case.patient.overruled != words or self._spared(case, wanted):
            await self._registrar.withdraw(entry)  # we decided on another picture: again
            return True
        if self._leave_alone(case, wanted):
            await self._registrar.withdraw(entry)  # not ours, and not counted
            return False
        self.note(case, Kind.ADMITTED, f"{wanted.spec.action} admitted: {wanted.spec.reason}")
        await self._create_and_mark(case, wanted, node)
        return True

    async def create(self, case: Case, wanted: Wanted) -> None:
        """The record allows it already: finish what was begun."""
        entry = self._registrar.record.entries.get(case.node)
        words = case.patient.overruled
        node = await self._taken(case, await self._picture(case))
        if node is None:
            await self._registrar.withdraw(entry)
            return  # what comes next says so
        if case.misnamed or case.patient.overruled != words or self._spared(case, wanted):
            return  # we decided on another picture: again
        if self._leave_alone(case, wanted):
            await self._registrar.withdraw(entry)
            return
        await self._create_and_mark(case, wanted, node)

    async def _picture(self, case: Case) -> Node | None:
        """The node for a patch against its version: as it is, or was a moment ago."""
        return await self._cluster.read_node(case.node, cached=True)

    async def _taken(self, case: Case, node: Node | None) -> Node | None:
        """The picture, now known of the node. What it says that is new has to be so by now."""
        if not case.bears_out(node):
            node = await self._cluster.read_node(case.node)
        case.take_node(node)
        return node

    async def _create_and_mark(self, case: Case, wanted: Wanted, node: Node) -> None:
        if not self._may_act(case.node):  # paused since it was admitted: another goes on
            raise Conflict("this replica's place among the others is not certain any more")
        quarantine = await self._cluster.create_quarantine(case.node, wanted.spec)
        case.restored = quarantine.uid  # what it stands on is in memory: it was made from there
        case.wrote(quarantine)
        await self._mark(case, quarantine, node)

    async def cordon(self, case: Case) -> None:
        """Mark the node of a quarantine that stands: node first, then the object again."""
        node = await self._cluster.read_node(case.node)
        quarantine = await self.reread(case)
        case.take_node(node)
        if quarantine is None or quarantine.deleting or quarantine.status.phase is Phase.RELEASING:
            return
        if node is None:
            await self._no_node(case, quarantine)
            return
        if case.patient.maintained and quarantine.spec.requester == OURS:
            return  # what comes next sees it
        if quarantine.spec.requester == OURS and case.wishes.exempt(self._clocks.earliest()):
            return  # what we were about to do was decided before we knew
        if not quarantine.has_finalizer:
            quarantine = await self._cluster.add_finalizer(quarantine)
            case.wrote(quarantine)
        await self._mark(case, quarantine, node)

    async def _mark(self, case: Case, quarantine: Quarantine, node: Node) -> None:
        change = cordon_change(node, quarantine, off_balancers=self._off_balancers)
        patched = await self._cluster.patch_node(node, change)
        now = self._clocks.wall()
        status = replace(
            quarantine.status,
            phase=Phase.CORDONED,
            message=f"{patched.name} is tainted and unschedulable",
            node_uid=patched.uid,
            admitted_at=quarantine.status.admitted_at or now,
            cordoned_at=now,
        )
        case.node_replaced = False
        self.note(case, Kind.CORDONED, f"cordoned: {quarantine.spec.reason or 'by hand'}")
        self._announce(case, patched.uid, quarantined=True, message=quarantine.spec.reason)
        case.wrote(await self._cluster.write_quarantine_status(quarantine, status))

    async def enter(self, case: Case, quarantine: Quarantine) -> None:
        """Count a quarantine that the record does not have, such as one made by hand."""
        spec = quarantine.spec
        if spec.requester != OURS:
            case.take_node(await self._cluster.read_node(case.node))
            if case.node_gone:
                await self._no_node(case, quarantine)
                return
        await self._registrar.enter(
            Entry(
                node=case.node,
                incident=spec.incident,
                pool=self._pool_of(case.node),
                action=spec.action.value,
                at=self._clocks.even(),
            )
        )
        who = "by sickbay" if spec.requester == OURS else "by hand"
        self.note(case, Kind.ADMITTED, f"{spec.action} entered, made {who}: {spec.reason}")

    async def update(self, case: Case, quarantine: Quarantine, wanted: Wanted) -> None:
        """Make durable what has changed in the intent."""
        spec = changed_intent(quarantine.spec, wanted)
        if spec is None:
            return
        await self._write_spec(case, quarantine, spec)
        if spec.action is not quarantine.spec.action:
            text = f"{quarantine.spec.action} becomes {spec.action}: {wanted.spec.reason}"
            self.note(case, Kind.INCIDENT_CHANGED, text)

    async def force(self, case: Case) -> None:
        """A quarantine for an annotation of a person: made, or changed with it."""
        case.take_node(await self._cluster.read_node(case.node))
        action = case.wishes.forced(self._clocks.earliest())
        if action is None or case.misnamed:
            return  # taken back in between
        reason, quarantine = case.wishes.force_reason, case.patient.quarantine
        if quarantine is None:
            if not self._may_act(case.node):  # paused since it was read: another hears people now
                raise Conflict("this replica's place among the others is not certain any more")
            spec = QuarantineSpec(action, "manual", reason, requester=FORCED)
            case.wrote(await self._cluster.create_quarantine(case.node, spec))
            return
        spec = replace(quarantine.spec, action=action, reason=reason)
        await self._write_spec(case, quarantine, spec)

    async def _write_spec(self, case: Case, quarantine: Quarantine, spec: QuarantineSpec) -> None:
        """Write the intent; a drain that is no longer wanted is a cordon again."""
        written = await self._cluster.write_quarantine_spec(quarantine, spec)
        if spec.action is not Action.DRAIN and written.status.phase is Phase.DRAINING:
            status = replace(written.status, phase=Phase.CORDONED, blockers=())
            written = await self._cluster.write_quarantine_status(written, status)
        case.wrote(written)

    async def look_at_node(self, case: Case) -> None:
        """Find out what the news only hinted at."""
        case.suspect = False  # before: a hint that comes while we read is a new one
        try:
            case.take_node(await self._cluster.read_node(case.node))
        except ClusterError:
            case.suspect = True
            raise

    async def reread(self, case: Case) -> Quarantine | None:
        """The object as it is now, and not as the news last told of it."""
        quarantine = await self._cluster.read_quarantine(case.node)
        if quarantine is None:
            case.patient.quarantine = None
        else:
            case.take_quarantine(quarantine, self._policy, self._clocks.now())
        return quarantine

    async def write_status(
        self, case: Case, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        written = await self._cluster.write_quarantine_status(quarantine, status)
        case.wrote(written)
        return written

    async def refuse(self, case: Case, quarantine: Quarantine) -> None:
        """Tell the maker of a hand-made quarantine what is wrong with it."""
        status = replace(quarantine.status, phase=Phase.INVALID, message=quarantine.problem)
        await self.write_status(case, quarantine, status)

    async def _no_node(self, case: Case, quarantine: Quarantine) -> None:
        """Say that there is nothing to act on. One made by hand is invalid, until there is."""
        message = case.patient.last_error = _NO_NODE
        by_hand = quarantine.spec.requester != OURS and quarantine.status.phase is Phase.ADMITTED
        phase = Phase.INVALID if by_hand else quarantine.status.phase
        if (quarantine.status.message, quarantine.status.phase) != (message, phase):
            status = replace(quarantine.status, phase=phase, message=message)
            await self.write_status(case, quarantine, status)

    def _spared(self, case: Case, wanted: Wanted) -> bool:
        """Whether a person has asked for less than we want, by the node as it was just read."""
        return case.wishes.cap(self._clocks.earliest()).strength < wanted.spec.action.strength

    def note(
        self, case: Case, kind: Kind, summary: str, details: Mapping[str, str] | None = None
    ) -> None:
        """Tell the ledger about the node."""
        quarantine = case.patient.quarantine
        incident = quarantine.spec.incident if quarantine is not None else ""
        if not incident and case.wanted is not None:
            incident = case.wanted.spec.incident
        self._ledger.note(
            Transition(
                at=self._clocks.wall(),
                kind=kind,
                node=case.node,
                summary=f"{case.node}: {summary}",
                incident=incident,
                details=dict(details or {}),
            )
        )

    def _proposal(self, case: Case, wanted: Wanted) -> Proposal:
        spec = wanted.spec
        return Proposal(
            case.node,
            spec.incident,
            self._pool_of(case.node),
            spec.action.value,
            self._suspects(case),
            self._unsettled(case),
            self._basis(case),
        )

    def _is_nowhere(self, case: Case, wanted: Wanted) -> bool:
        """Whether the cluster has no such node: it is held then, counts for no limit, and is looked
        for again, for it may come (back).
        """
        if case.node_gone:
            self._hold(case, Held("no-node", "not found", _NO_NODE), wanted)
        return case.node_gone

    def _leave_alone(self, case: Case, wanted: Wanted) -> bool:
        """Whether somebody else is at work on the node: it is held then, and looked at again."""
        if not case.patient.maintained:
            return False
        self._hold(case, Held("maintenance", "others", case.patient.maintained), wanted)
        return True

    def _hold(self, case: Case, held: Held, wanted: Wanted) -> None:
        before = case.patient.hold
        since = before.since if before is not None else self._clocks.wall()
        case.patient.hold = Hold(held.limit, held.value, held.reason, since, held.cause)
        if before is None or before.limit != held.limit:
            text = f"{wanted.spec.action} held by {held.limit} = {held.value}: {held.reason}"
            details = {"limit": held.limit, "value": held.value}
            if held.cause:
                details["cause"] = held.cause
            self.note(case, Kind.HELD, text, details)

    def _announce(self, case: Case, node_uid: str, *, quarantined: bool, message: str) -> None:
        """In the background: nothing that acts waits for it. A newer one waits for the older."""
        earlier = case.trail

        async def trail() -> None:
            if earlier is not None and not earlier.done():
                await asyncio.wait([earlier])
            await self.tell(case, node_uid, quarantined=quarantined, message=message)

        case.trail = asyncio.create_task(trail(), name=f"announce {case.node}")

    async def settle_announcement(self, case: Case) -> None:
        if case.trail is not None and not case.trail.done():
            await asyncio.wait([case.trail])

    async def tell(self, case: Case, node_uid: str, *, quarantined: bool, message: str) -> None:
        reason = "Quarantined" if quarantined else "Released"
        for attempt in range(_ANNOUNCE_TRIES):
            try:
                await self._cluster.announce(
                    case.node,
                    node_uid=node_uid,
                    quarantined=quarantined,
                    reason=reason,
                    message=message or reason,
                )
            except Unreachable as error:
                log.warning("announcement late", extra={"node": case.node, "error": str(error)})
                await asyncio.sleep(error.retry_after or 0.5 * 2**attempt)
            except ClusterError as error:
                log.warning("not announced", extra={"node": case.node, "error": str(error)})
                return
            else:
                return


async def _given_up(reading: "asyncio.Task[Node | None] | None") -> None:
    if reading is not None:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
