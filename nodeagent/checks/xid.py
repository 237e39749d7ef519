r"""Xids: the NVIDIA driver's lines in the kernel log about a GPU.

``NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.``

A line counts when it matches from the first byte of the raw record and names a GPU that the node
has. No text is unescaped and no two records are joined: a user who mounts a tmpfs with a made-up
option gets a facility 0 record with his text in it, but only behind the kernel's own words.
"""

import re
from collections.abc import Mapping, Sequence

from nodeagent.checks import xid_codes
from nodeagent.checks.base import CheckSpec
from nodeagent.checks.loglines import DriverLines, sighting, text
from nodeagent.model import ClearedBy, Clearing, FaultSighting
from nodeagent.sources.driver_log import DriverLog
from nodeagent.sources.gpus import GpuMap, normalise
from nodeagent.sources.kmsg import Record, is_users_line

NAME = "xid"
OFF_BUS = "gpu-off-bus"

_PREFIX = b"NVRM: "
_ADDRESS = rb"(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"

_XID = re.compile(
    rb"NVRM: Xid \(" + _ADDRESS + rb"((?: GPU-[IC]{1,2}:[0-9a-fA-F]{1,4}){0,2})\): "
    rb"(\d{1,5})(?:, |,?$)"
)

# The kernel gives a printk of several lines as one record, its newlines escaped; where a line ends
# differs between drivers. Drivers before 331 write no colon and no second "GPU".
_GAP = rb"(?: ?\\x0aNVRM: {0,2}| )"
_OFF_BUS = re.compile(
    rb"NVRM: (?:GPU (?:at )?" + _ADDRESS + rb"(?:: GPU)? has fallen off the bus"
    rb"|The NVIDIA GPU " + _ADDRESS + rb"(?:" + _GAP + rb"\(PCI ID: [0-9a-fA-F:]{1,24}\))?"
    rb"" + _GAP + rb"installed in this system has" + _GAP + rb"fallen off the bus)"
)

# Printed before a GPU's first Xid since the driver was loaded.
_GPU_AT = re.compile(
    rb"NVRM: GPU at " + _ADDRESS + rb": (GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$"
)

_LOADED = b"NVRM: loading NVIDIA UNIX "
#: UVM's module cannot outlive the driver's. Before other faults end, the GPU must answer.
_ENDED_BY_LOAD = (Clearing("", "gpu-reset", "nvidia-driver:uvm-fatal"),)

# A process name is at most 15 bytes of the user's choosing, commas included: the first ", " may cut
# it short, which costs only a detail.
_PID = re.compile(rb"pid[= ](?:'([^']{0,32})'|([^,\s]{1,32}))(?:, |$)")
_PROCESS_NAME = re.compile(rb"name=(?:'([^']{0,64})'|([^,]{0,64}))(?:, |$)")

# Matched from the end: the driver's words come last, after any process name.
_VERDICT = re.compile(
    rb"GPU recovery action changed from 0x[0-9a-fA-F]{1,8} \([^()]{0,64}\) "
    rb"to 0x([0-9a-fA-F]{1,8}) \(([^()]{0,64})\)\.?\s*$"
)

# Units are as in NVIDIA's decode table: SAW_MVB, NETIR_LINK_EVT, and "MSE Degraded". Drivers of
# before R575 write "XC 1 i 2 Link 01 [0x0000000a]". A line may lack its registers or be cut short.
# The kernel writes a tab as "\x09".
_GAP5 = rb"(?:[\s,:]|\\x09){1,16}"
_NVLINK5 = re.compile(
    rb"\b([A-Z][A-Z0-9_]{2,40}(?: (?!Non)[A-Z][a-z]{2,20})?)"
    + _GAP5
    + rb"((?i:non-? ?)?(?i:fatal))\b"
    rb"(?:" + _GAP5 + rb"XC ?\d{1,4})?(?:" + _GAP5 + rb"i ?(\d{1,4}))?"
    rb"(?:"
    + _GAP5
    + rb"Link ?(-?\d{1,3})\b)?(?:(?:\s|\\x09){0,16}[(\[]\s{0,4}(0x[0-9a-fA-Fx, ]{1,160}[)\]]?))?"
)
# A register that a cut line ends in may lack digits, so one that nothing follows has all eight.
_REGISTER = re.compile(rb"0x(?:[0-9a-fA-F]{8}\b|[0-9a-fA-F]{1,8}(?=[, \])]))")

