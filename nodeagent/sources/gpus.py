"""Which GPUs and NVSwitches the node has, by PCI address, and the UUID at each.

From sysfs, not from NVML: a GPU that has fallen off the bus is one that NVML cannot map any more,
which is when its name is needed most. So the map from address to UUID is remembered.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from nodeagent.sources import nvidia_driver
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import read_small

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI base class: VGA and 3D controllers
_BRIDGE_OTHER = "0x0680"  # PCI class of an NVSwitch

#: Seconds between two scans of sysfs when an unknown address is looked up: a flood of lines about
#: GPUs that are not there must stay cheap.
_RESCAN_AFTER = 5.0

#: Seconds for which a scan of sysfs serves all callers that list the addresses: fewer than between
#: two samples, which are jittered. Else a GPU that came would be missing from two of them.
_FRESH_FOR = 50.0

_ADDRESS = re.compile(
    r"(?:PCI:)?([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE
)


@lru_cache(maxsize=256)  # a flood of kernel lines names the same few
def normalise(address: str) -> str | None:
    """``0000:3b:00`` for every way to write an address, or None for a text that is none.

    NVML writes the domain with eight digits, the kernel log with four, sysfs with the function.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return None
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}".lower()


class GpuMap:
    """The node's GPUs and NVSwitches.

    ``remembered`` (address to UUID) is an earlier agent's map; entries that are no addresses are
    dropped. An address once seen stays: a GPU that left the bus is still the node's.
    """

    def __init__(self, machine: HostRoots, remembered: Mapping[str, str] | None = None) -> None:
        self._machine = machine
        self._uuids: dict[str, str] = {}
        self._present: frozenset[str] = frozenset()
        self._seen: frozenset[str] = frozenset()
        self._served: frozenset[str] = frozenset()
        #: When a GPU last came to NVIDIA's driver (boottime seconds).
        self.joined_at = 0.0
        self._named: list[str] = []
        for address, uuid in (remembered or {}).items():
            self.learn(address, uuid)
        self._named.clear()
        #: The map of the earlier agent, and its addresses at which no GPU was since this one began.
        self._before = dict(self._uuids)
        self._unseen = set(self._before)
        #: By address: the driver that gives a GPU to a virtual machine.
        self._given: dict[str, str] = {}
        self._switches: frozenset[str] = frozenset()
        self._scanned_at: float | None = None
        self._classes: dict[tuple[str, int], str] = {}  # by name and inode

    def addresses(self) -> frozenset[str]:
        """Addresses of the node's GPUs: on the bus now, seen before, or remembered.

        Virtual functions and GPUs that are given to virtual machines are not among them.
        """
        self._scan(_FRESH_FOR)
        return self._seen.union(self._uuids).difference(self._given)

    def present(self) -> frozenset[str]:
        """Addresses of the node's GPUs that are on the bus now, at most a minute old."""
        self._scan(_FRESH_FOR)
        return self._present.difference(self._given)

    def given_away(self) -> Mapping[str, str]:
        """The driver by address of each GPU that is on the bus for a virtual machine."""
        self._scan(_FRESH_FOR)
        return self._given

    def switches(self) -> frozenset[str]:
        """Addresses of the node's NVSwitches, on the bus now or seen before."""
        self._scan(_FRESH_FOR)
        return self._switches

    def has_gpu(self, address: str) -> bool:
        """Whether the normalised ``address`` is a GPU of this node; scans again when it is new."""
        if address not in self._seen and address not in self._uuids:
            self._scan(_RESCAN_AFTER)
        return address in self._seen or address in self._uuids

    def has_switch(self, address: str) -> bool:
        """Whether the normalised ``address`` is an NVSwitch of this node; scans again when new."""
        if address not in self._switches:
            self._scan(_RESCAN_AFTER)
        return address in self._switches

    def uuid(self, address: str) -> str | None:
        """The UUID of the GPU at ``address``, as far as it is known."""
        return self._uuids.get(normalise(address) or address)

    def component(self, address: str) -> str:
        """The GPU's UUID if it is known, else ``pci:0000:3b:00``."""
        slot = normalise(address) or address
        return self._uuids.get(slot) or f"pci:{slot}"

    def learn(self, address: str, uuid: str) -> str | None:
        """The GPU at ``address`` is ``uuid``. Gives the UUID that it replaces there, if another.

        An invalid address or an empty UUID is ignored.
        """
        slot = normalise(address)
        if slot is None or not uuid:
            return None
        before = self._uuids.get(slot)
        if before == uuid:
            return None
        for other in [known for known, name in self._uuids.items() if name == uuid]:
            del self._uuids[other]  # the bus was numbered anew
            self._seen -= {other}
        if before is None:
            self._named.append(f"pci:{slot}")
        self._uuids[slot] = uuid
        return before

    def take_exchanged(self) -> list[str]:
        """The UUIDs of an earlier agent's GPUs that are on the bus no longer, where as many others
        have come to other addresses: cards were exchanged, or a virtual machine got other hardware.
        They are forgotten.
        """
        here = self.present()
        self._unseen -= here  # one that is lost later was not exchanged before
        absent = [slot for slot in self._unseen if slot in self._uuids]
        new = {self._uuids.get(slot) for slot in here - self._before.keys()} - {None}
        if len(new.difference(self._before.values())) != len(absent):
            return []
        self._seen = self._seen.difference(absent)
        return [self._uuids.pop(slot) for slot in absent]

    def take_named(self) -> list[str]:
        """The components that GPUs were before their UUIDs were known; each is given once."""
        named, self._named = self._named, []
        return named

    def remembered(self) -> dict[str, str]:
        """Address to UUID, to be kept across restarts and given to the next GpuMap."""
        return dict(self._uuids)

    def _scan(self, no_older_than: float) -> None:
        now = self._machine.clock.boottime()
        if self._scanned_at is not None and now - self._scanned_at < no_older_than:
            return
        self._scanned_at = now
        gpus, switches = set(), set()
        for name, kind in self._kinds():
            address = normalise(name)
            if address is None:
                continue
            if kind.startswith(_DISPLAY):
                gpus.add(address)
            elif kind.startswith(_BRIDGE_OTHER):
                switches.add(address)
        self._present = frozenset(gpus)
        self._seen |= self._present
        drivers = {a: nvidia_driver.bound_driver(self._machine, a) for a in sorted(gpus)}
        self._given = {
            address: held_by
            for address, driver in drivers.items()
            if (held_by := nvidia_driver.passthrough_driver(self._machine, address, driver))
        }
        for address in self._given:
            self._uuids.pop(address, None)  # the virtual machine's, until it comes back
        served = frozenset(a for a, driver in drivers.items() if driver == "nvidia")
        if served - self._served:
            self.joined_at = now
        self._served = served
        self._switches |= frozenset(switches)

    def _kinds(self) -> Iterator[tuple[str, str]]:
        """The name and PCI class of each physical function of NVIDIA that is on the bus.

        A node has hundreds of devices, and sysfs numbers each: their files are read once.
        """
        folder = f"{self._machine.sys}/bus/pci/devices"
        try:
            with os.scandir(folder) as entries:
                keys = [(entry.name, entry.inode()) for entry in entries]
        except OSError:
            keys = []  # no PCI bus, as in many virtual machines: no GPU either
        before, self._classes = self._classes, {}
        for key in keys:
            kind = before[key] if key in before else _nvidia_class(f"{folder}/{key[0]}")
            if kind is not None:
                self._classes[key] = kind
                if kind:
                    yield key[0], kind


def _nvidia_class(device: str) -> str | None:
    """The PCI class of NVIDIA's device, or None while it is unplugged.

    Empty for another vendor's device, and for a virtual function: a part of a GPU, made to be given
    to a virtual machine.
    """
    vendor = read_small(f"{device}/vendor")
    if not vendor:
        return None
    if vendor.lower() != _NVIDIA or os.path.lexists(f"{device}/physfn"):
        return ""
    kind = read_small(f"{device}/class")
    return kind.lower() if kind else None
