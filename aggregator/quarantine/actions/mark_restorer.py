"""Reports marks that a quarantined node has lost, and sets them again; see decide/lost_marks."""

from dataclasses import replace

from attrs import define

from aggregator.cluster.port import (
    Conflict,
    GuardRefused,
    MarksStatus,
    Node,
    Phase,
    Quarantine,
    Refused,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.lost_marks import (
    CONDITION,
    RestoreRules,
    counted,
    describe_lost,
    describe_missing,
)
from aggregator.quarantine.decide.node_marks import cordon_change, read_applied
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED


@define(eq=False, repr=False, slots=False, kw_only=True)
class MarkRestorer:
    """Steps `ObjectStep.REPORT_MARKS` and `MarkStep.RESTORE`, for one node at a time."""

    _acts: NodeActions
    rules: RestoreRules

    async def report(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """Write to the status which marks are missing, or that all are there again."""
        before, missing = quarantine.status.marks, node_state.quarantine_view.missing
        since = (before.since or self._acts.clocks.latest()) if missing else 0.0
        marks = replace(before, missing=missing, since=since)
        text = describe_lost(marks, self.rules, quarantine.status.applied) if missing else ""
        status = replace(quarantine.status, marks=marks)
        if status.phase is Phase.CORDONED:  # its message states that the node is marked
            status = replace(status, message=text or self._marked(node_state.node))
        kind: EventKind | None = None
        details = {"missing": ", ".join(missing)} if missing else None
        if set(missing) - set(before.missing):
            kind = EventKind.MARKS_MISSING
        elif not missing:
            kind = EventKind.MARKS_RESTORED
            marked = describe_missing(before.missing, quarantine.status.applied)
            text = f"another tool or person has set them again: {marked}"
            if before.restored_at >= before.since:  # ours, and the write after the patch has failed
                text = self._set_again(before, marked)
        with self._acts.reporting(node_state, kind, text, details):
            await self._acts.write_status(node_state, quarantine, status)

    async def restore(self, node_state: NodeState) -> None:
        """Set missing marks again.

        The count comes first: it is not lost with the answer to the patch, or to the write after
        it. A patch that certainly has set none is not counted.
        """
        node, in_force = await self._acts.read_anew(node_state)
        if node is None or in_force is None or not self._may(node_state, node, in_force):
            return  # the next step sees it
        missing, before = node_state.quarantine_view.missing, in_force.status
        known = before.marks
        marks = counted(known, self._acts.clocks.latest())
        counts = replace(known, restored=marks.restored, restored_at=marks.restored_at)
        status = replace(before, marks=counts)
        in_force = await self._acts.write_status(node_state, in_force, status)
        if missing != (CONDITION,):
            change = cordon_change(node, in_force, rules=self.rules)
            guard = self._acts.guard(node_state)
            try:
                node = await self._acts.patch_marks(node, change, guard=guard)
            except (Conflict, GuardRefused, Refused):
                await self._acts.write_status(node_state, in_force, before)
                raise
        self._acts.announcer.announce(node_state, node.uid, in_force.spec.reason)
        node_state.take_node(node)
        applied = read_applied(node) or in_force.status.applied
        status = replace(in_force.status, marks=marks, applied=applied)
        if status.phase is Phase.CORDONED:
            status = replace(status, message=self._marked(node_state.node))
        text = self._set_again(marks, describe_missing(missing, status.applied))
        with self._acts.reporting(node_state, EventKind.MARKS_RESTORED, text):
            await self._acts.write_status(node_state, in_force, status)

    def _may(self, node_state: NodeState, node: Node, quarantine: Quarantine) -> bool:
        """Whether it is still to be done, now that the node was read."""
        if quarantine.deleting or quarantine.unread or quarantine.status.phase not in MARKED:
            return False
        if node.uid != quarantine.status.node_uid or not node.unschedulable:
            return False
        if not node_state.quarantine_view.missing:
            return False
        if quarantine.spec.requester != OURS:
            return True
        exempt = node_state.cluster.operator_requests.exempt(self._acts.clocks.earliest())
        return not node_state.cluster.maintained and not exempt

    def _set_again(self, marks: MarksStatus, named: str) -> str:
        return f"set again, {marks.restored} of {self.rules.restore_times}: {named}"

    def _marked(self, node: str) -> str:
        return self._acts.cluster.words.in_force.format(node=node)
