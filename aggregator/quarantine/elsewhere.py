"""What other replicas say of their nodes, as the leader keeps it; and what ours are yet to be told.

A node whose replica has left, or which has changed hands, is not forgotten at once: what was last
said of it stands until its new owner speaks of it, for `LEAVING` at most. Else each failover would
take a third of the fleet out of every count, and end a common cause that is none the less there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from aggregator.quarantine.decide.sayings import Saying

#: What was last said of a node stands for so long (seconds) after whoever said it speaks of it no
#: more. Within half of that its agent has found the new owner.
LEAVING = 60.0
#: Checks of whose components it is counted how many nodes look at them.
COUNTED = frozenset({"reach", "dns", "disk-mounts", "pod-network"})


@dataclass(frozen=True, slots=True)
class Told:
    """Who spoke last of a node, and what it said; times are of our own monotonic clock."""

    member: str
    saying: Saying


class Elsewhere:
    """The nodes of other replicas, by name. Empty where there is but one, or where we follow."""

    def __init__(self) -> None:
        self._told: dict[str, Told] = {}
        self._leaving: dict[str, float] = {}
        #: How many nodes have reported in all, by the leader's count; we may know of fewer.
        self.reported = 0

    def __contains__(self, node: str) -> bool:
        return node in self._told

    def __len__(self) -> int:
        return len(self._told)

    def get(self, node: str) -> Saying | None:
        found = self._told.get(node)
        return found.saying if found is not None else None

    def teller(self, node: str) -> str:
        """The replica that spoke of it last; empty: none has."""
        found = self._told.get(node)
        return found.member if found is not None else ""

    def tellers(self) -> set[str]:
        """The replicas of whose words some still stand."""
        return {told.member for told in self._told.values()}

    def sayings(self) -> Iterator[Saying]:
        return (told.saying for told in self._told.values())

    def take(self, member: str, saying: Saying) -> None:
        """A replica speaks of a node of its own."""
        counted = tuple(one for one in saying.sees if one[0] in COUNTED)
        self._told[saying.node] = Told(member, replace(saying, sees=counted))
        self._leaving.pop(saying.node, None)

    def reclaim(self, node: str) -> None:
        """The node speaks here now."""
        self._told.pop(node, None)
        self._leaving.pop(node, None)

    def leave(self, node: str, now: float) -> None:
        """Whoever spoke of the node, we or another, does so no more."""
        self._leaving.setdefault(node, now + LEAVING)

    def leave_all(self, member: str, now: float) -> None:
        """The replica has left, or begins to tell anew."""
        for node, told in self._told.items():
            if told.member == member:
                self.leave(node, now)

    def is_leaving(self, node: str) -> bool:
        return node in self._leaving

    def take_expired(self, now: float) -> list[str]:
        """The nodes of which nobody has spoken for too long: what was said of them is void."""
        expired = [node for node, until in self._leaving.items() if now >= until]
        for node in expired:
            self.reclaim(node)
        return expired

    def take_all(self) -> list[str]:
        """Forget everything; the nodes that it was about."""
        nodes = list(self._told.keys() | self._leaving.keys())
        self._told.clear()
        self._leaving.clear()
        return nodes


class Unsaid:
    """The nodes of ours of which something has changed since we last spoke of them.

    Collected only while somebody listens.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, None] = {}
        self._stir: Callable[[], None] | None = None

    def mark(self, node: str) -> None:
        if self._stir is not None:
            first = not self._nodes
            self._nodes[node] = None
            if first:
                self._stir()

    def listen(self, stir: Callable[[], None] | None) -> None:
        """Call this when there is something to say where there was nothing; None: nobody hears."""
        self._nodes.clear()
        self._stir = stir

    def take(self) -> str:
        """The one that has waited longest; it counts as said. There must be one."""
        node = next(iter(self._nodes))
        del self._nodes[node]
        return node

    def __len__(self) -> int:
        return len(self._nodes)
