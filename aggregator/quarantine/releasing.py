"""The way out of a quarantine, carried out: what speaks against it, the undo, what is remembered.

A release by recovery looks once more, at the node in full; a person's release is held by nothing.
An undo always changes the node, so that a late writer fails (docs/fences.md).
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from aggregator.policy.rules import Policy
from aggregator.quarantine.acts import Acts, Clocks
from aggregator.quarantine.case import MARKED, Case
from aggregator.quarantine.cluster import Cluster, Conflict, Node, Phase, Quarantine
from aggregator.quarantine.decide.marks import (
    forgive_change,
    is_marked,
    read_overruled,
    stood_for,
    undo_change,
)
from aggregator.quarantine.decide.release import RELEASES, release_hold, remember
from aggregator.quarantine.decide.steps import UNCORDONED, Step
from aggregator.quarantine.decide.wishes import FORCE, FORCED
from aggregator.quarantine.decide.words import Word
from aggregator.quarantine.ledger import Kind
from aggregator.quarantine.registrar import Registrar
from aggregator.sharing import NOTHING

log = logging.getLogger("sickbay.quarantine")

#: What speaks against a release is looked at again after so long (seconds).
LOOK_AGAIN = 30.0


class Releasing:
    """The steps back, for one node at a time; `Acts` has those forth."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        registrar: Registrar,
        acts: Acts,
        clocks: Clocks,
        policy: Policy,
        after_release: Callable[[Case, Quarantine], Awaitable[None]],
        differing: Callable[[], str],
    ) -> None:
        """``differing`` tells which replicas run another policy now; empty: none."""
        self._cluster = cluster
        self._registrar = registrar
        self._acts = acts
        self._clocks = clocks
        self._policy = policy
        self._after_release = after_release
        self._differing = differing

    async def release(self, case: Case, quarantine: Quarantine, step: Step) -> None:
        """Change the phase; what undoes it comes next, whoever does it.

        What a person ends goes at once. What recovers by itself is looked at once more, in full.
        """
        if not step.overruled and quarantine.status.phase in MARKED:
            recovered = _has_recovered(case)
            found = await self._against_release(case, quarantine)
            if recovered and not case.reborn and not _has_recovered(case):
                return  # it has fallen ill, or silent, while we looked: decide again
            if found:
                await self._hold_release(case, quarantine, found)
                return
            taken_back = quarantine.spec.requester != FORCED or not case.wishes.force_asked
            if case.uncordoned or not taken_back:
                return  # people have said other things than we knew of: decide again
        status = replace(
            quarantine.status,
            phase=Phase.RELEASING,
            message=f"being released: {step.because}",
            released_because=step.because,
            overruled=step.overruled,
            release_held="",
        )
        kind = Kind.OVERRULED if step.overruled else Kind.RELEASING
        case.wrote(await self._cluster.write_quarantine_status(quarantine, status))
        self._acts.note(case, kind, f"{step.because}: being released")

    async def _against_release(self, case: Case, quarantine: Quarantine) -> str:
        node = await self._cluster.read_node(case.node)
        case.take_node(node)
        if node is None:
            return ""
        return release_hold(
            quarantine,
            node=node,
            health=case.patient.health if not case.reborn else None,
            policy=self._policy,
            wishes=case.wishes,
            differing=self._differing(),
        )

    async def _hold_release(self, case: Case, quarantine: Quarantine, why: str) -> None:
        if case.release_held != why:
            text = f"its cause is over, and it is not released: {why}"
            self._acts.note(case, Kind.RELEASE_HELD, text)
        case.patient.release_held = why
        looked_at = self._clocks.now()
        if quarantine.status.release_held != why:
            await self._acts.write_status(
                case, quarantine, replace(quarantine.status, release_held=why)
            )
        case.release_look = looked_at + LOOK_AGAIN

    async def unhold(self, case: Case, quarantine: Quarantine) -> None:
        """It is ill again: what spoke against its release has no meaning any more."""
        case.patient.release_held, case.release_look = "", 0.0
        if quarantine.status.release_held:
            await self._acts.write_status(
                case, quarantine, replace(quarantine.status, release_held="")
            )

    async def void(self, case: Case, quarantine: Quarantine) -> None:
        """Take back what was made without leave, unless the record says by now that there is."""
        if await self._registrar.entry(case.node) is not None:
            return
        because = "made late, when its admission was over"
        status = replace(
            quarantine.status, phase=Phase.RELEASING, message=because, released_because=because
        )
        case.wrote(await self._cluster.write_quarantine_status(quarantine, status))
        log.info("void", extra={"node": case.node, "reason": because})

    async def undo(self, case: Case) -> None:
        """Undo the node, tell, take the entry out, let the object go. In this order."""
        entry = await self._registrar.entry(case.node)
        node = await self._cluster.read_node(case.node)
        quarantine = await self._acts.reread(case)
        if quarantine is None:
            await self._registrar.forget(entry)
            return
        if quarantine.status.phase is not Phase.RELEASING:
            return
        if node is not None:
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
            more: dict[str, str | None] = {RELEASES: memory if memory != "[]" else None}
            if quarantine.status.overruled and quarantine.spec.requester == FORCED:
                more[FORCE] = None  # the later word of a person takes the earlier one back
            undone = await self._undo_node(
                case, node, quarantine.uid, words, uncordoned=theirs, more=more
            )
            case.over |= words - case.overrule()  # what ended just while it was written
            case.take_node(undone)
            await self._acts.settle_announcement(case)
            await self._acts.tell(case, node.uid, quarantined=False, message=_because(quarantine))
        await self._registrar.forget(entry)
        await self._after_release(case, quarantine)
        if case.ended != quarantine.uid:  # once, however often the object must be dropped
            self._acts.note(case, Kind.RELEASED, f"released: {_because(quarantine)}")
        await self._drop(case, quarantine)

    async def let_go(self, case: Case, quarantine: Quarantine) -> None:
        """The definition is being deleted: the finalizer goes, and nothing is undone."""
        await self._drop(case, quarantine)

    async def _drop(self, case: Case, quarantine: Quarantine) -> None:
        case.ended = quarantine.uid  # before: the news of it may come sooner than the answer
        await self._cluster.drop_quarantine(quarantine)
        case.patient.quarantine = None
        case.patient.release_held, case.release_look = "", 0.0
        case.uncordoned = case.node_replaced = False
        if case.reborn:
            # They were of the Node before: judging finds what is of this one.
            case.patient.incidents = NOTHING
            health = case.patient.health
            case.misnamed = health is not None and health.boot_id != case.reborn
            case.reborn = ""

    async def forget(self, case: Case, because: str) -> None:
        """An entry without object and cause; the node may carry marks from before an uninstall."""
        entry = await self._registrar.entry(case.node)
        await self._unmark(case, case.orphan, overruled=False)
        await self._registrar.forget(entry)
        case.patient.hold = None
        log.info("forgotten", extra={"node": case.node, "because": because})

    async def sweep(self, case: Case) -> None:
        """Our marks without a quarantine: it was taken away past its finalizer, by a person."""
        entry = await self._registrar.entry(case.node)
        undone = await self._unmark(case, case.orphan, overruled=True)
        await self._registrar.forget(entry)
        if undone:
            text = "its quarantine was taken away by a person: released"
            self._acts.note(case, Kind.OVERRULED, text)
        case.orphan = ""

    async def _unmark(self, case: Case, uid: str, *, overruled: bool) -> bool:
        """Undo marks that no quarantine stands for. Returns whether there were any."""
        node = await self._cluster.read_node(case.node)
        if await self._cluster.read_quarantine(case.node) is not None:
            raise Conflict("a quarantine stands there again")
        case.take_node(node)
        if node is None or not is_marked(node):
            return False
        words = case.overrule(stood_for(node)) if overruled else frozenset()
        # Marks without evidence were made by a person's word, and the later word takes it back.
        more = {FORCE: None} if overruled and not stood_for(node) else None
        case.take_node(await self._undo_node(case, node, uid or "swept", words, more=more))
        await self._acts.tell(case, node.uid, quarantined=False, message="released")
        return True

    async def _undo_node(
        self,
        case: Case,
        node: Node,
        uid: str,
        words: frozenset[Word],
        *,
        uncordoned: bool = False,
        more: Mapping[str, str | None] | None = None,
    ) -> Node:
        """Undo ours; the node remembers these words too, and no longer those that are over."""
        over = case.over
        still = (read_overruled(node.annotations) - over) | words
        undone = await self._cluster.patch_node(
            node, undo_change(node, uid, still, uncordoned=uncordoned, more=more)
        )
        case.over -= over
        return undone

    async def forgive(self, case: Case) -> None:
        """Take the words that are over out of the node's memory."""
        node = await self._cluster.read_node(case.node)
        over = case.over
        if node is not None:
            remembered = read_overruled(node.annotations)
            if remembered & over:
                node = await self._cluster.patch_node(node, forgive_change(remembered - over))
        case.over -= over
        case.take_node(node)


def _has_recovered(case: Case) -> bool:
    return case.fresh and not case.acting


def _because(quarantine: Quarantine) -> str:
    return quarantine.status.released_because or "released"
