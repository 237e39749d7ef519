"""Which transitions are reported as Kubernetes Events, and the name of each Event. Pure.

The name follows from durable facts (the quarantine and its drain or repair, or the incident). So
the API server refuses a second Event of one transition, from any replica and after any number of
restarts.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.cluster.port import NodeEvent, Phase, Quarantine, RepairState
from aggregator.configfile.section import SectionDataclass
from aggregator.events import EventKind, Transition
from aggregator.quarantine.decide.node_tests import IDLE, NEW_NODE

HELD, OBSERVED_ONLY = "Held", "ObservedOnly"
DRAINING, DRAIN_BLOCKED, DRAIN_OVERDUE, DRAINED = (
    "Draining",
    "DrainBlocked",
    "DrainOverdue",
    "Drained",
)
REPAIR_ORDERED, REPAIR_ENDED, REPAIR_EXHAUSTED = "RepairOrdered", "RepairEnded", "RepairExhausted"
TEST_EXHAUSTED = "TestExhausted"
#: Each reason's transitions.
REASONS: Mapping[EventKind, str] = {
    EventKind.HELD: HELD,
    EventKind.SUPPRESSED: OBSERVED_ONLY,
    EventKind.DRAINING: DRAINING,
    EventKind.BLOCKED: DRAIN_BLOCKED,
    EventKind.OVERDUE: DRAIN_OVERDUE,
    EventKind.DRAINED: DRAINED,
    EventKind.REPAIR_ORDERED: REPAIR_ORDERED,
    EventKind.REPAIR_ENDED: REPAIR_ENDED,
    EventKind.REPAIR_EXHAUSTED: REPAIR_EXHAUSTED,
    EventKind.NEW_NODE_HELD: TEST_EXHAUSTED,
}
#: About a quarantine that may not begin, or not become a drain.
_BEFORE = frozenset({HELD, OBSERVED_ONLY})
#: About the repairs in a quarantine; the others are about a drain.
_REPAIRS = frozenset({REPAIR_ORDERED, REPAIR_ENDED, REPAIR_EXHAUSTED})
_WARNINGS = frozenset({HELD, DRAIN_BLOCKED, DRAIN_OVERDUE, REPAIR_EXHAUSTED, TEST_EXHAUSTED})
_WENT_WRONG = frozenset(
    {RepairState.FAILED.value, RepairState.UNKNOWN.value, RepairState.INCONCLUSIVE.value}
)


@dataclass(frozen=True, slots=True)
class EventRules(SectionDataclass):
    """The section ``events``. ``observe``: Events are written in mode observe too, which else
    writes nothing.
    """

    observe: bool = False
    """In mode ``observe``, too, write Events (docs/public-names.md#kubernetes-events) about nodes
    that would be quarantined (``ObservedOnly``). The other modes always do.
    """


def event_of(
    transition: Transition, node_uid: str, quarantine: Quarantine | None
) -> NodeEvent | None:
    """The Event that reports the transition, or None where none does.

    ``quarantine`` is the node's, as it is now. The uid that it recorded with its taint counts
    before ``node_uid``: a node that joined after the last list of nodes is in no list yet.
    """
    reason = REASONS.get(transition.kind, "")
    if quarantine is not None and quarantine.status.node_uid and not quarantine.foreign:
        node_uid = quarantine.status.node_uid
    if not reason or not node_uid:
        return None
    if reason in _BEFORE:
        uid = quarantine.uid if quarantine is not None and not quarantine.foreign else ""
        about = uid, transition.incident, transition.details.get("limit", "")
    elif transition.details.get("reason") in (NEW_NODE, IDLE):
        about = "", "", transition.details.get("operation", "")
    elif reason in _REPAIRS:
        if quarantine is None or quarantine.foreign:
            return None
        # The end of a ladder has no operation, and comes once in a quarantine.
        about = quarantine.uid, "", transition.details.get("operation", "")
    elif quarantine is None or quarantine.status.phase not in (Phase.DRAINING, Phase.DRAINED):
        return None
    elif reason == DRAIN_BLOCKED and quarantine.status.phase is Phase.DRAINED:
        return None  # pods that came after the drain
    else:
        about = quarantine.uid, "", str(quarantine.status.drain_started_at)
    return NodeEvent(
        name=_name(transition.node, node_uid, reason, *about),
        node=transition.node,
        node_uid=node_uid,
        quarantine_uid=about[0],
        reason=reason,
        action=_action(reason),
        note=transition.summary,
        warning=reason in _WARNINGS or transition.details.get("outcome") in _WENT_WRONG,
        at=transition.at,
    )


def _action(reason: str) -> str:
    if reason in _REPAIRS or reason == TEST_EXHAUSTED:
        return "Repair"
    return "Quarantine" if reason in _BEFORE else "Drain"


def _name(node: str, *parts: str) -> str:
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return f"{node[:200].rstrip('.-')}.{digest}"
