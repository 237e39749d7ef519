"""The reconciler of a node without a Quarantine: proposes it, and begins what was admitted.

The order is record, object, marks.

The fence: the node is read in full before the Quarantine is seen in force (read again, or just
created), and patched with the version and uid of that read. A quarantine that begins names what it
expects of the node instead (cordon.py). See docs/fences.md.
"""

import logging
from dataclasses import replace

from attrs import define

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.port import ClusterError, Conflict, Node, Phase, Quarantine, is_refusal
from aggregator.events import EventKind
from aggregator.quarantine.actions.adoption import MarkAdopter
from aggregator.quarantine.actions.cordon import CordonActions
from aggregator.quarantine.actions.holds import NodeHolds
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.actions.object_writes import ObjectWrites
from aggregator.quarantine.decide.admission import (
    UNREAD_NODE,
    AdmissionStep,
    AdmissionView,
    plan_admission,
)
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.held import Held
from aggregator.quarantine.decide.intent import DesiredState, releasing
from aggregator.quarantine.decide.operator_requests import NONE
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.reconcile.plan_inputs import PlanInputs
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.race import Still

log = logging.getLogger("sickbay.quarantine")

#: The beginnings of the limits whose holds the record decides on.
_BY_RECORD = ("limits.", "record", "stop")


