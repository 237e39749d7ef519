"""The kernel's choice of a default route, by rtnetlink: what ``/proc/net/route`` cannot express.

That file has neither a next hop of the other family (an IPv4 route by an IPv6 router, as with BGP
unnumbered), nor routes of other tables. One look-up (RTM_GETROUTE without NLM_F_DUMP) follows the
rules, tables, nexthop objects and paths as a packet would. The kernel answers it without its
network configuration lock (since Linux 4.13); no packet is sent.
"""

import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots

_NEW_ROUTE, _GET_ROUTE, _REQUEST = 24, 26, 1
_FIB_MATCH = 0x2000  # RTM_F_FIB_MATCH: give the route itself, with the length of its prefix
_UNICAST = 1
_DESTINATION, _INTERFACE, _GATEWAY, _PRIORITY, _VIA = 1, 4, 5, 6, 18  # RTA_*
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_SECONDS = 1.0
#: Addresses of no one (RFC 5737, RFC 3849): only a default route leads to them.
_NOBODY = {
    socket.AF_INET: ("203.0.113.1", "198.51.100.1"),
    socket.AF_INET6: ("2001:db8::1",),
}


@dataclass(frozen=True, slots=True)
class FoundRoute:
    """``gateway`` is None for a route that needs none; it may be of the other family."""

    interface: str
    gateway: str | None
    metric: int


def is_own_network(machine: HostRoots) -> bool:
    """Whether ``machine`` is of this process's network namespace: rtnetlink answers about that."""
    try:
        # A link's text alone is compared: it names no file.
        ours = os.readlink("/proc/self/ns/net")  # noqa: PTH115
        return os.readlink(f"{machine.proc}/self/ns/net") == ours  # noqa: PTH115
    except OSError:
        return False


def find_default(family: socket.AddressFamily) -> FoundRoute | None:
    """The default route that a packet of ``family`` takes, if there is one."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
            kernel.settimeout(_SECONDS)
            return _resolve(kernel, family)
    except (OSError, ValueError, struct.error):
        return None  # no netlink here, or an answer that is none


def _resolve(kernel: socket.socket, family: socket.AddressFamily) -> FoundRoute | None:
    for address in _NOBODY[family]:
        prefix, route = _request(kernel, family, address, _FIB_MATCH)
        if prefix != 0:
            continue  # a route of its own leads there, or none
        _, hop = _request(kernel, family, address, 0)
        index = int.from_bytes(hop.get(_INTERFACE, b""), sys.byteorder)
        metric = int.from_bytes(route.get(_PRIORITY, b""), sys.byteorder)
        return FoundRoute(socket.if_indextoname(index), _gateway(hop), metric)
    return None


def _gateway(hop: dict[int, bytes]) -> str | None:
    raw = hop.get(_GATEWAY) or hop.get(_VIA, b"")[2:]
    return str(ipaddress.ip_address(raw)) if raw else None


def _request(
    kernel: socket.socket, family: socket.AddressFamily, address: str, flags: int
) -> tuple[int | None, dict[int, bytes]]:
    """The length of the route's prefix and its attributes; None where the kernel has no route."""
    target = socket.inet_pton(family, address)
    length = len(target)
    body = _ROUTE.pack(family, length * 8, 0, 0, 0, 0, 0, 0, flags)
    body += struct.pack("=HH", 4 + length, _DESTINATION) + target
    kernel.send(_HEADER.pack(_HEADER.size + len(body), _GET_ROUTE, _REQUEST, 1, 0) + body)
    answer = kernel.recv(65_536)
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind != _NEW_ROUTE:
        return None, {}
    fields = _ROUTE.unpack_from(answer, _HEADER.size)
    if fields[7] != _UNICAST:
        return None, {}  # such as "unreachable"
    return fields[1], dict(_attributes(answer[_HEADER.size + _ROUTE.size :]))


def _attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    while len(raw) >= 4:
        length, kind = struct.unpack_from("=HH", raw)
        if length < 4:
            return
        yield kind & 0x3FFF, raw[4:length]
        raw = raw[(length + 3) & ~3 :]
