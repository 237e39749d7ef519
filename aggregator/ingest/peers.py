"""Which nodes probe which, so that reachability is a graph and not an opinion. Pure.

The nodes lie on ``DEGREE`` rings, on each in another order of chance, and every node probes the
next on each: a random graph in which each probes and is probed by as many others, from any rack.
It costs a bisection on each ring (ranking all nodes for each would be 10,000 hashes for each of
10,000 that come back after a failover), and a node that comes or goes changes one other's peers on
each ring.
"""

import hashlib
import ipaddress
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
        self._nodes: dict[str, set[str]] = {}
        self._rings: list[list[tuple[int, str]]] = [[] for _ in range(DEGREE)]

    def put(self, node: str, address: str) -> None:
        """The node comes from ``address`` now; empty: from nowhere that one could probe."""
        if self._address.get(node, "") == address:
            return
        self.remove(node)
        if not address:
            return
        self._address[node] = address
        self._nodes.setdefault(address, set()).add(node)
        self._settle(address)

    def remove(self, node: str) -> None:
        address = self._address.pop(node, "")
        if not address:
            return
        self._nodes[address].discard(node)
        self._settle(address)
        if not self._nodes[address]:
            del self._nodes[address]

    def address(self, node: str) -> str:
        """Where others look for the node; empty: nowhere."""
        return self._address.get(node, "")

    def at(self, address: str) -> tuple[str, ...]:
        """The nodes that come from an address."""
        return tuple(self._nodes.get(address, ()))

    def peers(self, node: str) -> tuple[str, ...]:
        """Up to ``DEGREE`` addresses of other nodes, in order; the same for the same nodes."""
        # A node that nobody can probe still probes others, from where its name puts it.
        own = self._address.get(node, "")
        found = {
            _next(ring, (_hash(number, own or node), own))
            for number, ring in enumerate(self._rings)
        }
        return tuple(sorted(found - {own, ""}))

    def _settle(self, address: str) -> None:
        """On the rings if, and only if, exactly one node comes from it."""
        wanted = len(self._nodes[address]) == 1
        for number, ring in enumerate(self._rings):
            point = (_hash(number, address), address)
            at = bisect_left(ring, point)
            there = at < len(ring) and ring[at] == point
            if wanted and not there:
                ring.insert(at, point)
            elif there and not wanted:
                del ring[at]


def _next(ring: list[tuple[int, str]], point: tuple[int, str]) -> str:
    """Who comes after a point of the ring; empty on an empty one."""
    return ring[bisect_right(ring, point) % len(ring)][1] if ring else ""


def _hash(ring: int, text: str) -> int:
    salted = f"{ring}\n{text}".encode()
    return int.from_bytes(hashlib.blake2b(salted, digest_size=8).digest(), "big")
