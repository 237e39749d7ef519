"""Which nodes reach which: only the edges, and the suspicions that follow from them. Pure.

A node is suspected when no observer reaches it although its observers reach others, or by its own
report: it reaches neither its gateway nor two thirds of its peers. Edges of agents that are silent
are no evidence, and nor are failures reported by an observer that misses many others too.
`Triangulation` decides which suspicions hold.

An edge counts only where the aggregator assigned the address to that observer, and where the
cluster lists the observer as a node: an agent cannot choose the nodes about which it is trusted.
Others' reports make a node suspected only where at least `FEWEST_OBSERVERS` and at least half of
all its assigned observers miss it; an observer that is silent, or has no result, is counted among
the assigned and not among those that miss it. So fewer than `FEWEST_OBSERVERS` liars make no node
suspected, regardless of their reports; and one honest observer that reaches the node is enough to
clear it. The price: one liar among a node's observers can keep the others from making it suspected
(`DISPUTED`).
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from aggregator.policy.network.verdict import (
    CUT_OFF,
    NAMED,
    ONE_WAY,
    UNREACHABLE,
    UNREACHABLE_SILENT,
    Edge,
)

#: This number of observers must fail to reach a node before it is suspected, and this share of
#: those that were assigned to it.
FEWEST_OBSERVERS = 4
ACCUSING_SHARE = 0.5
#: This number must reach a node before it counts as healthy, unless fewer were assigned to it: one
#: liar must not end the evidence against a lost node where the others have no result.
FEWEST_REACHING = 2
#: An observer that reaches at least this share of its other peers may report one as unreachable.
CREDIBLE = 0.75
#: A node that can't reach its gateway nor this share of its peers is cut off.
LOST_PEERS = 2 / 3
FEWEST_PEERS = 2
#: Where more of the reporting nodes than this share (and than `FEWEST_TROUBLED`) miss many of their
#: peers, the network itself is in pieces.
UNREST = 0.05
FEWEST_TROUBLED = 3
#: Gateways that are taken from one node.
MOST_GATEWAYS = 64


@dataclass(slots=True)
class Observation:
    """One node: the address at which it is probed, whether its agent is attached, and its
    observations.

    ``listed``: the cluster has a node of this name. ``assigned`` are the addresses that its agent
    was assigned to probe; ``peers`` those of them that it reports on, ``gateways`` the node's own
    gateways; the values are whether each is reached.
    """

    address: str = ""
    reporting: bool = False
    listed: bool = False
    assigned: tuple[str, ...] = ()
    peers: dict[str, bool] = field(default_factory=dict)
    gateways: dict[str, bool] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether its agent's reports are evidence."""
        return self.reporting and self.listed

    def credible_without(self, address: str) -> bool:
        """Whether it reaches most of its peers other than this one."""
        others = [reached for peer, reached in self.peers.items() if peer != address]
        return bool(others) and sum(others) >= CREDIBLE * len(others)

    def troubled(self) -> bool:
        """Whether it misses too many peers for this to be their fault alone."""
        lost = len(self.peers) - sum(self.peers.values())
        return self.counts and lost >= 2 and lost > (1 - CREDIBLE) * len(self.peers)

    def cut_off(self) -> bool:
        """Whether it is cut off by its own report."""
        if not self.reporting or not self.gateways or any(self.gateways.values()):
            return False
        lost = len(self.peers) - sum(self.peers.values())
        return len(self.peers) >= FEWEST_PEERS and lost >= LOST_PEERS * len(self.peers)


@dataclass(frozen=True, slots=True)
class GraphView:
    """The conclusion from one node's edges. ``accusation`` is empty where there is no suspicion.

    ``well``: at least half of its observers reach it, and it does not report that it is cut off.
    ``disputed``: its observers would make it suspected if others did not reach it.
    """

    accusation: str
    well: bool
    message: str
    edges: tuple[Edge, ...] = ()
    disputed: bool = False


