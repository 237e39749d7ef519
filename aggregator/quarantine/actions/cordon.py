"""The steps of a quarantine, carried out. Each is idempotent and fenced; see docs/fences.md.

The fence: the node is read in full before the Quarantine is seen to stand (read again, or just
created), and patched with the version and uid of that read. An undo always changes the node. So a
replica that acts on an older read fails with `Conflict`, reads again, and decides again.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from aggregator.clock import Clocks
from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    Action,
    Cluster,
    ClusterError,
    Conflict,
    Guard,
    GuardRefused,
    MarksStatus,
    Node,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    Unreachable,
)
from aggregator.events import EventKind, EventSink, Transition
from aggregator.policy.rules import Policy
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.admission.stop_switch import StopSwitch
from aggregator.quarantine.decide.admission import Held, Proposal, stopped
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.intent import (
    OURS,
    DesiredState,
    changed_intent,
    describe_override,
    is_overridden,
)
from aggregator.quarantine.decide.lost_marks import ALL_MARKS
from aggregator.quarantine.decide.node_marks import (
    MOST_REASON,
    STILL_SCHEDULABLE,
    cordon_change,
    read_did,
)
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.quarantine.decide.uncertainty import EvidenceBasis
from aggregator.quarantine.decide.uncordon import (
    UNCORDONED_BY,
    Uncordoned,
    UncordonRules,
    after_uncordon,
    has_given_up,
    recordon_due,
)
from aggregator.quarantine.state.decision import NodeHold
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.quarantine")

#: An announcement trails; after so many tries it is dropped, and the next one corrects it.
_ANNOUNCE_TRIES = 6
_ANNOUNCE_BACKOFF = Backoff(first=0.5, most=16.0, spread=0.3)
_NO_NODE = "the cluster has no node of this name"


class Admission(Protocol):
    """Decides whether a node may be quarantined: our own record writer, or the leader's."""

    def restrained(self, proposal: Proposal) -> Held | None:
        """The hold that keeps a standing cordon from becoming a drain, or None."""

    def would_admit(self, proposal: Proposal) -> bool:
        """Whether it will be admitted, as far as can be told without asking."""

    async def propose(self, proposal: Proposal) -> Held | None:
        """Returns None when the node's entry stands in the record now, else the hold."""


