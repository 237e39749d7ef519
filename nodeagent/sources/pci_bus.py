"""The PCI bus as sysfs has it: which devices there are, and those behind a port.

``/sys/bus/pci/devices/ADDRESS`` links to the device's place in the tree, below the ports that it is
reached through. So the devices behind a port are those that have the port in their path.
"""

import os

from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import entry_names

#: Seconds between two scans of the bus when an unknown address is looked up.
_RESCAN_AFTER = 5.0
#: Seconds for which the answer about one device serves: errors come in storms.
_FRESH_FOR = 60.0
#: More devices behind a port than this number are not named.
_MOST = 16


class PciBus:
    """Addresses are with domain and function: "0000:3b:00.0". A device once seen stays known."""

    def __init__(self, machine: HostRoots) -> None:
        self._machine = machine
        self._folder = machine.sys / "bus/pci/devices"
        self._known: frozenset[str] = frozenset()
        self._scanned_at: float | None = None
        self._behind: dict[str, tuple[float, tuple[str, ...]]] = {}

    def has(self, address: str) -> bool:
        """Whether it is a device of this node, now or when we last looked."""
        if address not in self._known:
            self._scan()
        return address in self._known

    def behind(self, address: str) -> tuple[str, ...]:
        """Addresses of the devices that are reached through this one, itself first."""
        now = self._machine.clock.boottime()
        kept = self._behind.get(address)
        if kept is not None and now - kept[0] < _FRESH_FOR:
            return kept[1]
        found = (address, *self._below(address))[:_MOST]
        self._behind[address] = (now, found)
        return found

    def interfaces(self, address: str) -> tuple[str, ...]:
        """The network interfaces and RDMA devices of this device, by name."""
        names: list[str] = []
        for kind in ("net", "infiniband"):
            names += entry_names(self._folder / address / kind)
        return tuple(sorted(names))

    def _below(self, address: str) -> list[str]:
        path = self._path(address)
        if path is None:
            return []
        inside = path + os.sep
        paths = ((each, self._path(each)) for each in sorted(self._known) if each != address)
        return [each for each, place in paths if place is not None and place.startswith(inside)]

    def _path(self, address: str) -> str | None:
        try:
            return os.path.realpath(self._folder / address, strict=True)
        except OSError:
            return None  # it has left the bus

    def _scan(self) -> None:
        now = self._machine.clock.boottime()
        if self._scanned_at is None or now - self._scanned_at >= _RESCAN_AFTER:
            self._scanned_at = now
            self._known |= frozenset(entry_names(self._folder))
            self._behind.clear()
