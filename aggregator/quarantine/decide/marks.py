"""What sickbay writes on a node, and how it is undone. Pure.

We undo only what we did: the annotation `DID` says what that was. A release always changes the
node, even where nothing is left to undo, so that a late writer with an older version fails.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aggregator.quarantine.cluster import Action, EvidenceItem, Node, NodeChange, Quarantine, Taint
from aggregator.quarantine.decide.maintenance import maintained_by
from aggregator.quarantine.decide.words import Word

TAINT = "sickbay.dev/quarantine"
LABEL = "sickbay.dev/quarantined"
CODES = "sickbay.dev/codes"
DID = "sickbay.dev/did"
OVERRULED = "sickbay.dev/overruled"
RELEASED = "sickbay.dev/released"
#: Kubernetes' own: cloud load balancers send the node nothing any more.
OFF_BALANCERS = "node.kubernetes.io/exclude-from-external-load-balancers"

#: A label value of Kubernetes is at most 63 characters; annotations are bounded for people's sake.
_MOST_CODES = 16
#: Evidence that a node remembers, of its quarantine and of people's words. An annotation of
#: Kubernetes is at most 256 KiB, all of a node's together.
_MOST_WORDS = 256
#: Of these in all, characters. A path, the longest component, may have 4,096.
_MOST_TEXT = 48 * 1024
_MOST_CODE = 300
_EXCLUDED = "off_balancers"


def is_marked(node: Node) -> bool:
    """Whether anything of ours is on the node that a release takes away."""
    return (
        any(taint.key == TAINT for taint in node.taints)
        or LABEL in node.labels
        or DID in node.annotations
    )


def cordon_change(node: Node, quarantine: Quarantine, *, off_balancers: bool = False) -> NodeChange:
    """Taint, unschedulable, label and annotations in one patch.

    ``off_balancers``: a node that is to be drained is taken off the load balancers with it. Each
    further patch would move every pod that waits for a node in the scheduler's queue.
    """
    exclude = (
        off_balancers
        and quarantine.spec.action is Action.DRAIN
        and OFF_BALANCERS not in node.labels
    )
    ours = Taint(TAINT, quarantine.spec.kind, "NoSchedule")
    cordoned = not node.unschedulable or _did_cordon(node.annotations)
    codes = [f"{item.code}@{item.component}".rstrip("@") for item in quarantine.spec.evidence]
    return NodeChange(
        taints=(*(taint for taint in node.taints if taint.key != TAINT), ours),
        unschedulable=True,
        labels={LABEL: quarantine.spec.kind, **({OFF_BALANCERS: ""} if exclude else {})},
        annotations={
            CODES: ",".join(code[:_MOST_CODE] for code in codes[:_MOST_CODES])
            or quarantine.spec.kind,
            DID: json.dumps(
                {
                    "quarantine": quarantine.uid,
                    "incident": quarantine.spec.incident,
                    "unschedulable": cordoned,
                    **({_EXCLUDED: True} if exclude or _did_exclude(node) else {}),
                    "evidence": _rows(words_of(quarantine.spec.evidence)),
                },
                sort_keys=True,
            ),
        },
    )


def words_of(evidence: Iterable[EvidenceItem]) -> frozenset[Word]:
    """A person's word against all of this evidence that is not over yet."""
    return frozenset(
        Word(item.code, item.component, item.boot_id, item.cleared_by)
        for item in evidence
        if not item.cleared
    )


def stood_for(node: Node) -> frozenset[Word]:
    """The evidence that the node was marked for, as the marks themselves remember it."""
    return _words(_did(node.annotations).get("evidence"))


def foreign_hands(node: Node) -> str:
    """Who else keeps work off the node, for people; empty when nobody does."""
    maintained = maintained_by(node)
    if maintained:
        return maintained
    if node.unschedulable and not _did_cordon(node.annotations):
        return "it was cordoned before, and stays so when sickbay lets go"
    return ""


def exclude_change(node: Node) -> NodeChange | None:
    """Take a node that is marked off the load balancers; None where it is, by whomever.

    For a cordon that becomes a drain: `cordon_change` does it where a drain is wanted at once.
    """
    did = _did(node.annotations)
    if OFF_BALANCERS in node.labels or not did:
        return None
    text = json.dumps({**did, _EXCLUDED: True}, sort_keys=True)
    return NodeChange(labels={OFF_BALANCERS: ""}, annotations={DID: text})


def undo_change(
    node: Node,
    quarantine_uid: str,
    overruled: frozenset[Word] | None = None,
    *,
    uncordoned: bool = False,
    more: Mapping[str, str | None] | None = None,
) -> NodeChange:
    """Undo exactly ours. ``overruled`` is all that the node is to remember; None: as it does.

    ``more``: annotations that change in the same patch.

    ``uncordoned``: our cordon was undone by a person; if there is one now it is theirs.
    """
    ours = _did_cordon(node.annotations) and not uncordoned
    annotations: dict[str, str | None] = {
        CODES: None,
        DID: None,
        RELEASED: f"{quarantine_uid}@{node.version}",
        **(more or {}),
    }
    if overruled is not None:
        annotations |= forgive_change(overruled).annotations
    return NodeChange(
        taints=tuple(taint for taint in node.taints if taint.key != TAINT),
        unschedulable=False if node.unschedulable and ours else None,
        labels={LABEL: None, **({OFF_BALANCERS: None} if _did_exclude(node) else {})},
        annotations=annotations,
    )


def forgive_change(overruled: frozenset[Word]) -> NodeChange:
    """What is still overruled; nothing any more removes the annotation."""
    text = write_overruled(overruled) if overruled else None
    return NodeChange(annotations={OVERRULED: text})


def read_overruled(annotations: Mapping[str, str]) -> frozenset[Word]:
    """The node's memory of a person's word. What can't be read counts as nothing overruled."""
    return _words(_object(annotations.get(OVERRULED, "")).get("evidence"))


def write_overruled(overruled: frozenset[Word]) -> str:
    """The annotation that `read_overruled` reads; bounded."""
    return json.dumps({"evidence": _rows(overruled)})


def _did_exclude(node: Node) -> bool:
    return _did(node.annotations).get(_EXCLUDED) is True


def _did_cordon(annotations: Mapping[str, str]) -> bool:
    return _did(annotations).get("unschedulable") is True


def _did(annotations: Mapping[str, str]) -> dict[str, Any]:
    return _object(annotations.get(DID, ""))


def _object(text: str) -> dict[str, Any]:
    """The JSON object in an annotation, which anybody may have edited; else an empty one."""
    try:
        data = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _rows(words: Iterable[Word]) -> list[list[str]]:
    """As many of the words as an annotation may hold."""
    rows, left = [], _MOST_TEXT
    for word in sorted(words)[:_MOST_WORDS]:
        row = [word.code, word.component, word.boot_id, word.cleared_by]
        size = len(json.dumps(row)) + 2
        if size <= left:
            rows.append(row)
            left -= size
    return rows


def _words(rows: Any) -> frozenset[Word]:
    try:
        return frozenset(
            Word(str(code), str(component), str(boot), str(kind))
            for code, component, boot, kind in rows or ()
        )
    except (ValueError, TypeError):
        return frozenset()
