"""What happened, for history, alerts and the page: transitions, never levels."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aggregator.health.model import Delta, Hello, Snapshot


class Kind(enum.StrEnum):
    """What a transition is about. The values stand in the database and in webhooks."""

    INCIDENT_OPENED = "incident.opened"
    INCIDENT_CHANGED = "incident.changed"
    INCIDENT_CLOSED = "incident.closed"
    HELD = "quarantine.held"
    WOULD_ACT = "quarantine.would"  # the mode caps it: what would have been done
    ADMITTED = "quarantine.admitted"
    CORDONED = "quarantine.cordoned"
    DRAINING = "quarantine.draining"
    EVICTED = "pod.evicted"
    BLOCKED = "pod.blocked"
    FORCED = "pod.forced"  # deleted past its budgets, as its namespace's policy allows
    OVERDUE = "quarantine.overdue"  # a drain has passed its deadline
    HOOK = "quarantine.hook"  # a site's own step before the evictions, or after the release
    HOOK_FAILED = "quarantine.hook_failed"
    DRAINED = "quarantine.drained"
    RELEASING = "quarantine.releasing"
    RELEASED = "quarantine.released"
    OVERRULED = "quarantine.overruled"
    RELEASE_HELD = "quarantine.release_held"  # its cause is over, and something speaks against it
    WISHED = "node.wished"  # what people ask of a node in its annotations, or ask no more
    LEMON = "node.lemon"  # it comes back again and again
    AGENT_SILENT = "agent.silent"
    SILENT_FAILING = "agent.silent_failing"  # its kubelet is ready, its last evidence was failing
    AGENT_BACK = "agent.back"
    AGENT_CONFLICT = "agent.conflict"
    EVIDENCE_LOST = "evidence.lost"
    HISTORY_LOST = "history.lost"  # said by the history itself, in its timeline alone
    STOPPED = "fleet.stopped"
    RESUMED = "fleet.resumed"
    COMMON_CAUSE = "fleet.common-cause"
    COMMON_CAUSE_OVER = "fleet.common-cause-over"
    COOLDOWN = "fleet.cooldown"
    COOLDOWN_OVER = "fleet.cooldown-over"
    REPLICAS_APART = "fleet.replicas-apart"  # they don't confer, so little is admitted
    REPLICAS_TOGETHER = "fleet.replicas-together"
    NETWORK_BLAMED = "network.blamed"  # a target, or what several nodes share: no node
    NETWORK_CLEARED = "network.cleared"
    NODE_LOST = "network.node_lost"  # nobody reaches it, and its agent is silent
    NODE_FOUND = "network.node_found"


@dataclass(frozen=True, slots=True)
class Transition:
    """One thing that happened. ``at`` is wall clock seconds since the epoch, for people."""

    at: float
    kind: Kind
    node: str  # "" for the fleet
    summary: str  # a sentence that says what happened and why
    incident: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


class Ledger(Protocol):
    """Takes transitions. It must not block and must not raise: a lost history holds up nothing."""

    def note(self, transition: Transition) -> None: ...


class Witness(Protocol):
    """Takes down what the agents say, as the judgement heard it. Like a ledger, it holds up nothing
    and must not raise.
    """

    def greeted(self, hello: Hello) -> None: ...

    def told(self, node: str, told: Snapshot | Delta, at: float) -> None: ...

    def left(self, node: str) -> None: ...

    def anew(self, hello: Hello, told: Snapshot, at: float) -> None:
        """All that is known of the node, after a time in which nothing of it was taken down."""
        ...


class NoWitness:
    """Takes down nothing."""

    def greeted(self, hello: Hello) -> None: ...

    def told(self, node: str, told: Snapshot | Delta, at: float) -> None: ...

    def left(self, node: str) -> None: ...

    def anew(self, hello: Hello, told: Snapshot, at: float) -> None: ...