# The name of a process: 15 bytes of its user's choice, each of which may be written as \xNN.
_COMM = re.compile(
    rb"(?:pid[= ][^,]{0,32}, )?name='?(?:\\x[0-9a-f]{2}|[^\\]|\\(?!x[0-9a-f]{2})){0,15}"
)

_NVLINK = re.compile(
    rb"NVLink: fatal error detected on link (\d{1,3})\(((?:0x[0-9a-fA-F]{1,8}[, ]*){1,12})\)"
)

#: The words of one line are used for the next with the same code and GPU for so many seconds, from
#: so many records on: a storm's differ in their process alone. Lines of some codes have more.
_MOMENT, _STORM = 0.5, 8
_OF_THEIR_OWN = frozenset({xid_codes.FOLLOW_ON, 74, xid_codes.RECOVERY_ACTION, *xid_codes.NVLINK5})
_MOST_KNOWN = 256

# On Xid 45, by newer drivers: which fault it follows from.
_CAUSE = re.compile(rb"caused by previous Xid (\d{1,5})\b")


class XidCheck(DriverLines):
    """Reads records as they come. The driver's log gets its loads and its messages of each GPU."""

    first = frozenset({_PREFIX[:4]})

    def __init__(self, gpus: GpuMap, log: DriverLog | None = None) -> None:
        super().__init__(gpus.has_gpu)
        self._gpus = gpus
        self._log = log or DriverLog()
        self._known: dict[bytes, FaultSighting] = {}  # by the line's beginning, up to the code

    def read(self, record: Record) -> Sequence[FaultSighting | Clearing]:
        """The Xid of this record, if any, or the fault that a load of the driver ends. Raises no
        exception, whatever the record.
        """
        raw = record.text
        if not raw.startswith(_PREFIX):
            return ()
        line = _XID.match(raw)
        if line is not None:
            return self._xid(record, line)
        lost = _OFF_BUS.match(raw)
        if lost is not None:
            return self._off_bus(record, lost[1] or lost[2])
        named = _GPU_AT.match(raw)
        if named is not None:
            self._learn(named[1], named[2])
        elif raw.startswith(_LOADED) and not (record.historical or is_users_line(raw)):
            self._log.loaded(record.at)
            return _ENDED_BY_LOAD
        return ()

    def _xid(self, record: Record, line: re.Match[bytes]) -> Sequence[FaultSighting]:
        address = self._own(record.text, line[1])
        if address is None:
            return ()
        code = int(line[3])
        self._log.xid(address, code, record.at)
        known = self._known.get(line[0])
        lately = known is not None and known.at <= record.at < known.at + _MOMENT
        if (
            (known is not None and lately)
            and record.seq - known.source_seq >= _STORM
            and known.component == self._gpus.component(address)
        ):
            return (_again(known, record),)
        rest = record.text[line.end() :]
        details, cleared_by = _details(code, rest)
        if cleared_by is not ClearedBy.EXPIRY:  # a program's does not make an earlier reset undone
            self._log.erred(address)
        if line[2]:
            details["mig"] = text(line[2])
        message = f"Xid {code} on {address}: {text(rest)}"
        found = self._sighting(record, f"xid:{code}", address, message, cleared_by, details)
        if code not in _OF_THEIR_OWN and not lately:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[line[0]] = found[0]
        return found

    def _off_bus(self, record: Record, raw_address: bytes) -> Sequence[FaultSighting]:
        address = self._own(record.text, raw_address)
        if address is None:
            return ()
        self._log.erred(address)
        message = f"GPU {address} has fallen off the bus, by a driver's line without an Xid"
        details = {"text": text(record.text)}
        return self._sighting(record, OFF_BUS, address, message, ClearedBy.REBOOT, details)

    def _sighting(
        self,
        record: Record,
        code: str,
        address: str,
        message: str,
        cleared_by: ClearedBy,
        details: Mapping[str, str],
    ) -> Sequence[FaultSighting]:
        return (
            sighting(
                record,
                check=NAME,
                code=code,
                component=self._gpus.component(address),
                message=message,
                cleared_by=cleared_by,
                details={"pci": address, **details},
            ),
        )

    def _learn(self, raw_address: bytes, uuid: bytes) -> None:
        """Keep the UUID where NVML has not given one: NVML may no longer answer."""
        address = normalise(raw_address.decode("ascii"))
        if address and self._gpus.has_gpu(address) and self._gpus.uuid(address) is None:
            self._gpus.learn(address, uuid.decode("ascii"))


