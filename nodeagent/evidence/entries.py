"""The latch's entries per component and per fault: the current state, and a bounded past."""

from collections.abc import Mapping
from dataclasses import field
from itertools import zip_longest

from nodeagent.dataclass import dataclass
from nodeagent.model import ClearedBy, FaultSighting, Observation, Status
from sickbay.v1 import limits

#: The longest policy window: no rule uses older transitions.
WINDOW = 86_400.0
#: Transitions kept per component, occurrences per fault. More than these within a day is flapping
#: or a burst, and a larger number would show no more.
TRANSITIONS = limits.MAX_TRANSITIONS
OCCURRENCES = limits.MAX_OCCURRENCES
#: Seconds. Only the first and the last of occurrences that come closer together are kept:
#: a job that logs a hundred lines must not push out the job before it.
BURST = 30.0
#: Bytes of an entry on the wire without its names, its texts and its history.
_REST = 128

ComponentKey = tuple[str, str]  # check, component
FaultKey = tuple[str, str]  # code, component

#: The faults that each positive sign ends. Any other sign is passed on and ends no fault here.
ENDS: Mapping[str, frozenset[ClearedBy]] = {
    "gpu-reset": frozenset({ClearedBy.GPU_RESET, ClearedBy.EXPIRY}),
    "reboot": frozenset({ClearedBy.GPU_RESET, ClearedBy.EXPIRY, ClearedBy.REBOOT}),
    "expiry": frozenset({ClearedBy.EXPIRY}),
    "replaced": frozenset(ClearedBy),
    "operator": frozenset(ClearedBy),
}

#: From the faults that end most easily to those that end hardest.
_HARDNESS = (ClearedBy.EXPIRY, ClearedBy.GPU_RESET, ClearedBy.REBOOT, ClearedBy.OPERATOR)


@dataclass(slots=True)
class ComponentEntry:
    """One component by one check. ``recent`` is (status, boottime), oldest first."""

    check: str
    component: str
    status: Status
    reason: str
    message: str
    since: float
    recent: list[tuple[Status, float]] = field(default_factory=list)
    #: Whole runs of its check in a row that did not name it.
    absent: int = 0

    @property
    def key(self) -> ComponentKey:
        return self.check, self.component

    @classmethod
    def first(cls, seen: Observation, now: float) -> "ComponentEntry":
        recent = [(seen.status, now)]
        check, component = seen.check, seen.component
        return cls(check, component, seen.status, seen.reason, seen.message, now, recent)

    @property
    def last_known(self) -> Status:
        """Its status, or the one before it where it is unknown now."""
        known = (status for status, _ in reversed(self.recent) if status is not Status.UNKNOWN)
        return next(known, self.status) if self.status is Status.UNKNOWN else self.status

    @property
    def weight(self) -> int:
        """Bytes that it takes at most in a message, without its text and its history."""
        return _size(self.check) + _size(self.component) + limits.MAX_NAME + _REST

    def line(self) -> bytes:
        """The component's line of the digest; docs/contract.md fixes the bytes."""
        parts = ("c", self.check, self.component, str(int(self.status)), self.reason)
        return "\x1f".join(parts).encode() + b"\n"

    def trim(self, now: float) -> None:
        """Forget transitions before any policy window, except the status at its start.

        And except the last that is known: what has been unknown for long may be failed.
        """
        del self.recent[:-TRANSITIONS]
        while (
            len(self.recent) > 1
            and self.recent[1][1] < now - WINDOW
            and any(status is not Status.UNKNOWN for status, _ in self.recent[1:])
        ):
            del self.recent[0]


@dataclass(slots=True)
class FaultEntry:
    """One latched fault: the identity of its first occurrence, the details of its latest.

    Times are boottime seconds. They are negative for events of an earlier boot: then they mean "at
    least that long ago".
    """

    code: str
    check: str
    component: str
    message: str
    boot_id: str
    source: str
    source_seq: int
    first: float
    last: float
    last_seq: int
    cleared_by: ClearedBy
    historical: bool
    details: dict[str, str]
    count: int = 1
    occurrences: list[float] = field(default_factory=list)

    @property
    def key(self) -> FaultKey:
        return self.code, self.component

    @classmethod
    def first_of(cls, seen: FaultSighting, boot_id: str) -> "FaultEntry":
        return cls(
            code=seen.code,
            check=seen.check,
            component=seen.component,
            message=seen.message,
            boot_id=boot_id,
            source=seen.source,
            source_seq=seen.source_seq,
            first=seen.at,
            last=seen.at,
            last_seq=seen.source_seq,
            cleared_by=seen.cleared_by,
            historical=seen.historical,
            details=dict(seen.details),
            occurrences=[seen.at],
        )

    def again(self, seen: FaultSighting, *, same: bool = False) -> bool:
        """Take in one more occurrence; true when it now takes more to end the fault.

        ``same``: its words are the entry's.
        """
        self.count += 1
        self.last = seen.at
        self.last_seq = seen.source_seq
        if not same and not self._is_milder(seen):
            self.message = seen.message
            self.details = {**seen.details, **self._registers(seen)}
        if len(self.occurrences) > 1 and seen.at - self.occurrences[-2] < BURST:
            self.occurrences[-1] = seen.at
        else:
            self.occurrences.append(seen.at)
            del self.occurrences[:-OCCURRENCES]
        harder = _HARDNESS.index(seen.cleared_by) > _HARDNESS.index(self.cleared_by)
        if harder:
            self.cleared_by = seen.cleared_by
        return harder

    def _registers(self, seen: FaultSighting) -> dict[str, str]:
        """The registers of Xid 74 with each bit that was set in any of its lines.

        Some bits are to be ignored, and such a line must not hide an earlier one. NVLink 5 lines
        have a severity, which decides between them.
        """
        lines = self.details.get("registers"), seen.details.get("registers")
        if "severity" in seen.details or not all(lines):
            return {}
        pairs = zip_longest(*(str(line).split() for line in lines), fillvalue="0x0")
        try:
            return {"registers": " ".join(f"{int(a, 16) | int(b, 16):#x}" for a, b in pairs)}
        except ValueError:  # a state file of another version
            return {}

    def _is_milder(self, seen: FaultSighting) -> bool:
        """Whether it is less severe than the latched fault: one NVLink 5 code has many meanings."""
        words = self.details.get("severity"), seen.details.get("severity")
        return words == ("fatal", "non-fatal")

    @property
    def weight(self) -> int:
        """Bytes that it takes at most in a message, without its text and its history."""
        names = (self.code, self.check, self.component, self.boot_id, self.source)
        return sum(map(_size, names)) + details_size(self.details) + _REST

    def line(self) -> bytes:
        """The fault's line of the digest; docs/contract.md fixes the bytes."""
        identity = (self.boot_id, self.source, str(self.source_seq), str(self.count))
        return "\x1f".join(("f", self.code, self.component, *identity)).encode() + b"\n"

    def trim(self) -> None:
        """Forget occurrences of more than a policy window before the latest.

        The window ends at the latest occurrence and not now: the occurrences that made the fault
        count must not be forgotten while it is latched.
        """
        while len(self.occurrences) > 1 and self.occurrences[0] < self.last - WINDOW:
            del self.occurrences[0]


def details_size(details: Mapping[str, str]) -> int:
    """Bytes that a fault's details take at most in a message."""
    return _size("".join((*details, *details.values()))) + 8 * len(details)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
