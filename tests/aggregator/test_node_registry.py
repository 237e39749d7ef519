"""How large the fleet is, and how much of it has reported: kept, and never counted wrongly."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aggregator.cluster.port import NodeMeta
from aggregator.health.node import NodeHealth
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.registry import NodeRegistry
from tests.support.replica import hello, snapshot

#: Of them some are nodes of the cluster now and then; all have agents.
NAMES = [f"n{number}" for number in range(6)]
names = st.sampled_from(NAMES)


class Counted(RuleBasedStateMachine):
    """The registry, compared with a count by hand."""

    @initialize(lists_all=st.booleans())
    def begin(self, *, lists_all: bool) -> None:
        self.lists_all = lists_all
        self.node_registry = NodeRegistry(FleetState(), "", lists_all=lists_all)
        self.heard: set[str] = set()
        self.nodes: set[str] | None = None

    @rule(nodes=st.sets(names))
    def the_cluster_is_listed(self, nodes: set[str]) -> None:
        self.nodes = nodes
        self.node_registry.listed([NodeMeta(name, f"uid-{name}", {}, {}) for name in sorted(nodes)])

    @rule(name=names)
    def an_agent_gives_its_snapshot(self, name: str) -> None:
        node_state = self.node_registry.node_state(name)
        node_state.agent.health = NodeHealth(hello(name))
        node_state.agent.health.snapshot(snapshot())
        self.node_registry.count(node_state.node)
        self.heard.add(name)

    @rule(name=names)
    def an_agent_comes_and_has_said_nothing_yet(self, name: str) -> None:
        node_state = self.node_registry.node_state(name)
        node_state.agent.health = NodeHealth(hello(name))
        self.node_registry.count(node_state.node)
        self.heard.discard(name)

    @rule(name=names)
    def what_an_agent_said_is_unheard(self, name: str) -> None:
        node_state = self.node_registry.node_state(name)
        node_state.agent.health = None
        self.node_registry.count(node_state.node)
        self.heard.discard(name)

    @rule(name=names)
    def a_node_is_forgotten(self, name: str) -> None:
        node_state = self.node_registry.known(name)
        if node_state is not None:
            self.node_registry.forget_node(node_state)
        self.heard.discard(name)

    @invariant()
    def it_is_as_if_counted_anew(self) -> None:
        size = self.node_registry.size()
        every = self.nodes is None or not self.lists_all
        counts = {
            name for name in NAMES if (every or name in (self.nodes or ())) and name in self.heard
        }
        assert size.reported == len(counts)
        assert size.nodes == max(len(self.nodes or ()), size.reported)
        assert size.listed == (self.nodes is not None)


Counted.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestWhatIsCounted = Counted.TestCase
