"""Whether a gateway answers: one ICMP echo; without an answer, the kernel's neighbour table.

Clouds' gateways drop echoes and still answer ARP. An unanswered echo has made the kernel resolve
the neighbour anew, so its neighbour table shows which it is. That query may block behind a hung
network driver, so a child makes it. (Reading the table first would save one packet in half a minute
and cost a process each time. /proc/net/arp needs no child and has no proof: its flag is the same
for a stale entry, and an entry stays stale where a packet filter drops the echo.)
"""

import asyncio
import ipaddress
import os
import socket
import struct

from nodeagent.child_process import ChildProcess, python_compiled
from nodeagent.clock import Clock
from nodeagent.dataclass import dataclass
from nodeagent.sources.network import DefaultRoute
from nodeagent.sources.process_state import where

__all__ = ["PATIENCE", "GatewayProbe", "GatewayReply", "echo"]

_ECHO_REQUEST = {socket.AF_INET: 8, socket.AF_INET6: 128}
_ECHO_REPLY = {socket.AF_INET: 0, socket.AF_INET6: 129}
_DISCARD = 9
_ECHO_SECONDS = 1.0
_BRIEF_SECONDS = 0.5
#: Seconds to resolve a silent neighbour: the kernel gives a stale entry 5 s before it sends a
#: request, then sends three, a second apart.
PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class GatewayReply:
    """``reachable`` and how that was found, for people.

    ``silent``: it answers on the link, as the kernel found, and no echo.
    """

    reachable: bool
    how: str
    silent: bool = False


class GatewayProbe:
    """Queries one gateway after another; has at most one query of the kernel that hangs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stuck: ChildProcess | None = None

    async def query(self, route: DefaultRoute, *, patience: float = PATIENCE) -> GatewayReply:
        """Whether the route's gateway answers now.

        Takes a second and ``patience`` more when it does not (0: only the echo counts).
        ``route.gateway`` must not be None.
        """
        assert route.gateway is not None
        taken, trouble = await self._try_echo(route.gateway, route.interface)
        if taken is not None:
            return _answers(taken)
        if patience <= 0:
            return GatewayReply(False, f"no echo in {_ECHO_SECONDS:g} s{trouble}")
        return await self._resolve(route.gateway, route.interface, patience)

    async def query_once(self, route: DefaultRoute) -> GatewayReply:
        """The same in half a second: for a person who waits.

        The kernel is queried once, for what the echo has made it find out until then.
        """
        assert route.gateway is not None
        taken, _ = await self._try_echo(route.gateway, route.interface, _BRIEF_SECONDS)
        if taken is not None:
            return _answers(taken)
        return await self._resolve(route.gateway, route.interface, 0.0)

    async def _resolve(self, gateway: str, interface: str, patience: float) -> GatewayReply:
        """Query the kernel for the neighbour's state, and keep sending so that it finds out."""
        if self._stuck is not None and not self._stuck.ended.done():
            spot = where(self._stuck.pid)
            return GatewayReply(False, f"no echo; the kernel's neighbour table is stuck: {spot}")
        lines: list[str] = []
        try:
            index = socket.if_nametoindex(interface)
            command = python_compiled("neighbour_child.py", gateway, str(index), str(patience))
            child = ChildProcess(command, lines.append)
        except OSError as error:
            return GatewayReply(False, f"no echo; cannot query the kernel: {error.strerror}")
        begun = self._clock.boottime()
        taken, trouble = None, ""
        while taken is None and not child.ended.done():
            if self._clock.boottime() - begun > patience + _ECHO_SECONDS:
                break
            if patience <= 0:
                await asyncio.wait({child.ended}, timeout=_ECHO_SECONDS)
            else:
                taken, trouble = await self._try_echo(gateway, interface)
        if not child.ended.done():
            spot = where(child.pid)
            if not await child.close():
                self._stuck = child
            if taken is None:
                return GatewayReply(False, f"no echo; a query of the kernel hangs: {spot}")
        if taken is not None:
            return _answers(taken)
        last = lines[-1] if lines else "gave no answer"
        if last == "state reachable":
            return GatewayReply(True, "answers on the link, and no echo", silent=True)
        return GatewayReply(False, f"no echo; neighbour {last}{trouble}")

    async def _try_echo(
        self, address: str, interface: str, within: float = _ECHO_SECONDS
    ) -> tuple[float | None, str]:
        """Seconds that it took, or None and why it could not even be sent."""
        begun = self._clock.boottime()
        try:
            return await echo(address, interface, self._clock, within), ""
        except OSError as error:  # the kernel reports "no route to host" when ARP gets no answer
            await asyncio.sleep(max(0.0, begun + within - self._clock.boottime()))
            return None, f"; {error.strerror}"


def _answers(seconds: float) -> GatewayReply:
    return GatewayReply(True, f"answers an echo in {seconds * 1000:.1f} ms")


async def echo(
    address: str, interface: str, clock: Clock, within: float = _ECHO_SECONDS
) -> float | None:
    """Seconds to the reply, or None after ``within``. Raises OSError when it cannot be sent.

    ``interface`` may be empty for an address that means the same on all of them.
    """
    ip = ipaddress.ip_address(address)
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    sock = _echo_socket(family)
    with sock:
        sock.setblocking(False)
        # A link-local gateway has no meaning without its interface.
        scope = socket.if_nametoindex(interface) if ip.is_link_local else 0
        datagram = sock.type == socket.SOCK_DGRAM and sock.proto == socket.IPPROTO_UDP
        port = _DISCARD if datagram else 0
        sock.connect((address, port) if family == socket.AF_INET else (address, port, 0, scope))
        begun = clock.boottime()
        token = struct.pack("=dI", begun, os.getpid())
        sock.send(token if datagram else _echo_packet(family, token))
        try:
            async with asyncio.timeout(within):
                while not _is_reply(await asyncio.get_running_loop().sock_recv(sock, 2048), token):
                    pass
        except TimeoutError:
            if not _has_come(sock, token):
                return None
        except ConnectionRefusedError:  # to the UDP packet: a host that refuses is there
            pass
        return clock.boottime() - begun


def _has_come(sock: socket.socket, token: bytes) -> bool:
    """Whether the reply waits to be read: a busy process may see the end of the time first."""
    try:
        while not _is_reply(sock.recv(2048), token):
            pass
    except BlockingIOError:
        return False
    except ConnectionRefusedError:
        return True
    return True


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
