"""PCIe errors (Advanced Error Reporting), by device: corrected, non-fatal, fatal, contained.

``pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)``;
Linux 6.13 and later say Correctable and Uncorrectable; 5.3 to 5.6 put "AER: " before it. A root
port's lines about received errors ("AER: Corrected error received") repeat it and are passed over.
Where the firmware handles AER first, the kernel prints its report otherwise: ``nvidia 0000:3b:00.0:
AER: aer_status: 0x00000001, aer_mask: 0x00000000``, which states no severity, and
"aer_uncor_severity:" for an error that was not corrected.

``pcieport 0000:3a:00.0: pciehp: Slot(3): Link Down``: the link of a slot went down under its
device.

The component is the device that reported: a GPU by its UUID, any other as "pci:0000:01:00.0". A
port has no name that people know, so ``behind`` tells which GPUs and NICs it leads to.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import names_pci_device, sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.gpus import GpuMap, normalise
from nodeagent.sources.kmsg import Record, is_packet_log
from nodeagent.sources.pci_bus import PciBus

NAME = "pcie-aer"

# Until Linux 4.19 the name of a port's device has its service: "dpc 0000:89:02.0:pcie010: ".
_DEVICE = rb"[\w.-]{1,40} ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?::pcie\d{2,3})?: "
_ERROR = re.compile(
    _DEVICE + rb"(?:AER: )?PCIe Bus Error: severity="
    rb"(Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-)?Fatal\)), type=([\w ]{1,40})"
)
_CONTAINED = re.compile(_DEVICE + rb"DPC:? containment event, (.{1,80})")
_NOT_RECOVERED = re.compile(
    _DEVICE + rb"(?:AER: |DPC: )?(?:[Dd]evice recovery failed"
    rb"|subordinate device (?:recovery|reset) failed|can't recover \(.{1,60}\)"
    rb"|(?:device|driver) has no (?:AER|error)-aware driver"
    rb"|link reset at upstream device .{1,20} failed|no link-reset support at upstream device )"
)
_FIRMWARE = re.compile(
    _DEVICE + rb"(?:AER: )?aer_(?:(status): 0x[0-9a-f]{1,8}, aer_mask: |(uncor_severity): 0x)"
)
# Until Linux 4.19 the name of the device has its service, and until 4.11 slots are small.
_SLOT = re.compile(
    rb"(?:pcieport|pciehp) ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?::pcie\d{2,3})?: "
    rb"(?:pciehp: )?(?:[Ss]lot\((.{1,40}?)\): (?:"
    rb"(Link Down)(?!/)|Card not present\b|Cannot train link\b|No link\b|(Power fault))"
    rb"|(?:Card not present|(Power fault)) on [Ss]lot ?\(?(.{1,40}?)\)?$)"
)


class Bus(Protocol):
    """The questions to the PCI bus."""

    def has(self, address: str) -> bool: ...

    def behind(self, address: str) -> tuple[str, ...]: ...

    def interfaces(self, address: str) -> tuple[str, ...]: ...


class PcieAer:
    """Reads records as they come. ``foreign`` counts lines about devices that the node lacks."""

    def __init__(self, bus: Bus, gpus: GpuMap) -> None:
        self.foreign = 0
        self._bus = bus
        self._gpus = gpus

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The PCIe error of this record, if any. Raises no exception, whatever the record."""
        line = record.text
        if not names_pci_device(line):
            return ()
        found = _parse(line)
        if found is None or is_packet_log(line):
            return ()
        address, severity, details = found
        if not self._bus.has(address):
            self.foreign += 1
            return ()
        behind = self._behind(address)
        if behind:
            details["behind"] = " ".join(behind)
        component = self._component(address)
        message = text(line[:300]) + (f" (leads to {', '.join(behind)})" if behind else "")
        code = f"{NAME}:{severity}"
        details["pci"] = address
        return (
            sighting(
                record,
                check=NAME,
                code=code,
                component=component,
                message=message,
                details=details,
            ),
        )

    def _component(self, address: str) -> str:
        slot = normalise(address)
        if slot is not None and self._gpus.has_gpu(slot):
            return self._gpus.component(slot)
        return f"pci:{address}"

    def _behind(self, address: str) -> list[str]:
        """The GPUs and interfaces that this device is or leads to, by the names people know."""
        names: list[str] = []
        for each in self._bus.behind(address):
            slot = normalise(each)
            if slot is not None and self._gpus.has_gpu(slot):
                names.append(self._gpus.component(slot))
            names += self._bus.interfaces(each)
        return list(dict.fromkeys(names))


def _parse(line: bytes) -> tuple[str, str, dict[str, str]] | None:
    error = _ERROR.match(line)
    if error is not None:
        return text(error[1]), _severity(error[2]), {"layer": text(error[3])}
    contained = _CONTAINED.match(line)
    if contained is not None:
        return text(contained[1]), "contained", {"event": text(contained[2])}
    failed = _NOT_RECOVERED.match(line)
    if failed is not None:
        return text(failed[1]), "not-recovered", {}
    firmware = _FIRMWARE.match(line)
    if firmware is not None:
        return text(firmware[1]), "unstated" if firmware[2] else "non-fatal", {"by": "firmware"}
    slot = _SLOT.match(line)
    if slot is not None:
        kind = "slot-power" if slot[4] or slot[5] else "link-down"
        return text(slot[1]), kind, {"slot": text(slot[2] or slot[6])}
    return None


def _severity(words: bytes) -> str:
    if words.startswith(b"Correct"):
        return "corrected"
    return "non-fatal" if b"Non-Fatal" in words else "fatal"


def _build(sources: Sources, _options: Mapping[str, Any]) -> PcieAer:
    return PcieAer(PciBus(sources.machine), sources.gpus)


SPEC = CheckSpec(
    name=NAME,
    sees="PCIe errors by device, corrected, non-fatal or fatal, with the GPUs and NICs behind a "
    "port; links that were contained (DPC), not recovered or lost by their slot",
    source="kernel log, lines of AER, DPC and pciehp; /sys/bus/pci",
    cost="a search at the start of each kernel record; a look at sysfs for a device's first error",
    blind_to="the severity of an error that the firmware handled first (machine-check has its "
    "word); lines that the kernel leaves out of a storm",
    interval=0,
    deadline=0,
    build=_build,
)
