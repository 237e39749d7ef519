"""Which nodes are tested, and the last test of each: the list of nodes, requests, new agents."""

import contextlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from attrs import define, field

from aggregator.cluster.node_names import NODE_TEST
from aggregator.cluster.port import Conflict, ListedNodeTest, NodeMeta, Operation, Refused
from aggregator.quarantine.decide.idle_nodes import IdleNodeRules
from aggregator.quarantine.decide.new_nodes import condition_of, is_tainted
from aggregator.quarantine.decide.node_tests import NodeTest, is_ended_by, open_failure
from aggregator.quarantine.repair.idle_node_choice import IdleNodeChoice
from aggregator.quarantine.repair.node_test_requests import NodeTestRequests, is_test_of
from aggregator.quarantine.repair.node_test_state import (
    NodeTestContext,
    WatchedNode,
    in_quarantine,
    parse_test,
)
from aggregator.quarantine.state.fleet import NodeTestView

#: All Nodes are listed this often (seconds). A node whose agent is new is read at once.
LIST_EVERY = 180.0
#: Nodes that are done with, and that the page shows from memory until the list of nodes has them.
_MOST_DONE = 1000
#: New agents whose Nodes are read in one round.
_READS = 20


@define(eq=False, slots=False, kw_only=True)
class NodeTestWatch:
    """Begins and ends no test; it ends requests that have lost theirs."""

    _shared: NodeTestContext
    _requests: NodeTestRequests
    _idle_choice: IdleNodeChoice
    #: The nodes that have a test, or need one.
    nodes: dict[str, WatchedNode] = field(init=False, factory=dict)
    #: The latest tests of nodes that are not watched any more, for the page.
    done: dict[str, NodeTestView] = field(init=False, factory=dict)
    #: The uids of Nodes that were listed or read; None before the first list.
    seen: set[str] | None = field(init=False, default=None)
    #: The last test of each node that has one, as of the last list or of its end since.
    _tests: dict[str, NodeTest] = field(init=False, factory=dict)
    _list_at: float = field(init=False, default=float("-inf"))
    #: The metadata of all nodes as of the last list.
    _metas: Mapping[str, NodeMeta] = field(init=False, factory=dict)

    @property
    def is_list_due(self) -> bool:
        """Where no test may continue also with each new list of all nodes, which costs no
        request.
        """
        shared = self._shared
        fresh = bool(shared.ends) and shared.registry.metas is not self._metas
        return fresh or shared.clocks.now() >= self._list_at

    @property
    def busy_operations(self) -> AbstractSet[str]:
        """Those of the tests under way."""
        tests = [one.test for one in self.nodes.values() if one.test is not None]
        return {one.operation for one in tests if one.is_busy}

    def list_later(self, pause: float) -> None:
        """The list has failed; ``pause``: seconds."""
        self._list_at = self._shared.clocks.now() + pause

    async def take_list(self) -> None:
        """Read all nodes that may be tested, and forget those that are done with."""
        registry = self._shared.registry
        self._metas = registry.metas
        known = {meta.uid for meta in registry.metas.values()}
        found = await self._listed()
        self._list_at = self._shared.clocks.now() + LIST_EVERY
        self.seen = known | {one.uid for one in found}
        reserved = self._shared.record_writer.record.node_tests.keys()
        for one in found:
            self._take_listed(one, reserved)
        for name in reserved - self.nodes.keys():  # for example of a Node that is gone
            self.nodes[name] = WatchedNode("", tainted=False)
        for name in self.nodes.keys() - {one.node for one in found} - reserved:
            self._drop(name)
        self._idle_choice.forget_old()
        parsed = {one.node: parse_test(one.annotations, one.uid)[0] for one in found}
        self._tests = {name: test for name, test in parsed.items() if test is not None}
        tests = {name: one.test for name, one in self.nodes.items() if one.test is not None}
        for request in self._requests.left(self._tests | tests):
            await self._end_left(request)

    async def _listed(self) -> list[ListedNodeTest]:
        """Where no test may continue, those that memory has."""
        shared, metas = self._shared, self._metas
        tested = shared.registry.annotated(NODE_TEST)
        if shared.ends:
            known = ((name, metas[name]) for name in tested)
            return [ListedNodeTest(name, one.uid, False, one.annotations) for name, one in known]
        if tested or shared.rules.taint or shared.settings.rules.idle_nodes is not None:
            return await shared.cluster.list_node_tests(shared.rules.taint)
        return []

    async def _end_left(self, request: Operation) -> None:
        """End a request whose test its Node has no more: the list of nodes may be older."""
        known = self._shared.record_writer.record.node_tests.get(request.spec.node)
        if known is not None and known.operation == request.status.operation:
            return
        node = await self._shared.cluster.read_node(request.spec.node, background=True)
        test, problem = parse_test(node.annotations, node.uid) if node is not None else (None, "")
        if not (problem or is_test_of(request, test)) and self._shared.may_act():
            with contextlib.suppress(Conflict, Refused):  # the others continue
                await self._requests.end_lost(request)

    def _take_listed(self, one: ListedNodeTest, reserved: AbstractSet[str]) -> None:
        """The list may be a little old: each step reads the Node anew."""
        test, problem = parse_test(one.annotations, one.uid)
        if not self._stays(one, test):
            if one.node not in reserved:
                self._drop(one.node)
            return
        known = self.nodes.get(one.node)
        if known is None:
            self.nodes[one.node] = WatchedNode(
                one.uid, one.tainted, test, problem=problem, said=one.condition
            )
        elif known.step is None and not known.chosen:
            known.uid, known.tainted, known.test = one.uid, one.tainted, test
            known.problem, known.said = problem, one.condition

    def _stays(self, one: ListedNodeTest, test: NodeTest | None) -> bool:
        """Whether it has a test that runs, or needs one, or shows another end than its own."""
        if test is not None and test.is_busy:
            return True
        if self._shared.ends:
            # The list lacks conditions: a process may die between the end of a new node's test and
            # its condition.
            ended = test is not None and not test.reason and is_ended_by(test, self._shared.ends)
            return ended and one.node not in self.done
        condition = condition_of(test, tainted=one.tainted, rules=self._shared.rules)
        differs = condition is not None and condition != one.condition
        return one.tainted or differs or bool(open_failure(test)[0])

    async def read_new(self) -> None:
        """Read the Nodes of agents that have come since the last list, which may be minutes old."""
        if self.seen is None:
            return
        fresh: list[tuple[str, str]] = []
        async for node_state in self._shared.registry.by_slices():
            uid = node_state.agent.claimed or self._shared.registry.uid_of(node_state.node)
            if node_state.agent.is_fresh and uid and uid not in self.seen:
                fresh.append((node_state.node, uid))
        for name, uid in fresh[:_READS]:
            if not self._shared.may_act():
                continue
            node = await self._shared.cluster.read_node(name, background=True)
            self.seen.add(uid)
            if (
                node is not None
                and is_tainted(node, self._shared.rules.taint)
                and name not in self.nodes
            ):
                test, problem = parse_test(node.annotations, node.uid)
                self.nodes[name] = WatchedNode(node.uid, tainted=True, test=test, problem=problem)

    def take_requests(self) -> None:
        """Watch the nodes in service of which a person wants a test."""
        if not self._shared.settings.tests_in_service:
            return
        for name, request in self._requests.by_node().items():
            meta = self._shared.registry.meta(name)
            if (
                meta is None
                or in_quarantine(self._shared.registry.known(name))
                or not self._shared.may_act()
            ):
                continue
            watched = self.nodes.setdefault(name, WatchedNode(meta.uid, tainted=False))
            if watched.test is not None and watched.test.answers(request):
                continue  # its order waits: each poll at once would be a read of the Node
            if not (watched.tainted or watched.requested or watched.step is not None):
                watched.requested, watched.poll_at = request.name, float("-inf")

    def _drop(self, name: str) -> None:
        known = self.nodes.get(name)
        if known is not None and known.step is None and not known.chosen and not known.requested:
            del self.nodes[name]

    async def choose_idle(self, idle: IdleNodeRules, *, reported: bool) -> None:
        """Take the nodes whose periodic test is due, as many as the fleet's limit has room for.

        ``reported``: in mode observe none is chosen after the first report.
        """
        for one in self.nodes.values():
            if one.chosen and one.step is None and not self._shared.may_act():
                one.chosen = False
        if self.seen is None or reported or self._shared.record_writer.switch.reason:
            return
        for due in await self._idle_choice.choose_due(idle, self.nodes, self._tests):
            watched = self.nodes.setdefault(due.node, WatchedNode(due.uid, tainted=False))
            if watched.step is None:
                watched.chosen, watched.poll_at = True, float("-inf")

    def note(self, name: str, watched: WatchedNode) -> None:
        """Its last test, after a step."""
        if watched.test is not None:
            self._tests[name] = watched.test

    def finish(self, name: str, watched: WatchedNode) -> None:
        """It needs no look any more."""
        self.nodes.pop(name, None)
        self.done.pop(name, None)
        if watched.test is not None:
            self.done[name] = NodeTestView(watched.test, tainted=False)
        while len(self.done) > _MOST_DONE:
            del self.done[next(iter(self.done))]

    def forget(self, name: str) -> None:
        """There is no such Node any more."""
        self.nodes.pop(name, None)
        self._tests.pop(name, None)
