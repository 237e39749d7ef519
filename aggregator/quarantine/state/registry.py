"""The state and the pool of each node, the fleet's size, and the Quarantines in force."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from attrs import define, field

from aggregator.clock import Clocks
from aggregator.cluster.port import (
    STRENGTH,
    Action,
    Node,
    NodeMeta,
    Quarantine,
    RepairAttempt,
    RepairStatus,
)
from aggregator.policy.node_rules import policy_for, selection_of
from aggregator.policy.rules import Policy
from aggregator.quarantine.decide.admission import FleetSize
from aggregator.quarantine.decide.agentless import AgentlessNodes
from aggregator.quarantine.decide.operator_requests import NONE
from aggregator.quarantine.decide.pool_budget import NO_POOLS, PoolFacts
from aggregator.quarantine.decide.pools import Pools
from aggregator.quarantine.state.cluster_view import OthersMarks
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState

#: Nodes visited before the event loop runs other tasks: a millisecond or so.
_SLICE = 500


@define(eq=False, repr=False, slots=False)
class NodeRegistry:
    """The known nodes. ``pool_label`` names the node label whose value is a node's pool.

    ``lists_all``: a name that the cluster's list lacks is no node of it. ``others`` reads the marks
    of other tools. Nodes that are ``agentless`` do not count.
    """

    fleet: FleetState
    _pool_label: str
    _lists_all: bool = field(default=True, kw_only=True)
    _clocks: Clocks = field(factory=lambda: Clocks(time.monotonic, time.time), kw_only=True)
    _others: OthersMarks | None = field(default=None, kw_only=True)
    _agentless: AgentlessNodes = field(factory=AgentlessNodes, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.quarantine_index = QuarantineIndex()
        self.others = self._others or OthersMarks(clocks=self._clocks)
        #: The Nodes as last listed, by name: another mapping after each list; and those of them
        #: on which an agent runs.
        self.metas: Mapping[str, NodeMeta] = {}
        self.counted: list[NodeMeta] = []
        self._node_states: dict[str, NodeState] = {}
        self._listed = False
        self._pools: dict[str, int] = {}
        self._annotated: dict[str, frozenset[str]] = {}
        #: The nodes that count as reported, so that each admission has their number at once: a
        #: count over 50,000 nodes takes 20 ms.
        self._reported: set[str] = set()
        self._held: dict[str, NodeState] = {}
        #: Nodes in quarantine that are gone: their quarantines count for no limit.
        self.absent: set[str] = set()

    def node_state(self, node: str) -> NodeState:
        """The node's state, made when there is none yet."""
        found = self._node_states.get(node)
        if found is None:
            found = NodeState(node, now=self._clocks.now, held=self._held, others=self.others)
            self._node_states[node] = self.fleet.node_summaries[node] = found
        return found

    def known(self, node: str) -> NodeState | None:
        return self._node_states.get(node)

    def node_states(self) -> list[NodeState]:
        """A copy, as the caller's work may add nodes."""
        return list(self._node_states.values())

    def quarantined(self) -> Iterator[NodeState]:
        """The nodes in quarantine."""
        known = (self._node_states.get(one.node) for one in self.quarantine_index.quarantines())
        return (node_state for node_state in known if node_state is not None)

    async def by_slices(self) -> AsyncIterator[NodeState]:
        """All of them, one after the other. Other tasks run in between, and may forget nodes."""
        async for some in self.slices():
            for node_state in some:
                if self._node_states.get(node_state.node) is node_state:
                    yield node_state

    async def slices(self) -> AsyncIterator[list[NodeState]]:
        """All of them, some at a time, for a visit of each that awaits nothing: other tasks run
        between two slices, and may forget nodes.
        """
        known = self._node_states
        node_states = self.node_states()
        if len(node_states) <= _SLICE:
            yield node_states
            return
        for start in range(0, len(node_states), _SLICE):
            if start:
                await asyncio.sleep(0)
            some = node_states[start : start + _SLICE]
            yield [one for one in some if known.get(one.node) is one]

    def held(self) -> list[NodeState]:
        """Those that something keeps from their quarantine, in the order in which it began to."""
        for name in [n for n, one in self._held.items() if one.decision.hold is None]:
            del self._held[name]
        return list(self._held.values())

    def forget_node(self, node_state: NodeState) -> None:
        """The node is gone, and no step is left for it."""
        if node_state.decision.timer is not None:
            node_state.decision.timer.cancel()
        del self._node_states[node_state.node]
        self._held.pop(node_state.node, None)
        self.others.forget(node_state.node)
        self.count(node_state.node)
        self.fleet.node_summaries.pop(node_state.node, None)

    def is_listed(self, node: str) -> bool:
        """Whether the latest list had the node."""
        return node in self.metas

    def meta(self, node: str) -> NodeMeta | None:
        """The Node as last listed."""
        return self.metas.get(node)

    def labels_of(self, node: str) -> Mapping[str, str] | None:
        """The node's labels, as it was last read or listed; None: they are not known."""
        node_state = self._node_states.get(node)
        if node_state is not None and node_state.cluster.labels is not None:
            return node_state.cluster.labels
        meta = self.metas.get(node)
        return meta.labels if meta is not None else None

    def uid_of(self, node: str) -> str:
        """The uid of the Node as last listed, else as its agent's token proves it, else empty."""
        meta = self.metas.get(node)
        if meta is not None:
            return meta.uid
        node_state = self._node_states.get(node)
        return node_state.agent.claimed if node_state is not None else ""

    def annotated(self, key: str) -> frozenset[str]:
        """The nodes that had this annotation when they were last listed."""
        found = self._annotated.get(key)
        if found is None:
            found = self._annotated[key] = frozenset(
                name for name, meta in self.metas.items() if key in meta.annotations
            )
        return found

    def in_cluster(self, node: str) -> bool:
        """Whether the node is known to be the cluster's: False until the nodes were listed.

        Where the list lacks nodes of the cluster, each that has an agent is taken to be one.
        """
        return not self._lists_all or node in self.metas

    def listed(self, nodes: Sequence[NodeMeta]) -> None:
        """The cluster's nodes, as just listed."""
        metas = {meta.name: meta for meta in nodes}
        if self._listed:
            changed = self.metas.keys() ^ metas.keys()
        else:
            changed = self._node_states.keys() | self._reported
        self._listed, self.metas = True, metas
        self.counted = self._agentless.others(nodes)
        self._pools = dict(Counter(meta.labels.get(self._pool_label, "") for meta in self.counted))
        self._annotated.clear()
        for name in changed:
            self.count(name)
            if name not in metas:
                self.others.forget(name)

    def note_absence(self, node: str, *, absent: bool) -> None:
        """Take the absence of a Node from its Quarantine's status; an ended one shows none."""
        if absent:
            self.absent.add(node)
        else:
            self.absent.discard(node)

    def pool_of(self, node: str) -> str:
        meta = self.metas.get(node)
        return meta.labels.get(self._pool_label, "") if meta is not None else ""

    def observers(self, check: str, components: Collection[str]) -> Mapping[str, int]:
        """How many nodes check each of these components, with this check.

        Goes through all nodes, once for all components.
        """
        wanted = frozenset(components)
        seen: Counter[str] = Counter()
        for node_state in self._node_states.values():
            health = node_state.agent.health
            if health is not None:
                seen.update(wanted.intersection(health.components.names_of(check)))
        return seen

    async def silence(self) -> tuple[int, int]:
        """How many agents have been gone for too long, of how many that have reported.

        Goes through all nodes, in slices.
        """
        silent = reporting = 0
        async for some in self.slices():
            for node_state in some:
                agent, node = node_state.agent, node_state.node
                # Until a list has shown which nodes the cluster has, each counts.
                if agent.health is None or (self._listed and node not in self.metas):
                    continue
                reporting += 1
                silent += agent.silent and not agent.is_fresh
        return silent, reporting

    def count(self, node: str) -> None:
        """The agent's snapshot came, its evidence was discarded, or the list has changed: `size` is
        kept up to date.

        The agents of another cluster's nodes, sent here by mistake, or of nodes that were deleted,
        show nothing about the fleet. A node that has just joined counts from the next list on.
        """
        node_state = self._node_states.get(node)
        has_reported = node_state is not None and node_state.agent.was_received
        if has_reported and (not self._listed or self.in_cluster(node)):
            self._reported.add(node)
        else:
            self._reported.discard(node)

    def size(self) -> FleetSize:
        """How many nodes there are, and how many have reported."""
        reported = len(self._reported)
        return FleetSize(
            max(len(self.counted), reported),
            reported,
            self._pools,
            listed=self._listed,
            absent=frozenset(self.absent),
        )


