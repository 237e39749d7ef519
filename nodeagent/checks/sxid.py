"""SXids: the NVIDIA driver's lines in the kernel log about an NVSwitch.

``nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress ... error (First)``

The driver's severity word, Fatal, Non-fatal or Correctable, is part of the code: the same number
comes with several. Some have no word, and are fatal where they state that the switch was shut down
or its controller (SOE) has halted. Each SXid of the hardware is followed by a line that repeats its
number with ``Severity 0`` or ``1`` and by one with its ``Data``. These are no SXids of their own,
except a severity whose SXid had no word, or was lost: 1 is fatal and 0 is not
(NVSWITCH_ERROR_SEVERITY_TYPE in ctrl_dev_nvswitch.h). A fatal one concerns all GPUs behind the
switches, so the component is the node.
"""

import re
from collections.abc import Sequence

from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import DriverLines, sighting, text
from nodeagent.model import ClearedBy, FaultSighting
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.kmsg import Record

NAME = "sxid"

_PREFIX = b"nvidia-nvswitch"
_SXID = re.compile(
    rb"nvidia-nvswitch\d{1,4}: SXid \(PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})"
    rb"(?:\.[0-7])?\): (\d{1,7})(?:, |$)"
)
_WORD = re.compile(rb"(Fatal|Non-fatal|Correctable)(?:, |$)", re.IGNORECASE)
_SEVERITY = re.compile(
    rb"Severity ([01]) Engine instance \d{1,5} Sub-engine instance \d{1,5}(?: |$)"
)
_SEVERITIES = {b"0": "non-fatal", b"1": "fatal"}
_REPEAT = re.compile(rb"(?:Severity|Data|Engine instance)\b", re.IGNORECASE)
_LINK = re.compile(rb"Link (\d{1,3})\b")

#: Fatal by NVIDIA's Fabric Manager guide, in any case.
_ALWAYS_FATAL = frozenset({10003, 12020, 22003, 22011, *range(23001, 23018)})

#: Printed without a word: the switch was shut down for heat (10006, 28003, 28005), or its
#: controller was reset, did not boot, answer or run on (src/common/nvswitch in NVIDIA's
#: open-gpu-kernel-modules, ctrl_dev_nvswitch.h).
_HALTED = frozenset({10006, *range(26001, 26009), 28003, 28005})

#: The driver logs a shutdown by its power controller under the number of a slowdown (10004).
_SHUT_DOWN = re.compile(rb".{0,80}\bOVERT Threshold reached\. Shutting Down")

#: Seconds within which a severity belongs to the SXid before it: the driver prints both at once.
_REPEATED_WITHIN = 5.0
#: SXids that are remembered for the severity that follows: those of a burst on all switches.
_MOST_REMEMBERED = 64


class SxidCheck(DriverLines):
    """Reads records as they come."""

    first = frozenset({_PREFIX[:4]})

    def __init__(self, gpus: GpuMap) -> None:
        super().__init__(gpus.has_switch)
        #: When an SXid of this switch and number came last that had a word.
        self._worded: dict[tuple[str, int], float] = {}

    def read(self, record: Record) -> Sequence[FaultSighting]:
        """The SXid of this record, if any. Raises no exception, whatever the record."""
        raw = record.text
        line = _SXID.match(raw)
        if line is None:
            return ()
        rest = raw[line.end() :]
        stated = _SEVERITY.match(rest)
        if stated is None and _REPEAT.match(rest):
            return ()
        address = self._own(raw, line[1])
        if address is None:
            return ()
        number = int(line[2])  # printed with leading zeros
        if stated is not None:
            if self._was_worded(address, number, record.at):
                return ()
            severity = _SEVERITIES[stated[1]]
        else:
            severity, rest = _severity(number, rest)
            if severity != "unstated":
                self._remember(address, number, record.at)
        return (
            sighting(
                record,
                check=NAME,
                code=f"sxid:{number}:{severity}",
                message=f"SXid {number} ({severity}) on NVSwitch {address}: {text(rest)}",
                cleared_by=ClearedBy.REBOOT if severity == "fatal" else ClearedBy.EXPIRY,
                details=_details(number, severity, address, rest),
            ),
        )

    def _was_worded(self, address: str, number: int, at: float) -> bool:
        """Whether this severity repeats the word of an SXid that was read."""
        last = self._worded.get((address, number))
        return last is not None and abs(at - last) <= _REPEATED_WITHIN

    def _remember(self, address: str, number: int, at: float) -> None:
        self._worded.pop((address, number), None)
        if len(self._worded) >= _MOST_REMEMBERED:
            del self._worded[next(iter(self._worded))]
        self._worded[address, number] = at


def _severity(number: int, rest: bytes) -> tuple[str, bytes]:
    """The driver's word and what follows it; without a word, fatal if the code always is."""
    word = _WORD.match(rest)
    if word is not None:
        return word[1].decode("ascii").lower(), rest[word.end() :]
    fatal = number in _ALWAYS_FATAL or number in _HALTED or _SHUT_DOWN.match(rest) is not None
    return ("fatal" if fatal else "unstated"), rest


def _details(number: int, severity: str, address: str, rest: bytes) -> dict[str, str]:
    details = {"switch": address}
    link = _LINK.match(rest)
    if link is not None:
        details["link"] = str(int(link[1]))
    if number in _ALWAYS_FATAL and severity != "fatal":
        details["disagrees"] = "the Fabric Manager guide calls this code always fatal"
    return details


SPEC = CheckSpec(
    name=NAME,
    sees="every SXid of an NVSwitch, by the driver's own word Fatal, Non-fatal or Correctable or "
    "by the severity after it, and without either where the switch was shut down or halted",
    source="kernel log, lines of the NVSwitch driver",
    cost="a comparison of 15 bytes for each kernel record",
    blind_to="switches that are not on this node's PCI bus (NVLink switch trays)",
    interval=0,
    deadline=0,
    build=lambda sources, _: SxidCheck(sources.gpus),
)
