"""Polls nodes whose changes no watch or agent would report, one request at a time.

Nodes are not watched. Some changes are worth a read of their own:
- operators' requests on a node that is being drained: an exemption must stop evictions soon;
- whether pods are again on a node that was drained;
- whether a node that was uncordoned, and is left so for now, has lost more of our marks: those that
  are schedulable are not watched;
- whether other parties' work on a node that we hold has ended, and whether a node that is to be
  quarantined exists by now;
- whether the kubelet of a silent agent is ready, where the agent's last evidence was failing.

These grow with faults, and never with the fleet: at most `A_SECOND` requests a second, whatever
happens.
"""

import asyncio
import logging
import random

from attrs import define, field

from aggregator.cluster.port import Action, Cluster, ClusterError, Node, Phase
from aggregator.events import EventKind
from aggregator.policy.silent_agent import worst_failing
from aggregator.quarantine.actions.node_actions import NodeReports
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.operator_requests import read_operator_requests
from aggregator.quarantine.decide.uncordon import Uncordoned
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry

log = logging.getLogger("sickbay.quarantine")

A_SECOND = 5.0
#: A node that is being drained, or is left schedulable, is read this often (seconds).
DRAINING_EVERY = 15.0
#: The kubelet of a silent agent is checked this often (seconds).
SILENT_EVERY = 60.0
#: The pods of a node that was drained are read this often (seconds).
DRAINED_EVERY = 300.0
#: A node that waits for others, or for its Node, is read this often (seconds). The list of nodes
#: may show a change sooner.
WAITING_EVERY = 30.0
#: All that wait together are read about this many times a second, however many they are.
WAITING_A_SECOND = 1.0
#: Of the interval between two reads of pods this much is jitter.
_JITTER = 0.3
#: Phases that other parties' work on a node holds up.
_HELD_UP = (Phase.ADMITTED, Phase.CORDONED, Phase.DRAINING)
#: Between two rounds (seconds).
_ROUND = 5.0


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodePoller:
    """Reads the nodes that are due, and has them evaluated. It never writes.

    A node whose read has found a change is added to the queue.
    """

    _cluster: Cluster
    _registry: NodeRegistry = field(alias="node_registry")
    _reports: NodeReports
    _queue: WorkQueue
    _rng: random.Random
    #: How many nodes wait for others.
    _waiting: int = field(default=0, init=False)

    async def run(self) -> None:
        """For ever."""
        while True:
            for node_state in await self._due():
                if self._is_due(node_state):
                    await self.poll_node(node_state)
                    await asyncio.sleep(1 / A_SECOND)
            await asyncio.sleep(_ROUND)

    async def _due(self) -> list[NodeState]:
        """The nodes of one round: drains come first, and no storm of silence puts them off."""
        now, waiting, polled = self._reports.clocks.now(), 0, []
        async for some in self._registry.slices():
            for node_state in some:
                if not _may_be_due(node_state):
                    continue
                waiting += waits_for_its_node(node_state)
                if _is_drained(node_state) and node_state.work.polled_at == float("-inf"):
                    self._put_off(node_state, now)  # since a restart
                polled.append(node_state)
        self._waiting = waiting
        due = [node_state for node_state in polled if self._is_due(node_state)]
        due.sort(key=lambda node_state: (_rank(node_state), node_state.work.polled_at))
        return due[: int(A_SECOND * _ROUND)]

    def _put_off(self, node_state: NodeState, now: float) -> None:
        """The pods of a drained node are read next in about `DRAINED_EVERY`."""
        node_state.work.polled_at = now - DRAINED_EVERY * self._rng.uniform(0.0, _JITTER)

    def _is_due(self, node_state: NodeState) -> bool:
        now = self._reports.clocks.now()
        waited = now - node_state.work.polled_at
        if not self._queue.holds_lease():
            return False
        if waits_for_its_node(node_state):
            return waited >= max(WAITING_EVERY, self._waiting / WAITING_A_SECOND)
        if _is_draining(node_state) or _is_left_schedulable(node_state):
            return waited >= DRAINING_EVERY
        if _is_drained(node_state):
            return waited >= DRAINED_EVERY
        return waited >= SILENT_EVERY and bool(failing_in_silence(node_state))

    async def poll_node(self, node_state: NodeState) -> None:
        now, waits = self._reports.clocks.now(), waits_for_its_node(node_state)
        node_state.work.polled_at = now
        if not waits and _is_drained(node_state):
            self._put_off(node_state, now)
            node_state.work.recheck_pods = True
            self._queue.add(node_state)
            if not _is_left_schedulable(node_state):
                return
        try:
            # A cached read is enough for a hint: a decision reads the node anew.
            node = await self._cluster.read_node(node_state.node, cached=waits, background=True)
        except ClusterError as error:
            log.info("poll of a node failed", extra={"node": node_state.node, "error": str(error)})
            return
        if node is None:
            return
        self._check_cordon(node_state, node)
        others = node_state.cluster.has_others_marks_of(node, node_state.others)
        if waits:  # until their work is over, or has changed
            if node_state.cluster.node_gone or not others:
                self._queue.add_for_read(node_state)
            return
        if _is_draining(node_state):
            known = node_state.quarantine_view.uncordoned
            if not others or (known is Uncordoned.NO and not node.unschedulable):
                self._queue.add_for_read(node_state)
            self._check_requests(node_state, node)
        self._check_silence(node_state, node)

    def _check_cordon(self, node_state: NodeState, node: Node) -> None:
        """Check whether a node left schedulable is cordoned, or lacks other marks, by now."""
        quarantine, missing = node_state.quarantine, node_state.quarantine_view.missing
        if quarantine is None or not _is_left_schedulable(node_state):
            return
        if node.unschedulable or node_state.quarantine_view.lacks(node, quarantine) != missing:
            self._queue.add_for_read(node_state)

    def _check_requests(self, node_state: NodeState, node: Node) -> None:
        requests = read_operator_requests(node.annotations)
        if requests != node_state.cluster.operator_requests:
            node_state.cluster.operator_requests = requests
            self._queue.evaluate(node_state)

    def _check_silence(self, node_state: NodeState, node: Node) -> None:
        last = failing_in_silence(node_state)
        if not last or node_state.agent.silent_failing or node.ready is not True:
            return
        node_state.agent.note_failing(last, self._reports.clocks.now())
        text = f"its agent is silent, its kubelet is ready, and this was failing: {last}"
        self._reports.emit_event(node_state, EventKind.SILENT_FAILING, text)
        self._queue.evaluate(node_state)


