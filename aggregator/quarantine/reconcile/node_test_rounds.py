"""Finds the nodes that have a test, or need one, and adds them to the queue when that is due.

Its causes: Operations, the list of nodes, new agents, people's requests, and time.
"""

import asyncio
import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from attrs import define, field

from aggregator.cluster.port import ClusterError, ListedNodeTest, NodeMeta
from aggregator.quarantine.decide.idle_nodes import IdleNodeRules
from aggregator.quarantine.decide.new_nodes import condition_of
from aggregator.quarantine.decide.node_tests import NodeTest, is_ended_by, open_failure
from aggregator.quarantine.decide.repair import RepairMode
from aggregator.quarantine.reconcile.node_tests import NodeTestReconciler
from aggregator.quarantine.reconcile.work_queue import WorkQueue
from aggregator.quarantine.repair.idle_node_choice import IdleNodeChoice
from aggregator.quarantine.repair.node_test_state import POLL_EVERY, WatchedNode
from aggregator.runtime.tasks import run_until_first_exit

log = logging.getLogger("sickbay.quarantine")

#: The nodes are looked through this often (seconds).
EVERY = 3.0
#: All Nodes are listed this often (seconds). A node whose agent is new is read at once.
LIST_EVERY = 180.0


@define(eq=False, repr=False, slots=False)
class NodeTestRounds:
    """Begins and ends no test: the reconciler does, in the task of the node."""

    reconciler: NodeTestReconciler
    _queue: WorkQueue
    #: The uids of Nodes that were listed or read, or None before the first list.
    _seen: set[str] | None = field(init=False, default=None)
    _list_at: float = field(init=False, default=float("-inf"))
    #: The metadata of all nodes as of the last list.
    _metas: Mapping[str, NodeMeta] = field(init=False, factory=dict)
    _trouble: str = field(init=False, default="")

    def __attrs_post_init__(self) -> None:
        self._shared, self._store = self.reconciler.shared, self.reconciler.checks.store
        self._nodes, self._reports = self._shared.nodes, self.reconciler.reports
        self._idle_choice = IdleNodeChoice(shared=self._shared, checks=self.reconciler.checks)
        self._shared.registry.fleet.last_test = self.reconciler.checks.last_test

    async def run(self) -> None:
        """For ever. The list of all nodes has a task of its own, since it may take long."""
        await run_until_first_exit(
            node_test_lists=self._read_lists(), node_test_rounds=self._go_rounds()
        )

    async def _go_rounds(self) -> None:
        while True:
            if self._queue.view:
                await self._go_round()
            await asyncio.sleep(EVERY)

    async def _go_round(self) -> None:
        if self._shared.rules.taint:
            await self._watch_new()
        self._take_requests()
        self._add_due()
        for name, watched in self._nodes.items():
            self._reports.give_evidence(name, watched)
        self._reports.show(self._nodes)
        idle = self._shared.settings.rules.idle_nodes
        if idle is not None and not self._shared.ends:
            await self._choose_idle(idle)

    def _add_due(self) -> None:
        """Add the due ones, as many as may advance, first those that were due first: the others may
        wait for ever. One whose task is at another step, which may fail for ever, takes no place.
        """
        room = self.reconciler.room
        due = [one for one in self._nodes.items() if self.reconciler.is_due(*one)]
        for name, watched in sorted(due, key=lambda one: one[1].poll_at):
            # One that is not known, for example as its Node is gone, is forgotten at the next list.
            node_state = self._shared.registry.node_state(name)
            is_elsewhere = node_state.work.is_running
            if is_elsewhere and node_state.work.last_error:
                watched.chosen = False
            if is_elsewhere or room > 0:
                room -= not is_elsewhere
                self._queue.add(node_state)

    async def _read_lists(self) -> None:
        while True:
            if self._queue.view and self._is_list_due:
                await self._read_list()
            await asyncio.sleep(EVERY)

    async def _read_list(self) -> None:
        try:
            await self._take_list()
            await self._reports.end_evidence_except(self._nodes)  # from before this process
        except ClusterError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                text = "nodes can't be listed: no test of a new or an idle one begins"
                log.warning(text, extra={"error": self._trouble})
            pause = max(POLL_EVERY, error.retry_after or 0.0)
            self._list_at = self._shared.clocks.now() + pause
        else:
            self._trouble = ""

    @property
    def _is_list_due(self) -> bool:
        """Where no test may continue also with each new list of all nodes, which costs no
        request.
        """
        shared = self._shared
        fresh = bool(shared.ends) and shared.registry.metas is not self._metas
        return fresh or shared.clocks.now() >= self._list_at

    async def _take_list(self) -> None:
        """Read all nodes that may be tested, and forget those that are done with."""
        registry, tested, watched = self._shared.registry, self._store.tested(), {*self._nodes}
        self._metas = registry.metas
        known = {meta.uid for meta in registry.metas.values()}
        found = {one.node: one for one in await self._listed(tested)}
        self._list_at = self._shared.clocks.now() + LIST_EVERY
        # The list may lack a node that is watched, or whose test began, since it was requested.
        begun = self._store.tested() - tested
        newer = self._nodes.keys() - (watched - begun)
        uids = {self._nodes[name].uid for name in newer}
        self._seen = known | uids | {one.uid for one in found.values()}
        reserved = self._shared.record_writer.record.node_tests.keys()
        for name in found.keys() | tested:
            self._take_listed(name, found.get(name), reserved)
        for name in reserved - self._nodes.keys():  # for example of a Node that is gone
            self._nodes[name] = WatchedNode("", tainted=False)
        for name in self._nodes.keys() - found.keys() - tested - reserved - newer:
            self._drop(name)
        self._idle_choice.forget_old()

    async def _listed(self, tested: AbstractSet[str]) -> list[ListedNodeTest]:
        """Where no test may continue, none: memory has the tests."""
        shared = self._shared
        needs_list = tested or shared.rules.taint or shared.settings.rules.idle_nodes is not None
        if shared.ends or not needs_list:
            return []
        return await shared.cluster.list_node_tests(shared.rules.taint, tested)

    def _take_listed(
        self, name: str, one: ListedNodeTest | None, reserved: AbstractSet[str]
    ) -> None:
        """The list may be a little old: each step reads the Node anew."""
        uid = one.uid if one is not None else self._shared.registry.uid_of(name)
        tainted, shown = (one.tainted, one.condition) if one is not None else (False, None)
        test, problem = self._store.last(name, uid)
        if not (problem or self._store.lost(name, uid) or self._stays(name, one, test)):
            if name not in reserved:
                self._drop(name)
            return
        known = self._nodes.setdefault(name, WatchedNode(uid, tainted))
        if not known.is_running and not known.chosen:
            known.uid, known.tainted, known.test = uid, tainted, test
            known.problem, known.shown = problem, shown

    def _stays(self, name: str, one: ListedNodeTest | None, test: NodeTest | None) -> bool:
        """Whether it has a test that runs, or needs one, or shows another end than its own."""
        if test is not None and test.is_busy:
            return True
        if self._shared.ends:
            # Memory lacks conditions: a process may die between the end of a new node's test and
            # its condition.
            ended = test is not None and not test.reason and is_ended_by(test, self._shared.ends)
            return ended and name not in self._shared.done
        tainted = one is not None and one.tainted
        condition = condition_of(test, tainted=tainted, rules=self._shared.rules)
        differs = one is not None and condition is not None and condition != one.condition
        return tainted or differs or bool(open_failure(test)[0])

    async def _watch_new(self) -> None:
        """Watch the nodes whose agents have come since the last list, which may be minutes old: the
        first step of each reads its Node.
        """
        if self._seen is None:
            return
        async for node_state in self._shared.registry.by_slices():
            uid = node_state.agent.claimed or self._shared.registry.uid_of(node_state.node)
            if node_state.agent.is_fresh and uid and uid not in self._seen:
                self._seen.add(uid)
                new = WatchedNode(uid, tainted=False, poll_at=self._shared.clocks.now())
                self._nodes.setdefault(node_state.node, new)

    def _take_requests(self) -> None:
        """Watch the nodes in service of which a person wants a test."""
        if not self._shared.settings.tests_in_service:
            return
        for name, request in self._store.requests().items():
            meta = self._shared.registry.meta(name)
            if meta is None or self._shared.quarantine_of(name) or not self._shared.may_act():
                continue
            watched = self._nodes.setdefault(name, WatchedNode(meta.uid, tainted=False))
            if not (watched.tainted or watched.requested or watched.is_running):
                watched.requested, watched.poll_at = request.name, float("-inf")

    def _drop(self, name: str) -> None:
        known = self._nodes.get(name)
        if known is not None and not known.is_running and not known.chosen and not known.requested:
            del self._nodes[name]

    async def _choose_idle(self, idle: IdleNodeRules) -> None:
        """Take the nodes whose periodic test is due, as many as the fleet's limit has room for. In
        mode observe none is chosen.
        """
        for one in self._nodes.values():
            if one.chosen and not one.is_running and not self._shared.may_act():
                one.chosen = False
        observes = self._shared.settings.rules.mode is RepairMode.OBSERVE
        if self._seen is None or observes or self._shared.record_writer.switch.reason:
            return
        for due in await self._idle_choice.choose_due(idle, self._nodes):
            watched = self._nodes.setdefault(due.node, WatchedNode(due.uid, tainted=False))
            if not watched.is_running:
                watched.chosen, watched.poll_at = True, float("-inf")
