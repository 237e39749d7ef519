"""The cluster's own objects as the API's answers, for when no aggregator answers. Pure.

A Quarantine has the reason, the evidence and the progress of its node; nodes without one are
unknown here, because health lives in the aggregator alone.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from aggregator.cli.attempts import attempt_answer, time_or_none
from aggregator.cli.tunnel import AggregatorPod
from aggregator.cluster.port import Quarantine, RepairStatus
from aggregator.quarantine.decide.operator_requests import describe, read_operator_requests
from aggregator.quarantine.decide.unreadable_annotations import unreadable_annotations

#: The value of "source" in answers that are made here.
SOURCE = "cluster"
_ADVICE = "docs/runbook.md; the aggregator's own advice is missing while it does not answer"

#: Fields that the answers have from the objects, by the same names.
_TIMES = (
    *("admitted_at", "cordoned_at", "drain_started_at", "drained_at", "deadline_at", "overdue_at"),
    "node_absent_since",
)
_TEXTS = ("released_because", "release_held", "override", "uncordoned", "overruled")
_OF_EVIDENCE = ("code", "component", "rule", "message", "cleared_by")


def quarantine_answer(found: Quarantine) -> dict[str, Any]:
    """One item of /api/v1/quarantines."""
    spec, status = found.spec, found.status
    marks = status.marks
    return {
        "node": found.node,
        "action": spec.action.value,
        "kind": spec.kind,
        "phase": status.phase.value,
        "phase_since": time_or_none(found.phase_since),
        "reason": spec.reason,
        "requester": spec.requester,
        "incident": spec.incident,
        "message": found.problem or found.unread or status.message,
        "created_at": time_or_none(found.created_at),
        **{name: time_or_none(getattr(status, name)) for name in _TIMES},
        "pre_evict": str(status.pre_evict or ""),
        "pods_remaining": status.pods_remaining,
        "blockers": [
            {"pod": one.pod, "reason": one.reason, "since": time_or_none(one.since)}
            for one in status.blockers
        ],
        **{name: getattr(status, name) for name in _TEXTS},
        "unmarked": f"the node lacks {', '.join(marks.missing)}" if marks and marks.missing else "",
        "unmarked_since": time_or_none(marks.since) if marks else None,
        "agent": "unknown",
        "last_error": "",
        "evidence": [
            {
                **{name: getattr(one, name) for name in _OF_EVIDENCE},
                "device": "",
                "action": "",
                "since": None,
                "lost": False,
                "over": one.cleared,
            }
            for one in spec.evidence
        ],
        "advice": _ADVICE,
        "repair": _repair(status.repair),
        "uid": found.uid,
    }


def _repair(found: RepairStatus) -> dict[str, Any] | None:
    """Without the mode, the ladder and the repairers, which the aggregator's configuration has."""
    if found == RepairStatus():
        return None
    return {
        "mode": "",
        "ladder": [],
        "repairers": [],
        "attempts": [attempt_answer(one) for one in found.attempts],
        "requested": ", ".join(f"{one.what} ({one.name})" for one in found.requests),
        "waits": found.exhausted or found.held,
        "exhausted": found.exhausted,
        "exhausted_at": time_or_none(found.exhausted_at),
    }


def quarantines_answer(found: Collection[Quarantine]) -> dict[str, Any]:
    """/api/v1/quarantines."""
    items = [quarantine_answer(one) for one in sorted(found, key=lambda one: one.node)]
    return {"source": SOURCE, "items": items, "total": len(items), "view_lost": ""}


def nodes_answer(found: Collection[Quarantine]) -> dict[str, Any]:
    """/api/v1/nodes, of the nodes in quarantine alone."""
    items: list[dict[str, Any]] = [
        {
            "node": one.node,
            "state": "quarantined",
            "agent": "unknown",
            "last_seen": None,
            "why": f"{one.status.phase}: {one.spec.reason}",
            "exempt": False,
            "requests": [],
        }
        for one in sorted(found, key=lambda one: one.node)
    ]
    return {"source": SOURCE, "items": items, "total": len(items), "next": ""}


def node_answer(
    name: str, node: Mapping[str, Any] | None, found: Quarantine | None, wall: float
) -> dict[str, Any]:
    """/api/v1/nodes/NAME. ``node``: the Node object, or None where it is not known."""
    meta = (node or {}).get("metadata") or {}
    spec = (node or {}).get("spec") or {}
    annotations = meta.get("annotations") or {}
    requests = read_operator_requests(annotations)
    why = f"{found.status.phase}: {found.spec.reason}" if found is not None else ""
    return {
        "source": SOURCE,
        "node": name,
        "uid": meta.get("uid", ""),
        "state": "quarantined" if found is not None else "unknown",
        "why": why or "it is not in quarantine; its health is known to the aggregator alone",
        "agent": "unknown",
        "last_seen": None,
        "agent_version": "",
        "pool": "",
        "mode": "",
        "read_at": None,
        "new_node": None,
        "operations": None,
        "boot_id": ((node or {}).get("status") or {}).get("nodeInfo", {}).get("bootID", ""),
        "conflict": "",
        "foreign": "" if found is not None or not spec.get("unschedulable") else "it is cordoned",
        "last_error": "",
        "labels": dict(meta.get("labels") or {}),
        "traits": {},
        "incidents": [],
        "quarantine": quarantine_answer(found) if found is not None else None,
        "hold": None,
        "would": "",
        "exempt": requests.exempt(wall),
        "requests": list(describe(requests, wall)),
        "unreadable": list(unreadable_annotations(name, annotations)),
        "overruled": [],
        "components": [],
        "faults": [],
        "checks": [],
        "lost": [],
        "timeline": [],
        "timeline_trouble": "the aggregator does not answer",
    }


def status_answer(
    trouble: str,
    stop: str | None,
    pods: Iterable[AggregatorPod],
    quarantines: Collection[Quarantine],
) -> dict[str, Any]:
    """The cluster at a glance. ``stop``: the stop switch's reason, None where it can't be read."""
    phases = [one.status.phase.value for one in quarantines]
    return {
        "source": SOURCE,
        "trouble": trouble,
        "stop": stop,
        "pods": [
            {"name": one.name, "phase": one.phase, "restarts": one.restarts, "why": one.why}
            for one in pods
        ],
        "quarantines": len(phases),
        "phases": {phase: phases.count(phase) for phase in sorted(set(phases))},
    }
