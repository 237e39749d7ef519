"""Messages of network drivers and bonds about an adapter: power, heat, firmware, cables, queues.

- mlx5: ``mlx5_core 0000:5e:00.0: mlx5_pcie_event:299:(pid 4711): Detected insufficient power on the
  PCIe slot (27W).``, high temperature, a health poll that fails, commands that time out, a failed
  recovery or start, cables that were unplugged or are bad.
- EFA: ``efa 0000:00:06.0 efa_0: The device didn't send any completion for admin cmd ...``, and
  likewise ENA. A command that the device refuses may be a program's mistake, and is passed over.
- Queues: ``NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 3 timed out`` and the drivers' own.
- Bonds: ``bond0: (slave eth0): link status definitely down, disabling slave``.

Only about devices and interfaces of the node. A user with a network namespace may make a bond of
the same name there, so no rule should act on a bond's lines. The component is the adapter
("pci:0000:5e:00.0") or the interface.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import names_pci_device, sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import Record, is_packet_log
from nodeagent.sources.pci_bus import PciBus

NAME = "nic-driver"

_IFACE = rb"([^\s:/()\\]{1,15})"

#: The kernel's words after the name of an interface, for the lookup that each record costs.
_AFTER_A_NAME = frozenset(
    {b"(sla", b"link", b"now ", b"NETD", b"tran", b"bond", b"TX t", b"inte", b"back"}
)

_PCI = re.compile(
    rb"([a-z][\w-]{1,15}) ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?: ([^\s:/()\\]{1,32}))?: "
    rb"(?:\w{1,60}:\d{1,6}:\(pid \d{1,10}\): )?"
)
_TIMEOUT = re.compile(
    rb"NETDEV WATCHDOG: (?:CPU: \d{1,5}: )?transmit queue \d{1,6} timed out"
    rb"|TX timeout (?:detected|on queue)|(?:initiating reset due to |NIC )?tx[_ ]timeout\b"
    rb"|initiating reset due to (?:tx|lost link) |Keep alive watchdog timeout"
    rb"|transmit timed out|Detected (?:Tx|Hardware) Unit Hang|Timeout on tx queue\b"
    rb"|Found a Tx that wasn't completed on time"
)
_WATCHDOG = re.compile(
    rb"NETDEV WATCHDOG: " + _IFACE + rb" \([\w-]{1,32}\): transmit queue \d{1,6} timed out"
    rb"|" + _IFACE + rb" \([\w-]{1,32}\): (?:NETDEV WATCHDOG: )?(?:CPU: \d{1,5}: )?"
    rb"transmit queue \d{1,6} timed out"
    # Before the name there may be the driver and its device on another bus than PCI ("virtio1").
    rb"|(?:[a-z][\w-]{1,31} [\w.:-]{1,64} )?" + _IFACE + rb": (?:NETDEV WATCHDOG: "
    rb"(?:CPU: \d{1,5}: )?transmit queue \d{1,6} timed out|transmit timeout: latency \d"
    rb"|TX timeout on queue: )"
)
# A link that comes back within its delay is no failure of the bond, and a flap all the same.
_DOWN = rb"link status (?:definitely down|down|up again)"
_BOND = re.compile(
    rb"(?:bonding: )?" + _IFACE + rb": (?:"
    rb"\(slave " + _IFACE + rb"\): (?:" + _DOWN + rb"|(?:backup )?interface is now down)\b"
    rb"|(?:backup )?interface " + _IFACE + rb" is now down\b"
    rb"|"
    + _DOWN
    + rb".{0,24}? interface "
    + _IFACE
    + rb"|(now running without any active interface))"
)

#: mlx5_core and mlx4_core, from the beginning of the driver's own words.
_MLX = (
    ("power", re.compile(rb"Detected insufficient power on the PCIe slot")),
    (
        "temperature",
        re.compile(
            rb"High temperature on sensors?\b"
            rb"|Port module event\[error\]: module \d{1,3}, .{1,40}, High Temperature"
            rb"|(?:Health issue observed, |synd 0x[0-9a-f]{1,2}: )High temperature"
        ),
    ),
    (
        "unrecoverable",
        re.compile(
            rb".{0,60}\bunrecoverable|health recovery (?:failed|flow aborted)"
            rb"|(?:new )?health works are not permitted|handling bad device here"
            rb"|(?:Failed|failed) to recover"
            rb"|mlx5_\w{1,40}: (?:wait vital|mlx5_pci_enable_device) failed with error code"
            rb"|mlx\d_(?:load|init)_one failed with error code -\d"
            rb"|probe with driver mlx\d_core failed with error -\d"
        ),
    ),
    (
        "health",
        re.compile(
            rb"(?:Health issue observed, |synd 0x[0-9a-f]{1,2}: "
            rb"|.{0,40}device's health compromised|Fatal error \d{1,5} detected"
            rb"|.{0,20}(?:assert_var\[0\]|assert_exit_ptr) |starting health recovery flow"
            rb"|Internal error detected|Internal error mark was detected"
            rb"|Firmware over \d{1,9} MS in (?:pre-)?initializing state"
            rb"|device (?:is going to be reset|was reset)\b|Driver is in error state\. Unloading"
            rb"|PCI slot is unavailable|Firmware is not responsive )"
        ),
    ),
    (
        "command-timeout",
        re.compile(
            rb"(?:cmd\[\d{1,5}\]: )?[\w ]{1,80}\(0x[0-9a-fA-F]{1,8}\)(?: Async,)? "
            rb"(?:timeout\b|canceled on out of queue timeout)"
            rb"|.{0,40}\bcommand 0x[0-9a-f]{1,8} timed out"
            rb"|Cmd failed due to timeout"
            rb"|[\w ]{1,80}\(0x[0-9a-fA-F]{1,8}\) timed out while waiting for a slot"
        ),
    ),
    (
        "cable",
        re.compile(
            rb"Port module event: module \d{1,3}, Cable (?:unplugged|error|disabled)"
            rb"|Port module event\[error\]: module \d{1,3}, "
        ),
    ),
    ("transmit-timeout", _TIMEOUT),
)
_EFA = re.compile(
    rb"The (?:ena )?device (?:didn't send (?:any|a) completion"
    rb"|sent a completion but the driver didn't receive)"
    rb"|Wait for completion \(\w{1,20}\) timeout|Reg read(?:32)? timeout"
    rb"|Reading register (?:timed out|failed)"
    rb"|Device isn't ready|Reset indication didn't turn|Admin queue is closed"
    rb"|EFA device init failed|.{0,20}[Kk]eep alive watchdog timeout"
)


class Ports(Protocol):
    """The questions to the node's adapters and interfaces."""

    def has(self, address: str) -> bool: ...

    def interfaces(self, address: str) -> tuple[str, ...]: ...

    def has_interface(self, name: str) -> bool: ...


