"""What the latch holds per component and per fault: current, and a bounded past."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nodeagent.model import ClearedBy, Evidence, FaultSighting, Gone, Observation, Status

#: The longest policy window: what is older is of no use to anybody.
WINDOW = 86_400.0
#: Transitions kept per component, occurrences per fault. More than these within a day is flapping
#: or a burst, and a larger number would say no more.
TRANSITIONS = 64
OCCURRENCES = 32
#: Seconds. Of occurrences that come closer together the first and the last are kept: a job that
#: logs a hundred lines must not push out the job before it.
BURST = 30.0
#: A message longer than this is a log and not a message; it would swell every snapshot.
MESSAGE = 1000

ComponentKey = tuple[str, str]  # check, component
FaultKey = tuple[str, str]  # code, component

#: What each positive sign ends. Any other sign is passed on and ends nothing here.
ENDS: Mapping[str, frozenset[ClearedBy]] = {
    "gpu-reset": frozenset({ClearedBy.GPU_RESET, ClearedBy.EXPIRY}),
    "reboot": frozenset({ClearedBy.GPU_RESET, ClearedBy.EXPIRY, ClearedBy.REBOOT}),
    "expiry": frozenset({ClearedBy.EXPIRY}),
    "replaced": frozenset(ClearedBy),
    "operator": frozenset(ClearedBy),
}

#: From what ends the most easily to what ends hardest.
_HARDNESS = (ClearedBy.EXPIRY, ClearedBy.GPU_RESET, ClearedBy.REBOOT, ClearedBy.OPERATOR)


def in_utf8(item: Evidence | Gone) -> Evidence | Gone:
    """The item in text that the wire can carry: a mount point may be any bytes."""
    changes: dict[str, Any] = {}
    for name in item.__slots__:
        value = getattr(item, name)
        if isinstance(value, str) and _utf8(value) != value:
            changes[name] = _utf8(value)
    return replace(item, **changes) if changes else item


def _utf8(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


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
    #: Whole looks of its check in a row that did not name it.
    absent: int = 0

    @property
    def key(self) -> ComponentKey:
        return self.check, self.component

    @classmethod
    def first(cls, seen: Observation, now: float) -> "ComponentEntry":
        message = seen.message[:MESSAGE]
        recent = [(seen.status, now)]
        return cls(seen.check, seen.component, seen.status, seen.reason, message, now, recent)

    def line(self) -> bytes:
        """The component's line of the digest; docs/contract.md fixes the bytes."""
        parts = ("c", self.check, self.component, str(int(self.status)), self.reason)
        return "\x1f".join(parts).encode() + b"\n"

    def trim(self, now: float) -> None:
        """Forget transitions that no policy window reaches, but for how it was at its start."""
        del self.recent[:-TRANSITIONS]
        while len(self.recent) > 1 and self.recent[1][1] < now - WINDOW:
            del self.recent[0]


@dataclass(slots=True)
class FaultEntry:
    """One latched fault: the identity of its first occurrence, the details of its latest.

    Times are boottime seconds. They are negative for what an earlier boot saw: then they say "at
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
            message=seen.message[:MESSAGE],
            boot_id=boot_id,
            source=seen.source,
            source_seq=seen.source_seq,
            first=seen.at,
            last=seen.at,
            last_seq=seen.source_seq,
            cleared_by=seen.cleared_by,
            historical=seen.historical,
            details=_details(seen),
            occurrences=[seen.at],
        )

    def again(self, seen: FaultSighting) -> bool:
        """Take in one more occurrence; true when it now takes more to end the fault."""
        self.count += 1
        self.last = seen.at
        self.last_seq = seen.source_seq
        if not self._is_milder(seen):
            self.message = seen.message[:MESSAGE]
            self.details = _details(seen)
        if len(self.occurrences) > 1 and seen.at - self.occurrences[-2] < BURST:
            self.occurrences[-1] = seen.at
        else:
            self.occurrences.append(seen.at)
            del self.occurrences[:-OCCURRENCES]
        harder = _HARDNESS.index(seen.cleared_by) > _HARDNESS.index(self.cleared_by)
        if harder:
            self.cleared_by = seen.cleared_by
        return harder

    def _is_milder(self, seen: FaultSighting) -> bool:
        """Whether it says less than what is latched: one NVLink 5 code has many meanings."""
        words = self.details.get("severity"), seen.details.get("severity")
        return words == ("fatal", "non-fatal")

    def line(self) -> bytes:
        """The fault's line of the digest; docs/contract.md fixes the bytes."""
        identity = (self.boot_id, self.source, str(self.source_seq), str(self.count))
        return "\x1f".join(("f", self.code, self.component, *identity)).encode() + b"\n"

    def trim(self) -> None:
        """Forget occurrences of more than a policy window before the latest.

        Not before now: what made the fault count must not be forgotten while it is latched.
        """
        while len(self.occurrences) > 1 and self.occurrences[0] < self.last - WINDOW:
            del self.occurrences[0]


def _details(seen: FaultSighting) -> dict[str, str]:
    return {_utf8(key): _utf8(value)[:MESSAGE] for key, value in seen.details.items()}