class QuarantineIndex:
    """Those in force by watch events, without those of another installation.

    ``whole``: all of them are known, and none that is gone.
    """

    def __init__(self) -> None:
        self._quarantines: dict[str, Quarantine] = {}
        self.whole = False

    def seen(self, quarantine: Quarantine) -> None:
        """It was made or changed. Another installation's is counted by its own record."""
        if quarantine.foreign:
            return
        self._quarantines[quarantine.node] = quarantine

    def gone(self, node: str, uid: str) -> None:
        known = self._quarantines.get(node)
        if known is not None and known.uid == uid:
            del self._quarantines[node]

    def quarantines(self) -> Collection[Quarantine]:
        return self._quarantines.values()

    def note_end(self, node: str, ended: RepairAttempt) -> None:
        """The end of an attempt is written, which the watch shows later: it counts no more."""
        known, repair = self._quarantines.get(node), self.repair_of(node)
        if known is not None:
            attempts = (ended if one.name == ended.name else one for one in repair.attempts)
            repair = replace(repair, attempts=tuple(attempts))
            self._quarantines[node] = replace(known, status=replace(known.status, repair=repair))

    def repair_of(self, node: str) -> RepairStatus:
        """The attempts at a repair of the node's quarantine, if it has one."""
        known = self._quarantines.get(node)
        return known.status.repair if known is not None else RepairStatus()

    @property
    def newest(self) -> int:
        """The highest generation of the record by which one of them was admitted."""
        return max((one.spec.record_generation for one in self._quarantines.values()), default=0)


