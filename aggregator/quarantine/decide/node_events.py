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

HELD, DRAINING, DRAINED = "Held", "Draining", "Drained"
#: The actions of Events: about a quarantine that may not begin, or not become a drain; about a
#: drain; about the repairs and the tests of a node.
_BEFORE, DRAIN, _REPAIR = "Quarantine", "Drain", "Repair"
#: The transitions that are reported: the reason and the action of each one's Event, and whether it
#: is a warning.
REASONS: Mapping[EventKind, tuple[str, str, bool]] = {
    EventKind.HELD: (HELD, _BEFORE, True),
    EventKind.SUPPRESSED: ("ObservedOnly", _BEFORE, False),
    # The first pod that left: the drain of a node without pods costs one Event.
    EventKind.MOVED: (DRAINING, DRAIN, False),
    EventKind.FORCED: (DRAINING, DRAIN, False),
    EventKind.BLOCKED: ("DrainBlocked", DRAIN, True),
    EventKind.OVERDUE: ("DrainOverdue", DRAIN, True),
    EventKind.DRAINED: (DRAINED, DRAIN, False),
    EventKind.REPAIR_ORDERED: ("RepairOrdered", _REPAIR, False),
    EventKind.REPAIR_ENDED: ("RepairEnded", _REPAIR, False),
    EventKind.REPAIR_EXHAUSTED: ("RepairExhausted", _REPAIR, True),
    EventKind.NEW_NODE_HELD: ("TestExhausted", _REPAIR, True),
}
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
    reason, action, warning = REASONS.get(transition.kind, ("", "", False))
    if quarantine is not None and quarantine.status.node_uid and not quarantine.foreign:
        node_uid = quarantine.status.node_uid
    if not reason or not node_uid:
        return None
    if action == _BEFORE:
        uid = quarantine.uid if quarantine is not None and not quarantine.foreign else ""
        about = uid, transition.incident, transition.details.get("limit", "")
    elif transition.details.get("reason") in (NEW_NODE, IDLE):
        about = "", "", transition.details.get("operation", "")
    elif action == _REPAIR:
        if quarantine is None or quarantine.foreign:
            return None
        # The end of a ladder has no operation, and comes once in a quarantine.
        about = quarantine.uid, "", transition.details.get("operation", "")
    elif quarantine is None or quarantine.status.phase not in (Phase.DRAINING, Phase.DRAINED):
        return None
    elif transition.kind is EventKind.BLOCKED and quarantine.status.phase is Phase.DRAINED:
        return None  # pods that came after the drain
    else:
        about = quarantine.uid, "", str(quarantine.status.drain_started_at)
    return NodeEvent(
        name=_name(transition.node, node_uid, reason, *about),
        node=transition.node,
        node_uid=node_uid,
        quarantine_uid=about[0],
        reason=reason,
        action=action,
        note=transition.summary,
        warning=warning or transition.details.get("outcome") in _WENT_WRONG,
        at=transition.at,
    )


def _name(node: str, *parts: str) -> str:
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return f"{node[:200].rstrip('.-')}.{digest}"