@define(eq=False, repr=False, slots=False, kw_only=True)
class AdmissionReconciler:
    is_late = False

    _inputs: PlanInputs
    _acts: NodeActions
    _holds: NodeHolds
    _cordon: CordonActions
    _objects: ObjectWrites
    _adopter: MarkAdopter

    def plan(self, node_state: NodeState) -> NextStep | None:
        return plan_admission(self.view(node_state))

    def view(self, node_state: NodeState) -> AdmissionView:
        known, cluster, inputs = node_state.quarantine_view, node_state.cluster, self._inputs
        requests = cluster.operator_requests
        return AdmissionView(
            in_record=inputs.in_record(node_state),
            wanted=inputs.wanted(node_state),
            knows=node_state.agent.was_received or inputs.knows(node_state),
            entered_by_hand=inputs.is_entered_by_hand(node_state),
            forced=None if requests is NONE else requests.forced(inputs.wall()),
            conflict=bool(node_state.agent.conflict),
            definition_going=known.definition_going,
            unclaimed=bool(known.unclaimed),
            node_gone=cluster.node_gone,
            stopped=bool(inputs.fleet.stop),
        )

    async def carry_out(self, node_state: NodeState, step: NextStep, _still: Still) -> bool:
        wanted = self._inputs.wanted(node_state)
        if step.do is AdmissionStep.FORCE:
            await self._objects.force(node_state)
        elif step.do is AdmissionStep.FORGET:
            await self._adopter.forget_node(node_state, step.because)
        elif wanted is None:
            pass
        elif step.do is AdmissionStep.CREATE:
            await self.create(node_state, wanted)
        else:
            return not await self.propose(node_state, wanted)
        return False

    def stays_held(self, node_state: NodeState, step: NextStep) -> bool:
        """Whether the step would only hold the node once more, as far as the last record shows."""
        hold, wanted = node_state.decision.hold, self._inputs.wanted(node_state)
        if hold is None or wanted is None or step.do is not AdmissionStep.PROPOSE:
            return False
        if not hold.limit.startswith(_BY_RECORD):
            return True
        proposal = self._inputs.proposals.propose(node_state, wanted)
        return bool(self._acts.record_writer.preview([proposal]))

    async def propose(self, node_state: NodeState, wanted: DesiredState) -> bool:
        """Request admission and, when admitted, make the object and mark the node.

        The patch checks what the list of nodes shows. Else the node is read before it counts for a
        limit, since another tool may hold it: a withdrawal alone would leave less room for others
        meanwhile. Nodes that are held on cause no reads.
        """
        unplaced = node_state.cluster.labels is None
        if node_state.cluster.node_gone or unplaced:  # first: a record undone would wake us again
            node_state.take_node(await self._acts.cluster.read_node(node_state.node))
            if unplaced and not node_state.cluster.node_gone:
                return True  # its labels show what it shares with others: decide again by them
        if self._holds.spares(node_state, wanted):
            return False
        wait = self._inputs.proposals.fabric_hold(node_state)
        if wait is not None:
            self._holds.hold(node_state, wait, wanted.spec.action)
            return False
        words = node_state.cluster.overruled
        proposal = self._inputs.proposals.propose(node_state, wanted)
        node = self._cordon.expected.expect(node_state)
        held: Held | None = UNREAD_NODE
        if node is not None:
            held = await self._acts.record_writer.propose(replace(proposal, read=False))
        elif node_state.decision.hold is not None:
            held = self._acts.record_writer.preview([proposal]).get(node_state.node, held)
        if held is UNREAD_NODE:
            node = await self._read(node_state)
            if self._holds.spares(node_state, wanted):
                return False
            if node is not None and is_marked(node):
                node_state.quarantine_view.to_adopt = True  # its marks have evidence too
                return True
            moved = self._acts.pools.name_of(node_state.node) != proposal.policy_pool
            if moved or self._has_changed(node_state, wanted, words):
                return True
            held = await self._acts.record_writer.propose(proposal)
        if held is not None:
            self._holds.hold(node_state, held, wanted.spec.action)
            return False
        return await self._begin(node_state, wanted, words, node)

    async def create(self, node_state: NodeState, wanted: DesiredState) -> None:
        """Finish the quarantine that the record allows already."""
        await self._begin(node_state, wanted, node_state.cluster.overruled, None)

    async def _begin(
        self,
        node_state: NodeState,
        wanted: DesiredState,
        words: frozenset[Override],
        node: Node | None,
    ) -> bool:
        """Begin the quarantine that the record allows, unless its reasons have changed meanwhile.
        ``node``: as it was read or expected before, if it was.
        """
        entry = self._acts.record_writer.record.entries.get(node_state.node)
        if node is None or node.unread is not None:
            node = self._cordon.expected.expect(node_state) or await self._read(node_state)
        if node is None:
            await self._acts.record_writer.withdraw(entry)
            self._holds.is_nowhere(node_state, wanted)
            return False
        if node_state.cluster.marked:
            node_state.quarantine_view.to_adopt = True  # its marks have evidence too
            return True
        changed = self._has_changed(node_state, wanted, words)
        if changed or self._is_admitted_elsewhere(node_state, entry):
            await self._acts.record_writer.withdraw(entry)  # the decision was on an older read
            return True
        if self._holds.leave_alone(node_state, wanted):
            await self._acts.record_writer.withdraw(entry)  # not ours, and not counted
            return False
        node_state.set_hold(None)
        await self._create_and_mark(node_state, wanted, node)
        return True

    def _has_changed(
        self, node_state: NodeState, wanted: DesiredState, words: frozenset[Override]
    ) -> bool:
        """Whether the last read shows another node, or another person's wish, than was decided on.

        ``words``: the overruled evidence before that read.
        """
        changed = node_state.agent.misnamed or node_state.cluster.overruled != words
        return changed or self._spared(node_state, wanted)

    def _is_admitted_elsewhere(self, node_state: NodeState, entry: Entry | None) -> bool:
        """Whether its entry is of another pool than the one that selects it now, by its last read.

        A process that died after the admission leaves such an entry to the next one.
        """
        admitted_in = entry.policy_pool if entry is not None else ""
        present = self._acts.pools.name_of(node_state.node)
        return bool(admitted_in and present) and admitted_in != present

    async def _read(self, node_state: NodeState) -> Node | None:
        """Read the node for a patch against its version: its present or a slightly older state.
        Unknown changes in it are first confirmed by a full read.
        """
        node = await self._acts.cluster.read_node(node_state.node, cached=True)
        moved = node is not None and self._acts.pools.has_moved(node)
        if moved or not node_state.bears_out(node):
            node = await self._acts.cluster.read_node(node_state.node)
        node_state.take_node(node)
        self._cordon.expected.learn(node, node_state)
        return node

    async def _create_and_mark(
        self, node_state: NodeState, wanted: DesiredState, node: Node
    ) -> None:
        spec = replace(
            wanted.spec,
            intent_action=wanted.spec.action,
            node_uid=node.uid,
            record_generation=self._acts.record_writer.record.generation,
            installation=self._acts.cluster.installation,
        )
        writer, guard = self._acts.record_writer, self._acts.guard(node_state)
        entry, cluster = writer.record.entries.get(node_state.node), self._acts.cluster
        try:
            quarantine = await cluster.create_quarantine(node_state.node, spec, guard=guard)
        except ClusterError as error:
            # An earlier try, which got no answer, may have made it.
            if is_refusal(error) and await cluster.read_quarantine(node_state.node) is None:
                await writer.withdraw(entry)  # another node may have its place
            raise
        node_state.quarantine_view.restored = quarantine.uid
        node_state.wrote(quarantine)
        try:
            patched = await self._cordon.patch(node_state, quarantine, node)
        except Conflict as error:
            self._cordon.expected.note_difference(node, error)
            await self._begin_again(node_state, wanted, quarantine)
            return
        except ClusterError:
            self._report_admission(node_state, quarantine)  # it is marked by a later try
            raise
        self._report_admission(node_state, quarantine)
        node_state.quarantine_view.begun = quarantine.uid, self._acts.clocks.now()
        self._cordon.report(node_state, quarantine, patched)

    def _report_admission(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Not before the node itself was seen: an admission may be withdrawn until then."""
        spec = quarantine.spec
        text = f"{spec.action} admitted: {spec.reason}"
        self._acts.emit_event(node_state, EventKind.ADMITTED, text)

    async def _begin_again(
        self, node_state: NodeState, wanted: DesiredState, begun: Quarantine
    ) -> None:
        """The node is not as expected: read it, and decide by this read.

        A quarantine that would not have begun by it is withdrawn: the object goes before its entry,
        so that it is counted as long as it exists. No act followed it, so nothing is to be undone.
        """
        words = node_state.cluster.overruled
        entry = self._acts.record_writer.record.entries.get(node_state.node)
        node, quarantine = await self._acts.read_anew(node_state)
        self._cordon.expected.learn(node, node_state)
        if quarantine is None or quarantine.uid != begun.uid:
            return  # the next step sees it
        is_other = node is None or self._has_changed(node_state, wanted, words)
        is_other = is_other or self._is_admitted_elsewhere(node_state, entry)
        may_begin = not (is_other or node_state.cluster.maintained)
        if may_begin or quarantine.deleting or quarantine.status.phase is not Phase.ADMITTED:
            self._report_admission(node_state, quarantine)
            await self._cordon.cordon_as_read(node_state, quarantine, node)
            return
        await self._acts.place()
        # Releasing comes first, against the version just read: a death or a failure after it ends
        # in the ordinary undo, a marked object is a conflict, and no person seems to delete it.
        because = "its node is another than was decided on: not begun"
        ended = releasing(quarantine.status, because)
        quarantine = await self._acts.write_status(node_state, quarantine, ended)
        await self._acts.drop(node_state, quarantine)
        log.info(
            "Quarantine not begun",
            extra={
                "event": "step.quarantine_not_begun",
                "node": node_state.node,
                "reason": because,
            },
        )
        await self._acts.record_writer.withdraw(entry)
        self._holds.spares(node_state, wanted)

    def _spared(self, node_state: NodeState, wanted: DesiredState) -> bool:
        """Whether an operator, or its pool's mode, allows less than we want, by the node as it was
        just read.
        """
        most = self._acts.pools.most_of(node_state, self._acts.clocks.earliest())
        return most.strength < wanted.spec.action.strength
