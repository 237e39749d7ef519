"""The agent's data model: the evidence that a check gives, and that the latch holds.

This module knows neither the wire nor the disk nor the clock. Times are seconds of CLOCK_BOOTTIME
(``clock.boottime``), which counts through suspend and restarts with the kernel. So a saved time
stays comparable across restarts of the agent within one boot.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import field

from nodeagent.dataclass import dataclass


class Status(enum.IntEnum):
    """A component's status by one check. The values are those of the wire."""

    OK = 1
    DEGRADED = 2
    FAILED = 3
    UNKNOWN = 4


#: The reason of an unknown result: a port or mount that may come up later after a boot. It is no
#: fault yet, and a job that starts now would miss it.
NOT_UP_YET = "not-up-yet"


class ClearedBy(enum.IntEnum):
    """The event that ends a latched fault. The values are those of the wire."""

    REBOOT = 1
    GPU_RESET = 2
    EXPIRY = 3
    OPERATOR = 4


@dataclass(frozen=True, slots=True)
class Observation:
    """Level evidence: one component's status as one check saw it now.

    ``component`` is a GPU UUID, a mount point, a NIC or a target; empty for the node as a whole.
    ``reason`` is one word that policy may match ("full", "hung", "missing"); ``message`` is for
    people and may change at every look without being a transition.
    """

    check: str
    component: str
    status: Status
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class FaultSighting:
    """One occurrence of an event that happens once, such as an Xid.

    ``source`` and ``source_seq`` with the boot id are its identity: seen again (a replay after a
    restart) it has no effect. ``at`` is in boottime seconds.
    """

    code: str
    check: str
    component: str
    message: str
    source: str
    source_seq: int
    at: float
    cleared_by: ClearedBy = ClearedBy.REBOOT
    historical: bool = False
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clearing:
    """The positive sign that ends latched faults: of ``code``, or of every code when empty."""

    component: str
    how: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    """Evidence that is lost for good: reported, never hidden.

    ``records`` 0 is "an unknown number".
    """

    source: str
    records: int
    message: str


Evidence = Observation | FaultSighting | Clearing | Loss


@dataclass(frozen=True, slots=True)
class Gone:
    """A component that no longer exists by a person's decision (unmounted, configured off)."""

    check: str
    component: str

    @property
    def key(self) -> tuple[str, str]:
        return self.check, self.component


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """A check as ``sickbay-agent checks`` and Hello show it; ``off_because`` is empty when on."""

    name: str
    interval: float
    off_because: str = ""


Batch = Sequence[Evidence | Gone]
