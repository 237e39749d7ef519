"""Makes the Quarantine of stray marks or entries again, unless a person took it away.

An uninstall, or a definition that was made anew, leaves marks without an object. Their annotation
holds their intent, so the Quarantine is made again from there, and the usual rules release it.
Marks are undone only where this process saw a person delete their Quarantine, under the present
definition.
"""

import logging
from dataclasses import replace
from typing import Protocol

from attrs import define

from aggregator.cluster.node_names import APPLIED, is_marked
from aggregator.cluster.port import (
    Action,
    Conflict,
    Node,
    Phase,
    Quarantine,
    QuarantineSpec,
)
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.actions.release import ReleaseActions
from aggregator.quarantine.decide.intent import OURS, releasing
from aggregator.quarantine.decide.node_marks import (
    adopt_change,
    marked_by,
    marked_evidence,
    marked_for,
    read_applied,
    spec_of_marks,
)
from aggregator.quarantine.decide.operator_requests import FORCE
from aggregator.quarantine.state.fleet import UNCLAIMED
from aggregator.quarantine.state.node import NodeState

log = logging.getLogger("sickbay.quarantine")

#: The requester where the marks don't name one. Only a person can end such a Quarantine.
UNKNOWN = "unknown"
_UNREADABLE = f"sickbay had marked the node, and its {APPLIED} can't be read"
_KEPT = "its node was marked, and the Quarantine was gone: made again, and the marks are kept"


class OpenOrders(Protocol):
    """`RepairRunner`, as far as it is used here."""

    async def withdraw(self, node_state: NodeState, gone: Quarantine | None = None) -> None:
        """The node is released: cancel the order that may act. ``gone``: the Quarantine, which was
        taken away. A failure does not hold it up.
        """


