"""Who reaches whom: the edges, the accusations that follow from them, and nothing else. Pure.

A node is accused when nobody reaches it although its observers reach others, or by its own word:
neither its gateway nor two thirds of its peers. Edges of agents that are silent are no evidence,
and nor are failures that are told by who misses many others too. `Triangulation` decides what of
an accusation stands.
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

#: So many observers must fail to reach a node before it is accused.
FEWEST_OBSERVERS = 3
#: Who reaches at least this share of its other peers may say that one is not to be reached.
CREDIBLE = 0.75
#: A node that can't reach its gateway nor this share of its peers is cut off.
LOST_PEERS = 2 / 3
FEWEST_PEERS = 2
#: Where more of those who speak than this share (and than `FEWEST_TROUBLED`) miss many of their
#: peers, the network itself is in pieces.
UNREST = 0.05
FEWEST_TROUBLED = 3
#: Edges that are taken from one observer; it is asked for 8.
MOST_EDGES = 64


@dataclass(slots=True)
class Sight:
    """One node: where it is looked for, whether its agent speaks, and what it sees.

    ``peers`` are addresses, ``gateways`` the node's own ways out; the values tell whether each is
    reached.
    """

    address: str = ""
    speaking: bool = False
    peers: dict[str, bool] = field(default_factory=dict)
    gateways: dict[str, bool] = field(default_factory=dict)

    def credible_without(self, address: str) -> bool:
        """Whether it reaches most of its peers other than this one."""
        others = [reached for peer, reached in self.peers.items() if peer != address]
        return bool(others) and sum(others) >= CREDIBLE * len(others)

    def troubled(self) -> bool:
        """Whether it misses too many peers for this to be their fault alone."""
        lost = len(self.peers) - sum(self.peers.values())
        return self.speaking and lost >= 2 and lost > (1 - CREDIBLE) * len(self.peers)

    def cut_off(self) -> bool:
        """By its own word."""
        if not self.speaking or not self.gateways or any(self.gateways.values()):
            return False
        lost = len(self.peers) - sum(self.peers.values())
        return len(self.peers) >= FEWEST_PEERS and lost >= LOST_PEERS * len(self.peers)


@dataclass(frozen=True, slots=True)
class Look:
    """What one node's edges say. ``accusation`` is empty where nothing accuses it.

    ``well``: at least half of its observers reach it, and it does not say that it is cut off.
    """

    accusation: str
    well: bool
    message: str
    edges: tuple[Edge, ...] = ()


class Graph:
    """The edges. Changing one marks the few nodes whose standing may differ for it."""

    def __init__(self) -> None:
        self._sights: dict[str, Sight] = {}
        # Tuples: nearly every address is one node's, and a set of one is 216 bytes.
        self._at: dict[str, tuple[str, ...]] = {}
        self._observers: dict[str, set[str]] = {}
        self._dirty: dict[str, None] = {}
        self._speaking = 0
        self._troubled: set[str] = set()

    def place(self, node: str, address: str) -> None:
        """The node is looked for at ``address``; empty: nowhere."""
        sight = self._sight(node)
        if sight.address == address:
            return
        self._leave(node, sight)
        sight.address = address
        if address:
            self._at[address] = (*self._at.get(address, ()), node)
            self._touch_address(address)
        self._dirty[node] = None

    def speak(self, node: str, *, speaking: bool) -> None:
        """Whether what the node's agent says is evidence now."""
        sight = self._sight(node)
        if sight.speaking != speaking:
            sight.speaking = speaking
            self._speaking += 1 if speaking else -1
            self._touch(node, sight)

    def peer(self, observer: str, address: str, *, reached: bool | None) -> None:
        """None: the observer says nothing of that peer (any more)."""
        sight = self._sight(observer)
        if sight.peers.get(address) is reached:
            return
        if reached is None:
            del sight.peers[address]
            self._unobserve(observer, address)
        elif address in sight.peers or len(sight.peers) < MOST_EDGES:
            sight.peers[address] = reached
            self._observers.setdefault(address, set()).add(observer)
        else:
            return
        self._touch(observer, sight)
        self._touch_address(address)

    def gateway(self, observer: str, name: str, *, reached: bool | None) -> None:
        sight = self._sight(observer)
        if sight.gateways.get(name) is reached:
            return
        if reached is None:
            del sight.gateways[name]
        elif name in sight.gateways or len(sight.gateways) < MOST_EDGES:
            sight.gateways[name] = reached
        self._dirty[observer] = None

    def forget(self, node: str) -> None:
        """The node is no more."""
        if node not in self._sights:
            return
        self.speak(node, speaking=False)
        sight = self._sights.pop(node)
        self._leave(node, sight)
        for address in sight.peers:
            self._unobserve(node, address)
            self._touch_address(address)
        self._dirty[node] = None

    def touch(self, node: str) -> None:
        """Something else about the node has changed: look at it again."""
        if node in self._sights:
            self._dirty[node] = None

    def take_dirty(self) -> list[str]:
        """The nodes whose standing may have changed since this was asked last."""
        dirty, self._dirty = list(self._dirty), {}
        return dirty

    def knows(self, node: str) -> bool:
        return node in self._sights

    def speaks(self, node: str) -> bool:
        sight = self._sights.get(node)
        return sight is not None and sight.speaking

    def unrest(self, apart: AbstractSet[str]) -> bool:
        """Whether the network is in pieces, by the word of others than those ``apart``."""
        troubled = len(self._troubled - apart)
        return troubled > FEWEST_TROUBLED and troubled > UNREST * self._speaking

    def look(self, node: str) -> Look:
        """What the edges say of the node. Costs its observers times their peers: 64 edges."""
        sight = self._sights[node]
        seen = list(self._seen_by(node, sight))
        reaching = sum(reached for _, reached in seen)
        cut_off = sight.cut_off()
        if seen and not reaching:
            missed = [
                observer
                for observer, _ in seen
                if self._sights[observer].credible_without(sight.address)
            ]
            if len(missed) >= FEWEST_OBSERVERS and 2 * len(missed) >= len(seen):
                return _unreachable(node, sight, missed, cut_off=cut_off)
        if cut_off:
            return _cut_off(node, sight, reaching, len(seen))
        well = bool(seen) and 2 * reaching >= len(seen)
        if not seen:
            return Look("", well, "no other node looks for it")
        return Look("", well, f"{reaching} of {len(seen)} nodes that look for it reach it")

    def _seen_by(self, node: str, sight: Sight) -> Iterator[tuple[str, bool]]:
        """Who looks for the node, and whether it reaches it. An address of several is nobody's."""
        if len(self._at.get(sight.address, ())) != 1:
            return
        for observer in self._observers.get(sight.address, ()):
            theirs = self._sights[observer]
            if theirs.speaking and observer != node:
                yield observer, theirs.peers[sight.address]

    def _sight(self, node: str) -> Sight:
        found = self._sights.get(node)
        if found is None:
            found = self._sights[node] = Sight()
        return found

    def _leave(self, node: str, sight: Sight) -> None:
        if sight.address:
            self._touch_address(sight.address)
            others = tuple(one for one in self._at.pop(sight.address) if one != node)
            if others:
                self._at[sight.address] = others

    def _unobserve(self, observer: str, address: str) -> None:
        self._observers[address].discard(observer)
        if not self._observers[address]:
            del self._observers[address]

    def _touch(self, node: str, sight: Sight) -> None:
        """The node's word counts for more or less than it did: so do all its edges."""
        self._dirty[node] = None
        (self._troubled.add if sight.troubled() else self._troubled.discard)(node)
        for address in sight.peers:
            self._touch_address(address)

    def _touch_address(self, address: str) -> None:
        for node in self._at.get(address, ()):
            self._dirty[node] = None


def _unreachable(node: str, sight: Sight, missed: list[str], *, cut_off: bool) -> Look:
    missed.sort()
    edges = tuple(Edge(observer, node) for observer in missed[:NAMED])
    text = f"none of the {len(missed)} nodes that look for it reach it, though they reach others"
    if not sight.speaking:
        return Look(UNREACHABLE_SILENT, False, f"{text}; its agent is silent", edges)
    if cut_off:
        return Look(CUT_OFF, False, f"{text}; nor does it reach its gateway", edges)
    return Look(UNREACHABLE, False, text, edges)


def _cut_off(node: str, sight: Sight, reaching: int, observers: int) -> Look:
    lost = sorted(address for address, reached in sight.peers.items() if not reached)
    edges = tuple(Edge(node, address) for address in lost[:NAMED])
    text = f"it reaches neither its gateway nor {len(lost)} of its {len(sight.peers)} peers"
    if reaching and 2 * reaching >= observers:
        return Look(ONE_WAY, False, f"{text}; but {reaching} of {observers} nodes reach it", edges)
    return Look(CUT_OFF, False, text, edges)