def _again(known: FaultSighting, record: Record) -> FaultSighting:
    """Another record of the same words. `replace` takes five times as long."""
    return FaultSighting(
        known.code,
        NAME,
        known.component,
        known.message,
        known.source,
        record.seq,
        record.at,
        known.cleared_by,
        record.historical,
        known.details,
    )


def _details(code: int, rest: bytes) -> tuple[dict[str, str], ClearedBy]:
    """The details in the rest of the line, and the event that ends the fault."""
    details = _process(rest)
    if code == xid_codes.RECOVERY_ACTION:
        changed = _VERDICT.search(rest)
        word = xid_codes.verdict(int(changed[1], 16), text(changed[2])) if changed else "unknown"
        details["verdict"] = word
        return details, xid_codes.cleared_by_verdict(word)
    if code in xid_codes.NVLINK5:
        details |= _nvlink5(rest)
        return details, xid_codes.cleared_by_nvlink5(details.get("severity", ""))
    if code == xid_codes.FOLLOW_ON:
        cause = _CAUSE.search(rest)
        if cause is not None:
            details["caused_by"] = f"xid:{int(cause[1])}"
    if code == 74:
        link = _NVLINK.search(rest)
        if link is not None:
            details |= {"link": str(int(link[1])), "registers": _registers(link[2])}
    return details, xid_codes.cleared_by(code)


def _process(rest: bytes) -> dict[str, str]:
    details = {}
    pid = _PID.match(rest)
    if pid is not None:
        details["pid"] = text(pid[1] or pid[2] or b"")
        rest = rest[pid.end() :]
    name = _PROCESS_NAME.match(rest)
    if name is not None:
        details["name"] = text(name[1] or name[2] or b"")
    return {key: value for key, value in details.items() if value and value != "<unknown>"}


def _nvlink5(rest: bytes) -> dict[str, str]:
    """Unit, severity, link and registers: intrInfo is the first register, errorStatus the second.

    Each is left out where the line does not have it. Their decode table depends on the driver's
    branch and is the aggregator's. The driver's words come last, so of several the last count, and
    none that lie within the name of a process.
    """
    name = _COMM.match(rest)
    after = 0 if name is None else name.end()
    lines = [line for line in _NVLINK5.finditer(rest) if line.end() > after]
    if not lines:
        return {}
    line = lines[-1]
    registers = [text(each) for each in _REGISTER.findall(line[5] or b"")][:12]
    details = {
        "unit": text(line[1]),
        "severity": "fatal" if line[2].lower() == b"fatal" else "non-fatal",
    }
    if line[4] is not None:
        details["link"] = str(int(line[4]))
    if registers:
        details["registers"] = " ".join(registers)
    details |= zip(("intr_info", "error_status"), registers, strict=False)
    if line[3] is not None and int(line[3]):
        details["injected"] = "yes"
    return details


def _registers(raw: bytes) -> str:
    return " ".join(text(raw).replace(",", " ").split())


SPEC = CheckSpec(
    name=NAME,
    sees="every Xid, MIG instances and Xid 154's verdict included; a GPU that has fallen off the "
    "bus without an Xid",
    source="kernel log, lines of the NVIDIA driver",
    cost="a comparison of 6 bytes for each kernel record",
    blind_to="faults without a driver's line; lines that the kernel dropped (reported as lost)",
    interval=0,
    deadline=0,
    build=lambda sources, _: XidCheck(sources.gpus, sources.driver_log),
)
