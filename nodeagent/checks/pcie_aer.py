"""PCIe errors (Advanced Error Reporting), by device: corrected, non-fatal, fatal, contained.

``pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)``;
Linux 6.13 and later say Correctable and Uncorrectable; 5.3 to 5.6 put "AER: " before it. A root
port's lines about received errors ("AER: Corrected error received") repeat it and are passed over.

The component is the device that reported: a GPU by its UUID, any other as "pci:0000:01:00.0". A
port has no name that people know, so ``behind`` tells which GPUs and NICs it leads to.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import sighting, text
from nodeagent.model import FaultSighting
from nodeagent.sources import Sources
from nodeagent.sources.gpus import GpuMap, normalise
from nodeagent.sources.kmsg import Record, is_packet_log
from nodeagent.sources.pci_bus import PciBus

NAME = "pcie-aer"

_DEVICE = rb"[\w.-]{1,40} ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): "
_ERROR = re.compile(
    _DEVICE + rb"(?:AER: )?PCIe Bus Error: severity="
    rb"(Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-)?Fatal\)), type=([\w ]{1,40})"
)
_CONTAINED = re.compile(_DEVICE + rb"DPC: containment event, (.{1,80})")
_NOT_RECOVERED = re.compile(
    _DEVICE + rb"(?:AER|DPC): (?:device|subordinate device) recovery failed"
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
        if b": PCIe Bus Error: " not in line and b": DPC: " not in line and b": AER: " not in line:
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
    "port; links that were contained (DPC) or not recovered",
    source="kernel log, lines of AER and DPC; /sys/bus/pci",
    cost="three searches in each kernel record; a look at sysfs for a device's first error",
    blind_to="machines whose firmware handles AER itself (machine-check has its word); lines that "
    "the kernel leaves out of a storm",
    interval=0,
    deadline=0,
    build=_build,
)
