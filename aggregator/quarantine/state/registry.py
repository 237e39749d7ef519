"""The state of each node, and the fleet's size, with the nodes of other replicas counted in."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from aggregator.cluster.port import NodeMeta
from aggregator.quarantine.decide.admission import FleetSize
from aggregator.quarantine.state.fleet import FleetState
from aggregator.quarantine.state.node import NodeState
from aggregator.quarantine.state.remote import RemoteNodes


class NodeRegistry:
    """The known nodes. ``pool_label`` names the node label whose value is a node's pool.

    ``remote_nodes`` are the nodes of other replicas: counts here include them. ``lists_all``: a
    name that the cluster's list lacks is no node of it. ``now`` is monotonic seconds.
    """

    def __init__(
        self,
        fleet: FleetState,
        pool_label: str,
        remote_nodes: RemoteNodes | None = None,
        *,
        lists_all: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._lists_all = lists_all
        self._now = now
        self._pool_label = pool_label
        self._remote_nodes = remote_nodes if remote_nodes is not None else RemoteNodes()
        self._node_states: dict[str, NodeState] = {}
        self._metas: Mapping[str, NodeMeta] = {}
        self._listed = False
        self._pools: dict[str, int] = {}
        self._counted = 0
        #: Nodes in quarantine that are gone: their quarantines count for no limit.
        self.absent: set[str] = set()

    def node_state(self, node: str) -> NodeState:
        """The node's state, made when there is none yet."""
        found = self._node_states.get(node)
        if found is None:
            found = self._node_states[node] = NodeState(self._fleet.node_summary(node), self._now)
        return found

    def known(self, node: str) -> NodeState | None:
        return self._node_states.get(node)

    def node_states(self) -> list[NodeState]:
        """A copy, as the caller's work may add nodes."""
        return list(self._node_states.values())

    def forget_node(self, node_state: NodeState) -> None:
        """The node is gone, and no step is left for it."""
        if node_state.decision.timer is not None:
            node_state.decision.timer.cancel()
        self._counted -= node_state.work.counted
        del self._node_states[node_state.node]
        self._fleet.node_summaries.pop(node_state.node, None)

    def is_listed(self, node: str) -> bool:
        """Whether the latest list had the node."""
        return node in self._metas

    def meta(self, node: str) -> NodeMeta | None:
        """The Node as last listed."""
        return self._metas.get(node)

    @property
    def metas(self) -> Mapping[str, NodeMeta]:
        """The Nodes as last listed, by name; another mapping after each list."""
        return self._metas

    def labels_of(self, node: str) -> Mapping[str, str] | None:
        """The node's labels, as it was last read or listed; None: they are not known."""
        node_state = self._node_states.get(node)
        if node_state is not None and node_state.cluster.labels is not None:
            return node_state.cluster.labels
        meta = self._metas.get(node)
        return meta.labels if meta is not None else None

    def uid_of(self, node: str) -> str:
        """The uid of the Node as last listed, else as its agent's token proves it, else empty."""
        meta = self._metas.get(node)
        if meta is not None:
            return meta.uid
        node_state = self._node_states.get(node)
        return node_state.agent.claimed if node_state is not None else ""

    def annotated(self, key: str) -> set[str]:
        """The nodes that had this annotation when they were last listed."""
        return {name for name, meta in self._metas.items() if key in meta.annotations}

    def in_cluster(self, node: str) -> bool:
        """Whether the node is known to be the cluster's: False until the nodes were listed.

        Where the list lacks nodes of the cluster, each that has an agent is taken to be one.
        """
        return not self._lists_all or node in self._metas

    def listed(self, nodes: Sequence[NodeMeta]) -> None:
        """The cluster's nodes, as just listed."""
        self._listed = True
        self._metas = {meta.name: meta for meta in nodes}
        self._pools = {}
        for meta in nodes:
            pool = meta.labels.get(self._pool_label, "")
            self._pools[pool] = self._pools.get(pool, 0) + 1
        for node_state in self._node_states.values():
            self.count(node_state)

    def note_absence(self, node: str, *, absent: bool) -> None:
        """Take the absence of a Node from its Quarantine's status; an ended one shows none."""
        if absent:
            self.absent.add(node)
        else:
            self.absent.discard(node)

    def pool_of(self, node: str) -> str:
        meta = self._metas.get(node)
        return meta.labels.get(self._pool_label, "") if meta is not None else ""

    def observers(self, check: str, components: Collection[str]) -> Mapping[str, int]:
        """How many nodes look at each of these components, with this check.

        Goes through all nodes, once for all components.
        """
        wanted = frozenset(components)
        seen: Counter[str] = Counter()
        for node_state in self._node_states.values():
            health = node_state.agent.health
            if health is not None and node_state.node not in self._remote_nodes:
                seen.update(wanted.intersection(health.components.names_of(check)))
        for report in self._remote_nodes.reports():
            seen.update(wanted.intersection(one[1] for one in report.sees if one[0] == check))
        return seen

    def silence(self) -> tuple[int, int]:
        """How many agents have been gone for too long, of how many that have reported."""
        heard = [
            node_state
            for node_state in self._node_states.values()
            if node_state.agent.health is not None
            and (not self._listed or node_state.node in self._metas)
            and node_state.node not in self._remote_nodes
        ]
        theirs = [
            report
            for report in self._remote_nodes.reports()
            if not self._listed or report.node in self._metas
        ]
        silent = sum(
            1 for node_state in heard if node_state.agent.silent and not node_state.agent.is_fresh
        )
        silent += sum(1 for report in theirs if report.silent)
        return silent, len(heard) + len(theirs)

    def count(self, node_state: NodeState) -> None:
        """The agent's snapshot came, or its evidence was discarded: `size` is kept up to date.

        `size` is needed at each admission; a count over 10,000 nodes takes as long as all the rest.
        """
        counts = node_state.agent.was_heard and self._may_count(node_state.node)
        self._counted += counts - node_state.work.counted
        node_state.work.set_counted(counted=counts)

    def _may_count(self, node: str) -> bool:
        """Whether it may be one of those that make the quorum.

        The agents of another cluster's nodes, sent here by mistake, or of nodes that were deleted,
        show nothing about the fleet. A node that has just joined counts from the next list on.
        """
        return not (self._listed and self._lists_all) or node in self._metas

    def size(self) -> FleetSize:
        """Of all replicas' nodes; where we follow, as the leader last counted them."""
        reported = self._counted
        for report in self._remote_nodes.reports():
            if self._may_count(report.node):
                node_state = self._node_states.get(report.node)
                reported += report.reported - (node_state is not None and node_state.work.counted)
        reported = max(reported, self._remote_nodes.reported)
        return FleetSize(
            max(len(self._metas), reported),
            reported,
            self._pools,
            listed=self._listed,
            absent=frozenset(self.absent),
        )