class Graph:
    """The edges. Changing one marks the few nodes whose view may change by it."""

    def __init__(self) -> None:
        self._sights: dict[str, Observation] = {}
        # Tuples: nearly every address is one node's, and a set of one is 216 bytes.
        self._at: dict[str, tuple[str, ...]] = {}
        self._observers: dict[str, set[str]] = {}  # by address: its assigned observers
        self._dirty: dict[str, None] = {}
        self._reporting = 0
        self._troubled: set[str] = set()

    def place(self, node: str, address: str) -> None:
        """The node is probed at ``address``; empty: nowhere."""
        sight = self._sight(node)
        if sight.address == address:
            return
        self._leave(node, sight)
        sight.address = address
        if address:
            self._at[address] = (*self._at.get(address, ()), node)
            self._touch_address(address)
        self._dirty[node] = None

    def set_report(self, node: str, *, reporting: bool) -> None:
        """Set whether the reports of the node's agent are evidence now."""
        sight = self._sight(node)
        if sight.reporting != reporting:
            self._count(sight, reporting=reporting, listed=sight.listed)
            self._touch(node, sight)

    def enlist(self, node: str, *, listed: bool) -> None:
        """Set whether the cluster lists the node."""
        sight = self._sight(node)
        if sight.listed != listed:
            self._count(sight, reporting=sight.reporting, listed=listed)
            self._touch(node, sight)

    def assign(self, observer: str, addresses: tuple[str, ...]) -> frozenset[str]:
        """The observer is assigned to probe these and no others (any more). Returns the new ones.

        Its reports on others are dropped; those on the new ones may be set again.
        """
        sight = self._sight(observer)
        if sight.assigned == addresses:
            return frozenset()
        before, now = frozenset(sight.assigned), frozenset(addresses)
        sight.assigned = addresses
        for address in before - now:
            sight.peers.pop(address, None)
            self._unobserve(observer, address)
            self._touch_address(address)
        for address in now - before:
            self._observers.setdefault(address, set()).add(observer)
        self._touch(observer, sight)  # the new ones, too
        return now - before

    def peer(self, observer: str, address: str, *, reached: bool | None) -> None:
        """``reached`` None: the observer has no result for that peer (any more).

        A result for an address that was not assigned to it is dropped.
        """
        sight = self._sight(observer)
        if sight.peers.get(address) is reached or address not in sight.assigned:
            return
        if reached is None:
            del sight.peers[address]
        else:
            sight.peers[address] = reached
        self._touch(observer, sight)
        self._touch_address(address)

    def gateway(self, observer: str, name: str, *, reached: bool | None) -> None:
        sight = self._sight(observer)
        if sight.gateways.get(name) is reached:
            return
        if reached is None:
            del sight.gateways[name]
        elif name in sight.gateways or len(sight.gateways) < MOST_GATEWAYS:
            sight.gateways[name] = reached
        self._dirty[observer] = None

    def forget_node(self, node: str) -> None:
        """The node no longer exists."""
        if node not in self._sights:
            return
        self.set_report(node, reporting=False)
        sight = self._sights.pop(node)
        self._leave(node, sight)
        for address in dict.fromkeys(sight.assigned):
            self._unobserve(node, address)
            self._touch_address(address)
        self._dirty[node] = None

    def touch(self, node: str) -> None:
        """Another property of the node has changed: evaluate it again."""
        if node in self._sights:
            self._dirty[node] = None

    def take_dirty(self) -> list[str]:
        """The nodes whose view may have changed since the last call."""
        dirty, self._dirty = list(self._dirty), {}
        return dirty

    def knows(self, node: str) -> bool:
        return node in self._sights

    def has_report(self, node: str) -> bool:
        sight = self._sights.get(node)
        return sight is not None and sight.counts

    def unrest(self, apart: AbstractSet[str]) -> bool:
        """Whether the network is in pieces, by the reports of others than those ``apart``."""
        troubled = len(self._troubled - apart)
        return troubled > FEWEST_TROUBLED and troubled > UNREST * self._reporting

    def count_view(self, node: str) -> GraphView:
        """The conclusion from the node's edges. Costs its observers times their peers: 64 edges."""
        sight = self._sights[node]
        if not sight.listed:
            return GraphView("", False, "the cluster does not list it")
        observers = self._observers_of(node, sight)
        seen = list(self._seen_by(observers, sight.address))
        reaching = sorted(observer for observer, reached in seen if reached)
        cut_off = sight.cut_off()
        missed = [
            observer
            for observer, reached in seen
            if not reached and self._sights[observer].credible_without(sight.address)
        ]
        accusing = len(missed) >= max(FEWEST_OBSERVERS, ACCUSING_SHARE * len(observers))
        if accusing and not reaching:
            return _unreachable(node, sight, missed, cut_off=cut_off)
        if cut_off:
            return _cut_off(node, sight, len(reaching), len(seen))
        enough = min(FEWEST_REACHING, max(1, len(observers)))
        well = 2 * len(reaching) >= len(seen) and len(reaching) >= enough
        if accusing and not well:
            return _disputed(node, missed, reaching)
        if not seen:
            return GraphView("", well, "no other node probes it")
        return GraphView("", well, f"{len(reaching)} of {len(seen)} nodes that probe it reach it")

    def _observers_of(self, node: str, sight: Observation) -> list[str]:
        """The observers that were assigned the node. An address of several nodes belongs to
        none.
        """
        if len(self._at.get(sight.address, ())) != 1:
            return []
        return [one for one in self._observers.get(sight.address, ()) if one != node]

    def _seen_by(self, observers: list[str], address: str) -> Iterator[tuple[str, bool]]:
        """The observers whose report on the address is evidence, and whether they reach it."""
        for observer in observers:
            theirs = self._sights[observer]
            reached = theirs.peers.get(address)
            if theirs.counts and reached is not None:
                yield observer, reached

    def _count(self, sight: Observation, *, reporting: bool, listed: bool) -> None:
        before = sight.counts
        sight.reporting, sight.listed = reporting, listed
        self._reporting += sight.counts - before

    def _sight(self, node: str) -> Observation:
        found = self._sights.get(node)
        if found is None:
            found = self._sights[node] = Observation()
        return found

    def _leave(self, node: str, sight: Observation) -> None:
        if sight.address:
            self._touch_address(sight.address)
            others = tuple(one for one in self._at.pop(sight.address) if one != node)
            if others:
                self._at[sight.address] = others

    def _unobserve(self, observer: str, address: str) -> None:
        self._observers[address].discard(observer)
        if not self._observers[address]:
            del self._observers[address]

    def _touch(self, node: str, sight: Observation) -> None:
        """The node's reports count for more or less than before, and so do all its edges."""
        self._dirty[node] = None
        (self._troubled.add if sight.troubled() else self._troubled.discard)(node)
        for address in sight.assigned:
            self._touch_address(address)

    def _touch_address(self, address: str) -> None:
        for node in self._at.get(address, ()):
            self._dirty[node] = None


