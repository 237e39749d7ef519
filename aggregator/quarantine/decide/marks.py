"""What sickbay writes on a node, and how it is undone. Pure.

We undo only what we did: the annotation `DID` says what that was. A release always changes the
node, even where nothing is left to undo, so that a late writer with an older version fails.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aggregator.quarantine.cluster import Node, NodeChange, Quarantine, Taint

TAINT = "sickbay.dev/quarantine"
LABEL = "sickbay.dev/quarantined"
CODES = "sickbay.dev/codes"
DID = "sickbay.dev/did"
OVERRULED = "sickbay.dev/overruled"
RELEASED = "sickbay.dev/released"

#: A label value of Kubernetes is at most 63 characters; annotations are bounded for people's sake.
_MOST_CODES = 16


@dataclass(frozen=True, slots=True)
class Overruled:
    """A person's word against an incident: its evidence, of one boot, acts no more."""

    boot_id: str = ""
    evidence: frozenset[tuple[str, str]] = frozenset()


def is_marked(node: Node) -> bool:
    """Whether our taint is on the node."""
    return any(taint.key == TAINT for taint in node.taints)


def cordon_change(node: Node, quarantine: Quarantine) -> NodeChange:
    """Taint, unschedulable, label and annotations in one patch."""
    ours = Taint(TAINT, quarantine.spec.kind, "NoSchedule")
    cordoned = not node.unschedulable or _did_cordon(node.annotations)
    codes = [f"{item.code}@{item.component}".rstrip("@") for item in quarantine.spec.evidence]
    return NodeChange(
        taints=(*(taint for taint in node.taints if taint.key != TAINT), ours),
        unschedulable=True,
        labels={LABEL: quarantine.spec.kind},
        annotations={
            CODES: ",".join(codes[:_MOST_CODES]) or quarantine.spec.kind,
            DID: json.dumps(
                {
                    "quarantine": quarantine.uid,
                    "incident": quarantine.spec.incident,
                    "unschedulable": cordoned,
                },
                sort_keys=True,
            ),
        },
    )


def undo_change(node: Node, quarantine_uid: str, overruled: Overruled | None) -> NodeChange:
    """Undo exactly ours; remember, where a person overruled us, what was overruled."""
    annotations: dict[str, str | None] = {
        CODES: None,
        DID: None,
        RELEASED: f"{quarantine_uid}@{node.version}",
    }
    if overruled is not None and overruled.evidence:
        earlier = read_overruled(node.annotations)
        if earlier.boot_id == overruled.boot_id:
            overruled = Overruled(overruled.boot_id, earlier.evidence | overruled.evidence)
        annotations[OVERRULED] = write_overruled(overruled)
    return NodeChange(
        taints=tuple(taint for taint in node.taints if taint.key != TAINT),
        unschedulable=False if node.unschedulable and _did_cordon(node.annotations) else None,
        labels={LABEL: None},
        annotations=annotations,
    )


def forgive_change(overruled: Overruled) -> NodeChange:
    """What is still overruled; nothing any more removes the annotation."""
    text = write_overruled(overruled) if overruled.evidence else None
    return NodeChange(annotations={OVERRULED: text})


def _did_cordon(annotations: Mapping[str, str]) -> bool:
    try:
        did = json.loads(annotations.get(DID, "{}"))
    except ValueError:
        return False
    return isinstance(did, dict) and did.get("unschedulable") is True


def read_overruled(annotations: Mapping[str, str]) -> Overruled:
    """The node's memory of a person's word. What can't be read counts as nothing overruled."""
    try:
        data = json.loads(annotations.get(OVERRULED, "{}"))
        evidence: Iterable[list[str]] = data.get("evidence", ())
        return Overruled(
            str(data.get("boot", "")),
            frozenset((str(code), str(component)) for code, component in evidence),
        )
    except (ValueError, TypeError, AttributeError):
        return Overruled()


def write_overruled(overruled: Overruled) -> str:
    return json.dumps(
        {"boot": overruled.boot_id, "evidence": sorted(map(list, overruled.evidence))},
        sort_keys=True,
    )