class NodePorts(PciBus):
    """The node's own, through sysfs."""

    def __init__(self, machine: HostRoots) -> None:
        super().__init__(machine)
        self._interfaces = machine.sys / "class/net"

    def has_interface(self, name: str) -> bool:
        """Whether it is an interface in the node's own network namespace."""
        return name not in (".", "..") and (self._interfaces / name).exists()


class NicDriver:
    """Reads records as they come. ``foreign`` counts lines about devices that the node lacks."""

    def __init__(self, ports: Ports) -> None:
        self.foreign = 0
        self._ports = ports

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The adapter's trouble in this record. Raises no exception, whatever the record."""
        line = record.text
        at = line.find(b": ", 1, 52) + 2
        if names_pci_device(line):
            found = _of_adapter(line)
        elif line[at : at + 4] in _AFTER_A_NAME or line.startswith(b"NETDEV WATCHDOG: "):
            found = _of_interface(line)
        else:
            return ()
        if found is None or is_packet_log(line):
            return ()
        kind, component, details = found
        address = component.removeprefix("pci:")
        if address != component:
            known = self._ports.has(address)
        else:
            known = self._ports.has_interface(component)
        if not known:
            self.foreign += 1
            return ()
        if address != component:
            details["interfaces"] = " ".join(self._ports.interfaces(address))
        return (
            sighting(
                record,
                check=NAME,
                code=f"{NAME}:{kind}",
                component=component,
                details=details,
            ),
        )


def _of_adapter(line: bytes) -> tuple[str, str, dict[str, str]] | None:
    """Kind, component and details of a line that names a PCI device."""
    device = _PCI.match(line)
    if device is None:
        return None
    kind = _kind(device[1], line[device.end() :])
    return None if kind is None else (kind, f"pci:{text(device[2])}", {"driver": text(device[1])})


def _kind(driver: bytes, words: bytes) -> str | None:
    if driver in (b"mlx5_core", b"mlx4_core", b"mlx4_en"):
        return next((kind for kind, pattern in _MLX if pattern.match(words)), None)
    if driver == b"efa" or (driver == b"ena" and not _TIMEOUT.match(words)):
        return "device-error" if _EFA.match(words) else None
    return "transmit-timeout" if _TIMEOUT.match(words) else None


def _of_interface(line: bytes) -> tuple[str, str, dict[str, str]] | None:
    """Kind, component and details of a line that names an interface alone."""
    watchdog = _WATCHDOG.match(line)
    if watchdog is not None:
        return "transmit-timeout", text(watchdog[1] or watchdog[2] or watchdog[3]), {}
    bond = _BOND.match(line)
    if bond is None:
        return None
    if bond[5]:
        return "bond-down", text(bond[1]), {}
    return (
        "bond-member-down",
        text(bond[1]),
        {"member": text(bond[2] or bond[3] or bond[4]).rstrip(",")},
    )


def _build(sources: Sources, _options: Mapping[str, Any]) -> NicDriver:
    return NicDriver(NodePorts(sources.machine))


SPEC = CheckSpec(
    name=NAME,
    sees="network adapters that lack power, are hot, whose firmware or queues hang, whose cable is "
    "bad or gone; bonds that lose a member or all of them",
    source="kernel log, lines of mlx5, mlx4, EFA, the transmit watchdog and bonding; /sys/bus/pci, "
    "/sys/class/net",
    cost="two searches at the start of each kernel record; a look at sysfs for an adapter's line",
    blind_to="errors that the firmware keeps to itself; commands that a device refused; bonds of "
    "other network namespaces, unless they have the name of one here",
    interval=0,
    deadline=0,
    build=_build,
)
