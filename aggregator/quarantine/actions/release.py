"""Carries out a release from quarantine: the checks against it, the undo, the node's memory.

A release by recovery reads the node once more, in full; no check holds a person's release. An undo
always changes the node, so that a late writer fails (docs/fences.md).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from aggregator.clock import Clocks
from aggregator.cluster.node_names import APPLIED, RELEASED, is_marked
from aggregator.cluster.port import Cluster, ClusterError, Conflict, Did, Node, Phase, Quarantine
from aggregator.events import EventKind
from aggregator.policy.rules import Policy
from aggregator.quarantine.actions.cordon import NodeActions
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.node_marks import (
    adopt_change,
    clear_overrides_change,
    did_to_undo,
    marked_by,
    read_did,
    read_overruled,
    undo_change,
)
from aggregator.quarantine.decide.operator_requests import FORCE, FORCED
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.planner import NODE_ABSENT, UNCORDONED, NextStep
from aggregator.quarantine.decide.release_checks import memory_change, release_hold, remember
from aggregator.quarantine.decide.uncordon import UNCORDONED_BY, UncordonRules
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.runtime.interning import EMPTY

log = logging.getLogger("sickbay.quarantine")

#: A release waits for the admission record for so long (seconds), and goes on without it.
RECORD_WITHIN = 5.0
_WAITS = "the node is released; its admission record entry goes when the record can be used again"
#: The objections to a release are checked again after so long (seconds).
LOOK_AGAIN = 30.0


@dataclass(frozen=True, slots=True)
class Undo:
    """The undo of a node's marks: for the quarantine with ``uid``; the rest as in `undo_change`."""

    uid: str
    did: Did | None
    words: frozenset[Override]
    uncordoned: bool = False
    more: Mapping[str, str | None] | None = None


