"""The conclusions from a node's evidence: its incidents, the desired state, what prevents that."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from aggregator.policy.incident import Incident
from aggregator.quarantine.decide.intent import DesiredState
from aggregator.runtime.interning import EMPTY


@dataclass(frozen=True, slots=True)
class NodeHold:
    """Why a proposal may not be carried out now: the limit by name, and what it is set to."""

    limit: str
    value: str
    reason: str
    since: float  # wall clock seconds
    cause: str = ""  # the id of the common cause, where that is why


#: The hold of a quarantine whose status can't be read in whole: none of the limits.
UNREAD_STATUS = "unread-status"


@dataclass(slots=True)
class Decision:
    """Changed by each evaluation, and by the answers to proposals.

    ``incidents``: the open ones, by id; the mapping is replaced, never changed.
    ``wanted``: the desired quarantine. ``hold``: the limit that keeps it from admission.
    ``would``: the action that the mode, or an operator's request, prevents; ``spared``: the
    request that does.
    ``requests``: operators' requests, in sentences; ``exempt``: people want it left alone now.
    ``unreported``: ids of open incidents whose report waits until it is known whether the node's
    fabric is the cause; the set is replaced, never changed.
    ``timer`` evaluates the node again when time alone may change the result.
    """

    incidents: Mapping[str, Incident] = field(default_factory=lambda: EMPTY)
    wanted: DesiredState | None = None
    hold: NodeHold | None = None
    would: str = ""
    spared: str = ""
    requests: tuple[str, ...] = ()
    exempt: bool = False
    unreported: frozenset[str] = frozenset()
    timer: asyncio.TimerHandle | None = None

    def judge(self, incidents: Mapping[str, Incident], wanted: DesiredState | None) -> None:
        """The result of an evaluation."""
        self.incidents, self.wanted = incidents, wanted

    def take_incidents(self, incidents: Mapping[str, Incident]) -> None:
        """The incidents before the next evaluation, such as those that a Quarantine has."""
        self.incidents = incidents

    def forget_evidence(self) -> None:
        """There is no evidence any more; the next evaluation begins from none."""
        self.incidents, self.wanted, self.unreported = EMPTY, None, frozenset()

    def set_hold(self, hold: NodeHold | None) -> None:
        """The answer to a proposal; None: no limit holds it, or there is none any more."""
        self.hold = hold

    def defer_report(self, incident: str) -> None:
        """The incident is to be reported later."""
        self.unreported |= {incident}

    def take_deferred(self, incident: str) -> bool:
        """Whether the incident's report was deferred; it is no longer."""
        deferred = incident in self.unreported
        if deferred:
            self.unreported -= {incident}
        return deferred

    def set_prevented(self, would: str, spared: str) -> None:
        self.would, self.spared = would, spared

    def take_requests(self, requests: tuple[str, ...], *, exempt: bool) -> None:
        self.requests, self.exempt = requests, exempt

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        """The next evaluation by time, instead of the one that was set."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer
