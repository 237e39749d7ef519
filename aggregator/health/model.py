"""One node's evidence, as the aggregator understands it.

Times are seconds of the aggregator's monotonic clock: the age that came with a message is
subtracted from the moment of its arrival. No node's wall clock is trusted.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache


class Status(enum.IntEnum):
    """The values are those of the wire."""

    OK = 1
    DEGRADED = 2
    FAILED = 3
    UNKNOWN = 4


class ClearedBy(enum.StrEnum):
    """The sign that ends a latched fault."""

    REBOOT = "reboot"
    GPU_RESET = "gpu_reset"
    EXPIRY = "expiry"
    OPERATOR = "operator"


@lru_cache(maxsize=2048)
def _one_key(check: str, component: str) -> tuple[str, str]:
    """The same tuple for the mounts and NICs that all nodes have: each is a key of many dicts."""
    return (check, component)


@dataclass(slots=True, unsafe_hash=True)
class Component:
    """Level evidence. ``recent`` are (time, status) transitions, oldest first.

    No field is changed. Forty come with each snapshot, and to make a frozen dataclass takes three
    times as long.
    """

    check: str
    component: str
    status: Status
    reason: str
    message: str
    since: float
    recent: tuple[tuple[float, Status], ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return _one_key(self.check, self.component)


@dataclass(frozen=True, slots=True)
class Fault:
    """A latched fault. Its identity is (boot_id, source, source_seq), of its first occurrence."""

    code: str
    check: str
    component: str
    message: str
    boot_id: str
    source: str
    source_seq: int
    first_at: float
    last_at: float
    count: int
    cleared_by: ClearedBy
    historical: bool = False
    details: Mapping[str, str] = field(default_factory=dict)
    occurrences: tuple[float, ...] = ()
    #: In force although a later snapshot of the same boot did not have it, which means lost
    #: evidence.
    missing: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return (self.code, self.component)


@dataclass(frozen=True, slots=True)
class Cleared:
    """The positive sign that a fault is over. An empty ``code``: every code of the component."""

    code: str
    component: str
    how: str


@dataclass(frozen=True, slots=True)
class Lost:
    source: str
    records: int
    message: str


@dataclass(frozen=True, slots=True)
class CheckOff:
    name: str
    interval: float
    off_because: str


@dataclass(frozen=True, slots=True)
class Hello:
    """The sender of a stream, authenticated by ingest: ``node`` is the name that the identity
    proves.
    """

    node: str
    boot_id: str
    spool_epoch: str
    agent_version: str
    contract_version: int
    instance: str
    checks: tuple[CheckOff, ...] = ()
    traits: Mapping[str, str] = field(default_factory=dict)
    node_uid: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The agent's whole state.

    ``gone`` are (check, component) that the aggregator has not acknowledged yet. ``partial``:
    entries were dropped on the way, so an entry that it lacks may exist.
    """

    components: tuple[Component, ...]
    faults: tuple[Fault, ...]
    cleared: tuple[Cleared, ...] = ()
    lost: tuple[Lost, ...] = ()
    quiesced_for: float = 0.0
    gone: tuple[tuple[str, str], ...] = ()
    partial: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredSeries:
    """One measurement of one part of a node. ``model`` distinguishes parts of different kinds."""

    measure: str
    component: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measurements of one stream: series that are new after ``known`` earlier ones, new values by
    number of their series, and the numbers of series without a value now.
    """

    known: int
    series: tuple[MeasuredSeries, ...]
    values: tuple[tuple[int, int], ...]
    absent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes since the last message of this stream. ``gone`` are (check, component)."""

    components: tuple[Component, ...] = ()
    faults: tuple[Fault, ...] = ()
    cleared: tuple[Cleared, ...] = ()
    lost: tuple[Lost, ...] = ()
    gone: tuple[tuple[str, str], ...] = ()
