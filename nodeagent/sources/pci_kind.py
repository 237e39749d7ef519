"""Which PCI devices are of one kind: the same product in the same part, by sysfs.

The ids of vendor, device and subsystem name the product; the function of the address distinguishes
the first port of an adapter with two from the second, which may be unused on purpose.
"""

import os
import re
from pathlib import Path

from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import small_text

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_FILES = ("vendor", "device", "subsystem_vendor", "subsystem_device")


class PciKinds:
    """Remembers the kind of each address: it does not change while the device is there."""

    def __init__(self, machine: HostRoots) -> None:
        self._folder = machine.sys / "bus/pci/devices"
        self._known: dict[str, tuple[str, ...]] = {}

    def kind(self, address: str) -> tuple[str, ...]:
        """The kind of the device at ``address`` ("0000:3b:00.0"): its files' texts, its function.

        Empty where sysfs does not show it: such a device is like no other.
        """
        if address not in self._known:
            folder = self._folder / address
            texts = [small_text(folder / name)[:16] for name in _FILES]
            if not any(texts):
                return ()
            self._known[address] = (*texts, address.rpartition(".")[2])
        return self._known[address]

    def kind_of(self, entry: Path) -> tuple[str, ...]:
        """The kind of the PCI device of a class entry ("/sys/class/net/eth0")."""
        return self.kind(pci_address(entry))


def pci_address(entry: Path) -> str:
    """The address of a class entry's device ("/sys/class/nvme/nvme0"); empty for one without."""
    try:
        name = os.readlink(entry / "device").rpartition("/")[2]  # noqa: PTH115
    except OSError:
        return ""
    return name if _ADDRESS.fullmatch(name) else ""
