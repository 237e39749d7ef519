"""What the parts of tests of nodes in no quarantine share, and the memory of one such node."""

from dataclasses import dataclass

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.port import Cluster, NodeTestCondition
from aggregator.quarantine.decide.node_tests import NodeTest
from aggregator.quarantine.repair.engine import OperationEngine
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.runtime.backoff import Backoff

#: Seconds between two polls of a node that waits, and of one under test.
POLL_EVERY, POLL_BUSY = 15.0, 5.0
#: The pauses after failed tries. Without jitter: each node's begin at the end of its own try.
_BACKOFF = Backoff(first=POLL_EVERY, most=300.0)


@define(eq=False, repr=False, slots=False, kw_only=True)
class NodeTestContext:
    """What the parts share. ``nodes`` are those that have a test, or need one."""

    cluster: Cluster
    engine: OperationEngine
    clocks: Clocks
    settings: RepairSettings
    registry: NodeRegistry
    nodes: dict[str, "WatchedNode"] = field(init=False, factory=dict)
    #: The nodes that need no look any more, in this process.
    done: set[str] = field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        #: The rules of new nodes, and why no test may continue; empty: one may.
        self.rules, self.ends = self.settings.new_nodes, self.settings.node_tests_end
        self.record_writer = self.engine.record_writer
        #: Whether we are the controller at the moment of the call.
        self.may_act = self.record_writer.switch.may_act

    def quarantine_of(self, name: str) -> str:
        """The uid of the quarantine that the node is known to have; empty: none."""
        node_state = self.registry.known(name)
        quarantine = node_state.quarantine if node_state is not None else None
        return quarantine.uid if quarantine is not None else ""

    def time_of(self, test: NodeTest) -> float:
        """The time by the clock that began the test."""
        return self.record_writer.times.time_of(test.operation, test.began_at)


@dataclass(slots=True)
class WatchedNode:
    """A node with the startup taint, or with a test or a condition that has to be brought to its
    end. ``problem``: why its test can't be read. ``held``: why no test begins now.
    ``failure``: the cluster's answer to the last step, where it refused that. ``shown``: the
    condition as it was last seen or written. ``chosen``: an idle node whose test is due.
    ``requested``: the name of a person's request that has not begun. ``domains``: its failure
    domains. ``tries``: how often in a row a step has failed. ``is_running``: it is at a step now.
    ``settled_in``: the uid of the quarantine in which nothing is left to do for its test.
    """

    uid: str
    tainted: bool
    test: NodeTest | None = None
    boot_id: str = ""
    problem: str = ""
    held: str = ""
    failure: str = ""
    shown: NodeTestCondition | None = None
    chosen: bool = False
    requested: str = ""
    domains: tuple[str, ...] = ()
    tries: int = 0
    poll_at: float = float("-inf")
    is_running: bool = False
    settled_in: str = ""

    @property
    def busy(self) -> NodeTest | None:
        """Its test under way."""
        return self.test if self.test is not None and self.test.is_busy else None

    def try_later(self, now: float, at_least: float = 0.0) -> None:
        """Poll it again after a pause that grows with each failed try. ``now``: monotonic."""
        self.tries += 1
        self.poll_at = now + max(_BACKOFF.longest(self.tries), at_least)