def _may_be_due(node_state: NodeState) -> bool:
    """Whether it is one of those that are polled; of a fleet that is well, none is."""
    if node_state.quarantine is not None or node_state.agent.silent:
        return True
    return node_state.decision.hold is not None and waits_for_its_node(node_state)


def _is_draining(node_state: NodeState) -> bool:
    found = node_state.quarantine
    return found is not None and not found.foreign and found.status.phase is Phase.DRAINING


def _is_left_schedulable(node_state: NodeState) -> bool:
    """Whether the node of a quarantine was read, and is schedulable."""
    view = node_state.quarantine_view
    return view.quarantine is not None and view.uncordoned is not Uncordoned.NO


def _is_drained(node_state: NodeState) -> bool:
    quarantine = node_state.quarantine
    return quarantine is not None and quarantine.status.phase is Phase.DRAINED


def _rank(node_state: NodeState) -> int:
    """The order of reads where not all due nodes can be read."""
    if _is_draining(node_state):
        return 0
    return 1 if waits_for_its_node(node_state) else 2


def waits_for_its_node(node_state: NodeState) -> bool:
    """Whether only another party's work on its node, or the lack of a Node, holds it."""
    quarantine = node_state.quarantine
    if quarantine is None:
        waits = bool(node_state.cluster.maintained) or node_state.cluster.node_gone
        return node_state.decision.hold is not None and waits
    if quarantine.deleting or quarantine.spec.requester != OURS or node_state.release_held:
        return False
    waits_to_evict = node_state.evictions_are_forbidden and quarantine.spec.action is Action.DRAIN
    held_up = bool(node_state.cluster.maintained) or waits_to_evict
    return held_up and quarantine.status.phase in _HELD_UP


def failing_in_silence(node_state: NodeState) -> str:
    """The failing evidence from when the agent fell silent; empty for nodes that need no check.

    A node in quarantine needs no check: its agent's silence has no effect there.
    """
    if not node_state.agent.silent or node_state.agent.is_fresh or node_state.agent.health is None:
        return ""
    if node_state.quarantine is not None or node_state.agent.conflict:
        return ""
    incidents = node_state.decision.incidents.values()
    acting = (one.summary for one in incidents if one.action != "observe" and one.in_force)
    return next(acting, "") or worst_failing(node_state.agent.health)
