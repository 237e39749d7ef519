"""The reasons against the test of a new or an idle node, and against the removal of its taint."""

from collections.abc import Callable
from functools import partial

from attrs import define

from aggregator.cluster.node_names import is_marked
from aggregator.cluster.operations import DELETED_BY_HAND
from aggregator.cluster.port import Action, Guard, GuardRefused, HookState, Node, OperationRequest
from aggregator.quarantine.actions.act_guard import FreshRead, act_guard
from aggregator.quarantine.decide.drain_plan import work_of
from aggregator.quarantine.decide.idle_nodes import in_use
from aggregator.quarantine.decide.new_nodes import is_tainted
from aggregator.quarantine.decide.node_tests import (
    NodeTest,
    NodeTestFacts,
    is_own_evidence,
    next_of_test,
    not_ready,
)
from aggregator.quarantine.decide.operation_step import Do
from aggregator.quarantine.decide.operator_requests import read_operator_requests
from aggregator.quarantine.decide.own_pods import without_tests
from aggregator.quarantine.decide.repair import domains_of, other_party
from aggregator.quarantine.decide.repair_permission import NO_ORDER
from aggregator.quarantine.repair.before_release import boot_of
from aggregator.quarantine.repair.node_test_state import NodeTestContext, WatchedNode
from aggregator.quarantine.repair.node_test_store import NodeTestStore
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodePools
from aggregator.runtime.text import some_of

