"""Carries out a release from quarantine: the checks against it, the undo, the node's memory.

A release by recovery reads the node once more, in full; no check holds a person's release. An undo
always changes the node, so that a late writer fails (docs/fences.md).
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from attrs import define

from aggregator.cluster.node_names import APPLIED, RELEASED, is_marked
from aggregator.cluster.port import (
    AppliedChanges,
    ClusterError,
    Conflict,
    GuardRefused,
    Node,
    Phase,
    Quarantine,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.actions.open_attempts import are_attempts_known
from aggregator.quarantine.decide.admission_record import Entry
from aggregator.quarantine.decide.node_marks import (
    MarkRules,
    adopt_change,
    applied_to_undo,
    clear_overrides_change,
    marked_by,
    read_applied,
    read_overruled,
    undo_change,
)
from aggregator.quarantine.decide.operator_requests import FORCE, FORCED
from aggregator.quarantine.decide.overrides import Override
from aggregator.quarantine.decide.plans.release import RELEASE_WAITS, UNCORDONED
from aggregator.quarantine.decide.plans.release_reasons import NODE_ABSENT
from aggregator.quarantine.decide.plans.step import NextStep
from aggregator.quarantine.decide.release_checks import memory_change, release_hold, remember
from aggregator.quarantine.decide.uncordon import UNCORDONED_BY, UncordonRules
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.quarantine_view import MARKED
from aggregator.runtime.interning import EMPTY

log = logging.getLogger("sickbay.quarantine")

_WAITS = "the node is released; its admission record entry goes when the record can be used again"
#: The objections to a release are checked again after this long (seconds).
CHECK_AGAIN = 30.0


class ReleaseHook(Protocol):
    """`HookRunner`, as far as it is used here."""

    async def after_release(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """The site's own step once the node is released. A failure does not hold it up."""


