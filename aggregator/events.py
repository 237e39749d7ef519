"""Events for history, alerts and the page: transitions, never levels."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aggregator.health.model import Delta, Hello, Snapshot


class EventKind(enum.StrEnum):
    """The kinds of transitions. The values are stored in the database and sent in webhooks."""

    INCIDENT_OPENED = "incident.opened"
    INCIDENT_CHANGED = "incident.changed"
    INCIDENT_CLOSED = "incident.closed"
    HELD = "quarantine.held"
    SUPPRESSED = "quarantine.suppressed"  # the mode caps it: the action that it prevented
    ADMITTED = "quarantine.admitted"
    CORDONED = "quarantine.cordoned"
    MARKS_MISSING = "quarantine.marks_missing"  # the node lacks ours in a quarantine in force
    MARKS_RESTORED = "quarantine.marks_restored"  # they are all there again
    DRAINING = "quarantine.draining"
    MOVED = "work.moved"  # a pod was evicted, or a drain command has succeeded
    BLOCKED = "work.blocked"
    FORCED = "work.forced"  # deleted past its budgets, as its namespace's policy allows
    JOB_HIT = "job.hit"  # a job has pods on a node with a new fault
    JOB_STOPPED = "job.stopped"  # the first of its pods was evicted: once for each incident
    OVERDUE = "quarantine.overdue"  # a drain has passed its deadline
    HOOK = "quarantine.hook"  # a site's own step before the evictions, or after the release
    HOOK_FAILED = "quarantine.hook_failed"
    DRAINED = "quarantine.drained"
    ADOPTED = "quarantine.adopted"  # our marks had lost their object, and it was made again
    NODE_ABSENT = "quarantine.node_absent"  # its Node is gone: it counts for no limit
    NODE_BACK = "quarantine.node_back"
    RELEASING = "quarantine.releasing"
    RELEASED = "quarantine.released"
    OVERRULED = "quarantine.overruled"
    RELEASE_HELD = "quarantine.release_held"  # its cause is over, and a check holds it
    UNCORDONED = "quarantine.uncordoned"  # no release: it is cordoned again, or left
    OVERRIDDEN = (
        "quarantine.overridden"  # a person set another action than was decided, or ended it
    )
    REPAIR_SUPPRESSED = "repair.suppressed"  # repair.mode is observe: the repair that it prevented
    REPAIR_ORDERED = "repair.ordered"
    REPAIR_ENDED = "repair.ended"  # with its outcome
    REPAIR_EXHAUSTED = "repair.exhausted"  # no further repair begins: a person has to act
    NEW_NODE_HELD = "node.test_exhausted"  # a new node keeps its startup taint: a person acts
    REQUESTED = "node.requested"  # operators' requests in a node's annotations, made or taken back
    LEMON = "node.lemon"  # its faults come back again and again
    AGENT_SILENT = "agent.silent"
    SILENT_FAILING = "agent.silent_failing"  # its kubelet is ready, its last evidence was failing
    AGENT_BACK = "agent.back"
    AGENT_CONFLICT = "agent.conflict"
    EVIDENCE_LOST = "evidence.lost"
    HISTORY_LOST = "history.lost"  # added by the history itself, in its timeline alone
    STOPPED = "fleet.stopped"
    RESUMED = "fleet.resumed"
    COMMON_CAUSE = "fleet.common_cause"
    COMMON_CAUSE_OVER = "fleet.common_cause_over"
    COOLDOWN = "fleet.cooldown"
    COOLDOWN_OVER = "fleet.cooldown_over"
    RECORD_LOST = "fleet.record_lost"  # deleted, rolled back, edited or unreadable: admission stops
    RECORD_WHOLE = "fleet.record_whole"
    NETWORK_BLAMED = "network.blamed"  # a target, or a domain of several nodes: no node
    NETWORK_CLEARED = "network.cleared"
    NODE_LOST = "network.node_lost"  # no other node reaches it, and its agent is silent
    NODE_FOUND = "network.node_found"


_BY_NAME = {kind.value: kind for kind in EventKind}


def kind_named(name: str) -> EventKind | None:
    """The kind of this name, or None for a kind that this version doesn't know."""
    return _BY_NAME.get(name)


@dataclass(frozen=True, slots=True)
class Transition:
    """One thing that happened. ``at`` is wall clock seconds since the epoch, for people."""

    at: float
    kind: EventKind
    node: str  # "" for the fleet
    summary: str  # a sentence that states what happened and why
    incident: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


class EventSink(Protocol):
    """Takes transitions. It must not block or raise: a lost history must hold up no action."""

    def record_event(self, transition: Transition) -> None: ...


class EvidenceRecording(Protocol):
    """Records the agents' evidence as evaluated. Like an event sink, it must not block or raise."""

    def record_hello(self, hello: Hello) -> None: ...

    def record_message(self, node: str, message: Snapshot | Delta, at: float) -> None: ...

    def record_disconnect(self, node: str) -> None: ...

    def forget_node(self, node: str) -> None:
        """Recorded evidence of the node is no base any more: its next report begins anew."""
        ...

    def restart_node(self, hello: Hello, snapshot: Snapshot, at: float) -> None:
        """All that is known of the node, after a time in which its evidence was not recorded."""
        ...


class ChangeNotice:
    """Whether a state of the fleet, as a text, has changed since it was last reported. It begins as
    empty: there is none.
    """

    def __init__(self) -> None:
        self._reported = ""

    def is_due(self, state: str) -> bool:
        """Whether to report it now; it then counts as reported."""
        before, self._reported = self._reported, state
        return state != before
