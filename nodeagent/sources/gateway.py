"""Whether a neighbour on the link answers: what the kernel knows already, then one packet.

The kernel's neighbour table is asked first (one netlink message, nothing on the wire): a gateway
that carries traffic is REACHABLE there. Only a stale entry costs an ICMP echo. That echo makes
the kernel resolve the neighbour anew, so a gateway that answers ARP but drops echoes, as clouds'
do, still counts as reachable.
"""

import asyncio
import enum
import errno
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass

from nodeagent.clock import Clock
from nodeagent.sources.network import Route

__all__ = ["Answer", "Neighbour", "NoNetlinkError", "ask_gateway", "neighbour"]

_RTM_GETNEIGH, _RTM_NEWNEIGH, _NLMSG_ERROR = 30, 28, 2
_NLM_F_REQUEST = 1
_NDA_DST = 1
_HEADER = struct.Struct("=IHHII")
_NDMSG = struct.Struct("=BxxxiHBB")
_ECHO_REQUEST = {socket.AF_INET: 8, socket.AF_INET6: 128}
_ECHO_REPLY = {socket.AF_INET: 0, socket.AF_INET6: 129}
_DISCARD = 9
#: A stale entry is given 5 s by the kernel before it asks, then three questions a second apart.
_RESOLUTION_SECONDS = 10.0
_ECHO_SECONDS = 1.0


class Neighbour(enum.Enum):
    """The kernel's opinion of a neighbour (NUD states)."""

    ABSENT = 0
    INCOMPLETE = 0x01
    REACHABLE = 0x02
    STALE = 0x04
    DELAY = 0x08
    PROBE = 0x10
    FAILED = 0x20
    NOARP = 0x40
    PERMANENT = 0x80


class NoNetlinkError(Exception):
    """The kernel does not answer this question (before Linux 5.0, or refused)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``reachable`` and how that was found, for people."""

    reachable: bool
    how: str


def neighbour(address: str, interface: str) -> Neighbour:
    """The state of ``address`` on ``interface``.

    Raises NoNetlinkError, or OSError when there is no such interface.
    """
    ip = ipaddress.ip_address(address)
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    index = socket.if_nametoindex(interface)
    attribute = struct.pack("=HH", 4 + len(ip.packed), _NDA_DST) + ip.packed
    body = _NDMSG.pack(family, index, 0, 0, 0) + attribute
    header = _HEADER.pack(_HEADER.size + len(body), _RTM_GETNEIGH, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.setblocking(False)  # the kernel answers within the sending
        netlink.send(header + body)
        try:
            reply = netlink.recv(8192)
        except BlockingIOError as error:
            raise NoNetlinkError("the kernel gave no answer") from error
    return _read_reply(reply)


def _read_reply(reply: bytes) -> Neighbour:
    _, kind, _, _, _ = _HEADER.unpack_from(reply)
    if kind == _RTM_NEWNEIGH:
        _, _, state, _, _ = _NDMSG.unpack_from(reply, _HEADER.size)
        try:
            return Neighbour(state)
        except ValueError as error:
            raise NoNetlinkError(f"neighbour state {state:#x}") from error
    code = -int(struct.unpack_from("=i", reply, _HEADER.size)[0]) if kind == _NLMSG_ERROR else 0
    if code == errno.ENOENT:
        return Neighbour.ABSENT
    raise NoNetlinkError(os.strerror(code) if code else f"message type {kind}")


async def ask_gateway(route: Route, clock: Clock) -> Answer:
    """Whether the route's gateway answers now; takes up to 11 s when it does not.

    ``route.gateway`` must not be None. Raises OSError when its interface is gone.
    """
    assert route.gateway is not None
    state = _neighbour_or_none(route.gateway, route.interface)
    if state is Neighbour.REACHABLE:
        return Answer(True, "reachable by the neighbour table")
    begun = clock.boottime()
    trouble = ""
    while clock.boottime() - begun < _RESOLUTION_SECONDS:
        try:
            taken = await _echo(route.gateway, route.interface, clock)
            trouble = ""
        except OSError as error:  # the kernel says "no route to host" where nobody answers ARP
            trouble = f"; {error.strerror}"
            taken = None
            await asyncio.sleep(_ECHO_SECONDS)
        if taken is not None:
            return Answer(True, f"answers an echo in {taken * 1000:.1f} ms")
        state = _neighbour_or_none(route.gateway, route.interface)
        if state is Neighbour.REACHABLE:
            return Answer(True, "answers on the link, and no echo")
        if state is Neighbour.FAILED:
            break
    seconds = clock.boottime() - begun
    return Answer(False, f"no answer in {seconds:.0f} s; neighbour {_name(state)}{trouble}")


def _name(state: Neighbour | None) -> str:
    return "unknown" if state is None else state.name.lower()


def _neighbour_or_none(address: str, interface: str) -> Neighbour | None:
    try:
        return neighbour(address, interface)
    except NoNetlinkError:
        return None


async def _echo(address: str, interface: str, clock: Clock) -> float | None:
    """Seconds to the reply, or None. Raises OSError when it cannot be sent."""
    ip = ipaddress.ip_address(address)
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    sock = _echo_socket(family)
    with sock:
        sock.setblocking(False)
        index = socket.if_nametoindex(interface)
        # A link-local gateway means nothing without its interface.
        scope = index if ip.is_link_local else 0
        datagram = sock.type == socket.SOCK_DGRAM and sock.proto == socket.IPPROTO_UDP
        port = _DISCARD if datagram else 0
        sock.connect((address, port) if family == socket.AF_INET else (address, port, 0, scope))
        begun = clock.boottime()
        token = struct.pack("=dI", begun, os.getpid())
        sock.send(token if datagram else _echo_packet(family, token))
        try:
            async with asyncio.timeout(_ECHO_SECONDS):
                while not _is_reply(await asyncio.get_running_loop().sock_recv(sock, 2048), token):
                    pass
        except TimeoutError:
            return None
        except ConnectionRefusedError:  # to the UDP packet: whoever refuses is there
            pass
        return clock.boottime() - begun


def _echo_socket(family: socket.AddressFamily) -> socket.socket:
    """ICMP as root may or as the ping group may, or UDP, which makes the kernel resolve as well."""
    protocol = socket.IPPROTO_ICMP if family == socket.AF_INET else socket.IPPROTO_ICMPV6
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
        try:
            return socket.socket(family, kind, protocol)
        except PermissionError:
            continue
    return socket.socket(family, socket.SOCK_DGRAM, socket.IPPROTO_UDP)


def _echo_packet(family: socket.AddressFamily, token: bytes) -> bytes:
    kind, ident = _ECHO_REQUEST[family], os.getpid() & 0xFFFF
    packet = struct.pack("!BBHHH", kind, 0, 0, ident, 1) + token
    if family == socket.AF_INET6:
        return packet  # the kernel fills in the checksum
    return packet[:2] + struct.pack("!H", _checksum(packet)) + packet[4:]


def _checksum(packet: bytes) -> int:
    """RFC 1071. Packets here have an even length."""
    total: int = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def _is_reply(packet: bytes, token: bytes) -> bool:
    """Whether this is our echo come back. A raw IPv4 socket gives the IP header with it."""
    if not packet.endswith(token):
        return False
    if packet[0] >> 4 == 4 and len(packet) > 20 + len(token):
        packet = packet[(packet[0] & 0xF) * 4 :]
    return packet[0] in (_ECHO_REPLY[socket.AF_INET], _ECHO_REPLY[socket.AF_INET6])