def _unreachable(node: str, sight: Observation, missed: list[str], *, cut_off: bool) -> GraphView:
    missed.sort()
    edges = tuple(Edge(observer, node) for observer in missed[:NAMED])
    text = f"0 of {len(missed)} nodes that probe it reach it, though they reach others"
    if not sight.reporting:
        return GraphView(UNREACHABLE_SILENT, False, f"{text}; its agent is silent", edges)
    if cut_off:
        return GraphView(CUT_OFF, False, f"{text}; nor does it reach its gateway", edges)
    return GraphView(UNREACHABLE, False, text, edges)


def _disputed(node: str, missed: list[str], reaching: list[str]) -> GraphView:
    missed.sort()
    edges = tuple(Edge(observer, node) for observer in missed[:NAMED])
    text = f"{len(missed)} nodes that probe it miss it, and {len(reaching)} reach it"
    return GraphView("", False, f"{text}: {', '.join(reaching[:NAMED])}", edges, disputed=True)


def _cut_off(node: str, sight: Observation, reaching: int, observers: int) -> GraphView:
    lost = sorted(address for address, reached in sight.peers.items() if not reached)
    edges = tuple(Edge(node, address) for address in lost[:NAMED])
    text = f"it reaches neither its gateway nor {len(lost)} of its {len(sight.peers)} peers"
    if reaching and 2 * reaching >= observers:
        return GraphView(
            ONE_WAY, False, f"{text}; but {reaching} of {observers} nodes reach it", edges
        )
    return GraphView(CUT_OFF, False, text, edges)