@define(eq=False, repr=False, slots=False, kw_only=True)
class ReleaseActions:
    """The steps back, for one node at a time; `AdmissionReconciler` has those forth."""

    _acts: NodeActions
    _hooks: ReleaseHook
    _uncordon: UncordonRules
    _marks: MarkRules

    async def release(
        self, node_state: NodeState, quarantine: Quarantine, step: NextStep, *, lost: str = ""
    ) -> None:
        """Change the phase; the undo is the next step, of this replica or another.

        A person's release goes at once. For a release by recovery the node is read once more, in
        full. ``lost``: the repair whose order may come although its operation is gone.
        """
        checks_node = quarantine.status.phase in MARKED or step.because == NODE_ABSENT
        if not step.overruled and checks_node:
            recovered = _has_recovered(node_state)
            found = await self._against_release(node_state, quarantine, lost)
            if recovered and not (node_state.quarantine_view.reborn or _has_recovered(node_state)):
                return  # it became unhealthy, or silent, during the read: decide again
            if found:
                await self._hold_release(node_state, quarantine, found)
                return
            forced = node_state.cluster.operator_requests.force_requested
            if step.because == NODE_ABSENT and not node_state.cluster.node_gone:
                return  # it is back
            if forced and quarantine.spec.requester == FORCED:
                return  # operators' requests are other than we knew: decide again
            if node_state.is_released_by_uncordon(self._uncordon):
                return  # operators' requests are other than we knew: decide again
            cluster, wall = self._acts.cluster, self._acts.clocks.wall()
            if not await are_attempts_known(cluster, node_state, quarantine, wall):
                return  # an operation that we did not know of: decide again
        status = replace(
            quarantine.status,
            phase=Phase.RELEASING,
            message=f"being released: {step.because}",
            released_because=step.because,
            overruled=step.overruled,
            release_held="",
        )
        kind = EventKind.OVERRULED if step.overruled else EventKind.RELEASING
        node_state.wrote(await self._acts.cluster.write_quarantine_status(quarantine, status))
        self._acts.emit_event(node_state, kind, f"{step.because}: being released")

    async def _against_release(
        self, node_state: NodeState, quarantine: Quarantine, lost: str
    ) -> str:
        node = await self._acts.cluster.read_node(node_state.node)
        node_state.take_node(node)
        if node is None:
            return ""
        return release_hold(
            quarantine,
            node=node,
            health=node_state.agent.health if not node_state.quarantine_view.reborn else None,
            policy=self._acts.policy,
            requests=node_state.cluster.operator_requests,
            lost=lost,
        )

    async def _hold_release(self, node_state: NodeState, quarantine: Quarantine, why: str) -> None:
        if node_state.release_held != why:
            text = f"its cause is over, and it is not released: {why}"
            self._acts.emit_event(node_state, EventKind.RELEASE_HELD, text)
        node_state.quarantine_view.release_held = why
        # Before the write: a change of the node's checks meanwhile hastens the next check.
        node_state.quarantine_view.delay_release_check(self._acts.clocks.now(), CHECK_AGAIN)
        if quarantine.status.release_held == why or quarantine.unread:
            return
        try:
            status = replace(quarantine.status, release_held=why)
            await self._acts.write_status(node_state, quarantine, status)
        except Exception:
            node_state.quarantine_view.release_poll = 0.0
            raise

    async def undo(self, node_state: NodeState) -> None:
        """Undo the node, report it, take the entry out, drop the object, in this order.

        A record that can't be used does not hold up the steps on the node. The object stays in
        Releasing, which is durable, until its entry can be taken out.
        """
        entry, trouble = await self.entry(node_state.node)
        node = await self._acts.cluster.read_node(node_state.node)
        quarantine = await self._acts.reread(node_state)
        if quarantine is None:
            if not node_state.quarantine_view.vanished:  # else the watch shows who removed it first
                await self.forget_entry(entry, trouble)
            return
        if quarantine.status.phase is not Phase.RELEASING:
            return
        if node is not None and not _is_undone(node_state, node, quarantine):
            await self._undo_marks(node_state, node, quarantine)
        try:
            await self.forget_entry(entry, trouble)
        except GuardRefused:
            raise  # the next controller completes the release
        except ClusterError:
            if quarantine.status.message != _WAITS:
                status = replace(quarantine.status, message=_WAITS)
                await self._acts.write_status(node_state, quarantine, status)
            raise
        await self._hooks.after_release(node_state, quarantine)
        await self._acts.place()  # else the next controller completes the release, and reports it
        if node_state.quarantine_view.ended != quarantine.uid:  # once, however often it is dropped
            text, wall = f"released: {_because(quarantine)}", self._acts.clocks.wall()
            self._acts.emit_event(node_state, EventKind.RELEASED, text)
            self._acts.stages.note_release(quarantine.status.cordoned_at, wall)
            self._acts.stages.note_return(quarantine.status, wall)
        await self._drop(node_state, quarantine)

    async def entry(self, node: str) -> tuple[Entry | None, str]:
        """The node's entry, and why the record can't be used now; empty: it can."""
        try:
            async with asyncio.timeout(RELEASE_WAITS):
                return await self._acts.record_writer.entry(node), ""
        except TimeoutError:
            return None, f"the admission record gave no answer in {RELEASE_WAITS:g} s"
        except ClusterError as error:
            return None, str(error)

    async def forget_entry(self, entry: Entry | None, trouble: str) -> None:
        """Raises ClusterError while the record can't be used: a later try does it."""
        if trouble:
            raise ClusterError(f"{_WAITS}: {trouble}")
        await self._acts.record_writer.forget_entry(entry)

    async def _undo_marks(self, node_state: NodeState, node: Node, quarantine: Quarantine) -> None:
        words = node_state.overrule() if quarantine.status.overruled else frozenset()
        theirs = quarantine.status.released_because == UNCORDONED
        begun = quarantine.status.cordoned_at > 0  # else there was nothing to release it from
        evidence = quarantine.spec.evidence if begun else ()
        clocks = self._acts.clocks
        memory = remember(node, evidence, earliest=clocks.earliest(), latest=clocks.latest())
        more = memory_change(memory)
        if UNCORDONED_BY in node.annotations:
            more[UNCORDONED_BY] = None
        if quarantine.status.overruled and quarantine.spec.requester == FORCED:
            more[FORCE] = None  # a person's later request takes the earlier one back
        applied = applied_to_undo(node, quarantine, self._marks)
        undone = await self.undo_node(
            node_state, node, quarantine.uid, applied, words, uncordoned=theirs, more=more
        )
        node_state.cluster.ended_overrides |= words - node_state.overrule()
        node_state.take_node(undone)
        because = _because(quarantine)
        await self._acts.announcer.announce_release(node_state, node.uid, because)

    async def drop_finalizer(self, node_state: NodeState, quarantine: Quarantine) -> None:
        """The definition is being deleted: the finalizer goes, and the marks stay.

        The node remembers all evidence that is in force now, and none that has cleared since it was
        marked: it is adopted by that.
        """
        try:
            await self._update_memory(node_state, quarantine)
        except (Conflict, GuardRefused):
            raise
        except ClusterError as error:  # an uninstall does not wait for it
            log.warning(
                "notes on a node not brought up to date",
                extra={"node": node_state.node, "error": str(error)},
            )
        await self._drop(node_state, quarantine)
        node_state.quarantine_view.lose_definition(quarantine)

    async def _update_memory(self, node_state: NodeState, quarantine: Quarantine) -> None:
        node = await self._acts.cluster.read_node(node_state.node)
        if node is None or marked_by(node) != quarantine.uid:
            return
        change = adopt_change(quarantine, read_applied(node))
        if change.annotations.get(APPLIED) != node.annotations.get(APPLIED):
            await self._acts.cluster.patch_node(node, change, guard=self._acts.place)

    async def _drop(self, node_state: NodeState, quarantine: Quarantine) -> None:
        if reborn := await self._acts.drop(node_state, quarantine):
            # They belong to the earlier Node: the evaluation finds those of this one.
            node_state.decision.incidents = EMPTY
            node_state.agent.compare_boot(reborn)

    async def undo_node(
        self,
        node_state: NodeState,
        node: Node,
        uid: str,
        applied: AppliedChanges | None,
        words: frozenset[Override],
        *,
        uncordoned: bool = False,
        more: Mapping[str, str | None],
    ) -> Node:
        """Undo the marks for the quarantine with ``uid``; the node also remembers its overrides,
        without those that are over. The rest as in `undo_change`.
        """
        ended = node_state.cluster.ended_overrides
        still = (read_overruled(node.annotations) - ended) | words
        change = undo_change(node, uid, applied, still, uncordoned=uncordoned, more=more)
        undone = await self._acts.patch_marks(node, change, guard=self._acts.place)
        node_state.cluster.ended_overrides -= ended
        return undone

    async def clear_overrides(self, node_state: NodeState) -> None:
        """Remove the overrides that are over from the node's annotation."""
        node = await self._acts.cluster.read_node(node_state.node)
        ended = node_state.cluster.ended_overrides
        if node is not None:
            remembered = read_overruled(node.annotations)
            if remembered & ended:
                node = await self._acts.cluster.patch_node(
                    node, clear_overrides_change(remembered - ended), guard=self._acts.place
                )
        node_state.cluster.ended_overrides -= ended
        node_state.take_node(node)


def _is_undone(node_state: NodeState, node: Node, quarantine: Quarantine) -> bool:
    """Whether the node was undone for this quarantine, reported, and has all it must remember.

    An undo that is done again changes the node again, so it is done once while the record waits.
    """
    if quarantine.status.message != _WAITS:
        return False
    words = node_state.overrule() if quarantine.status.overruled else frozenset()
    undone = node.annotations.get(RELEASED, "").startswith(f"{quarantine.uid}@")
    return undone and not is_marked(node) and words <= read_overruled(node.annotations)


def _has_recovered(node_state: NodeState) -> bool:
    """Evidence that is not evaluated yet may be a new fault."""
    is_evaluated = not node_state.work.evaluation_due
    return node_state.agent.is_fresh and is_evaluated and not node_state.acting


def _because(quarantine: Quarantine) -> str:
    return quarantine.status.released_because or "released"
