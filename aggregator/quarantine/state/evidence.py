"""A node's agent (its stream, its evidence, its silence), and the conclusions from its evidence."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from aggregator.health.model import Hello
from aggregator.health.node import NodeHealth
from aggregator.policy.incident import Incident
from aggregator.quarantine.decide.intent import DesiredState
from aggregator.runtime.interning import EMPTY


@dataclass(slots=True)
class AgentView:
    """Changed by the agent's events alone, and by a read that shows another Node of its name.

    ``last_heard``: monotonic seconds, None for never.
    ``conflict``: which two agents claim the node; empty: one at most does.
    ``refused``: why no snapshot of its agent was accepted; empty: the last one was.
    ``claimed``: the UID of the Node that the agent's identity proves; empty where it proves none.
    ``misnamed``: the node was read, and the known state is of another Node of its name.
    ``silent``: it was reported that the agent has been gone for too long.
    ``silent_failing``: the failing evidence when its agent fell silent, while its kubelet is ready,
    and ``silent_failing_since`` when that was found (monotonic).
    """

    health: NodeHealth | None = None
    attached: bool = False
    last_heard: float | None = None
    conflict: str = ""
    refused: str = ""
    claimed: str = ""
    misnamed: bool = False
    silent: bool = False
    silent_failing: str = ""
    silent_failing_since: float = 0.0

    @property
    def speaks(self) -> bool:
        """Its agent is attached, and its messages are accepted."""
        return self.attached and not self.refused

    @property
    def was_received(self) -> bool:
        """Its agent has sent a snapshot since this process started, and may be gone since."""
        return self.health is not None and self.health.has_snapshot

    @property
    def is_fresh(self) -> bool:
        """The agent is attached and has given its snapshot since."""
        return self.attached and self.was_received

    def connect(self, hello: Hello, now: float) -> None:
        """An authenticated stream said Hello; its snapshot follows."""
        if self.health is None:
            self.health = NodeHealth(hello)
        else:
            self.health.greet(hello)
        self.attached = True
        self.note_attempt(now)
        self.claimed, self.misnamed, self.silent_failing = hello.node_uid, False, ""

    def note_attempt(self, now: float) -> None:
        """The first sign of an agent, which counts as a report: from now on it can be silent."""
        if self.last_heard is None:
            self.last_heard = now

    def refuse(self, reason: str) -> None:
        """Its stream was refused, or ended before a snapshot of it was accepted."""
        self.refused = reason

    def note_message(self, at: float) -> None:
        """A message came, of whatever kind."""
        self.last_heard = at

    def accept_snapshot(self) -> bool:
        """Returns whether its silence was reported before, which is over now."""
        was_silent, self.silent, self.refused = self.silent, False, ""
        return was_silent

    def disconnect(self) -> None:
        self.attached = False

    def set_conflict(self, detail: str) -> None:
        """Two agents claim the node; empty: they do no more."""
        self.conflict = detail

    def note_silence(self) -> None:
        """Its silence is being reported."""
        self.silent = True

    def note_failing(self, evidence: str, now: float) -> None:
        """Its kubelet is ready, and this was failing when the agent fell silent."""
        self.silent_failing, self.silent_failing_since = evidence, now

    def compare_uid(self, node_uid: str | None) -> None:
        """The UID of the Node as just read, None for no Node, against the claimed one."""
        self.misnamed = node_uid is not None and self.claimed not in ("", node_uid)

    def compare_boot(self, boot_id: str) -> None:
        """The boot of the Node in place of the one that was released, against the evidence's."""
        self.misnamed = self.health is not None and self.health.boot_id != boot_id

    def discard(self) -> None:
        """Its evidence is of another Node of this name."""
        self.claimed, self.misnamed = "", False
        self.attached, self.refused = False, ""
        self.health = None


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

    def update(self, incidents: Mapping[str, Incident], wanted: DesiredState | None) -> None:
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
