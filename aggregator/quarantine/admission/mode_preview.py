"""Admission's answers to the nodes that the mode keeps from being quarantined.

It asks the same function as a real proposal, against the present record, and admits no node.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from aggregator.quarantine.decide.admission import Held, Proposal
from aggregator.quarantine.state.node import NodeState


class ModePreview:
    """``preview`` decides on proposals without admitting them. ``known`` is a node's own state, or
    None for another replica's node: which common causes may explain that one is not known here.
    """

    def __init__(
        self,
        *,
        preview: Callable[[Sequence[Proposal]], Mapping[str, Held]],
        known: Callable[[str], NodeState | None],
        pool_of: Callable[[str], str],
        policy_pool_of: Callable[[str], str],
        suspects: Callable[[NodeState], tuple[frozenset[str], ...]],
        unsettled: Callable[[NodeState], str],
    ) -> None:
        self._preview = preview
        self._known = known
        self._pool_of = pool_of
        self._policy_pool_of = policy_pool_of
        self._suspects = suspects
        self._unsettled = unsettled

    def holds(self, wanted: Iterable[tuple[str, str]]) -> Mapping[str, Held]:
        """By node, the hold of each that would be held; ``wanted`` are nodes and actions, in the
        order in which they would be asked for. The others would be admitted.
        """
        return self._preview([self._proposal(node, action) for node, action in wanted])

    def _proposal(self, node: str, action: str) -> Proposal:
        node_state = self._known(node)
        pools = self._pool_of(node), self._policy_pool_of(node)
        if node_state is None or node_state.agent.health is None:
            return Proposal(node, "", pools[0], action, policy_pool=pools[1])
        return Proposal(
            node,
            "",
            pools[0],
            action,
            self._suspects(node_state),
            self._unsettled(node_state),
            pools[1],
        )
