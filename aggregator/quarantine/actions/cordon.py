"""The steps of a quarantine, carried out. Each is idempotent and fenced; see docs/fences.md.

The fence: the node is read in full before the Quarantine is seen to stand (read again, or just
created), and patched with the version and uid of that read. A quarantine that begins names what it
expects of the node instead (expected_nodes.py). An undo always changes the node. So a replica that
acts on an older state fails with `Conflict`, reads again, and decides again.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import (
    STILL_SCHEDULABLE,
    Action,
    Cluster,
    ClusterError,
    Conflict,
    Guard,
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
from aggregator.quarantine.actions.act_guard import FreshRead, act_guard, quarantine_read
from aggregator.quarantine.actions.expected_nodes import ExpectedNodes
from aggregator.quarantine.actions.mark_writer import MarkWriter
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.admission.stop_switch import StopSwitch
from aggregator.quarantine.decide.admission import (
    UNREAD_NODE,
    Held,
    NodeRead,
    Proposal,
    stopped,
)
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.intent import (
    OURS,
    DesiredState,
    changed_intent,
    describe_override,
    is_overridden,
)
from aggregator.quarantine.decide.lost_marks import ALL_MARKS
from aggregator.quarantine.decide.maintenance import is_stale
from aggregator.quarantine.decide.mark_rules import MarkRules
from aggregator.quarantine.decide.node_marks import (
    MOST_REASON,
    cordon_change,
    marked_by,
    read_applied,
)
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.repair import is_busy
from aggregator.quarantine.decide.uncordon import (
    UNCORDONED_BY,
    Uncordoned,
    UncordonRules,
    after_uncordon,
    has_given_up,
    recordon_due,
)
from aggregator.quarantine.state.decision import UNREAD_STATUS, NodeHold
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.node_pools import NodePools
from aggregator.quarantine.state.quarantine_view import MARKED, NewMarks
from aggregator.quarantine.state.stage_times import StageTimes
from aggregator.runtime.backoff import Backoff

log = logging.getLogger("sickbay.quarantine")

#: An announcement trails; after so many tries it is dropped, and the next one corrects it.
_ANNOUNCE_TRIES = 6
_ANNOUNCE_BACKOFF = Backoff(first=0.5, most=16.0, spread=0.3)
_NO_NODE = "the cluster has no node of this name"


class NodeActions:
    """Carries out steps for one node at a time; the controller runs many nodes at once."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        record_writer: AdmissionRecordWriter,
        event_sink: EventSink,
        clocks: Clocks,
        policy: Policy,
        pool_of: Callable[[str], str],
        pools: NodePools,
        suspects: Callable[[NodeState], tuple[frozenset[str], ...]],
        drain_suspects: Callable[[NodeState], tuple[frozenset[str], ...]],
        unsettled: Callable[[NodeState], str],
        fabric_hold: Callable[[NodeState], Held | None],
        off_load_balancers: bool,
        marks: MarkRules,
        may_act: Callable[[], bool],
        switch: StopSwitch,
        uncordon: UncordonRules,
        rng: random.Random,
        stages: StageTimes,
    ) -> None:
        """``may_act`` tells whether we are the controller at this moment. ``pools`` has the
        mode of each node; ``off_load_balancers``: a node that is to be drained leaves those.
        """
        self._cluster = cluster
        self.words = cluster.words
        self.mark_writer = MarkWriter(cluster, clocks.now)
        self._expected = ExpectedNodes(cluster, pool_of)
        self._record_writer = record_writer
        self._event_sink = event_sink
        self._clocks = clocks
        self._policy = policy
        self._pool_of = pool_of
        self._pools = pools
        self._suspects = suspects
        self._drain_suspects = drain_suspects
        self._unsettled = unsettled
        self._fabric_hold = fabric_hold
        self._off_load_balancers = off_load_balancers
        self._marks = marks
        self._may_act = may_act
        self._switch = switch
        self._uncordon = uncordon
        self._rng = rng
        self.stages = stages

    def may_act(self) -> bool:
        """Whether we are the controller at this moment."""
        return self._may_act()

    def guard(
        self,
        node_state: NodeState,
        *,
        granted: bool = True,
        against: Callable[[], str] = str,
        quarantine: Quarantine | None = None,
        read_at: float = -math.inf,
    ) -> Guard:
        """The guard of each acting request on the node: it checks for changes since the decision.

        It checks the stop switch, read anew; the node's owner; and, unless ``granted`` is False,
        whether the record still has the node's entry, by which it acts, and whether the mode of the
        pool, by the labels as last read, still lets us act on our own. ``against`` is
        the act's own check. ``quarantine``, read at ``read_at`` (monotonic seconds), is read again
        where that is too old. Requests that undo or report take none.
        """

        def why_not() -> str:
            if granted and not self._record_writer.grants(node_state.node):
                return "the admission by which it was to be done does not stand any more"
            if granted and self._is_observed(node_state):
                return "the mode of the node's pool is observe now"
            return against()

        fresh = None
        if quarantine is not None:
            read = quarantine_read(self._cluster, quarantine)
            fresh = FreshRead(read, now=self._clocks.now, began=read_at)
        return act_guard(switch=self._switch, may_act=self._may_act, against=why_not, fresh=fresh)

    def _is_observed(self, node_state: NodeState) -> bool:
        """Whether its mode forbids acts of our own; a person's quarantine goes on in any mode."""
        quarantine = node_state.node_summary.quarantine
        ours = quarantine is None or quarantine.spec.requester == OURS
        return ours and self._pools.mode_of(node_state.node) is Action.OBSERVE

    def wanted_now(self, node_state: NodeState) -> DesiredState | None:
        """The node's desired state. A shared cause turns no standing cordon into a drain."""
        wanted, quarantine = node_state.decision.wanted, node_state.node_summary.quarantine
        if quarantine is None or quarantine.unread or quarantine.spec.requester != OURS:
            return wanted
        if (
            wanted is None
            or is_overridden(quarantine.spec)  # a person has decided on the action
            or wanted.spec.action.strength <= quarantine.spec.action.strength
        ):
            self._unhold(node_state)
            return wanted
        proposal = replace(
            self._proposal(node_state, wanted), suspects=self._drain_suspects(node_state)
        )
        held = self._record_writer.escalation_hold(proposal) or self._fabric_hold(node_state)
        if held is None:
            self._unhold(node_state)
            return wanted
        self._hold(node_state, held, wanted)
        return replace(wanted, spec=replace(wanted.spec, action=quarantine.spec.action))

    async def propose(self, node_state: NodeState, wanted: DesiredState) -> bool:
        """Request admission and, when admitted, make the object and mark the node.

        The patch checks what the list of nodes shows. Else the node is read before it counts for a
        limit, since another tool may hold it: a withdrawal alone would leave less room for others
        meanwhile. Thousands of held nodes cause no reads.
        """
        unplaced = node_state.cluster.labels is None
        if node_state.cluster.node_gone or unplaced:  # first: a record undone would wake us again
            node_state.take_node(await self._cluster.read_node(node_state.node))
            if unplaced and not node_state.cluster.node_gone:
                return True  # its labels tell what it shares with others: decide again by them
        if self._is_nowhere(node_state, wanted) or self._leave_alone(node_state, wanted):
            return False
        wait = self._fabric_hold(node_state)
        if wait is not None:
            self._hold(node_state, wait, wanted)
            return False
        words = node_state.cluster.overruled
        proposal, node = self._proposal(node_state, wanted), self._expected.expect(node_state)
        listed = NodeRead.NONE if node is None else NodeRead.LISTED
        held = await self._record_writer.propose(replace(proposal, read=listed))
        if held is UNREAD_NODE:
            node = await self._taken(node_state, await self._picture(node_state))
            if self._is_nowhere(node_state, wanted) or self._leave_alone(node_state, wanted):
                return False
            if node is not None and is_marked(node):
                node_state.own_quarantine_view().request_adoption()  # its marks have evidence too
                return True
            if self._is_outdated(node_state, wanted, words, proposal):
                return True
            held = await self._record_writer.propose(proposal)
        if held is not None:
            self._hold(node_state, held, wanted)
            return False
        return await self._begin(node_state, wanted, words, proposal, node)

    async def _begin(
        self,
        node_state: NodeState,
        wanted: DesiredState,
        words: frozenset[Override],
        proposal: Proposal,
        node: Node | None,
    ) -> bool:
        """Begin what was just admitted, unless what it was decided on has changed meanwhile."""
        node_state.set_hold(None)
        entry = self._record_writer.record.entries.get(node_state.node)
        if node is None or (node.unread is not None and self._expected.expect(node_state) is None):
            node = await self._taken(node_state, await self._picture(node_state))
        if node is None:
            await self._record_writer.withdraw(entry)
            self._is_nowhere(node_state, wanted)
            return False
        if self._is_outdated(node_state, wanted, words, proposal) or self._is_admitted_elsewhere(
            node_state, entry
        ):
            await self._record_writer.withdraw(entry)  # we decided on an older read: decide again
            return True
        if is_marked(node):
            node_state.own_quarantine_view().request_adoption()  # its marks have evidence too
            return True
        if self._leave_alone(node_state, wanted):
            await self._record_writer.withdraw(entry)  # not ours, and not counted
            return False
        await self._create_and_mark(node_state, wanted, node)
        return True

    def _is_outdated(
        self,
        node_state: NodeState,
        wanted: DesiredState,
        words: frozenset[Override],
        proposal: Proposal,
    ) -> bool:
        """Whether the proposal rests on an older state than the last read."""
        moved = self._pools.name_of(node_state.node) != proposal.policy_pool
        return moved or self._has_changed(node_state, wanted, words)

    async def create(self, node_state: NodeState, wanted: DesiredState) -> None:
        """The record allows it already: finish what was begun."""
        entry = self._record_writer.record.entries.get(node_state.node)
        words = node_state.cluster.overruled
        node = self._expected.expect(node_state)
        if node is None:
            node = await self._taken(node_state, await self._picture(node_state))
        if node is None:
            await self._record_writer.withdraw(entry)
            return  # the next step reports it
        if self._has_changed(node_state, wanted, words):
            return  # we decided on an older read: decide again
        if is_marked(node):
            node_state.own_quarantine_view().request_adoption()  # its marks have evidence too
            return
        if self._is_admitted_elsewhere(node_state, entry):
            await self._record_writer.withdraw(entry)  # its present pool has not admitted it
            return
        if self._leave_alone(node_state, wanted):
            await self._record_writer.withdraw(entry)
            return
        await self._create_and_mark(node_state, wanted, node)

    def _has_changed(
        self, node_state: NodeState, wanted: DesiredState, words: frozenset[Override]
    ) -> bool:
        """Whether the last read shows another node, or another person's wish, than was decided on.

        ``words``: the overruled evidence before that read.
        """
        return (
            node_state.agent.misnamed
            or node_state.cluster.overruled != words
            or self._spared(node_state, wanted)
        )

    def _is_admitted_elsewhere(self, node_state: NodeState, entry: Entry | None) -> bool:
        """Whether its entry is of another pool than the one that selects it now, by its last read.

        A process that died after the admission leaves such an entry to the next one.
        """
        admitted_in = entry.policy_pool if entry is not None else ""
        present = self._pools.name_of(node_state.node)
        return bool(admitted_in and present) and admitted_in != present

    async def _picture(self, node_state: NodeState) -> Node | None:
        """The node for a patch against its version: its present or a slightly older state."""
        return await self._cluster.read_node(node_state.node, cached=True)

    async def _taken(self, node_state: NodeState, node: Node | None) -> Node | None:
        """Take this read of the node. Unknown changes in it are first confirmed by a full read."""
        moved = node is not None and self._pools.has_moved(node)
        if moved or not node_state.bears_out(node):
            node = await self._cluster.read_node(node_state.node)
        node_state.take_node(node)
        self._expected.learn(node, node_state)
        return node

    async def _create_and_mark(
        self, node_state: NodeState, wanted: DesiredState, node: Node
    ) -> None:
        if not self._may_act():  # paused since it was admitted: another replica goes on
            raise Conflict("this replica may not be the controller any more")
        spec = replace(
            wanted.spec,
            intent_action=wanted.spec.action,
            node_uid=node.uid,
            record_generation=self._record_writer.record.generation,
            installation=self._cluster.installation,
        )
        quarantine = await self._cluster.create_quarantine(
            node_state.node, spec, guard=self.guard(node_state)
        )
        node_state.own_quarantine_view().note_restored(quarantine.uid)
        node_state.wrote(quarantine)
        try:
            patched = await self._patch_marks(node_state, quarantine, node)
        except Conflict as error:
            self._expected.note_difference(node, error)
            await self._begin_again(node_state, wanted, quarantine)
            return
        except ClusterError:
            self._report_admission(node_state, quarantine)  # it is marked by a later try
            raise
        self._report_admission(node_state, quarantine)
        node_state.own_quarantine_view().note_begin(quarantine.uid, self._clocks.now())
        self._report_marks(node_state, quarantine, patched)

    def _report_admission(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Not before the node itself was seen: an admission may be withdrawn until then."""
        spec = quarantine.spec
        self.emit_event(node_state, EventKind.ADMITTED, f"{spec.action} admitted: {spec.reason}")

    async def cordon(self, node_state: NodeState) -> None:
        """Mark the node of a quarantine that stands: node first, then the object again."""
        node = await self._cluster.read_node(node_state.node)
        quarantine = await self.reread(node_state)
        node_state.take_node(node)
        self._expected.learn(node, node_state)
        await self._cordon_as_read(node_state, quarantine, node)

    async def _cordon_as_read(
        self, node_state: NodeState, quarantine: Quarantine | None, node: Node | None
    ) -> None:
        if quarantine is None or quarantine.deleting or quarantine.status.phase is Phase.RELEASING:
            return
        if quarantine.unread:
            return  # the next step says so
        if node is None:
            await self._no_node(node_state, quarantine)
            return
        if quarantine.status.phase in MARKED:
            # Another has marked it, or we have, and the answer is lost: the condition trails.
            if node_state.quarantine_view.trail is None:
                reason = quarantine.spec.reason
                self.announce(node_state, node.uid, quarantined=True, message=reason)
            return
        # Another machine is released, unless a repair may still reach it: then no work may come.
        over = node_state.quarantine_view.reborn and not is_busy(quarantine.status.repair)
        if quarantine.spec.requester == OURS and (node_state.cluster.maintained or over):
            return  # the next step sees it
        if quarantine.spec.requester == OURS and node_state.cluster.operator_requests.exempt(
            self._clocks.earliest()
        ):
            return  # the exemption came after our decision
        if not quarantine.has_finalizer:
            quarantine = await self._cluster.add_finalizer(quarantine)
            node_state.wrote(quarantine)
        if marked_by(node) == quarantine.uid and is_marked(node) and not node.unschedulable:
            # It was uncordoned before the status told of the marks: the next read decides on that.
            node_state.work.request_read()
            self._report_marks(node_state, quarantine, node)
            return
        await self._mark(node_state, quarantine, node)

    async def _begin_again(
        self, node_state: NodeState, wanted: DesiredState, begun: Quarantine
    ) -> None:
        """The node is not as expected: read it, and decide by this read.

        A quarantine that would not have begun by it is withdrawn: the object goes before its entry,
        so that it is counted as long as it stands. No act followed it, so nothing is to be undone.
        """
        words = node_state.cluster.overruled
        entry = self._record_writer.record.entries.get(node_state.node)
        node = await self._cluster.read_node(node_state.node)
        quarantine = await self.reread(node_state)
        node_state.take_node(node)
        self._expected.learn(node, node_state)
        if quarantine is None or quarantine.uid != begun.uid:
            return  # the next step sees it
        may_begin = (
            node is not None
            and not node_state.cluster.maintained
            and not self._has_changed(node_state, wanted, words)
            and not self._is_admitted_elsewhere(node_state, entry)
        )
        if may_begin or quarantine.deleting or quarantine.status.phase is not Phase.ADMITTED:
            self._report_admission(node_state, quarantine)
            await self._cordon_as_read(node_state, quarantine, node)
            return
        if not self._may_act():
            raise Conflict("this replica may not be the controller any more")
        # Releasing comes first, against the version just read: a death or a failure after it ends
        # in the ordinary undo, a marked object is a conflict, and no person seems to delete it.
        because = "its node is another than was decided on: not begun"
        releasing = replace(
            quarantine.status, phase=Phase.RELEASING, message=because, released_because=because
        )
        quarantine = await self.write_status(node_state, quarantine, releasing)
        view = node_state.own_quarantine_view()
        view.note_end(quarantine.uid)
        await self._cluster.drop_quarantine(quarantine)
        view.drop()
        log.info(
            "Quarantine not begun",
            extra={
                "event": "step.quarantine_not_begun",
                "node": node_state.node,
                "reason": because,
            },
        )
        await self._record_writer.withdraw(entry)
        if not self._is_nowhere(node_state, wanted):
            self._leave_alone(node_state, wanted)

    async def restart(self, node_state: NodeState, quarantine: Quarantine) -> None:
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
            repair=quarantine.status.repair,  # an order under way is not forgotten with the Node
        )
        await self.write_status(node_state, quarantine, status)
        node_state.own_quarantine_view().note_restart()
        self.emit_event(node_state, EventKind.MARKS_MISSING, message)

    async def _mark(self, node_state: NodeState, quarantine: Quarantine, node: Node) -> None:
        patched = await self._patch_marks(node_state, quarantine, node)
        self._report_marks(node_state, quarantine, patched)

    async def _patch_marks(self, node_state: NodeState, quarantine: Quarantine, node: Node) -> Node:
        off = self._off_load_balancers and self._pools.mode_of(node_state.node) is Action.DRAIN
        change = cordon_change(node, quarantine, off_balancers=off, rules=self._marks)
        return await self.mark_writer.mark(node, change, guard=self.guard(node_state))

    def _report_marks(self, node_state: NodeState, quarantine: Quarantine, patched: Node) -> None:
        """The marks stand: the announcement and the metrics follow, and the status as next step."""
        # Of marks that were reported before only the status is lacking.
        again = node_state.quarantine_view.reported_marks == quarantine.uid
        if not quarantine.status.cordoned_at and not again:  # else it is marked again
            self.stages.note_taint(node_state.node, self._clocks.now())
            self.stages.note_causes(quarantine.spec)
        now = self._clocks.wall()
        status = replace(
            quarantine.status,
            phase=Phase.CORDONED,
            message=self.words.in_force.format(node=patched.name),
            node_uid=patched.uid,
            admitted_at=quarantine.status.admitted_at or now,
            cordoned_at=now,
            applied=read_applied(patched),
            marks=None,
        )
        marks = NewMarks(quarantine, status, patched, self._clocks.now())
        node_state.own_quarantine_view().note_marks(marks)
        node_state.cluster.note_marks(self._clocks.now())
        if again:
            return
        text = f"{self.words.marked}: {quarantine.spec.reason or 'by hand'}"
        self.emit_event(node_state, EventKind.CORDONED, text)
        self.announce(node_state, patched.uid, quarantined=True, message=quarantine.spec.reason)

    async def recordon(self, node_state: NodeState) -> None:
        """Cordon the node of a standing quarantine again; after too many times, only report it.

        The status comes first: should we die before the patch, the next replica knows that
        evictions wait, and counts this one.
        """
        node = await self._cluster.read_node(node_state.node)
        quarantine = await self.reread(node_state)
        node_state.take_node(node)
        whose, wall = node_state.quarantine_view.uncordoned, self._clocks.earliest()
        if quarantine is None or node is None or whose is Uncordoned.NO:
            return  # the next step sees it
        if quarantine.deleting or quarantine.status.phase not in MARKED:
            return
        if node_state.is_released_by_uncordon(self._uncordon):
            return
        if wall < recordon_due(quarantine.status, wall):
            return
        wall = self._clocks.latest()
        status = after_uncordon(quarantine, node, whose, self._uncordon, wall, self.words)
        quarantine = await self.write_status(node_state, quarantine, status)
        self.emit_event(node_state, EventKind.UNCORDONED, status.uncordoned, {"whose": whose.value})
        if has_given_up(status):
            return
        change = cordon_change(node, quarantine, rules=self._marks)
        if UNCORDONED_BY in node.annotations:
            change = replace(change, annotations={**change.annotations, UNCORDONED_BY: None})
        patched = await self.mark_writer.mark(node, change, guard=self.guard(node_state))
        node_state.take_node(patched)
        applied = read_applied(patched)
        if applied != quarantine.status.applied:
            await self.write_status(
                node_state, quarantine, replace(quarantine.status, applied=applied)
            )

    async def enter(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Count a quarantine that the record does not have, such as one made by hand."""
        spec = quarantine.spec
        if spec.requester != OURS:
            node_state.take_node(await self._cluster.read_node(node_state.node))
            if node_state.cluster.node_gone:
                await self._no_node(node_state, quarantine)
                return
        await self._record_writer.enter(
            Entry(
                node=node_state.node,
                incident=spec.incident,
                pool=self._pool_of(node_state.node),
                action=spec.action.value,
                at=self._clocks.trusted_wall(),
                **origin_of(spec),
            )
        )
        who = "by sickbay" if spec.requester == OURS else "by hand"
        self.emit_event(
            node_state, EventKind.ADMITTED, f"{spec.action} entered, made {who}: {spec.reason}"
        )

    async def update(
        self, node_state: NodeState, quarantine: Quarantine, wanted: DesiredState
    ) -> None:
        """Make changes of the intent durable."""
        spec = changed_intent(quarantine.spec, wanted)
        if spec is None:
            return
        await self._write_spec(node_state, quarantine, spec)
        if spec.action is not quarantine.spec.action:
            text = f"{quarantine.spec.action} becomes {spec.action}: {wanted.spec.reason}"
            self.emit_event(node_state, EventKind.INCIDENT_CHANGED, text)

    async def force(self, node_state: NodeState) -> None:
        """A quarantine for an annotation of a person: made, or changed with it."""
        node_state.take_node(await self._cluster.read_node(node_state.node))
        action = node_state.cluster.operator_requests.forced(self._clocks.earliest())
        if action is None or node_state.agent.misnamed:
            return  # taken back in between
        reason, quarantine = (
            node_state.cluster.operator_requests.force_reason,
            node_state.node_summary.quarantine,
        )
        if quarantine is None:
            if not self._may_act():  # paused since it was read: another replica acts
                raise Conflict("this replica may not be the controller any more")
            spec = QuarantineSpec(
                action,
                "manual",
                reason,
                requester=FORCED,
                intent_action=action,
                installation=self._cluster.installation,
            )
            guard = self.guard(node_state, granted=False)  # it is entered after it is made
            node_state.wrote(
                await self._cluster.create_quarantine(node_state.node, spec, guard=guard)
            )
            return
        spec = replace(quarantine.spec, action=action, reason=reason, intent_action=action)
        await self._write_spec(node_state, quarantine, spec)

    async def show_override(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Write a person's action to the status; a drain that they ended is a cordon again."""
        text, status = describe_override(quarantine.spec), quarantine.status
        changed = replace(status, override=text)
        if quarantine.spec.action is not Action.DRAIN and status.phase is Phase.DRAINING:
            changed = replace(changed, phase=Phase.CORDONED, blockers=())
        await self.write_status(node_state, quarantine, changed)
        told = text or f"spec.action is {quarantine.spec.action} again, as it was decided"
        self.emit_event(node_state, EventKind.OVERRIDDEN, told)

    async def show_cordon(self, node_state: NodeState, quarantine: Quarantine, text: str) -> None:
        """Write to the status that the node is left schedulable, or that others cordoned it."""
        wall = self._clocks.wall()
        await self.write_status(node_state, quarantine, replace(quarantine.status, uncordoned=text))
        if text.startswith(STILL_SCHEDULABLE) and recordon_due(quarantine.status, wall) <= wall:
            self.emit_event(
                node_state,
                EventKind.UNCORDONED,
                text,
                {"whose": node_state.quarantine_view.uncordoned.value},
            )

    async def show_absence(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Write to the status that its Node is gone, and since when, or that it is back."""
        since = self._clocks.latest() if node_state.cluster.node_gone else 0.0
        ends = quarantine.spec.requester == OURS
        told = (
            f"its Node is gone: it counts for no limit, and "
            f"{'ends by itself if the Node stays away' if ends else 'stays until it is deleted'}"
            if node_state.cluster.node_gone
            else "its Node is back, and is counted again"
        )
        message = told if quarantine.status.phase is not Phase.INVALID else _NO_NODE
        status = replace(quarantine.status, node_absent_since=since, message=message)
        await self.write_status(node_state, quarantine, status)
        self.emit_event(node_state, EventKind.NODE_ABSENT if since else EventKind.NODE_BACK, told)

    async def _write_spec(
        self, node_state: NodeState, quarantine: Quarantine, spec: QuarantineSpec
    ) -> None:
        """Write the intent; a drain that is no longer wanted is a cordon again."""
        written = await self._cluster.write_quarantine_spec(quarantine, spec)
        if spec.action is not Action.DRAIN and written.status.phase is Phase.DRAINING:
            status = replace(written.status, phase=Phase.CORDONED, pods_remaining=None, blockers=())
            written = await self._cluster.write_quarantine_status(written, status)
        node_state.wrote(written)

    async def look_at_node(self, node_state: NodeState) -> None:
        """Read the node, as the watches only hinted at a change."""
        node_state.work.begin_read()
        try:
            node_state.take_node(await self._cluster.read_node(node_state.node))
        except ClusterError:
            node_state.work.request_read()
            raise

    async def reread(self, node_state: NodeState) -> Quarantine | None:
        """The object as it is now, and not as the watch last reported it."""
        before = node_state.node_summary.quarantine
        quarantine = await self._cluster.read_quarantine(node_state.node)
        if quarantine is None:
            if node_state.node_summary.quarantine is not None:
                node_state.own_quarantine_view().miss()
        else:
            node_state.take_read(quarantine, self._policy, self._clocks.now(), before=before)
        return quarantine

    async def write_status(
        self, node_state: NodeState, quarantine: Quarantine, status: QuarantineStatus
    ) -> Quarantine:
        written = await self._cluster.write_quarantine_status(quarantine, status)
        node_state.wrote(written)
        return written

    async def write_conditions(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Write the status again: its conditions are made anew with each write of it."""
        written = await self.write_status(node_state, quarantine, quarantine.status)
        node_state.own_quarantine_view().note_conditions(written)

    async def refuse(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Report the error in a hand-made quarantine to its maker."""
        status = replace(quarantine.status, phase=Phase.INVALID, message=quarantine.problem)
        await self.write_status(node_state, quarantine, status)

    async def _no_node(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Report that the node does not exist. A hand-made quarantine is invalid until it does."""
        message = _NO_NODE
        node_state.work.set_error(message)
        by_hand = quarantine.spec.requester != OURS and quarantine.status.phase is Phase.ADMITTED
        phase = Phase.INVALID if by_hand else quarantine.status.phase
        if (quarantine.status.message, quarantine.status.phase) != (message, phase):
            status = replace(quarantine.status, phase=phase, message=message)
            await self.write_status(node_state, quarantine, status)

    def _spared(self, node_state: NodeState, wanted: DesiredState) -> bool:
        """Whether an operator, or its pool's mode, allows less than we want, by the node as it was
        just read.
        """
        asked = node_state.cluster.operator_requests.cap(self._clocks.earliest())
        allowed = min(asked.strength, self._pools.mode_of(node_state.node).strength)
        return allowed < wanted.spec.action.strength

    def emit_event(
        self,
        node_state: NodeState,
        kind: EventKind,
        summary: str,
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Emit an event about the node."""
        quarantine = node_state.node_summary.quarantine
        incident = quarantine.spec.incident if quarantine is not None else ""
        if not incident and node_state.decision.wanted is not None:
            incident = node_state.decision.wanted.spec.incident
        self._event_sink.record_event(
            Transition(
                at=self._clocks.wall(),
                kind=kind,
                node=node_state.node,
                summary=f"{node_state.node}: {summary}",
                incident=incident,
                details=dict(details or {}),
            )
        )

    def _proposal(self, node_state: NodeState, wanted: DesiredState) -> Proposal:
        spec = wanted.spec
        return Proposal(
            node_state.node,
            spec.incident,
            self._pool_of(node_state.node),
            spec.action.value,
            self._suspects(node_state),
            self._unsettled(node_state),
            self._pools.name_of(node_state.node),
        )

    def _is_nowhere(self, node_state: NodeState, wanted: DesiredState) -> bool:
        """Whether the cluster has no such node: it is held then, counts for no limit, and is looked
        for again, for it may come (back).
        """
        if node_state.cluster.node_gone:
            self._hold(node_state, Held("no-node", "not found", _NO_NODE), wanted)
        return node_state.cluster.node_gone

    def _leave_alone(self, node_state: NodeState, wanted: DesiredState) -> bool:
        """Whether another party is at work on the node: it is held then, and checked again."""
        if not node_state.cluster.maintained:
            return False
        reason = node_state.cluster.maintained
        limit = "stale-mark" if is_stale(reason) else "maintenance"
        self._hold(node_state, Held(limit, "others", reason), wanted)
        return True

    def _hold(self, node_state: NodeState, held: Held, wanted: DesiredState) -> None:
        self.stages.note_hold(node_state.node)
        before = node_state.decision.hold
        since = before.since if before is not None else self._clocks.wall()
        node_state.set_hold(NodeHold(held.limit, held.value, held.reason, since, held.cause))
        if before is None or before.limit != held.limit:
            text = f"{wanted.spec.action} {held.text}"
            details = {"limit": held.limit, "value": held.value}
            if held.cause:
                details["cause"] = held.cause
            self.emit_event(node_state, EventKind.HELD, text, details)

    def hold_foreign(self, node_state: NodeState) -> None:
        """Another installation's quarantine stands; report that where we want one, too."""
        quarantine, wanted = node_state.node_summary.quarantine, node_state.decision.wanted
        if quarantine is None or wanted is None or wanted.in_force is Action.OBSERVE:
            node_state.set_hold(None)
            return
        text = f"it is in quarantine by the sickbay in namespace {quarantine.foreign}"
        self._hold(node_state, Held("installation", quarantine.foreign, text), wanted)

    def hold_stopped(self, node_state: NodeState) -> None:
        """The stop switch keeps a standing quarantine from going on; report that.

        Nodes that are marked already and only not drained get no event each: people are told of the
        stop.
        """
        quarantine, held = node_state.node_summary.quarantine, stopped(self._switch.reason)
        known = node_state.decision.hold
        if quarantine is None or (known is not None and known.limit == held.limit):
            return
        since = self._clocks.wall()
        node_state.set_hold(NodeHold(held.limit, held.value, held.reason, since))
        if quarantine.status.phase not in MARKED:
            text = f"{quarantine.spec.action} {held.text}"
            details = {"limit": held.limit, "value": held.value}
            self.emit_event(node_state, EventKind.HELD, text, details)

    def hold_standing(self, node_state: NodeState, *, unread: bool) -> None:
        """Report what keeps a standing quarantine from going on: its status, else the stop."""
        if not unread:
            self.hold_stopped(node_state)
        elif node_state.node_summary.quarantine is not None:
            self._hold_unread(node_state, node_state.node_summary.quarantine)

    def _hold_unread(self, node_state: NodeState, quarantine: Quarantine) -> None:
        known = node_state.decision.hold
        if known is not None and known.limit == UNREAD_STATUS:
            return
        fields = ", ".join(sorted(quarantine.unread_fields))
        text = (
            "part of its Quarantine's status can't be read, and is left as it is: a later version "
            f"may have written it ({quarantine.unread})"
        )
        since = self._clocks.wall()
        node_state.set_hold(NodeHold(UNREAD_STATUS, fields, text, since))
        self.emit_event(
            node_state,
            EventKind.HELD,
            f"{quarantine.spec.action} held by {UNREAD_STATUS} = {fields}: {text}",
            {"limit": UNREAD_STATUS, "value": fields},
        )

    def unhold_resumed(self, node_state: NodeState) -> None:
        """The stop is over, or the status can be read: neither holds a standing quarantine."""
        quarantine, known = node_state.node_summary.quarantine, node_state.decision.hold
        if known is None:
            return
        resumed = known.limit == "stop" and quarantine is not None and not self._switch.reason
        read = known.limit == UNREAD_STATUS and (quarantine is None or not quarantine.unread)
        if resumed or read:
            node_state.set_hold(None)

    def _unhold(self, node_state: NodeState) -> None:
        """No limit holds the desired action any more; a stop may still keep it from being begun."""
        known = node_state.decision.hold
        if known is not None and not (known.limit == "stop" and self._switch.reason):
            node_state.set_hold(None)

    def announce(
        self, node_state: NodeState, node_uid: str, *, quarantined: bool, message: str
    ) -> None:
        """Runs in the background: no act waits for it. A newer one waits for the older."""
        earlier = node_state.quarantine_view.trail

        async def trail() -> None:
            if earlier is not None and not earlier.done():
                await asyncio.wait([earlier])
            await self.log_action(node_state, node_uid, quarantined=quarantined, message=message)

        task = asyncio.create_task(trail(), name=f"announce {node_state.node}")
        node_state.own_quarantine_view().start_trail(task)

    async def settle_announcement(self, node_state: NodeState) -> None:
        if (
            node_state.quarantine_view.trail is not None
            and not node_state.quarantine_view.trail.done()
        ):
            await asyncio.wait([node_state.quarantine_view.trail])

    async def log_action(
        self, node_state: NodeState, node_uid: str, *, quarantined: bool, message: str
    ) -> None:
        reason = "Quarantined" if quarantined else "Released"
        for attempt in range(1, _ANNOUNCE_TRIES + 1):
            try:
                await self._cluster.announce(
                    node_state.node,
                    node_uid=node_uid,
                    quarantined=quarantined,
                    reason=reason,
                    message=message or reason,
                )
            except Unreachable as error:
                log.warning(
                    "node condition or Event not written yet",
                    extra={"node": node_state.node, "error": str(error)},
                )
                pause = _ANNOUNCE_BACKOFF.pause(attempt, self._rng)
                await asyncio.sleep(error.retry_after or pause)
            except ClusterError as error:
                log.warning(
                    "node condition or Event not written",
                    extra={
                        "event": "step.announcement_dropped",
                        "node": node_state.node,
                        "error": str(error),
                    },
                )
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