_MOST_NAMED = 3


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeTestChecks:
    """Reads what is known of nodes, and changes nothing."""

    shared: NodeTestContext
    _pools: NodePools

    def __attrs_post_init__(self) -> None:
        self.store = NodeTestStore(self.shared.cluster.operations)

    def last_test(self, name: str) -> NodeTest | None:
        """The last test of the node, if it can be read: by its Operations as last seen."""
        return self.store.last(name, self.shared.registry.uid_of(name))[0]

    def is_fresh(self, name: str) -> bool:
        """Whether the node's agent reports to us."""
        node_state = self.shared.registry.known(name)
        return node_state is not None and node_state.agent.is_fresh

    def is_in_hook(self, name: str) -> bool:
        """Whether the node's drain waits for its hook."""
        node_state = self.shared.registry.known(name)
        quarantine = node_state.quarantine if node_state is not None else None
        hook = quarantine.status.pre_evict if quarantine is not None else None
        return hook is not None and hook.state is HookState.RUNNING

    def facts(self, node: Node, test: NodeTest | None) -> NodeTestFacts:
        """All that the node's next step depends on, in addition to its last ``test``."""
        node_state = self.shared.registry.known(node.name)
        return NodeTestFacts(
            node_uid=node.uid,
            boot_id=node.boot_id or (boot_of(node_state) if node_state is not None else ""),
            tainted=is_tainted(node, self.shared.rules.taint),
            against=self.shared.ends or self._against(node, node_state),
            ends=self.shared.ends
            or (DELETED_BY_HAND if test is not None and test.deleted else "")
            or self._ends_test(node),
            request=self.request(node.name),
            installation=self.shared.cluster.installation,
        )

    def request(self, name: str) -> OperationRequest | None:
        """A person's oldest request for a test of the node, where one may begin."""
        return None if self.shared.ends else self.store.requests().get(name)

    def take_read(self, watched: WatchedNode, node: Node) -> None:
        """Note the node as it was read, with its last test."""
        request, labels = self.request(node.name), self.shared.settings.domain_labels
        watched.uid, watched.boot_id = node.uid, node.boot_id
        watched.tainted = is_tainted(node, self.shared.rules.taint)
        watched.domains = domains_of(node.labels, labels)
        watched.test, watched.problem = self.store.last(node.name, node.uid)
        watched.requested = request.name if request is not None else ""

    def against_memory(self, name: str) -> str:
        """Why no test begins now, as far as no read of the Node is needed to know it."""
        why = self.against_state(name, self.shared.registry.known(name))
        if why:
            return why
        held = self.shared.rules.no_room(self.shared.record_writer.current_record(), name)
        return held.text if held is not None else ""

    def against_state(self, name: str, node_state: NodeState | None) -> str:
        """The known reasons of the node against a test, and against the removal of its taint."""
        if node_state is None or not node_state.agent.is_fresh:
            return "its agent has not reported"
        if node_state.quarantine is not None or node_state.cluster.marked:
            return "it is in quarantine"
        if self._pools.mode_of(name) is Action.OBSERVE:
            return f"nothing is done in {self._pools.describe_mode(name)}"
        if node_state.work.evaluation_due:
            return "its agent has just reported evidence that is not evaluated yet"
        for incident in node_state.decision.incidents.values():
            others = any(not is_own_evidence(item.code) for item in incident.evidence)
            if incident.action != Action.OBSERVE.value and others:
                return f"evidence against it is in force: {incident.summary}"
        return ""

    def against_removal(self, node: Node) -> str:
        """Why the taint may not be removed, and no test begin: by memory, and by the Node."""
        if is_marked(node):
            return "it is in quarantine"
        why = read_operator_requests(node.annotations).why_capped(self.shared.clocks.earliest())
        return why or self.against_state(node.name, self.shared.registry.known(node.name))

    def _against(self, node: Node, node_state: NodeState | None) -> str:
        """Why no test may begin on the node now; empty: one may."""
        why = self.against_removal(node) or not_ready(node)
        if why:
            return why
        party = other_party(node) or self.shared.registry.others.forbids_all(node)
        if party:
            return f"another party is at work on the node: {party}"
        boot = boot_of(node_state) if node_state is not None else ""
        if node.boot_id and boot and node.boot_id != boot:
            return "the node's kubelet and its agent do not name the same boot"
        return ""

    def _ends_test(self, node: Node) -> str:
        """Why a test under way has to end; evidence that comes meanwhile is no reason."""
        if is_marked(node) or self.shared.quarantine_of(node.name):
            return "the node is in quarantine"
        return read_operator_requests(node.annotations).why_capped(self.shared.clocks.earliest())

    async def pods_in_the_way(self, node: Node) -> str:
        """The pods that were there before the taint, in words: the node is no new one then."""
        own = [taint for taint in node.taints if taint.key == self.shared.rules.taint]
        pods = await self.shared.cluster.pods_on(node.name, background=True)
        work = work_of(pods, self.shared.settings.node_owner_kinds)
        found = [pod.key for pod in work if not all(pod.tolerates(taint) for taint in own)]
        if not found:
            return ""
        text = f"pods that do not tolerate {self.shared.rules.taint} are on the node"
        return f"{text}: {some_of(sorted(found), _MOST_NAMED)}; drain it"

    async def others_work(self, name: str, test: NodeTest) -> str:
        """Which pod, other than the test's own, makes the node one with work; empty: it is idle."""
        pods = await self.shared.cluster.pods_on(name, background=True)
        others = without_tests(pods, {test.operation}, self.shared.settings.test_namespace)
        return in_use(others, self.shared.settings.node_owner_kinds)

    async def refusal(self, name: str, known: NodeTest) -> str:
        """Why the order of a durable test must not act now; empty: it may. All that it rests on is
        read: the Node, the test and the pods. Raises ClusterError.
        """
        node = await self.shared.cluster.read_node(name)
        test = await self.store.read(known)
        if node is None or node.uid != known.node_uid:
            return "the cluster's Node is another one, or none"
        if test is None or not test.is_busy or test.ends_as is not None:
            return NO_ORDER
        facts = self.facts(node, test)
        taint = "the startup taint was removed" if not test.reason else "it has the startup taint"
        changed = "" if facts.tainted is not bool(test.reason) else taint
        step = next_of_test(test, facts, self.shared.time_of(test), changed)
        if step.do in (Do.CANCEL, Do.END):
            return step.because
        why = await (self.others_work(name, test) if test.reason else self.pods_in_the_way(node))
        last = None if why else await self.store.read(test)  # after each other wait
        return why or (DELETED_BY_HAND if last is None or last.deleted else "")

    def why_not_begun(self, node: Node, test: NodeTest) -> str:
        """Why the test does not begin after all, by a later read of its node."""
        facts = self.facts(node, test)
        same = test.is_of_boot(facts.boot_id) and facts.tainted is not bool(test.reason)
        changed = "" if same else "the node has changed since the test was decided on"
        return facts.ends or facts.against or changed

    def beginning_guard(self, node: str, fresh: FreshRead) -> Guard:
        """The guard of the write by which a test begins."""
        registry = self.shared.registry
        return self._guard(lambda: self.against_state(node, registry.known(node)), fresh)

    def order_guard(self, node: str, test: NodeTest, read_at: float) -> Guard:
        """The guard of a test's order, and of the permission to begin it. ``read_at``: when what
        it rests on was last read (monotonic).
        """
        read = partial(self.refusal, node, test)
        fresh = FreshRead(read, clocks=self.shared.clocks, began=read_at)
        return self._guard(lambda: self._against_order(node, test), fresh)

    def _against_order(self, node: str, test: NodeTest) -> str:
        """Why the order of a test that has begun is not to be carried out, as last seen."""
        if self.shared.quarantine_of(node):
            return "the node is in quarantine"
        if not self.shared.record_writer.has_operation(node, test.operation):
            return "the admission record does not have the test any more"
        return self.store.why_ended(test, node)

    def _guard(self, against: Callable[[], str], fresh: FreshRead) -> Guard:
        return act_guard(switch=self.shared.record_writer.switch, against=against, fresh=fresh)

    def removal_guard(self, node: Node) -> Guard:
        """The same for the removal of the taint, which no stop holds: it is a release."""

        async def check() -> None:
            self.require_place()
            why = self.against_removal(node)
            if why:
                raise GuardRefused(why)

        return Guard(check)

    def require_place(self) -> None:
        """Raise GuardRefused where we are not the controller at this moment."""
        self.shared.record_writer.switch.require_place()
