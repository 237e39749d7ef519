"""Which transitions are told as Kubernetes Events, and the name of each Event. Pure.

The name follows from durable facts (the quarantine and its drain, or the incident), so the API
server refuses a second Event of one transition, of whichever replica and however often restarted.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.cluster.port import NodeEvent, Phase, Quarantine
from aggregator.configfile.section import SectionDataclass
from aggregator.events import EventKind, Transition

HELD, OBSERVED_ONLY = "Held", "ObservedOnly"
DRAINING, DRAIN_BLOCKED, DRAIN_OVERDUE, DRAINED = (
    "Draining",
    "DrainBlocked",
    "DrainOverdue",
    "Drained",
)
#: Each reason's transitions.
REASONS: Mapping[EventKind, str] = {
    EventKind.HELD: HELD,
    EventKind.SUPPRESSED: OBSERVED_ONLY,
    EventKind.DRAINING: DRAINING,
    EventKind.BLOCKED: DRAIN_BLOCKED,
    EventKind.OVERDUE: DRAIN_OVERDUE,
    EventKind.DRAINED: DRAINED,
}
#: About a quarantine that may not begin, or not become a drain; the others are about a drain.
_BEFORE = frozenset({HELD, OBSERVED_ONLY})
_WARNINGS = frozenset({HELD, DRAIN_BLOCKED, DRAIN_OVERDUE})


@dataclass(frozen=True, slots=True)
class EventRules(SectionDataclass):
    """The section ``events``. ``observe``: Events are written in mode observe too, which else
    writes nothing.
    """

    observe: bool = False


def event_of(
    transition: Transition, node_uid: str, quarantine: Quarantine | None
) -> NodeEvent | None:
    """The Event that tells of the transition, or None where none does.

    ``quarantine`` is the node's, as it stands now. The uid that it recorded with its taint counts
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
        action="Quarantine" if reason in _BEFORE else "Drain",
        note=transition.summary,
        warning=reason in _WARNINGS,
        at=transition.at,
    )


def _name(node: str, *parts: str) -> str:
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return f"{node[:200].rstrip('.-')}.{digest}"
