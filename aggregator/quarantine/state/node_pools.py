"""The pool and the mode of each node, by its labels as they are known now."""

from collections import Counter
from collections.abc import Iterable, Mapping

from aggregator.cluster.port import Action, Node, NodeMeta
from aggregator.policy.node_rules import policy_for, selection_of
from aggregator.policy.rules import Policy
from aggregator.quarantine.decide.pool_budget import NO_POOLS, PoolFacts
from aggregator.quarantine.decide.pools import Pools
from aggregator.quarantine.state.registry import NodeRegistry


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
