"""Patches a node's marks, and reports that they are set."""

from dataclasses import replace

from aggregator.clock import Clocks
from aggregator.cluster.port import Action, Node, Phase, Quarantine
from aggregator.events import EventKind
from aggregator.quarantine.actions.node_actions import NodeActions
from aggregator.quarantine.decide.mark_rules import MarkRules
from aggregator.quarantine.decide.node_marks import cordon_change, read_applied
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.node_pools import NodePools
from aggregator.quarantine.state.quarantine_view import NewMarks


class NodeMarker:
    """``off_load_balancers``: a node that is to be drained leaves those."""

    def __init__(
        self,
        *,
        acts: NodeActions,
        clocks: Clocks,
        pools: NodePools,
        rules: MarkRules,
        off_load_balancers: bool,
    ) -> None:
        self._acts = acts
        self._clocks = clocks
        self._pools = pools
        self._rules = rules
        self._off_load_balancers = off_load_balancers

    async def mark(self, node_state: NodeState, quarantine: Quarantine, node: Node) -> None:
        patched = await self.patch(node_state, quarantine, node)
        self.report(node_state, quarantine, patched)

    async def patch(self, node_state: NodeState, quarantine: Quarantine, node: Node) -> Node:
        off = self._off_load_balancers and self._pools.mode_of(node_state.node) is Action.DRAIN
        change = cordon_change(node, quarantine, off_balancers=off, rules=self._rules)
        return await self._acts.mark_writer.mark(node, change, guard=self._acts.guard(node_state))

    def report(self, node_state: NodeState, quarantine: Quarantine, patched: Node) -> None:
        """The marks stand: the announcement and the metrics follow, and the status as next step."""
        # Of marks that were reported before only the status is lacking.
        again = node_state.quarantine_view.reported_marks == quarantine.uid
        if not quarantine.status.cordoned_at and not again:  # else it is marked again
            self._acts.stages.note_taint(node_state.node, self._clocks.now())
            self._acts.stages.note_causes(quarantine.spec)
        now = self._clocks.wall()
        status = replace(
            quarantine.status,
            phase=Phase.CORDONED,
            message=self._acts.words.in_force.format(node=patched.name),
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
        text = f"{self._acts.words.marked}: {quarantine.spec.reason or 'by hand'}"
        self._acts.emit_event(node_state, EventKind.CORDONED, text)
        self._acts.announcer.announce(
            node_state, patched.uid, quarantined=True, message=quarantine.spec.reason
        )
