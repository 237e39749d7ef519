"""Nodes that are known to be good, and their order next to a suspect. Pure."""

from collections.abc import Iterable, Mapping

from aggregator.bisection.model import GroupTest


class GoodNodes:
    """Nodes that a person declares good, and those of groups that passed, without the doubted."""

    def __init__(self, declared: Iterable[str], domains: Mapping[str, str]) -> None:
        self._declared = dict.fromkeys(declared)
        self._domains = domains
        #: How many tests each node passed, and the first of these.
        self._passes: dict[str, int] = dict.fromkeys(self._declared, 0)
        self._first: dict[str, int] = {}
        self._doubted: set[str] = set()

    def passed(self, test: GroupTest) -> None:
        """A test of one node alone is no evidence about the fabric."""
        if len(test.nodes) < 2:
            return
        for node in test.nodes:
            self._passes[node] = self._passes.get(node, 0) + 1
            self._first.setdefault(node, test.number)

    def doubt(self, node: str) -> None:
        """The node is next to no other one any more."""
        self._doubted.add(node)

    def trust(self, node: str) -> None:
        """Take a doubt back."""
        self._doubted.discard(node)

    def has(self, node: str) -> bool:
        return node in self._passes and node not in self._doubted

    def any(self) -> bool:
        return any(node not in self._doubted for node in self._passes)

    def all(self) -> list[str]:
        return [node for node in self._passes if node not in self._doubted]

    def cleared(self) -> frozenset[str]:
        """Nodes of groups that passed, the doubted ones too."""
        return frozenset(self._first)

    def with_partner(self, node: str, avoid: Iterable[str]) -> list[str]:
        """Those for a test next to the node, best first: of its own domain, because a fault between
        domains is not the node's; not of the group that one in ``avoid`` is from, because a bad
        node that passes now and then makes all of its group look good.
        """
        avoided = set(avoid)
        groups = {self._first[one] for one in avoided if one in self._first}
        domain = self._domains.get(node)
        found = [one for one in self.all() if one != node and one not in avoided]
        return sorted(
            found,
            key=lambda one: (
                self._domains.get(one) != domain,
                one not in self._declared,
                self._first.get(one) in groups,
                -self._passes[one],
            ),
        )
