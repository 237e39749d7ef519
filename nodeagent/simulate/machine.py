"""The machine that a simulated node plays: its parts, all well, and its kernel's lines."""

import uuid
import zlib
from collections.abc import Mapping

from nodeagent.checks import registry
from nodeagent.checks.sxid import SxidCheck
from nodeagent.checks.xid import XidCheck
from nodeagent.clock import Clock
from nodeagent.model import CheckInfo, FaultSighting, Observation, Status
from nodeagent.simulate.events import Fault, ScenarioError
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import Record
from nodeagent.sources.measurements import Measured

_PLAYED = (
    "gpu-inventory",
    "gpu-ecc",
    "gpu-rows",
    "gpu-recovery",
    "xid",
    "sxid",
    "disk-space",
    "disk-readonly",
    "nic-link",
    "reach",
)
#: Checks that a simulated node has, with the intervals (seconds) that they really have.
CHECKS: Mapping[str, float] = {
    spec.name: spec.interval for spec in registry.SPECS if spec.name in _PLAYED
}
INFOS = tuple(CheckInfo(name, interval) for name, interval in CHECKS.items())
TRAITS: Mapping[str, str] = {"kernel": "6.8.0", "arch": "x86_64", "driver": "580.82.07"}

_PER_GPU = ("gpu-ecc", "gpu-rows", "gpu-recovery")
_MODEL = "NVIDIA H100 80GB HBM3"
_RATES = ("pcie-replays", "nvlink-errors")
_DISKS = ("/", "/scratch")
_SWITCH = "0000:c1:00"

#: How the driver's line continues; that of any other code states that it is simulated.
_TEXTS = {
    13: "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer",
    79: "GPU has fallen off the bus.",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU0 GSP!",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}


class _Gpus(GpuMap):
    """Those that were given, and one NVSwitch: there is no bus to read."""

    def has_switch(self, address: str) -> bool:
        return address == _SWITCH


def address(gpu: int) -> str:
    """The PCI address of the node's ``gpu``-th GPU (from 0)."""
    return f"0000:{0x10 + gpu:02x}:00"


def gpu_uuid(node: str, gpu: int, seed: int) -> str:
    """The UUID of a node's GPU: the same for the same seed."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{seed}/{node}/{gpu}')}"


def boot_id(node: str, boot: int, seed: int) -> str:
    """The boot id of a node's ``boot``-th boot: the same for the same seed."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{seed}/{node}/boot/{boot}"))


def all_well(uuids: list[str]) -> list[Observation]:
    """Every check's observations of a machine that is well."""

    def well(check: str, component: str, message: str) -> Observation:
        return Observation(check, component, Status.OK, "", message)

    count = f"{len(uuids)} GPU{'' if len(uuids) == 1 else 's'}"
    parts = [well("gpu-inventory", "", f"{count}, driver {TRAITS['driver']}")]
    for number, each in enumerate(uuids):
        place = f"GPU {number} at {address(number)}: {_MODEL} (simulated)"
        parts.append(well("gpu-inventory", each, place))
        parts += [well(check, each, "well (simulated)") for check in _PER_GPU]
    for mount in _DISKS:
        parts.append(well("disk-space", mount, "41 % used, 1.1 TiB free"))
        parts.append(well("disk-readonly", mount, "read-write"))
    parts.append(well("nic-link", "eth0", "up at 100000 Mbit/s"))
    parts.append(well("reach", "gateway", "answered in 0.2 ms"))
    return parts


def measured(node: str, uuids: list[str], minute: int) -> list[Measured]:
    """The measurements of a machine that is well and works: they differ by a step now and then."""

    def step(measure: str, component: str) -> int:
        return int(zlib.crc32(f"{node}/{measure}/{component}/{minute}".encode()) % 8 == 0)

    found = [
        Measured("gpu-clock", each, _MODEL, 1980 - 15 * step("gpu-clock", each)) for each in uuids
    ]
    found += [Measured(name, each, _MODEL, 0) for name in _RATES for each in uuids]
    found += [
        Measured(
            "check-duration", name, f"{len(uuids)} {_MODEL}", 12 + step("check-duration", name)
        )
        for name in CHECKS
    ]
    return found


def sightings(
    fault: Fault, uuids: list[str], gpu: int, *, seq: int, at: float, clock: Clock
) -> list[FaultSighting]:
    """The fault as the agent's own parser reads it from the driver's line. Raises ScenarioError.

    ``gpu`` is the one that it is about; ``at`` is in boottime seconds.
    """
    gpus = _Gpus(HostRoots(clock=clock), {address(n): each for n, each in enumerate(uuids)})
    text = _line(fault, gpu)
    record = Record(facility=0, level=3, seq=seq, at=at, text=text.encode("ascii", "replace"))
    read = (*XidCheck(gpus).read(record), *SxidCheck(gpus).read(record))
    found = [each for each in read if isinstance(each, FaultSighting)]
    if [each.code for each in found] != [fault.code]:
        codes = ", ".join(each.code for each in found) or "nothing"
        raise ScenarioError(f'the agent reads {codes} and not {fault.code} in the line "{text}"')
    return found


def _line(fault: Fault, gpu: int) -> str:
    kind, _, rest = fault.code.partition(":")
    if kind == "xid":
        text = fault.text or _TEXTS.get(int(rest), "simulated")
        return f"NVRM: Xid (PCI:{address(gpu)}): {rest}, pid=4242, name=python3, {text}"
    if kind == "sxid":
        number, _, severity = rest.partition(":")
        text = fault.text or "Link 32 simulated (First)"
        return (
            f"nvidia-nvswitch0: SXid (PCI:{_SWITCH}.0): {int(number):05d}, "
            f"{severity.capitalize()}, {text}"
        )
    return f"NVRM: GPU at PCI:{address(gpu)}: GPU has fallen off the bus. {fault.text}".rstrip()
