"""Reports marks that a quarantined node has lost, and sets them again; see decide/lost_marks."""

from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.port import Cluster, MarksStatus, Node, Phase, Quarantine
from aggregator.events import EventKind
from aggregator.quarantine.actions.cordon import NodeActions
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.lost_marks import (
    CONDITION,
    RestoreRules,
    counted,
    describe_lost,
    describe_missing,
)
from aggregator.quarantine.decide.node_marks import cordon_change, read_did
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED

_NONE = MarksStatus()


class MarkRestorer:
    """Steps `Do.TELL_MARKS` and `Do.RESTORE`, for one node at a time."""

    def __init__(
        self, *, cluster: Cluster, acts: NodeActions, clocks: Clocks, rules: RestoreRules
    ) -> None:
        self._cluster = cluster
        self._acts = acts
        self._clocks = clocks
        self._rules = rules

    async def report(self, case: NodeState, quarantine: Quarantine) -> None:
        """Write to the status which marks are missing, or that all are there again."""
        before, missing = (
            quarantine.status.marks or _NONE,
            case.quarantine_view.missing,
        )
        since = (before.since or self._clocks.latest()) if missing else 0.0
        marks = replace(before, missing=missing, since=since)
        text = describe_lost(marks, self._rules) if missing else ""
        status = replace(quarantine.status, marks=None if marks == _NONE else marks)
        if status.phase is Phase.CORDONED:  # its message says that the node is marked
            status = replace(status, message=text or _marked(case.node))
        await self._acts.write_status(case, quarantine, status)
        if set(missing) - set(before.missing):
            self._acts.emit_event(
                case, EventKind.MARKS_MISSING, text, {"missing": ", ".join(missing)}
            )
        elif not missing:
            restored = (
                f"another tool or person has set them again: {describe_missing(before.missing)}"
            )
            self._acts.emit_event(case, EventKind.MARKS_RESTORED, restored)

    async def restore(self, case: NodeState) -> None:
        """Set missing marks again: the node is read before the Quarantine is, as always."""
        node = await self._cluster.read_node(case.node)
        standing = await self._acts.reread(case)
        case.take_node(node)
        if node is None or standing is None or not self._may(case, node, standing):
            return  # the next step sees it
        missing = case.quarantine_view.missing
        if missing != (CONDITION,):
            change = cordon_change(node, standing)
            node = await self._cluster.patch_node(node, change, guard=self._acts.guard(case))
        self._acts.announce(case, node.uid, quarantined=True, message=standing.spec.reason)
        case.take_node(node)
        marks = counted(standing.status.marks or _NONE, self._clocks.latest())
        status = replace(standing.status, marks=marks, did=read_did(node) or standing.status.did)
        if status.phase is Phase.CORDONED:
            status = replace(status, message=_marked(case.node))
        await self._acts.write_status(case, standing, status)
        times = self._rules.restore_times
        text = f"set again, {marks.restored} of {times}: {describe_missing(missing)}"
        self._acts.emit_event(case, EventKind.MARKS_RESTORED, text)

    def _may(self, case: NodeState, node: Node, quarantine: Quarantine) -> bool:
        """Whether it is still to be done, now that the node was read."""
        if quarantine.deleting or quarantine.status.phase not in MARKED:
            return False
        if node.uid != quarantine.status.node_uid or not node.unschedulable:
            return False
        if not case.quarantine_view.missing:
            return False
        if quarantine.spec.requester != OURS:
            return True
        exempt = case.cluster.wishes.exempt(self._clocks.earliest())
        return not case.cluster.maintained and not exempt


def _marked(node: str) -> str:
    return f"{node} is tainted and unschedulable"
