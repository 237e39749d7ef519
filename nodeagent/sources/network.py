"""Links and default routes, read from ``/sys/class/net`` and ``/proc/net``: no packet is sent.

Only files that the kernel answers without its network configuration lock: a driver whose firmware
hangs holds that for ever, and reading ``carrier`` or ``speed`` would wait for it.
"""

import contextlib
import functools
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Collection, Sequence
from pathlib import Path

from nodeagent.dataclass import dataclass
from nodeagent.sources import route_lookup
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import entry_names, read_small, read_whole, small_number

__all__ = [
    "DefaultRoute",
    "Link",
    "PhysicalLinks",
    "Traffic",
    "default_routes",
    "parse_ipv4",
    "parse_ipv6",
    "physical_links",
    "ports",
    "read_link",
    "read_traffic",
]

_IFF_UP = 0x1
_RTF_UP, _RTF_GATEWAY, _RTF_REJECT = 0x1, 0x2, 0x200
_ENOUGH = 65536
# Interface, destination 0, gateway, flags, reference count, use, metric, mask 0.
_IPV4_DEFAULT = re.compile(
    r"^(\S+)\t0{8}\t([0-9A-F]{8})\t([0-9A-F]{4})\t\d+\t\d+\t(\d+)\t0{8}\t", re.MULTILINE
)
# Destination ::/0, source ::/0, gateway, metric, reference count, use, flags, interface.
_IPV6_DEFAULT = re.compile(
    r"^0{32} 00 0{32} 00 ([0-9a-f]{32}) ([0-9a-f]{8}) (?:[0-9a-f]{8} ){2}([0-9a-f]{8}) +(\S+)$",
    re.MULTILINE,
)
_NO_ADDRESS = "0.0.0.0"
_ETHERNET, _INFINIBAND = 1, 32  # ARPHRD_*
#: The interface of a USB device ("1-1.3:1.0").
_USB = re.compile(r"/\d+-[\d.]+:\d+\.\d+$")


