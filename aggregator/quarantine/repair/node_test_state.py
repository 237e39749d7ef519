"""What the parts of tests of nodes in no quarantine share, and the memory of one such node."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.port import Cluster, Node, NodeTestCondition
from aggregator.quarantine.admission.record_writer import AdmissionRecordWriter
from aggregator.quarantine.decide.new_nodes import NewNodeRules, is_tainted
from aggregator.quarantine.decide.node_tests import NodeTest
from aggregator.quarantine.decide.repair import domains_of
from aggregator.quarantine.repair.protocol import RepairSettings
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.registry import NodeRegistry
from aggregator.runtime.backoff import Backoff

#: The nodes are looked through this often (seconds).
EVERY = 3.0
#: Nodes that are polled together, in addition to those under test.
AT_ONCE = 8
#: Seconds between two polls of a node that waits, and of one under test.
POLL_EVERY, POLL_BUSY = 15.0, 5.0
#: The pauses after failed tries. Without jitter: each node's begin at the end of its own try.
_BACKOFF = Backoff(first=POLL_EVERY, most=300.0)
#: Failure domains of a reservation.
_MOST_DOMAINS = 8


@define(eq=False, kw_only=True)
class NodeTestContext:
    """What the parts share. ``may_act``: whether we are the controller at this moment."""

    cluster: Cluster
    record_writer: AdmissionRecordWriter
    clocks: Clocks
    settings: RepairSettings
    registry: NodeRegistry
    fleet: FleetState
    may_act: Callable[[], bool]
    #: The rules of new nodes, and why no test may continue; empty: one may.
    rules: NewNodeRules = field(init=False)
    ends: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rules, self.ends = self.settings.new_nodes, self.settings.node_tests_end


@dataclass(slots=True)
class WatchedNode:
    """A node with the startup taint, or with a test or a condition that has to be brought to its
    end. ``problem``: why its test can't be read. ``held``: why no test begins now.
    ``failure``: the cluster's answer to the last step, where it refused that. ``shown``: the
    condition as it was last seen or written. ``chosen``: an idle node whose test is due.
    ``requested``: the name of a person's request that has not begun. ``domains``: its failure
    domains. ``tries``: how often in a row a step has failed.
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
    step: asyncio.Task[None] | None = None

    def take_read(self, node: Node, taint: str, domain_labels: Sequence[str]) -> None:
        """Its Node without its test, which is an Operation."""
        self.uid, self.tainted = node.uid, is_tainted(node, taint)
        self.boot_id = node.boot_id
        self.domains = domains_of(node.labels, domain_labels)[:_MOST_DOMAINS]

    def try_later(self, now: float, at_least: float = 0.0) -> None:
        """Poll it again after a pause that grows with each failed try. ``now``: monotonic."""
        self.tries += 1
        self.poll_at = now + max(_BACKOFF.longest(self.tries), at_least)

    def note_failure(self, error: str) -> bool:
        """Keep the cluster's answer. Empty text: it refuses nothing any more. Returns whether it is
        a new one, since the log has each once, and not at each poll.
        """
        known, self.failure = self.failure, error
        return bool(error) and error != known


def start_steps(
    watched_nodes: Mapping[str, WatchedNode],
    now: float,
    most: int,
    may_start: Callable[[str, WatchedNode], bool],
    step: Callable[[str, WatchedNode], Coroutine[Any, Any, None]],
) -> None:
    """Start a step of each node that is due, ``most`` at the same time; they do not wait for each
    other.
    """
    busy = sum(one.step is not None for one in watched_nodes.values())
    for name, watched in watched_nodes.items():
        if watched.step is not None or now < watched.poll_at or not may_start(name, watched):
            continue
        if busy >= most:
            return
        busy += 1
        watched.step = asyncio.create_task(step(name, watched), name=f"test of {name}")


def cancel_steps(watched_nodes: Mapping[str, WatchedNode]) -> None:
    """The process ends."""
    for watched in watched_nodes.values():
        if watched.step is not None:
            watched.step.cancel()


def in_quarantine(node_state: NodeState | None) -> bool:
    """Whether the node is known to have a quarantine."""
    return node_state is not None and node_state.quarantine is not None
