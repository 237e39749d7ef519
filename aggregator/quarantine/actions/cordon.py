"""Marks the node of a quarantine in force, once more where it was uncordoned.

Each act is idempotent and fenced; see docs/fences.md. The fence: the node is read in full before
the Quarantine is seen in force, and patched with the version and uid of that read. An undo always
changes the node. So a replica that acts on an older state fails with `Conflict`, reads again, and
decides again.

A quarantine that begins needs no read of its node. The list of nodes has each node's uid, labels
and our annotations, and no taints. The patch names all that it was decided on, and the API server
checks it: a wrong expectation changes nothing, and the node is read.
"""

import logging
from dataclasses import replace

from attrs import define

from aggregator.cluster.node_names import APPLIED, CODES, KEPT, OVERRULED, RELEASED, is_marked
from aggregator.cluster.port import (
    Action,
    Conflict,
    MarksStatus,
    Node,
    NodesAndPods,
    Phase,
    Quarantine,
    QuarantineStatus,
    Taint,
    Unread,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.actions.object_writes import ObjectWrites
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.lost_marks import ALL_MARKS
from aggregator.quarantine.decide.node_marks import (
    DO_NOT_DISRUPT,
    MarkRules,
    cordon_change,
    marked_by,
    read_applied,
)
from aggregator.quarantine.decide.operator_requests import EXEMPT, FORCE, PIN
from aggregator.quarantine.decide.repair import is_busy
from aggregator.quarantine.decide.uncordon import (
    UNCORDONED_BY,
    Uncordoned,
    UncordonRules,
    after_uncordon,
    has_given_up,
    recordon_due,
)
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED, NewMarks
from aggregator.quarantine.state.registry import NodeRegistry

log = logging.getLogger("sickbay.quarantine")

#: Annotations by which it is decided whether, and how, a node is marked. A release always writes
#: `RELEASED`, so a decision from before a release fails here as it does on the version.
DECIDING = frozenset(
    {*(APPLIED, RELEASED, OVERRULED, KEPT, CODES), *(EXEMPT, FORCE, PIN, DO_NOT_DISRUPT)}
)
#: Taints of the cluster's own controllers, which come and go with a node's state.
_PASSING = "node.kubernetes.io/"


class ExpectedNodes:
    """One for all nodes of a replica.

    Nodes of a pool usually have the same taints, so the last one that was read shows those of the
    next.
    """

    def __init__(self, cluster: NodesAndPods, registry: NodeRegistry) -> None:
        self._cluster = cluster
        self._registry = registry
        self._taints: dict[str, tuple[Taint, ...]] = {}

    def expect(self, node_state: NodeState) -> Node | None:
        """The node as it is expected to be, or None where it has to be read.

        It is read where the list does not have all that is known of it, and where it has been in
        quarantine since this process began: then our own writes are newer than the list.
        """
        view = node_state.cluster
        meta = view.meta
        if meta is None or not self._cluster.lists_all:  # there is nothing but the agent's word
            return None
        own = node_state.quarantine_view
        if own.restored or own.ended or view.foreign or view.labels != meta.labels:
            return None
        taints = self._taints.get(self._registry.pool_of(meta.name), ())
        unread = Unread(DECIDING | node_state.others.annotations, annotated=meta.annotated)
        known = meta.labels, meta.annotations
        expected = Node(meta.name, meta.uid, "", False, taints, *known, unread=unread)
        return expected if node_state.bears_out(expected) else None

    def learn(self, node: Node | None, node_state: NodeState) -> None:
        """Take the taints of a node that was read before its quarantine."""
        if node is None or node.unschedulable or is_marked(node):
            return
        if node_state.others.forbids_all(node):
            return
        if not any(taint.key.startswith(_PASSING) for taint in node.taints):
            self._taints[self._registry.pool_of(node.name)] = node.taints

    def note_difference(self, node: Node, error: Conflict) -> None:
        """The server found another node than the expected one; it is read now."""
        log.info(
            "the node is not as expected: it is read, and decided on again",
            extra={"event": "step.node_differs", "node": node.name, "error": str(error)},
        )


@define(eq=False, repr=False, slots=False, kw_only=True)
class CordonActions:
    """``expected``: what a quarantine that begins expects of its node. ``off_load_balancers``: a
    node that is to be drained leaves those.
    """

    _acts: NodeActions
    _objects: ObjectWrites
    expected: ExpectedNodes
    _marks: MarkRules
    _uncordon: UncordonRules
    _off_load_balancers: bool

    async def patch(self, node_state: NodeState, quarantine: Quarantine, node: Node) -> Node:
        off = self._off_load_balancers and self._acts.pools.mode_of(node_state.node) is Action.DRAIN
        change = cordon_change(node, quarantine, off_balancers=off, rules=self._marks)
        return await self._acts.patch_marks(node, change, guard=self._acts.guard(node_state))

    def report(self, node_state: NodeState, quarantine: Quarantine, patched: Node) -> None:
        """The marks are set: the announcement and the metrics follow, and the status as next
        step.
        """
        # Of marks that were reported before only the status is lacking.
        again = node_state.quarantine_view.reported_marks == quarantine.uid
        if not quarantine.status.cordoned_at and not again:  # else it is marked again
            self._acts.stages.note_taint(node_state.node, self._acts.clocks.now())
            self._acts.stages.note_causes(quarantine.spec)
        now = self._acts.clocks.wall()
        status = replace(
            quarantine.status,
            phase=Phase.CORDONED,
            message=self._acts.words.in_force.format(node=patched.name),
            node_uid=patched.uid,
            admitted_at=quarantine.status.admitted_at or now,
            cordoned_at=now,
            applied=read_applied(patched),
            marks=MarksStatus(),
        )
        marks = NewMarks(quarantine, status, patched, self._acts.clocks.now())
        node_state.quarantine_view.note_marks(marks)
        node_state.cluster.note_marks(self._acts.clocks.now())
        if again:
            return
        text = f"{self._acts.words.marked}: {quarantine.spec.reason or 'by hand'}"
        self._acts.emit_event(node_state, EventKind.CORDONED, text)
        self._acts.announcer.announce(node_state, patched.uid, quarantine.spec.reason)

    async def cordon(self, node_state: NodeState) -> None:
        """Mark the node of a quarantine in force: node first, then the object again."""
        node, quarantine = await self._acts.read_anew(node_state)
        self.expected.learn(node, node_state)
        await self.cordon_as_read(node_state, quarantine, node)

    async def cordon_as_read(
        self, node_state: NodeState, quarantine: Quarantine | None, node: Node | None
    ) -> None:
        if quarantine is None or quarantine.deleting or quarantine.status.phase is Phase.RELEASING:
            return
        if quarantine.unread:
            return  # the next step reports it
        if node is None:
            await self._objects.report_no_node(node_state, quarantine)
            return
        if quarantine.status.phase in MARKED:
            # Another has marked it, or we have, and the answer is lost: the condition trails.
            if node_state.quarantine_view.trail is None:
                self._acts.announcer.announce(node_state, node.uid, quarantine.spec.reason)
            return
        # Another machine is released, unless a repair may still reach it: then no work may come.
        over = node_state.quarantine_view.reborn and not is_busy(quarantine.status.repair)
        exempt = node_state.cluster.operator_requests.exempt(self._acts.clocks.earliest())
        if quarantine.spec.requester == OURS and (node_state.cluster.maintained or over or exempt):
            return  # the next step sees it, or an exemption that came after our decision
        if not quarantine.has_finalizer:
            quarantine = await self._acts.cluster.add_finalizer(quarantine)
            node_state.wrote(quarantine)
        if marked_by(node) == quarantine.uid and is_marked(node) and not node.unschedulable:
            # It was uncordoned before the status had the marks: the next read decides on that.
            node_state.work.needs_read = True
            self.report(node_state, quarantine, node)
            return
        patched = await self.patch(node_state, quarantine, node)
        self.report(node_state, quarantine, patched)

    async def restart(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Begin again on a Node that was created instead of the marked one.

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
            evicted_workloads=quarantine.status.evicted_workloads,  # they count for the fleet
            marks=MarksStatus(ALL_MARKS, since=self._acts.clocks.wall()),
            repair=quarantine.status.repair,  # an order under way is not forgotten with the Node
        )
        with self._acts.reporting(node_state, EventKind.MARKS_MISSING, message):
            await self._acts.write_status(node_state, quarantine, status)
        node_state.quarantine_view.node_replaced = False

    async def recordon(self, node_state: NodeState) -> None:
        """Cordon the node of a quarantine in force again; after too many times, only report it.

        The status comes first: should we die before the patch, the next replica knows that
        evictions wait, and counts this one.
        """
        node, quarantine = await self._acts.read_anew(node_state)
        whose, wall = node_state.quarantine_view.uncordoned, self._acts.clocks.earliest()
        if quarantine is None or node is None or whose is Uncordoned.NO:
            return  # the next step sees it
        if quarantine.deleting or quarantine.status.phase not in MARKED:
            return
        if node_state.is_released_by_uncordon(self._uncordon):
            return
        if wall < recordon_due(quarantine.status, wall):
            return
        wall, words = self._acts.clocks.latest(), self._acts.words
        status = after_uncordon(quarantine, node, whose, self._uncordon, wall, words)
        text, details = status.uncordoned, {"whose": whose.value}
        with self._acts.reporting(node_state, EventKind.UNCORDONED, text, details):
            quarantine = await self._acts.write_status(node_state, quarantine, status)
        if has_given_up(status):
            return
        change = cordon_change(node, quarantine, rules=self._marks)
        if UNCORDONED_BY in node.annotations:
            change = replace(change, annotations={**change.annotations, UNCORDONED_BY: None})
        guard = self._acts.guard(node_state)
        patched = await self._acts.patch_marks(node, change, guard=guard)
        node_state.take_node(patched)
        applied = read_applied(patched)
        if applied != quarantine.status.applied:
            status = replace(quarantine.status, applied=applied)
            await self._acts.write_status(node_state, quarantine, status)