@define(eq=False, repr=False, slots=False, kw_only=True)
class MarkAdopter:
    """Makes the Quarantine of marks again, or undoes them; for one node at a time."""

    _acts: NodeActions
    _release_actions: ReleaseActions
    _orders: OpenOrders

    async def adopt(self, node_state: NodeState) -> None:
        """Make the Quarantine again where the node's marks, or what is remembered, call for it.

        Neither a limit nor the stop switch holds this: no new action begins by it. Mode observe
        makes no Quarantine, and shows the marks.
        """
        node_state.quarantine_view.to_adopt = False
        try:
            await self._adopt(node_state)
        except Exception:
            node_state.quarantine_view.to_adopt = True
            raise

    async def _adopt(self, node_state: NodeState) -> None:
        if await self._acts.reread(node_state) is not None:
            return
        node = await self._acts.cluster.read_node(node_state.node)
        node_state.take_node(node)
        spec = self._spec(node_state, node)
        if spec is None:
            node_state.quarantine_view.drop_remains()
            return
        if self._acts.pools.mode_of(node_state.node) is Action.OBSERVE:
            is_left = node is not None and is_marked(node)
            node_state.quarantine_view.unclaimed = UNCLAIMED if is_left else ""
            return
        await self._acts.place()  # paused since it was read: another replica continues
        if node is not None:  # a misspelt name by hand counts for no limit
            await self._acts.record_writer.enter_quarantine(node_state.node, spec)
        spec = replace(spec, installation=self._acts.cluster.installation)
        quarantine = await self._acts.cluster.create_quarantine(
            node_state.node, spec, guard=self._acts.place
        )
        if node_state.is_news(quarantine):  # a later event may have come before the answer
            node_state.take_quarantine(quarantine, self._acts.policy, self._acts.clocks.now())
        text = f"its Quarantine was gone, and is made again ({spec.action}): {spec.reason}"
        self._acts.emit_event(node_state, EventKind.ADOPTED, text)
        if node is not None and is_marked(node):
            await self._keep_marks(node_state, quarantine, node)

    def _spec(self, node_state: NodeState, node: Node | None) -> QuarantineSpec | None:
        """The intent to restore, or None where no marks are to be adopted."""
        remains = node_state.quarantine_view.remains
        marked = node is not None and is_marked(node)
        if remains is not None and (marked or remains.requester != OURS):
            return remains
        if node is None or not marked:
            return None
        if marked_for(node.annotations) not in ("", self._acts.cluster.installation):
            return None  # another installation's, which knows its state
        # Only a person ends the quarantine of marks that can't be read.
        return spec_of_marks(node) or QuarantineSpec(Action.CORDON, "manual", _UNREADABLE, UNKNOWN)

    async def _keep_marks(self, node_state: NodeState, quarantine: Quarantine, node: Node) -> None:
        """The marks are this quarantine's from now on; if they are gone by now, it is released."""
        try:
            change = adopt_change(quarantine, read_applied(node))
            node = await self._acts.cluster.patch_node(node, change, guard=self._acts.place)
        except Conflict:
            now = await self._acts.cluster.read_node(node_state.node)
            if now is not None and now.uid == node.uid and is_marked(now):
                raise  # another client changed the marks: the usual steps mark it again
            because = "its marks were gone by the time that it was made again"
            ended = releasing(quarantine.status, because)
            await self._acts.write_status(node_state, quarantine, ended)
            return
        now_at = self._acts.clocks.wall()
        status = replace(
            quarantine.status,
            phase=Phase.CORDONED,
            message=_KEPT,
            node_uid=node.uid,
            admitted_at=now_at,
            cordoned_at=now_at,
            applied=read_applied(node),
        )
        await self._acts.write_status(node_state, quarantine, status)
        self._acts.announcer.announce(node_state, node.uid, quarantine.spec.reason)
        node_state.take_node(node)

    async def forget_node(self, node_state: NodeState, because: str) -> None:
        """An entry without object and cause. Where the node is marked it is adopted instead."""
        entry = await self._acts.record_writer.entry(node_state.node)
        node = await self._acts.cluster.read_node(node_state.node)
        if node is not None and is_marked(node):
            node_state.quarantine_view.to_adopt = True
            return
        await self._acts.record_writer.forget_entry(entry)
        node_state.set_hold(None)
        log.info(
            "admission record entry removed",
            extra={"event": "step.entry_removed", "node": node_state.node, "because": because},
        )
        if entry is not None and not entry.incident:
            text = "its Quarantine, made by hand, is gone and was never carried out: forgotten"
            self._acts.emit_event(node_state, EventKind.RELEASED, text)

    async def sweep(self, node_state: NodeState) -> None:
        """Undo the marks of a quarantine that a person deleted past its finalizer."""
        orphaned = node_state.quarantine_view.orphaned
        if orphaned is not None:
            await self._orders.withdraw(node_state, orphaned)
        entry, trouble = await self._release_actions.entry(node_state.node)
        if await self._unmark(node_state, node_state.quarantine_view.orphan):
            text = "its quarantine was taken away by a person: released"
            self._acts.emit_event(node_state, EventKind.OVERRULED, text)
        if node_state.quarantine_view.to_adopt:
            node_state.quarantine_view.forget_orphan()  # the marks are another's
            return
        await self._release_actions.forget_entry(entry, trouble)
        node_state.quarantine_view.forget_orphan()

    async def _unmark(self, node_state: NodeState, uid: str) -> bool:
        """Undo the marks of this quarantine, which is over. Returns whether there were any."""
        node = await self._acts.cluster.read_node(node_state.node)
        if await self._acts.cluster.read_quarantine(node_state.node) is not None:
            raise Conflict("a quarantine is in force there again")
        node_state.take_node(node)
        if node is None or not is_marked(node):
            return False
        if marked_by(node) not in ("", uid):
            node_state.quarantine_view.to_adopt = True
            return False
        evidence = marked_evidence(node)
        words = node_state.overrule(evidence)
        # A person requested marks without evidence, and the deletion, which is later, revokes that.
        more: dict[str, str | None] = {} if evidence else {FORCE: None}
        undone = await self._release_actions.undo_node(
            node_state, node, uid, read_applied(node), words, more=more
        )
        node_state.take_node(undone)
        await self._acts.announcer.announce_release(node_state, node.uid, "released")
        return True