class NodePools:
    """``registry`` has the labels of every node: of its last read, or of the last list.

    ``policy``: its rules may be about some nodes only.
    """

    def __init__(self, pools: Pools, registry: NodeRegistry, policy: Policy | None = None) -> None:
        self.pools = pools
        self._policy = policy if policy is not None and policy.selecting else None
        self._registry = registry
        self._sizes: tuple[Mapping[str, NodeMeta], Mapping[str, int]] | None = None

    def name_of(self, node: str) -> str:
        """The node's pool; empty: there are no pools, or its labels are not known."""
        pools = self.pools
        return pools.name_of(self._registry.labels_of(node)) if pools.pools else ""

    def knows(self, node: str) -> bool:
        """Whether the node's pool is known, or there are none."""
        return not self.pools.pools or bool(self.name_of(node))

    def mode_of(self, node: str) -> Action:
        """The mode that caps what is done to the node."""
        return self.pools.mode_of(self.name_of(node)) if self.pools.pools else self.pools.mode

    def most_of(self, node_state: NodeState, wall: float) -> Action:
        """The strongest action that sickbay may take on the node by itself."""
        mode, requests = self.mode_of(node_state.node), node_state.cluster.operator_requests
        return mode if requests is NONE else min(mode, requests.cap(wall), key=STRENGTH)

    def describe_mode(self, node: str) -> str:
        """The mode that caps what is done to the node, and the pool that has it, for people."""
        name = self.name_of(node)
        if not self.pools.pools:
            return f"mode {self.mode_of(node)}"
        return f"mode {self.mode_of(node)} of pool {name}"

    def policy_of(self, node: str, policy: Policy) -> Policy:
        """The policy with its rules as they are on the node."""
        return policy_for(policy, self._registry.labels_of(node)) if policy.selecting else policy

    def place_of(self, node: str) -> tuple[str, int]:
        """All that depends on the node's labels; another value after they have changed it."""
        return self._place(self._registry.labels_of(node)) if self._matters else ("", 0)

    def has_moved(self, node: Node) -> bool:
        """Whether this read of the node shows labels by which it has another place."""
        return self._matters and self._place(node.labels) != self.place_of(node.name)

    def is_other_place(
        self, before: Mapping[str, str] | None, after: Mapping[str, str] | None
    ) -> bool:
        """Whether a node with these labels has another place after the change; None: not known."""
        return self._matters and self._place(before) != self._place(after)

    @property
    def _matters(self) -> bool:
        """Whether anything depends on labels."""
        return bool(self.pools.pools) or self._policy is not None

    def _place(self, labels: Mapping[str, str] | None) -> tuple[str, int]:
        selection = selection_of(self._policy, labels) if self._policy is not None else 0
        return self.pools.name_of(labels), selection

    def facts(self, nodes: Iterable[str]) -> PoolFacts:
        """The facts for admission; ``nodes`` are those in quarantine, with an entry or without."""
        if not self.pools.pools:
            return NO_POOLS
        present = {node: self.name_of(node) for node in nodes}
        return PoolFacts(self.pools.limits, self.sizes(), present)

    def sizes(self) -> Mapping[str, int]:
        """How many listed nodes each pool has, counted once for each list."""
        metas = self._registry.metas
        if self._sizes is None or self._sizes[0] is not metas:
            counted = Counter(self.pools.name_of(meta.labels) for meta in self._registry.counted)
            self._sizes = metas, counted
        return self._sizes[1]
