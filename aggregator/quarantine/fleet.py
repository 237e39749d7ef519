"""The fleet in memory: what is known of each node now. Read by the page, written by the controller.

It can be lost: snapshots, Quarantine objects and the record bring all of it back.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from aggregator.health.node import NodeHealth
from aggregator.policy.incident import Incident
from aggregator.policy.lemons import Lemon
from aggregator.policy.network.verdict import Verdict
from aggregator.quarantine.cluster import NodeMeta, Quarantine
from aggregator.quarantine.decide.blame import CommonCause
from aggregator.quarantine.decide.words import Word
from aggregator.sharing import NOTHING


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a proposal may not be carried out now: the limit by name, and what it is set to."""

    limit: str
    value: str
    reason: str
    since: float  # wall clock seconds
    cause: str = ""  # the id of the common cause, where that is why


class Standing(enum.StrEnum):
    """How a node stands, worst last; the page's colours."""

    OK = "ok"
    UNKNOWN = "unknown"  # no evidence yet, or only unknowns
    SILENT = "silent"  # its agent has gone quiet; what was failing stays in force
    WARNING = "warning"  # degraded, or an incident that is only observed
    HELD = "held"  # would be quarantined but for a hold or the mode
    QUARANTINED = "quarantined"


@dataclass(slots=True)
class Patient:
    """One node. ``incidents`` are open, by id; ``last_heard`` is monotonic, None for never."""

    node: str
    meta: NodeMeta | None = None
    health: NodeHealth | None = None
    attached: bool = False
    last_heard: float | None = None
    conflict: str = ""
    incidents: Mapping[str, Incident] = field(default_factory=lambda: NOTHING)  # replaced only
    hold: Hold | None = None
    would: str = ""  # what the mode keeps us from doing
    quarantine: Quarantine | None = None
    in_record: bool = False
    overruled: frozenset[Word] = frozenset()  # what a person has overruled
    foreign: str = ""  # cordoned by somebody else, being maintained: shown, left alone
    maintained: str = ""  # who else is at work on the node; nothing is begun beside them
    last_error: str = ""
    wishes: tuple[str, ...] = ()  # what people ask of it in its annotations, in sentences
    exempt: bool = False  # people want it left alone now
    spared: str = ""  # why people keep us from doing what would be done; empty: they don't
    release_held: str = ""  # its cause is over, and this speaks against its release

    def standing(self) -> Standing:
        if self.quarantine is not None:
            return Standing.QUARANTINED
        if self.hold is not None or self.would:
            return Standing.HELD
        if self.health is None:
            return Standing.UNKNOWN
        if not self.attached:
            return Standing.SILENT
        if self.incidents or self.health.worst_is_degraded():
            return Standing.WARNING
        return Standing.UNKNOWN if self.health.only_unknown() else Standing.OK


@dataclass(slots=True)
class Fleet:
    """All patients by node name, and the state of the whole."""

    patients: dict[str, Patient] = field(default_factory=dict)
    mode: str = "observe"
    how: str = ""  # what a command of `sickbay` needs besides, to act here; begins with a space
    stop: str = ""  # the stop switch's reason; empty: not stopped
    clock_doubt: str = ""  # why the wall clock is not believed now; empty: it is
    view_lost: str = ""  # why the cluster's news is not known; empty: it is
    in_company: bool = False  # that is because others are at work: this replica has not begun
    record_entries: int = 0
    limits: Mapping[str, str] = field(default_factory=dict)
    waiting_for_quorum: str = ""
    incomplete: str = ""  # what the leading replica has not been told, or that it is not reached
    lemons: tuple[Lemon, ...] = ()  # repeat offenders of the last weeks, worst first
    lemons_trouble: str = ""  # why they can't be looked for now
    causes: Mapping[str, CommonCause] = field(default_factory=dict)  # open common causes, by id
    cooling: str = ""  # until when nothing new is admitted, and why; empty: it is
    admitted_lately: int = 0  # within the limits' window
    network: Mapping[str, Verdict] = field(default_factory=dict)  # blamed now, by subject

    def doubt_clock(self, why: str) -> None:
        self.clock_doubt = why

    def patient(self, node: str) -> Patient:
        """The node's patient, made when there is none yet."""
        found = self.patients.get(node)
        if found is None:
            found = self.patients[node] = Patient(node)
        return found
