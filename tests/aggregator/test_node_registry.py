"""How large the fleet is, and how much of it has reported: kept, and never counted wrongly."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aggregator.cluster.port import NodeMeta
from aggregator.health.node import NodeHealth
from aggregator.quarantine.decide.replica_messages import NodeReport
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.quarantine.state.remote import LEAVING, RemoteNodes
from tests.support.replica import hello, snapshot

#: Of them some are nodes of the cluster now and then; all have agents.
NAMES = [f"n{number}" for number in range(6)]
names = st.sampled_from(NAMES)


class Counted(RuleBasedStateMachine):
    """The registry, compared with a count by hand."""

    @initialize(lists_all=st.booleans())
    def begin(self, *, lists_all: bool) -> None:
        self.lists_all = lists_all
        self.remote_nodes = RemoteNodes()
        self.node_registry = NodeRegistry(FleetState(), "", self.remote_nodes, lists_all=lists_all)
        self.heard: set[str] = set()
        self.told: dict[str, bool] = {}
        self.nodes: set[str] | None = None
        self.now = 0.0

    @rule(nodes=st.sets(names))
    def the_cluster_is_listed(self, nodes: set[str]) -> None:
        self.nodes = nodes
        self.node_registry.listed([NodeMeta(name, f"uid-{name}", {}, {}) for name in sorted(nodes)])

    @rule(name=names)
    def an_agent_gives_its_snapshot(self, name: str) -> None:
        node_state = self.node_registry.node_state(name)
        node_state.agent.health = NodeHealth(hello(name))
        node_state.agent.health.snapshot(snapshot())
        self.node_registry.count(node_state)
        self.heard.add(name)

    @rule(name=names)
    def an_agent_comes_and_has_said_nothing_yet(self, name: str) -> None:
        node_state = self.node_registry.node_state(name)
        node_state.agent.health = NodeHealth(hello(name))
        self.node_registry.count(node_state)
        self.heard.discard(name)

    @rule(name=names)
    def what_an_agent_said_is_unheard(self, name: str) -> None:
        node_state = self.node_registry.node_state(name)
        node_state.agent.health = None
        self.node_registry.count(node_state)
        self.heard.discard(name)

    @rule(name=names)
    def a_node_is_forgotten(self, name: str) -> None:
        node_state = self.node_registry.known(name)
        if node_state is not None:
            self.node_registry.forget_node(node_state)
        self.heard.discard(name)

    @rule(name=names, reported=st.booleans())
    def another_replica_speaks_of_it(self, name: str, *, reported: bool) -> None:
        self.remote_nodes.apply_reports("r1", NodeReport(name, reported=reported))
        self.told[name] = reported

    @rule(name=names)
    def it_speaks_here_again(self, name: str) -> None:
        self.remote_nodes.reclaim(name)
        self.told.pop(name, None)

    @rule(reported=st.integers(0, len(NAMES)))
    def the_leader_tells_how_many_have_reported(self, reported: int) -> None:
        self.remote_nodes.reported = reported

    @rule()
    def the_other_replica_is_gone(self) -> None:
        self.remote_nodes.leave_all("r1", self.now)
        self.now += LEAVING
        for name in self.remote_nodes.take_expired(self.now):
            del self.told[name]

    @invariant()
    def it_is_as_if_counted_anew(self) -> None:
        size = self.node_registry.size()
        every = self.nodes is None or not self.lists_all
        counts = {
            name
            for name in NAMES
            if (every or name in (self.nodes or ())) and self.told.get(name, name in self.heard)
        }
        assert size.reported == max(len(counts), self.remote_nodes.reported)
        assert size.nodes == max(len(self.nodes or ()), size.reported)
        assert size.listed == (self.nodes is not None)


Counted.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestWhatIsCounted = Counted.TestCase
