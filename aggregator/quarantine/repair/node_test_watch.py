"""Which nodes are tested, and the last test of each: Operations, the list of nodes, new agents."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from attrs import define, field

from aggregator.cluster.port import ListedNodeTest, NodeMeta
from aggregator.quarantine.decide.idle_nodes import IdleNodeRules
from aggregator.quarantine.decide.new_nodes import condition_of, is_tainted
from aggregator.quarantine.decide.node_tests import NodeTest, is_ended_by, open_failure
from aggregator.quarantine.repair.idle_node_choice import IdleNodeChoice
from aggregator.quarantine.repair.node_test_state import (
    NodeTestContext,
    WatchedNode,
    in_quarantine,
)
from aggregator.quarantine.repair.node_test_store import NodeTestStore

#: All Nodes are listed this often (seconds). A node whose agent is new is read at once.
LIST_EVERY = 180.0
#: New agents whose Nodes are read in one round.
_READS = 20


@define(eq=False, slots=False, kw_only=True)
class NodeTestWatch:
    """Begins and ends no test."""

    _shared: NodeTestContext
    _store: NodeTestStore
    _idle_choice: IdleNodeChoice
    #: The nodes that have a test, or need one.
    nodes: dict[str, WatchedNode] = field(init=False, factory=dict)
    #: The nodes that need no look any more, in this process.
    _done: set[str] = field(init=False, factory=set)
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

    def list_later(self, pause: float) -> None:
        """The list has failed; ``pause``: seconds."""
        self._list_at = self._shared.clocks.now() + pause

    async def take_list(self) -> None:
        """Read all nodes that may be tested, and forget those that are done with."""
        registry, tested = self._shared.registry, self._store.tested()
        self._metas = registry.metas
        known = {meta.uid for meta in registry.metas.values()}
        found = {one.node: one for one in await self._listed(tested)}
        self._list_at = self._shared.clocks.now() + LIST_EVERY
        self.seen = known | {one.uid for one in found.values()}
        reserved = self._shared.record_writer.record.node_tests.keys()
        self._tests.clear()
        for name in found.keys() | tested:
            self._take_listed(name, found.get(name), reserved)
        for name in reserved - self.nodes.keys():  # for example of a Node that is gone
            self.nodes[name] = WatchedNode("", tainted=False)
        for name in self.nodes.keys() - found.keys() - tested - reserved:
            self._drop(name)
        self._idle_choice.forget_old()
        self._shared.fleet.last_tests = self._tests

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
        if test is not None:
            self._tests[name] = test
        if not (problem or self._store.lost(name, uid) or self._stays(name, one, test)):
            if name not in reserved:
                self._drop(name)
            return
        known = self.nodes.get(name)
        if known is None:
            self.nodes[name] = WatchedNode(uid, tainted, test, problem=problem, shown=shown)
        elif known.step is None and not known.chosen:
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
            return ended and name not in self._done
        tainted = one is not None and one.tainted
        condition = condition_of(test, tainted=tainted, rules=self._shared.rules)
        differs = one is not None and condition is not None and condition != one.condition
        return tainted or differs or bool(open_failure(test)[0])

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
                test, problem = self._store.last(name, node.uid)
                self.nodes[name] = WatchedNode(node.uid, tainted=True, test=test, problem=problem)

    def take_requests(self) -> None:
        """Watch the nodes in service of which a person wants a test."""
        if not self._shared.settings.tests_in_service:
            return
        for name, request in self._store.requests().items():
            meta = self._shared.registry.meta(name)
            if (
                meta is None
                or in_quarantine(self._shared.registry.known(name))
                or not self._shared.may_act()
            ):
                continue
            watched = self.nodes.setdefault(name, WatchedNode(meta.uid, tainted=False))
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

    def finish(self, name: str) -> None:
        """It needs no look any more."""
        self.nodes.pop(name, None)
        self._done.add(name)

    def forget(self, name: str) -> None:
        """There is no such Node any more."""
        self.nodes.pop(name, None)
        self._tests.pop(name, None)
