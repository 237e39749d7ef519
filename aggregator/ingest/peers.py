"""Which nodes probe which, so that reachability is a graph and not an opinion. Pure.

The nodes lie on ``DEGREE`` rings, on each in another order of chance, and every node probes the
next on each: a random graph in which each probes and is probed by as many others, from any rack.
It costs a bisection on each ring (ranking all nodes for each would be 10,000 hashes for each of
10,000 that come back after a failover), and a node that comes or goes changes one other's peers on
each ring.
"""

import hashlib
import ipaddress
from array import array
from bisect import bisect_left, bisect_right
from urllib.parse import unquote

__all__ = ["DEGREE", "Rings", "address_of"]

DEGREE = 8


def address_of(peer: str) -> str:
    """Of gRPC's "ipv4:10.0.0.5:4711" or "ipv6:%5Bfd00::1%5D:4711"; empty for what is none.

    Loopback is none: who comes from there is on our machine or behind a proxy on it.
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


class Rings:
    """The attached nodes and the addresses that they come from.

    An address that several nodes come from is a gateway's that hides them, and nobody's peer.
    """

    def __init__(self) -> None:
        self._address: dict[str, str] = {}
        # Tuples: nearly every address is one node's, and a set of one is 216 bytes.
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._rings = [_Ring(number) for number in range(DEGREE)]

    def put(self, node: str, address: str) -> None:
        """The node comes from ``address`` now; empty: from nowhere that one could probe."""
        if self._address.get(node, "") == address:
            return
        self.remove(node)
        if not address:
            return
        self._address[node] = address
        self._nodes[address] = (*self._nodes.get(address, ()), node)
        self._settle(address)

    def remove(self, node: str) -> None:
        address = self._address.pop(node, "")
        if not address:
            return
        self._nodes[address] = tuple(one for one in self._nodes[address] if one != node)
        self._settle(address)
        if not self._nodes[address]:
            del self._nodes[address]

    def address(self, node: str) -> str:
        """Where others look for the node; empty: nowhere."""
        return self._address.get(node, "")

    def at(self, address: str) -> tuple[str, ...]:
        """The nodes that come from an address."""
        return self._nodes.get(address, ())

    def peers(self, node: str) -> tuple[str, ...]:
        """Up to ``DEGREE`` addresses of other nodes, in order; the same for the same nodes."""
        # A node that nobody can probe still probes others, from where its name puts it.
        own = self._address.get(node, "")
        found = {ring.after(own or node) for ring in self._rings}
        return tuple(sorted(found - {own, ""}))

    def _settle(self, address: str) -> None:
        """On the rings if, and only if, exactly one node comes from it."""
        wanted = len(self._nodes[address]) == 1
        for ring in self._rings:
            ring.put(address, wanted=wanted)


class _Ring:
    """Addresses in the order of their hashes, of which no two are the same: 64 bits are enough.

    In two columns: a list of pairs is 100 bytes more for each node, on each ring.
    """

    __slots__ = ("_addresses", "_hashes", "_number")

    def __init__(self, number: int) -> None:
        self._number = number
        self._hashes = array("Q")
        self._addresses: list[str] = []

    def put(self, address: str, *, wanted: bool) -> None:
        """On the ring, or not."""
        point = self._hash(address)
        at = bisect_left(self._hashes, point)
        there = at < len(self._hashes) and self._addresses[at] == address
        if wanted and not there:
            self._hashes.insert(at, point)
            self._addresses.insert(at, address)
        elif there and not wanted:
            del self._hashes[at], self._addresses[at]

    def after(self, text: str) -> str:
        """Who comes after where ``text`` is, or would be; empty on an empty ring."""
        at = bisect_right(self._hashes, self._hash(text))
        return self._addresses[at % len(self._addresses)] if self._addresses else ""

    def _hash(self, text: str) -> int:
        salted = f"{self._number}\n{text}".encode()
        return int.from_bytes(hashlib.blake2b(salted, digest_size=8).digest(), "big")
