"""Which nodes probe which, so that reachability is a graph and not an opinion. Pure.

The nodes lie on ``DEGREE`` rings, on each in another random order, and every node probes the next
on each: a random graph in which each probes and is probed by as many others, from any rack. It
costs a bisection on each ring; ranking all nodes would be 10,000 hashes for each of 10,000 nodes
that come back after a failover. A node that comes or goes changes one other's peers on each ring.

A node must not choose the nodes that it observes: nodes that lie could gather around one. So its
place depends on its proven name and not on its address, of which it may have many; another
connection, from any address, changes no place. And the order depends on a secret: a node that wants
a place next to a certain node can't know which names would have one.
"""

import hashlib
import ipaddress
from array import array
from bisect import bisect_left, bisect_right
from urllib.parse import unquote

__all__ = ["DEGREE", "ProbeRings", "address_of"]

DEGREE = 8


def address_of(peer: str) -> str:
    """The address in gRPC's "ipv4:10.0.0.5:4711" or "ipv6:%5Bfd00::1%5D:4711"; empty without one.

    Loopback is none: such a client is on our machine or behind a proxy on it.
    """
    kind, _, rest = unquote(peer).partition(":")
    host = rest.rpartition(":")[0].strip("[]")
    if kind not in ("ipv4", "ipv6"):
        return ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    usable = not (address.is_loopback or address.is_link_local or address.is_unspecified)
    return str(address) if usable else ""


class ProbeRings:
    """The attached nodes and the addresses that they come from.

    An address that several nodes come from belongs to a gateway that hides them, and is no node's
    peer. ``key`` is the secret that the order on the rings depends on, of 64 bytes at most.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._address: dict[str, str] = {}
        # Tuples: nearly every address is one node's, and a set of one is 216 bytes.
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._probe_rings = [_Ring(number, key) for number in range(DEGREE)]

    def put(self, node: str, address: str) -> None:
        """The node comes from ``address`` now; empty means from no address that could be probed."""
        if self._address.get(node, "") == address:
            return
        self.remove(node)
        if not address:
            return
        self._address[node] = address
        before = self._nodes.get(address, ())
        self._nodes[address] = (*before, node)
        self._settle((*before, node), alone=not before)

    def remove(self, node: str) -> None:
        address = self._address.pop(node, "")
        if not address:
            return
        left = tuple(one for one in self._nodes[address] if one != node)
        self._settle((node,), alone=False)
        self._settle(left, alone=len(left) == 1)
        if left:
            self._nodes[address] = left
        else:
            del self._nodes[address]

    def at(self, address: str) -> tuple[str, ...]:
        """The nodes that come from an address."""
        return self._nodes.get(address, ())

    def peers(self, node: str) -> tuple[str, ...]:
        """Up to ``DEGREE`` addresses of other nodes, in order; the same for the same nodes."""
        # A node that others can't probe still probes others.
        found = {ring.after(node) for ring in self._probe_rings}
        return tuple(sorted(self._address[one] for one in found - {node, ""}))

    def _settle(self, nodes: tuple[str, ...], *, alone: bool) -> None:
        """Put a node on the rings if, and only if, no other node comes from the same address."""
        for node in nodes:
            for ring in self._probe_rings:
                ring.put(node, wanted=alone)


class _Ring:
    """Nodes in the order of their hashes, of which no two are the same: 64 bits are enough.

    In two columns: a list of pairs is 100 bytes more for each node, on each ring.
    """

    __slots__ = ("_hashes", "_key", "_nodes", "_number")

    def __init__(self, number: int, key: bytes) -> None:
        self._number = number
        self._key = key
        self._hashes = array("Q")
        self._nodes: list[str] = []

    def put(self, node: str, *, wanted: bool) -> None:
        """Put the node on the ring, or take it off."""
        point = self._hash(node)
        at = bisect_left(self._hashes, point)
        there = at < len(self._hashes) and self._nodes[at] == node
        if wanted and not there:
            self._hashes.insert(at, point)
            self._nodes.insert(at, node)
        elif there and not wanted:
            del self._hashes[at], self._nodes[at]

    def after(self, node: str) -> str:
        """The node after this node's present or possible place; empty on an empty ring."""
        at = bisect_right(self._hashes, self._hash(node))
        return self._nodes[at % len(self._nodes)] if self._nodes else ""

    def _hash(self, node: str) -> int:
        text = f"{self._number}\n{node}".encode()
        digest = hashlib.blake2b(text, key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big")