class ReleaseActions:
    """The steps back, for one node at a time; `NodeActions` has those forth."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        record_writer: AdmissionRecordWriter,
        acts: NodeActions,
        clocks: Clocks,
        policy: Policy,
        after_release: Callable[[NodeState, Quarantine], Awaitable[None]],
        differing: Callable[[], str],
        uncordon: UncordonRules,
    ) -> None:
        """``differing`` names the replicas that run another policy now; empty if none does."""
        self._cluster = cluster
        self._record_writer = record_writer
        self._acts = acts
        self._clocks = clocks
        self._policy = policy
        self._after_release = after_release
        self._differing = differing
        self._uncordon = uncordon

    async def release(self, case: NodeState, quarantine: Quarantine, step: NextStep) -> None:
        """Change the phase; the undo is the next step, of this replica or another.

        A person's release goes at once. For a release by recovery the node is read once more, in
        full.
        """
        looks = quarantine.status.phase in MARKED or step.because == NODE_ABSENT
        if not step.overruled and looks:
            recovered = _has_recovered(case)
            found = await self._against_release(case, quarantine)
            if recovered and not case.quarantine_view.reborn and not _has_recovered(case):
                return  # it became unhealthy, or silent, during the read: decide again
            if found:
                await self._hold_release(case, quarantine, found)
                return
            taken_back = quarantine.spec.requester != FORCED or not case.cluster.wishes.force_asked
            if step.because == NODE_ABSENT and not case.cluster.node_gone:
                return  # it is back
            if case.is_released_by_uncordon(self._uncordon) or not taken_back:
                return  # operators' requests are other than we knew: decide again
        status = replace(
            quarantine.status,
            phase=Phase.RELEASING,
            message=f"being released: {step.because}",
            released_because=step.because,
            overruled=step.overruled,
            release_held="",
        )
        kind = EventKind.OVERRULED if step.overruled else EventKind.RELEASING
        case.wrote(await self._cluster.write_quarantine_status(quarantine, status))
        self._acts.emit_event(case, kind, f"{step.because}: being released")

    async def _against_release(self, case: NodeState, quarantine: Quarantine) -> str:
        node = await self._cluster.read_node(case.node)
        case.take_node(node)
        if node is None:
            return ""
        return release_hold(
            quarantine,
            node=node,
            health=case.agent.health if not case.quarantine_view.reborn else None,
            policy=self._policy,
            requests=case.cluster.wishes,
            differing=self._differing(),
        )

    async def _hold_release(self, case: NodeState, quarantine: Quarantine, why: str) -> None:
        if case.release_held != why:
            text = f"its cause is over, and it is not released: {why}"
            self._acts.emit_event(case, EventKind.RELEASE_HELD, text)
        case.own_quarantine_view().hold_release(why)
        looked_at = self._clocks.now()
        if quarantine.status.release_held != why:
            await self._acts.write_status(
                case, quarantine, replace(quarantine.status, release_held=why)
            )
        case.own_quarantine_view().delay_release_check(looked_at + LOOK_AGAIN)

    async def unhold(self, case: NodeState, quarantine: Quarantine) -> None:
        """The node is unhealthy again: the objections to its release no longer apply."""
        case.own_quarantine_view().unhold_release()
        if quarantine.status.release_held:
            await self._acts.write_status(
                case, quarantine, replace(quarantine.status, release_held="")
            )

    async def leave_foreign(self, case: NodeState) -> None:
        """Another installation has the node in quarantine: we neither act on that nor undo it.

        An admission here for the same node was not begun, and gives its place back.
        """
        case.work.begin_read()
        if case.node in self._record_writer.record.entries:
            await self._record_writer.withdraw(self._record_writer.record.entries[case.node])
        self._acts.hold_foreign(case)

    async def void(self, case: NodeState, quarantine: Quarantine) -> None:
        """Take back a Quarantine made without admission, unless the record has an entry by now."""
        if await self._record_writer.entry(case.node) is not None:
            return
        because = "made late, when its admission was over"
        status = replace(
            quarantine.status, phase=Phase.RELEASING, message=because, released_because=because
        )
        case.wrote(await self._cluster.write_quarantine_status(quarantine, status))
        log.info("Quarantine withdrawn", extra={"node": case.node, "reason": because})

    async def undo(self, case: NodeState) -> None:
        """Undo the node, report it, take the entry out, drop the object, in this order.

        A record that can't be used does not hold up the steps on the node. The object stays in
        Releasing, which is durable, until its entry can be taken out.
        """
        entry, trouble = await self.entry(case.node)
        node = await self._cluster.read_node(case.node)
        quarantine = await self._acts.reread(case)
        if quarantine is None:
            if (
                not case.quarantine_view.vanished
            ):  # else the watch tells who took it away: handled first
                await self.forget_entry(entry, trouble)
            return
        if quarantine.status.phase is not Phase.RELEASING:
            return
        if node is not None and not _is_undone(case, node, quarantine):
            await self._undo_marks(case, node, quarantine)
        try:
            await self.forget_entry(entry, trouble)
        except ClusterError:
            if quarantine.status.message != _WAITS:
                status = replace(quarantine.status, message=_WAITS)
                await self._acts.write_status(case, quarantine, status)
            raise
        await self._after_release(case, quarantine)
        if (
            case.quarantine_view.ended != quarantine.uid
        ):  # once, however often the object must be dropped
            self._acts.emit_event(case, EventKind.RELEASED, f"released: {_because(quarantine)}")
        await self._drop(case, quarantine)

    async def entry(self, node: str) -> tuple[Entry | None, str]:
        """The node's entry, and why the record can't be used now; empty: it can."""
        try:
            async with asyncio.timeout(RECORD_WITHIN):
                return await self._record_writer.entry(node), ""
        except TimeoutError:
            return None, f"the admission record gave no answer in {RECORD_WITHIN:g} s"
        except ClusterError as error:
            return None, str(error)

    async def forget_entry(self, entry: Entry | None, trouble: str) -> None:
        """Raises ClusterError while the record can't be used: a later try does it."""
        if trouble:
            raise ClusterError(f"{_WAITS}: {trouble}")
        await self._record_writer.forget_entry(entry)

    async def _undo_marks(self, case: NodeState, node: Node, quarantine: Quarantine) -> None:
        words = case.overrule() if quarantine.status.overruled else frozenset()
        theirs = quarantine.status.released_because == UNCORDONED
        begun = quarantine.status.cordoned_at > 0  # else there was nothing to release it from
        evidence = quarantine.spec.evidence if begun else ()
        memory = remember(
            node,
            evidence,
            earliest=self._clocks.earliest(),
            latest=self._clocks.latest(),
        )
        more = memory_change(node, memory)
        if UNCORDONED_BY in node.annotations:
            more[UNCORDONED_BY] = None
        if quarantine.status.overruled and quarantine.spec.requester == FORCED:
            more[FORCE] = None  # a person's later request takes the earlier one back
        undo = Undo(quarantine.uid, did_to_undo(node, quarantine), words, theirs, more)
        undone = await self.undo_node(case, node, undo)
        case.cluster.note_ended(words - case.overrule())
        case.take_node(undone)
        await self._acts.settle_announcement(case)
        await self._acts.log_action(case, node.uid, quarantined=False, message=_because(quarantine))

    async def drop_finalizer(self, case: NodeState, quarantine: Quarantine) -> None:
        """The definition is being deleted: the finalizer goes, and the marks stay.

        The node remembers all evidence that is in force now, and none that has cleared since it was
        marked: it is adopted by that.
        """
        try:
            await self._update_memory(case, quarantine)
        except Conflict:
            raise
        except ClusterError as error:  # an uninstall does not wait for it
            log.warning("its marks are old", extra={"node": case.node, "error": str(error)})
        await self._drop(case, quarantine)
        case.own_quarantine_view().lose_definition(quarantine)

    async def _update_memory(self, case: NodeState, quarantine: Quarantine) -> None:
        node = await self._cluster.read_node(case.node)
        if node is None or marked_by(node) != quarantine.uid:
            return
        change = adopt_change(quarantine, read_did(node))
        if change.annotations[APPLIED] != node.annotations[APPLIED]:
            await self._cluster.patch_node(node, change)

    async def _drop(self, case: NodeState, quarantine: Quarantine) -> None:
        case.own_quarantine_view().note_end(quarantine.uid)
        await self._cluster.drop_quarantine(quarantine)
        reborn = case.own_quarantine_view().drop()
        if reborn:
            # They belong to the earlier Node: the evaluation finds those of this one.
            case.decision.take_incidents(EMPTY)
            case.agent.compare_boot(reborn)

    async def undo_node(self, case: NodeState, node: Node, undo: "Undo") -> Node:
        """Undo our marks; the node also remembers its overrides, without those that are over."""
        over = case.cluster.over
        still = (read_overruled(node.annotations) - over) | undo.words
        change = undo_change(
            node, undo.uid, undo.did, still, uncordoned=undo.uncordoned, more=undo.more
        )
        undone = await self._cluster.patch_node(node, change)
        case.cluster.note_removed(over)
        return undone

    async def clear_overrides(self, case: NodeState) -> None:
        """Remove the overrides that are over from the node's annotation."""
        node = await self._cluster.read_node(case.node)
        over = case.cluster.over
        if node is not None:
            remembered = read_overruled(node.annotations)
            if remembered & over:
                node = await self._cluster.patch_node(
                    node, clear_overrides_change(remembered - over)
                )
        case.cluster.note_removed(over)
        case.take_node(node)


def _is_undone(case: NodeState, node: Node, quarantine: Quarantine) -> bool:
    """Whether the node was undone for this quarantine, reported, and has all it must remember.

    An undo that is done again changes the node again, so it is done once while the record waits.
    """
    if quarantine.status.message != _WAITS:
        return False
    words = case.overrule() if quarantine.status.overruled else frozenset()
    undone = node.annotations.get(RELEASED, "").startswith(f"{quarantine.uid}@")
    return undone and not is_marked(node) and words <= read_overruled(node.annotations)


def _has_recovered(case: NodeState) -> bool:
    return case.agent.is_fresh and not case.acting


def _because(quarantine: Quarantine) -> str:
    return quarantine.status.released_because or "released"