class NodeActions:
    """Carries out steps for one node at a time; the controller runs many nodes at once."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        record_writer: AdmissionRecordWriter,
        admission: Admission,
        event_sink: EventSink,
        clocks: Clocks,
        policy: Policy,
        pool_of: Callable[[str], str],
        suspects: Callable[[NodeState], tuple[frozenset[str], ...]],
        drain_suspects: Callable[[NodeState], tuple[frozenset[str], ...]],
        unsettled: Callable[[NodeState], str],
        fabric_hold: Callable[[NodeState], Held | None],
        basis: Callable[[NodeState], EvidenceBasis],
        off_balancers: bool,
        may_act: Callable[[str], bool],
        switch: StopSwitch,
        uncordon: UncordonRules,
        rng: random.Random,
    ) -> None:
        """``may_act`` tells whether the node is ours to act for at this moment."""
        self._cluster = cluster
        self._record_writer = record_writer
        self._admission = admission
        self._event_sink = event_sink
        self._clocks = clocks
        self._policy = policy
        self._pool_of = pool_of
        self._suspects = suspects
        self._drain_suspects = drain_suspects
        self._unsettled = unsettled
        self._fabric_hold = fabric_hold
        self._basis = basis
        self._off_balancers = off_balancers
        self._may_act = may_act
        self._switch = switch
        self._uncordon = uncordon
        self._rng = rng

    def guard(self, case: NodeState, *, granted: bool = True) -> Guard:
        """The guard of each acting request on the node: it checks for changes since the decision.

        It checks the stop switch, read anew; the node's owner; and, unless ``granted`` is False,
        whether the record still has the node's entry, by which it acts. Requests that undo or
        report take none.
        """

        async def check() -> None:
            await self._switch.check()
            if granted and not self._record_writer.grants(case.node):
                raise GuardRefused(
                    "the admission by which it was to be done does not stand any more"
                )
            if not self._may_act(case.node):
                raise GuardRefused("this replica's place among the others is not certain any more")

        return check

    def wanted_now(self, case: NodeState) -> DesiredState | None:
        """The node's desired state. A shared cause turns no standing cordon into a drain."""
        wanted, quarantine = case.decision.wanted, case.node_summary.quarantine
        if quarantine is None or quarantine.spec.requester != OURS:
            return wanted
        if (
            wanted is None
            or is_overridden(quarantine.spec)  # a person has decided on the action
            or wanted.spec.action.strength <= quarantine.spec.action.strength
        ):
            self._unhold(case)
            return wanted
        proposal = replace(self._proposal(case, wanted), suspects=self._drain_suspects(case))
        held = self._admission.restrained(proposal) or self._fabric_hold(case)
        if held is None:
            self._unhold(case)
            return wanted
        self._hold(case, held, wanted)
        return replace(wanted, spec=replace(wanted.spec, action=quarantine.spec.action))

    async def propose(self, case: NodeState, wanted: DesiredState) -> bool:
        """Ask for admission and, when admitted, make the object and mark the node.

        The node is read while the record is written: both come before the object is created, and
        its creation proves that no other stands. Thousands of held nodes cause no reads.
        """
        if case.cluster.node_gone:  # first: a record written and undone would wake us again
            case.take_node(await self._cluster.read_node(case.node))
        if self._is_nowhere(case, wanted) or self._leave_alone(case, wanted):
            return False
        wait = self._fabric_hold(case)
        if wait is not None:
            self._hold(case, wait, wanted)
            return False
        proposal = self._proposal(case, wanted)
        reading = None
        if self._admission.would_admit(proposal):
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
        case.decision.set_hold(None)
        words = case.cluster.overruled
        entry = self._record_writer.record.entries.get(case.node)
        node = await self._taken(case, await (reading or self._picture(case)))
        if node is None:
            await self._record_writer.withdraw(entry)
            self._is_nowhere(case, wanted)
            return False
        if case.agent.misnamed or case.cluster.overruled != words or self._spared(case, wanted):
            await self._record_writer.withdraw(entry)  # we decided on an older read: decide again
            return True
        if is_marked(node):
            case.own_quarantine_view().request_adoption()  # its marks have evidence too
            return True
        if self._leave_alone(case, wanted):
            await self._record_writer.withdraw(entry)  # not ours, and not counted
            return False
        self.emit_event(
            case, EventKind.ADMITTED, f"{wanted.spec.action} admitted: {wanted.spec.reason}"
        )
        await self._create_and_mark(case, wanted, node)
        return True

    async def create(self, case: NodeState, wanted: DesiredState) -> None:
        """The record allows it already: finish what was begun."""
        entry = self._record_writer.record.entries.get(case.node)
        words = case.cluster.overruled
        node = await self._taken(case, await self._picture(case))
        if node is None:
            await self._record_writer.withdraw(entry)
            return  # the next step reports it
        if case.agent.misnamed or case.cluster.overruled != words or self._spared(case, wanted):
            return  # we decided on an older read: decide again
        if is_marked(node):
            case.own_quarantine_view().request_adoption()  # its marks have evidence too
            return
        if self._leave_alone(case, wanted):
            await self._record_writer.withdraw(entry)
            return
        await self._create_and_mark(case, wanted, node)

    async def _picture(self, case: NodeState) -> Node | None:
        """The node for a patch against its version: its present or a slightly older state."""
        return await self._cluster.read_node(case.node, cached=True)

    async def _taken(self, case: NodeState, node: Node | None) -> Node | None:
        """Take this read of the node. Unknown changes in it are first confirmed by a full read."""
        if not case.bears_out(node):
            node = await self._cluster.read_node(case.node)
        case.take_node(node)
        return node

    async def _create_and_mark(self, case: NodeState, wanted: DesiredState, node: Node) -> None:
        if not self._may_act(case.node):  # paused since it was admitted: another replica goes on
            raise Conflict("this replica's place among the others is not certain any more")
        spec = replace(
            wanted.spec,
            intent_action=wanted.spec.action,
            record_generation=self._record_writer.record.generation,
            installation=self._cluster.installation,
        )
        quarantine = await self._cluster.create_quarantine(case.node, spec, guard=self.guard(case))
        case.own_quarantine_view().note_restored(quarantine.uid)
        case.wrote(quarantine)
        await self._mark(case, quarantine, node)

    async def cordon(self, case: NodeState) -> None:
        """Mark the node of a quarantine that stands: node first, then the object again."""
        node = await self._cluster.read_node(case.node)
        quarantine = await self.reread(case)
        case.take_node(node)
        if quarantine is None or quarantine.deleting or quarantine.status.phase is Phase.RELEASING:
            return
        if node is None:
            await self._no_node(case, quarantine)
            return
        if case.cluster.maintained and quarantine.spec.requester == OURS:
            return  # the next step sees it
        if quarantine.spec.requester == OURS and case.cluster.wishes.exempt(
            self._clocks.earliest()
        ):
            return  # the exemption came after our decision
        if not quarantine.has_finalizer:
            quarantine = await self._cluster.add_finalizer(quarantine)
            case.wrote(quarantine)
        await self._mark(case, quarantine, node)

    async def restart(self, case: NodeState, quarantine: Quarantine) -> None:
        """Begin again on a Node that was created in place of the marked one.

        This comes before any action there: even if a hold or a failure follows, no phase, time or
        count is of the Node that is gone.
        """
        message = "its Node was deleted and created again, and is not marked yet"
        status = QuarantineStatus(
            phase=Phase.ADMITTED,
            message=message,
            node_uid=quarantine.status.node_uid,  # of the Node that was marked
            admitted_at=quarantine.status.admitted_at,
            release_held=quarantine.status.release_held,
            override=quarantine.status.override,
            uncordoned=quarantine.status.uncordoned,
            uncordoned_at=quarantine.status.uncordoned_at,
            recordons=quarantine.status.recordons,
            evictions_held_until=quarantine.status.evictions_held_until,
            marks=MarksStatus(ALL_MARKS, since=self._clocks.wall()),
        )
        await self.write_status(case, quarantine, status)
        case.own_quarantine_view().note_restart()
        self.emit_event(case, EventKind.MARKS_MISSING, message)

    async def _mark(self, case: NodeState, quarantine: Quarantine, node: Node) -> None:
        change = cordon_change(node, quarantine, off_balancers=self._off_balancers)
        patched = await self._cluster.patch_node(node, change, guard=self.guard(case))
        now = self._clocks.wall()
        status = replace(
            quarantine.status,
            phase=Phase.CORDONED,
            message=f"{patched.name} is tainted and unschedulable",
            node_uid=patched.uid,
            admitted_at=quarantine.status.admitted_at or now,
            cordoned_at=now,
            did=read_did(patched),
            marks=None,
        )
        case.own_quarantine_view().note_marks()
        case.cluster.note_marks()
        self.emit_event(
            case, EventKind.CORDONED, f"cordoned: {quarantine.spec.reason or 'by hand'}"
        )
        self.announce(case, patched.uid, quarantined=True, message=quarantine.spec.reason)
        case.wrote(await self._cluster.write_quarantine_status(quarantine, status))

    async def recordon(self, case: NodeState) -> None:
        """Cordon the node of a standing quarantine again; after too many times, only report it.

        The status comes first: should we die before the patch, the next replica knows that
        evictions wait, and counts this one.
        """
        node = await self._cluster.read_node(case.node)
        quarantine = await self.reread(case)
        case.take_node(node)
        whose, wall = case.quarantine_view.uncordoned, self._clocks.earliest()
        if quarantine is None or node is None or whose is Uncordoned.NO:
            return  # the next step sees it
        if quarantine.deleting or quarantine.status.phase not in MARKED:
            return
        if case.is_released_by_uncordon(self._uncordon):
            return
        if wall < recordon_due(quarantine.status, wall):
            return
        status = after_uncordon(quarantine, node, whose, self._uncordon, self._clocks.latest())
        quarantine = await self.write_status(case, quarantine, status)
        self.emit_event(case, EventKind.UNCORDONED, status.uncordoned, {"whose": whose.value})
        if has_given_up(status):
            return
        change = cordon_change(node, quarantine)
        if UNCORDONED_BY in node.annotations:
            change = replace(change, annotations={**change.annotations, UNCORDONED_BY: None})
        patched = await self._cluster.patch_node(node, change, guard=self.guard(case))
        case.take_node(patched)
        did = read_did(patched)
        if did != quarantine.status.did:
            await self.write_status(case, quarantine, replace(quarantine.status, did=did))

    async def enter(self, case: NodeState, quarantine: Quarantine) -> None:
        """Count a quarantine that the record does not have, such as one made by hand."""
        spec = quarantine.spec
        if spec.requester != OURS:
            case.take_node(await self._cluster.read_node(case.node))
            if case.cluster.node_gone:
                await self._no_node(case, quarantine)
                return
        await self._record_writer.enter(
            Entry(
                node=case.node,
                incident=spec.incident,
                pool=self._pool_of(case.node),
                action=spec.action.value,
                at=self._clocks.trusted_wall(),
                **origin_of(spec),
            )
        )
        who = "by sickbay" if spec.requester == OURS else "by hand"
        self.emit_event(
            case, EventKind.ADMITTED, f"{spec.action} entered, made {who}: {spec.reason}"
        )

    async def update(self, case: NodeState, quarantine: Quarantine, wanted: DesiredState) -> None:
        """Make changes of the intent durable."""
        spec = changed_intent(quarantine.spec, wanted)
        if spec is None:
            return
        await self._write_spec(case, quarantine, spec)
        if spec.action is not quarantine.spec.action:
            text = f"{quarantine.spec.action} becomes {spec.action}: {wanted.spec.reason}"
            self.emit_event(case, EventKind.INCIDENT_CHANGED, text)

    async def force(self, case: NodeState) -> None:
        """A quarantine for an annotation of a person: made, or changed with it."""
        case.take_node(await self._cluster.read_node(case.node))
        action = case.cluster.wishes.forced(self._clocks.earliest())
        if action is None or case.agent.misnamed:
            return  # taken back in between
        reason, quarantine = case.cluster.wishes.force_reason, case.node_summary.quarantine
        if quarantine is None:
            if not self._may_act(case.node):  # paused since it was read: another replica acts
                raise Conflict("this replica's place among the others is not certain any more")
            spec = QuarantineSpec(
                action,
                "manual",
                reason,
                requester=FORCED,
                intent_action=action,
                installation=self._cluster.installation,
            )
            guard = self.guard(case, granted=False)  # it is entered after it is made
            case.wrote(await self._cluster.create_quarantine(case.node, spec, guard=guard))
            return
        spec = replace(quarantine.spec, action=action, reason=reason, intent_action=action)
        await self._write_spec(case, quarantine, spec)

    async def show_override(self, case: NodeState, quarantine: Quarantine) -> None:
        """Write a person's action to the status; a drain that they ended is a cordon again."""
        text, status = describe_override(quarantine.spec), quarantine.status
        changed = replace(status, override=text)
        if quarantine.spec.action is not Action.DRAIN and status.phase is Phase.DRAINING:
            changed = replace(changed, phase=Phase.CORDONED, blockers=())
        await self.write_status(case, quarantine, changed)
        told = text or f"spec.action is {quarantine.spec.action} again, as it was decided"
        self.emit_event(case, EventKind.OVERRIDDEN, told)

    async def show_cordon(self, case: NodeState, quarantine: Quarantine, text: str) -> None:
        """Write to the status that the node is left schedulable, or that others cordoned it."""
        wall = self._clocks.wall()
        await self.write_status(case, quarantine, replace(quarantine.status, uncordoned=text))
        if text.startswith(STILL_SCHEDULABLE) and recordon_due(quarantine.status, wall) <= wall:
            self.emit_event(
                case, EventKind.UNCORDONED, text, {"whose": case.quarantine_view.uncordoned.value}
            )

    async def show_absence(self, case: NodeState, quarantine: Quarantine) -> None:
        """Write to the status that its Node is gone, and since when, or that it is back."""
        since = self._clocks.latest() if case.cluster.node_gone else 0.0
        ends = quarantine.spec.requester == OURS
        told = (
            f"its Node is gone: it counts for no limit, and "
            f"{'ends by itself if the Node stays away' if ends else 'stays until it is deleted'}"
            if case.cluster.node_gone
            else "its Node is back, and is counted again"
        )
        message = told if quarantine.status.phase is not Phase.INVALID else _NO_NODE
        status = replace(quarantine.status, node_absent_since=since, message=message)
        await self.write_status(case, quarantine, status)
        self.emit_event(case, EventKind.NODE_ABSENT if since else EventKind.NODE_BACK, told)

    async def _write_spec(
        self, case: NodeState, quarantine: Quarantine, spec: QuarantineSpec
    ) -> None:
        """Write the intent; a drain that is no longer wanted is a cordon again."""
        written = await self._cluster.write_quarantine_spec(quarantine, spec)
        if spec.action is not Action.DRAIN and written.status.phase is Phase.DRAINING:
            status = replace(written.status, phase=Phase.CORDONED, pods_remaining=None, blockers=())
            written = await self._cluster.write_quarantine_status(written, status)
        case.wrote(written)

    async def look_at_node(self, case: NodeState) -> None:
        """Read the node, as the watches only hinted at a change."""
        case.work.begin_read()
        try:
            case.take_node(await self._cluster.read_node(case.node))
        except ClusterError:
            case.work.request_read()
            raise

    async def reread(self, case: NodeState) -> Quarantine | None:
        """The object as it is now, and not as the watch last reported it."""
        before = case.node_summary.quarantine
        quarantine = await self._cluster.read_quarantine(case.node)
        if quarantine is None:
            if case.node_summary.quarantine is not None:
                case.own_quarantine_view().miss()
        else:
            case.take_read(quarantine, self._policy, self._clocks.now(), before=before)
        return quarantine

    async def write_status(
        self, case: NodeState, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        written = await self._cluster.write_quarantine_status(quarantine, status)
        case.wrote(written)
        return written

    async def refuse(self, case: NodeState, quarantine: Quarantine) -> None:
        """Report the error in a hand-made quarantine to its maker."""
        status = replace(quarantine.status, phase=Phase.INVALID, message=quarantine.problem)
        await self.write_status(case, quarantine, status)

    async def _no_node(self, case: NodeState, quarantine: Quarantine) -> None:
        """Report that the node does not exist. A hand-made quarantine is invalid until it does."""
        message = _NO_NODE
        case.work.set_error(message)
        by_hand = quarantine.spec.requester != OURS and quarantine.status.phase is Phase.ADMITTED
        phase = Phase.INVALID if by_hand else quarantine.status.phase
        if (quarantine.status.message, quarantine.status.phase) != (message, phase):
            status = replace(quarantine.status, phase=phase, message=message)
            await self.write_status(case, quarantine, status)

    def _spared(self, case: NodeState, wanted: DesiredState) -> bool:
        """Whether an operator has asked for less than we want, by the node as it was just read."""
        return (
            case.cluster.wishes.cap(self._clocks.earliest()).strength < wanted.spec.action.strength
        )

    def emit_event(
        self,
        case: NodeState,
        kind: EventKind,
        summary: str,
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Emit an event about the node."""
        quarantine = case.node_summary.quarantine
        incident = quarantine.spec.incident if quarantine is not None else ""
        if not incident and case.decision.wanted is not None:
            incident = case.decision.wanted.spec.incident
        self._event_sink.record_event(
            Transition(
                at=self._clocks.wall(),
                kind=kind,
                node=case.node,
                summary=f"{case.node}: {summary}",
                incident=incident,
                details=dict(details or {}),
            )
        )

    def _proposal(self, case: NodeState, wanted: DesiredState) -> Proposal:
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

    def _is_nowhere(self, case: NodeState, wanted: DesiredState) -> bool:
        """Whether the cluster has no such node: it is held then, counts for no limit, and is looked
        for again, for it may come (back).
        """
        if case.cluster.node_gone:
            self._hold(case, Held("no-node", "not found", _NO_NODE), wanted)
        return case.cluster.node_gone

    def _leave_alone(self, case: NodeState, wanted: DesiredState) -> bool:
        """Whether another party is at work on the node: it is held then, and checked again."""
        if not case.cluster.maintained:
            return False
        self._hold(case, Held("maintenance", "others", case.cluster.maintained), wanted)
        return True

    def _hold(self, case: NodeState, held: Held, wanted: DesiredState) -> None:
        before = case.decision.hold
        since = before.since if before is not None else self._clocks.wall()
        case.decision.set_hold(NodeHold(held.limit, held.value, held.reason, since, held.cause))
        if before is None or before.limit != held.limit:
            text = f"{wanted.spec.action} held by {held.limit} = {held.value}: {held.reason}"
            details = {"limit": held.limit, "value": held.value}
            if held.cause:
                details["cause"] = held.cause
            self.emit_event(case, EventKind.HELD, text, details)

    def hold_foreign(self, case: NodeState) -> None:
        """Another installation's quarantine stands; report that where we want one, too."""
        quarantine, wanted = case.node_summary.quarantine, case.decision.wanted
        if quarantine is None or wanted is None or wanted.in_force is Action.OBSERVE:
            case.decision.set_hold(None)
            return
        text = f"it is in quarantine by the sickbay in namespace {quarantine.foreign}"
        self._hold(case, Held("installation", quarantine.foreign, text), wanted)

    def hold_stopped(self, case: NodeState) -> None:
        """The stop switch keeps a standing quarantine from going on; report that.

        Nodes that are marked already and only not drained get no event each: people are told of the
        stop.
        """
        quarantine, held = case.node_summary.quarantine, stopped(self._switch.reason)
        known = case.decision.hold
        if quarantine is None or (known is not None and known.limit == held.limit):
            return
        since = self._clocks.wall()
        case.decision.set_hold(NodeHold(held.limit, held.value, held.reason, since))
        if quarantine.status.phase not in MARKED:
            text = f"{quarantine.spec.action} held by {held.limit} = {held.value}: {held.reason}"
            details = {"limit": held.limit, "value": held.value}
            self.emit_event(case, EventKind.HELD, text, details)

    def unhold_resumed(self, case: NodeState) -> None:
        """The stop is over: it holds a quarantine that stands no more."""
        if case.node_summary.quarantine is not None and not self._switch.reason:
            known = case.decision.hold
            if known is not None and known.limit == "stop":
                case.decision.set_hold(None)

    def _unhold(self, case: NodeState) -> None:
        """No limit holds the desired action any more; a stop may still keep it from being begun."""
        known = case.decision.hold
        if known is not None and not (known.limit == "stop" and self._switch.reason):
            case.decision.set_hold(None)

    def announce(self, case: NodeState, node_uid: str, *, quarantined: bool, message: str) -> None:
        """Runs in the background: no act waits for it. A newer one waits for the older."""
        earlier = case.quarantine_view.trail

        async def trail() -> None:
            if earlier is not None and not earlier.done():
                await asyncio.wait([earlier])
            await self.log_action(case, node_uid, quarantined=quarantined, message=message)

        task = asyncio.create_task(trail(), name=f"announce {case.node}")
        case.own_quarantine_view().start_trail(task)

    async def settle_announcement(self, case: NodeState) -> None:
        if case.quarantine_view.trail is not None and not case.quarantine_view.trail.done():
            await asyncio.wait([case.quarantine_view.trail])

    async def log_action(
        self, case: NodeState, node_uid: str, *, quarantined: bool, message: str
    ) -> None:
        reason = "Quarantined" if quarantined else "Released"
        for attempt in range(1, _ANNOUNCE_TRIES + 1):
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
                pause = _ANNOUNCE_BACKOFF.pause(attempt, self._rng)
                await asyncio.sleep(error.retry_after or pause)
            except ClusterError as error:
                log.warning("not announced", extra={"node": case.node, "error": str(error)})
                return
            else:
                return


def origin_of(spec: QuarantineSpec) -> dict[str, str]:
    """The fields of `Entry` that the record keeps of a quarantine made by hand."""
    if spec.requester == OURS:
        return {}
    return {
        "requester": spec.requester[:MOST_REASON],
        "reason": spec.reason[:MOST_REASON],
        "kind": spec.kind,
    }


async def _given_up(reading: "asyncio.Task[Node | None] | None") -> None:
    if reading is not None:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