#: The "operstate" of a port without a carrier (Documentation/networking/operstates.rst).
_NO_CARRIER = ("down", "lowerlayerdown", "notpresent")


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface. ``state`` is the kernel's word for it ("up", "down", "dormant").

    ``times_up`` counts how often the carrier came since the interface exists. So it shows of a dead
    port whether it was ever in use since the boot; ``times_down`` how often it went. Both are None
    where the kernel does not count them (before 4.16).
    """

    name: str
    enabled: bool
    state: str
    times_up: int | None
    times_down: int | None = None

    @property
    def carrier(self) -> bool:
        """Whether there is one. A driver that does not know reports "unknown", which counts as a
        carrier.
        """
        return self.enabled and self.state not in _NO_CARRIER


def physical_links(machine: HostRoots) -> list[Link]:
    """The interfaces on a device of their own, by name. Raises OSError without ``/sys``.

    Virtual functions and subfunctions are left out, because they move into pods and back; so are
    their representors. An interface on USB is a BMC's, which goes down when the BMC likes, and a
    wireless one has a carrier only while it is associated.
    """
    return _links_of(machine).read()


class PhysicalLinks:
    """The same again and again: remembers which interfaces are ports.

    A node has hundreds of virtual interfaces. Sysfs gives each interface a number of its own, which
    it has until it goes, so one look for its device is enough.
    """

    def __init__(self, machine: HostRoots) -> None:
        self._machine = machine
        self._folder = f"{machine.sys}/class/net"
        self._is_port: dict[tuple[str, int], bool] = {}  # by name and inode

    def read(self) -> list[Link]:
        """Raises OSError without ``/sys``."""
        before = self._is_port
        with os.scandir(self._folder) as entries:
            keys = [(entry.name, entry.inode()) for entry in entries]
        self._is_port = {}
        for key in keys:
            is_port = before[key] if key in before else _is_port(f"{self._folder}/{key[0]}")
            if is_port is not None:
                self._is_port[key] = is_port
        names = sorted(name for (name, _), is_port in self._is_port.items() if is_port)
        links = (read_link(self._machine, name) for name in names)
        return [link for link in links if link is not None]


_links_of = functools.lru_cache(maxsize=4)(PhysicalLinks)


def _is_port(folder: str) -> bool | None:
    """Whether it is one, or None for an interface that is going or is being renamed."""
    device = f"{folder}/device"
    if not os.path.lexists(device) or _USB.search(os.path.realpath(device)):
        return False
    is_wireless = os.path.lexists(f"{folder}/phy80211")
    if is_wireless or is_function(device) or _is_representor(folder):
        return False
    kind = small_number(f"{folder}/type")
    return None if kind is None else kind in (_ETHERNET, _INFINIBAND)


def is_function(device: str) -> bool:
    """Whether the folder of a device is a virtual function's, or a subfunction's."""
    return any(os.path.lexists(f"{device}/{name}") for name in ("physfn", "sfnum"))


def _is_representor(folder: str) -> bool:
    """Whether another interface is the port that this one's device has.

    An adapter's own switch (devlink's "switchdev") has an interface for each function, on the
    port's device. The port is the first of them; a device with several ports numbers those.
    """
    net, port = f"{folder}/device/net", small_number(f"{folder}/dev_port")
    own = small_number(f"{folder}/ifindex") or 0
    return any(
        (small_number(f"{net}/{name}/ifindex") or own) < own
        and small_number(f"{net}/{name}/dev_port") == port
        for name in entry_names(Path(net))
    )


def read_link(machine: HostRoots, name: str) -> Link | None:
    """One interface, or None when there is none of that name."""
    folder = f"{machine.sys}/class/net/{name}"
    flags = small_number(f"{folder}/flags", base=16)
    if flags is None:
        return None
    return Link(
        name=name,
        enabled=bool(flags & _IFF_UP),
        state=read_small(f"{folder}/operstate") or "unknown",
        times_up=small_number(f"{folder}/carrier_up_count"),
        times_down=small_number(f"{folder}/carrier_down_count"),
    )


def ports(machine: HostRoots, interfaces: Sequence[str], exclude: Collection[str]) -> list[Link]:
    """The named interfaces that exist; with no names, the physical ones except ``exclude``.

    Raises OSError without ``/sys``.
    """
    if not interfaces:
        return [link for link in physical_links(machine) if link.name not in exclude]
    found = (read_link(machine, name) for name in interfaces)
    return [link for link in found if link is not None]


@dataclass(frozen=True, slots=True)
class Traffic:
    """An interface's counts since it exists, both directions together.

    ``errors`` are frames that the hardware lost or got damaged; ``drops`` those for which there was
    no room. (The kernel's "rx_dropped" counts protocols without a listener, too.)
    """

    packets: int
    errors: int
    drops: int


_PACKETS = ("rx_packets", "tx_packets")
_ERRORS = ("rx_errors", "tx_errors")
_DROPS = ("rx_missed_errors", "tx_dropped")


def read_traffic(machine: HostRoots, name: str) -> Traffic | None:
    """The counts, or None when the interface does not report them (any more)."""
    folder = f"{machine.sys}/class/net/{name}/statistics"
    sums = []
    for files in (_PACKETS, _ERRORS, _DROPS):
        numbers = [small_number(f"{folder}/{file}") for file in files]
        sums.append([number for number in numbers if number is not None])
    if len(sums[0]) < len(_PACKETS):
        return None
    return Traffic(*map(sum, sums))


@dataclass(frozen=True, slots=True)
class DefaultRoute:
    """A default route. ``gateway`` is None for one that needs none (a point-to-point link).

    ``crossed``: the packets are IPv4 and the gateway's address is IPv6 (RFC 5549).
    """

    interface: str
    gateway: str | None
    metric: int
    crossed: bool = False


def default_routes(machine: HostRoots) -> list[DefaultRoute]:
    """The best default route of each family, IPv4 first. A family without one is left out.

    The kernel is requested to look one up where a table's file has none, one that it cannot
    express, or one whose link is down: of several next hops the file has the first. Raises OSError
    when ``/proc/net`` is not there; a kernel without IPv6 just has no such route.
    """
    # The kernel lists by address, so the default routes come first; a node may have 10,000 more.
    table = read_whole(f"{machine.proc}/net/route", _ENOUGH)
    found = [_best(parse_ipv4(table.decode("ascii", "replace")))]
    table6 = b""
    with contextlib.suppress(OSError):
        table6 = read_whole(f"{machine.proc}/net/ipv6_route")
    found.append(_best(parse_ipv6(table6.decode("ascii", "replace"))))
    absent = [_is_absent(machine, route) for route in found]
    if any(absent) and route_lookup.is_own_network(machine):
        for place, family in enumerate((socket.AF_INET, socket.AF_INET6)):
            if absent[place] and (other := route_lookup.find_default(family)):
                crossed = family == socket.AF_INET and ":" in (other.gateway or "")
                found[place] = DefaultRoute(other.interface, other.gateway, other.metric, crossed)
    return [route for route in found if route is not None and route.gateway != _NO_ADDRESS]


def _is_absent(machine: HostRoots, route: DefaultRoute | None) -> bool:
    """Whether there is none, one by a next hop that the file shows as 0.0.0.0, or a dead one."""
    if route is None or route.gateway == _NO_ADDRESS:
        return True
    return read_small(f"{machine.sys}/class/net/{route.interface}/operstate") in _NO_CARRIER


def _best(routes: Sequence[DefaultRoute]) -> DefaultRoute | None:
    return min(routes, key=lambda route: route.metric, default=None)


def parse_ipv4(table: str) -> list[DefaultRoute]:
    """The default routes of ``/proc/net/route``: addresses are hexadecimal in host byte order."""
    routes = []
    for match in _IPV4_DEFAULT.finditer(table):
        interface, gateway, flags, metric = match.groups()
        # "*" and "lo" have the routes that lead to no one: "blackhole" and "throw" have no flag.
        if _usable(flags) and interface not in ("*", "lo"):
            address = str(ipaddress.IPv4Address(struct.pack("=I", int(gateway, 16))))
            routes.append(DefaultRoute(interface, _if_gateway(flags, address), int(metric)))
    return routes


def parse_ipv6(table: str) -> list[DefaultRoute]:
    """The default routes of ``/proc/net/ipv6_route``; the kernel's "unreachable" is none."""
    routes = []
    for match in _IPV6_DEFAULT.finditer(table):
        gateway, metric, flags, interface = match.groups()
        if _usable(flags) and interface != "lo":
            address = str(ipaddress.IPv6Address(bytes.fromhex(gateway)))
            routes.append(DefaultRoute(interface, _if_gateway(flags, address), int(metric, 16)))
    return routes


def _usable(flags: str) -> bool:
    return bool(int(flags, 16) & _RTF_UP) and not int(flags, 16) & _RTF_REJECT


def _if_gateway(flags: str, address: str) -> str | None:
    return address if int(flags, 16) & _RTF_GATEWAY else None
