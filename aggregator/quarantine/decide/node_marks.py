"""The marks that sickbay writes on a node, by a site's choices, and their undo. Pure.

We undo only our own changes: the annotation `APPLIED` records them,
and the Quarantine's status keeps a copy, because people remove annotations. Values that others had
set under our keys are kept there and set again by the undo. A release always changes the node, even
where no mark is left to undo, so that a late writer with an older version fails.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from aggregator.cluster.node_names import APPLIED, CODES, KEPT, LABEL, OVERRULED, RELEASED, TAINT
from aggregator.cluster.port import (
    Action,
    AppliedChanges,
    EvidenceItem,
    Node,
    NodeChange,
    Quarantine,
    QuarantineSpec,
    Taint,
)
from aggregator.cluster.words import KUBERNETES, ClusterWords
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import LabelKey, refuse, shaped, show
from aggregator.policy.evaluate import incident_id
from aggregator.quarantine.decide.gpu_operands import resume_change
from aggregator.quarantine.decide.intent import OURS
from aggregator.quarantine.decide.overrides import Override

#: cluster-autoscaler and Karpenter do not remove a node that has theirs at "true".
SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
KEEPING = (SCALE_DOWN_DISABLED, DO_NOT_DISRUPT)
_KEPT = "true"
_PREFIX = "sickbay: "
_MOST_REASON = 300

_EFFECTS = ("NoSchedule", "PreferNoSchedule")


def _own_key(value: str) -> str:
    domain = value.partition("/")[0] if "/" in value else ""
    if f".{domain}".endswith((".kubernetes.io", ".k8s.io", ".karpenter.sh")):
        owner = "Karpenter's" if domain.endswith("karpenter.sh") else "Kubernetes'"
        raise refuse(f'"{value}" is {owner} own', "a key of your own domain")
    return value


def _unused_key(value: str) -> str:
    """A reason under a key of ours would be read as a request, or replace a record."""
    if value.startswith("sickbay.dev/"):
        raise refuse(f'"{value}" is sickbay\'s own', "the key that the tool reads")
    return value


def _effect(value: object) -> str:
    if value == "NoExecute":
        what = '"NoExecute" has the cluster delete the pods, past disruption budgets and limits'
        raise refuse(what, '"NoSchedule" or "PreferNoSchedule"; mode drain evicts the pods')
    if value not in _EFFECTS:
        raise refuse(f"{show(value)} is no effect of a taint", '"NoSchedule" or "PreferNoSchedule"')
    return str(value)


@dataclass(frozen=True, slots=True)
class TaintRule(SectionDataclass):
    """The taint. An empty ``value`` means the quarantine's kind: gpu, disk, network, ..."""

    key: Annotated[LabelKey, Field(min_length=1), AfterValidator(_own_key)] = TAINT
    """The key of the taint. docs/coexistence.md#the-taint has the reasons for the defaults."""
    value: Annotated[
        str,
        shaped(
            r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?",
            'a taint\'s value, at most 63 of letters, digits, "-", "_" and ".", or "" for the kind',
        ),
    ] = ""
    """Its value. Empty: the quarantine's kind (``gpu``, ``disk``, ``network``, ``node``,
    ``manual``).
    """
    effect: Annotated[str, BeforeValidator(_effect)] = "NoSchedule"
    """``NoSchedule`` or ``PreferNoSchedule``."""

    def of(self, kind: str) -> Taint:
        """The taint of a quarantine of this kind."""
        return Taint(self.key, self.value or kind, self.effect)


@dataclass(frozen=True, slots=True)
class MarkRules(SectionDataclass):
    """A part of the section ``marks``: the taint, and annotations for other tools.

    ``keep_from_autoscalers``: a node in quarantine is not to be removed with the evidence on it.
    ``reason_annotation``: the key under which a tool reads why a node is cordoned; empty: none.
    """

    taint: TaintRule = field(default_factory=TaintRule)
    keep_from_autoscalers: bool = True
    """Annotate a node in quarantine so that cluster-autoscaler and Karpenter
    (docs/coexistence.md#autoscalers) do not remove it, with the evidence on it.
    """
    reason_annotation: Annotated[
        LabelKey, AfterValidator(_own_key), AfterValidator(_unused_key)
    ] = ""
    """The key of an annotation that gets the reason of the cordon, such as Slinky's
    ``nodeset.slinky.slurm.net/node-cordon-reason``. Empty: none.
    """


#: The taint of every version, and no other party's annotation.
PLAIN = MarkRules(keep_from_autoscalers=False)


def applied_taint(applied: AppliedChanges, kind: str = "") -> Taint:
    """The taint that we set, as our changes record it."""
    found = _parsed(applied.own_taint)
    return found if found is not None else PLAIN.taint.of(applied.value or kind)


def taint_text(taint: Taint, kind: str) -> str:
    """The part of a taint that `AppliedChanges` records; empty for the one of every version."""
    if taint == PLAIN.taint.of(kind):
        return ""
    return f"{taint.key}={taint.value}:{taint.effect}"


def _parsed(text: str) -> Taint | None:
    key, equals, rest = text.partition("=")
    value, colon, effect = rest.rpartition(":")
    return Taint(key, value, effect) if key and equals and colon and effect in _EFFECTS else None


def own_annotations(annotations: Mapping[str, str | None]) -> tuple[str, ...]:
    """The keys of other tools' annotations that we have set on the node, by our record there."""
    return tuple(key for key in (annotations.get(KEPT) or "").split(",") if key)


def notices_change(
    present: Mapping[str, str], rules: MarkRules, reason: str
) -> dict[str, str | None]:
    """The annotations for other tools to set. One that another has set is left as it is."""
    known = own_annotations(present)
    texts = dict.fromkeys(KEEPING, _KEPT) if rules.keep_from_autoscalers else {}
    if rules.reason_annotation:
        texts[rules.reason_annotation] = f"{_PREFIX}{reason}"[:_MOST_REASON]
    new = {key: text for key, text in texts.items() if key not in present}
    if not new:
        return {}
    return {**new, KEPT: ",".join((*(key for key in known if key not in new), *new))}


def without_notices(change: NodeChange) -> NodeChange | None:
    """The change without annotations for other tools, set or removed, or None if it has none."""
    own = {
        key: text
        for key, text in change.annotations.items()
        if key.startswith("sickbay.dev/") and key != KEPT
    }
    foreign = any(not key.startswith("sickbay.dev/") for key in change.annotations)
    return replace(change, annotations=own) if foreign else None


def undo_notices_change(present: Mapping[str, str]) -> dict[str, str | None]:
    """The undo. One that another has changed since is theirs."""
    if KEPT not in present:
        return {}
    ours: dict[str, str | None] = {
        key: None
        for key in own_annotations(present)
        if (text := present.get(key, "")) == _KEPT or text.startswith(_PREFIX)
    }
    return {**ours, KEPT: None}


#: Kubernetes' own label: cloud load balancers send the node no more traffic.
OFF_BALANCERS = "node.kubernetes.io/exclude-from-external-load-balancers"

#: A label value of Kubernetes is at most 63 characters; annotations are bounded for people's sake.
_MOST_CODES = 16
#: Pieces of evidence that a node remembers, of its quarantine and of overrides. An annotation of
#: Kubernetes is at most 256 KiB, all of a node's together.
_MOST_WORDS = 256
#: Of these in all, characters. A path, the longest component, may have 4,096.
_MOST_TEXT = 48 * 1024
_MOST_CODE = 300
#: Characters of a text whose content is remembered; most have half of it.
_SHORT = 2048
#: Characters of a person's reason that a node and the record remember.
MOST_REASON = 300
_EXCLUDED = "off_balancers"
#: Values that others had set under our keys.
_BEFORE = "before"
_OWN_TAINT = "own_taint"
_KINDS = frozenset({"gpu", "disk", "network", "node", "manual"})


def cordon_change(
    node: Node, quarantine: Quarantine, *, off_balancers: bool = False, rules: MarkRules = PLAIN
) -> NodeChange:
    """Taint, unschedulable, label and annotations in one patch.

    ``off_balancers``: a node that is to be drained is taken off the load balancers with it. Each
    further patch would move every pod that waits for a node in the scheduler's queue. ``rules``:
    the taint of a node that is not marked yet; a marked one keeps the taint that it has.
    """
    kind = quarantine.spec.kind
    known = known_applied(node, quarantine)
    ours = applied_taint(known, kind) if known is not None else rules.taint.of(kind)
    before = known or _found(node, quarantine, ours)
    drains = quarantine.spec.action is Action.DRAIN
    exclude = off_balancers and drains and OFF_BALANCERS not in node.labels
    applied = AppliedChanges(
        cordoned=not node.unschedulable or before.cordoned,
        value=kind,
        off_balancers=exclude or before.off_balancers,
        taint=before.taint,
        label=before.label,
        codes=before.codes,
        own_taint=taint_text(ours, kind),
    )
    codes = [f"{item.code}@{item.component}".rstrip("@") for item in quarantine.spec.evidence]
    return NodeChange(
        taints=(*(taint for taint in node.taints if not _same_place(taint, ours)), ours),
        unschedulable=True,
        labels={LABEL: kind, **({OFF_BALANCERS: ""} if exclude else {})},
        annotations={
            CODES: ",".join(code[:_MOST_CODE] for code in codes[:_MOST_CODES]) or kind,
            **notices_change(node.annotations, rules, quarantine.spec.reason),
            APPLIED: _annotation(quarantine, applied),
        },
    )


def adopt_change(quarantine: Quarantine, applied: AppliedChanges | None) -> NodeChange:
    """Existing marks belong to the quarantine from now on; the rest of the node does not change."""
    return NodeChange(annotations={APPLIED: _annotation(quarantine, applied)})


def _annotation(quarantine: Quarantine, applied: AppliedChanges | None) -> str:
    """Our changes, and all that is needed to make the Quarantine again."""
    spec = quarantine.spec
    rows = _rows(words_of(spec.evidence), _MOST_TEXT)
    origin = {(item.code, item.component): item for item in spec.evidence}
    rules = [origin[row[0], row[1]] for row in rows]
    by_hand = {
        "requester": spec.requester,
        "action": spec.action.value,
        "reason": spec.reason[:MOST_REASON],
    }
    return json.dumps(
        {
            "quarantine": quarantine.uid,
            **({"installation": spec.installation} if spec.installation else {}),
            "incident": spec.incident,
            **(_written(applied) if applied is not None else {"value": spec.kind}),
            "evidence": rows,
            **({"rules": [[item.rule, item.incident] for item in rules]} if rows else by_hand),
        },
        sort_keys=True,
    )


def _found(node: Node, quarantine: Quarantine, ours: Taint) -> AppliedChanges:
    """The changes by others before we marked the node, where no record of our own changes is left.

    All of our marks with this quarantine's value are ours: we died right after we had set them, and
    our annotation was removed since. The author of the cordon is unknown then, so it stays.
    """
    kind, codes = quarantine.spec.kind, node.annotations.get(CODES)
    taint, label = _value(node, ours), node.labels.get(LABEL)
    if taint == ours.value and label == kind and codes is not None:
        return AppliedChanges(cordoned=False)
    return AppliedChanges(cordoned=False, taint=taint, label=label, codes=codes)


def _same_place(taint: Taint, ours: Taint) -> bool:
    """Whether the taint has the place that ours takes: a node has one of each key and effect."""
    return (taint.key, taint.effect) == (ours.key, ours.effect)


def _value(node: Node, ours: Taint) -> str | None:
    """The value of the taint in our place."""
    return next((taint.value for taint in node.taints if _same_place(taint, ours)), None)


def read_applied(node: Node) -> AppliedChanges | None:
    """Our changes by the node's annotation, or None without a valid one."""
    data = _applied(node.annotations)
    cordoned = data.get("unschedulable")
    if not isinstance(cordoned, bool):
        return None
    before = data.get(_BEFORE)
    before = before if isinstance(before, dict) else {}
    value = data.get("value")
    return AppliedChanges(
        cordoned=cordoned,
        value=value if isinstance(value, str) else "",
        off_balancers=data.get(_EXCLUDED) is True,
        taint=_text(before.get("taint")),
        label=_text(before.get("label")),
        codes=_text(before.get("codes")),
        own_taint=_text(data.get(_OWN_TAINT)) or "",
    )


def known_applied(node: Node, quarantine: Quarantine | None) -> AppliedChanges | None:
    """Our changes to this Node, by its annotation, or as the Quarantine remembers them."""
    found = read_applied(node)
    if found is not None or quarantine is None or not _depends_on(node, quarantine):
        return found
    return quarantine.status.applied


def _depends_on(node: Node, quarantine: Quarantine) -> bool:
    """Whether the quarantine has marked this very Node, and has not undone it."""
    undone = node.annotations.get(RELEASED, "").startswith(f"{quarantine.uid}@")
    return quarantine.status.node_uid == node.uid and not undone


def applied_to_undo(
    node: Node, quarantine: Quarantine, rules: MarkRules = PLAIN
) -> AppliedChanges | None:
    """The changes that a release of the quarantine undoes on this Node.

    Where it marked the Node and no trace is left of how the Node was before, our marks are removed,
    with the taint of the ``rules``, and a cordon stays: it may be another's.
    """
    found = known_applied(node, quarantine)
    if found is None and quarantine.status.cordoned_at and _depends_on(node, quarantine):
        kind = quarantine.spec.kind
        return AppliedChanges(
            cordoned=False, value=kind, own_taint=taint_text(rules.taint.of(kind), kind)
        )
    return found


def _written(applied: AppliedChanges) -> dict[str, Any]:
    """The part of the annotation that `read_applied` reads."""
    before = {"taint": applied.taint, "label": applied.label, "codes": applied.codes}
    before = {key: text for key, text in before.items() if text is not None}
    return {
        "unschedulable": applied.cordoned,
        "value": applied.value,
        **({_EXCLUDED: True} if applied.off_balancers else {}),
        **({_BEFORE: before} if before else {}),
        **({_OWN_TAINT: applied.own_taint} if applied.own_taint else {}),
    }


def _text(found: Any) -> str | None:
    return found if isinstance(found, str) else None


def words_of(evidence: Iterable[EvidenceItem]) -> frozenset[Override]:
    """Overrides of all of this evidence that is not over yet."""
    return frozenset(
        Override(item.code, item.component, item.boot_id, item.cleared_by)
        for item in evidence
        if not item.cleared
    )


def marked_evidence(node: Node) -> frozenset[Override]:
    """The evidence that the node was marked for, as the marks themselves remember it."""
    return _words(_applied(node.annotations).get("evidence"))


def marked_for(annotations: Mapping[str, str]) -> str:
    """The installation that has marked the node; empty where the marks name none."""
    return _text(_applied(annotations).get("installation")) or ""


def marked_by(node: Node) -> str:
    """The uid of the Quarantine that the node was marked for; empty where that can't be read."""
    return _text(_applied(node.annotations).get("quarantine")) or ""


def spec_of_marks(node: Node) -> QuarantineSpec | None:
    """The intent of the node's marks, as they remember it, or None where they can't be read.

    One of ours comes back as a cordon: a drain is what its agent's evidence calls for, through the
    limits. One made by hand comes back as it was.
    """
    data, kind = _applied(node.annotations), _kind(node)
    rows = sorted(marked_evidence(node))
    if rows:
        origins = data.get("rules")
        origins = origins if isinstance(origins, list) and len(origins) == len(rows) else []
        boot_id = rows[0].boot_id
        incident = _text(data.get("incident")) or incident_id(node.name, boot_id, kind)
        evidence = tuple(
            EvidenceItem(word.code, word.component, word.boot_id, word.cleared_by, *origin)
            for word, origin in zip(
                rows, (_pair(one, incident) for one in origins or [None] * len(rows)), strict=True
            )
        )
        return QuarantineSpec(
            Action.CORDON,
            kind,
            f"marked for {rows[0].code}"[:_MOST_CODE],
            requester=OURS,
            incident=incident,
            boot_id=boot_id,
            evidence=evidence,
            intent_action=Action.CORDON,
        )
    requester = _text(data.get("requester"))
    if requester is None or requester == OURS:
        return None
    action = Action.DRAIN if data.get("action") == Action.DRAIN.value else Action.CORDON
    reason = (_text(data.get("reason")) or "")[:MOST_REASON].strip()
    return QuarantineSpec(action, kind, reason or "by hand", requester[:MOST_REASON])


def _kind(node: Node) -> str:
    value = _text(_applied(node.annotations).get("value")) or _value(node, PLAIN.taint.of("")) or ""
    return value if value in _KINDS else "manual"


def _pair(found: Any, incident: str) -> tuple[str, str]:
    """The rule and the incident of one piece of evidence."""
    if isinstance(found, list) and len(found) == 2 and all(isinstance(one, str) for one in found):
        return found[0], found[1] or incident
    return "", incident


def foreign_hands(
    node: Node, quarantine: Quarantine | None = None, words: ClusterWords = KUBERNETES
) -> str:
    """The other party whose cordon keeps work off the node, for people; empty without one."""
    applied = known_applied(node, quarantine)
    if node.unschedulable and (applied is None or not applied.cordoned):
        if applied is None and quarantine is not None and _depends_on(node, quarantine):
            return (
                f"its {APPLIED} is gone, so that it is not known whether it was closed to new "
                "work before; it stays closed when sickbay lets go"
            )
        return words.before_us
    return ""


def exclude_change(node: Node) -> NodeChange | None:
    """The change that takes a marked node off the load balancers; no change if it is off.

    For a cordon that becomes a drain: `cordon_change` does it where a drain is wanted at once.
    """
    applied = _applied(node.annotations)
    if OFF_BALANCERS in node.labels or not applied:
        return None
    text = json.dumps({**applied, _EXCLUDED: True}, sort_keys=True)
    return NodeChange(labels={OFF_BALANCERS: ""}, annotations={APPLIED: text})


def undo_change(
    node: Node,
    quarantine_uid: str,
    applied: AppliedChanges | None,
    overruled: frozenset[Override] | None = None,
    *,
    uncordoned: bool = False,
    more: Mapping[str, str | None] | None = None,
) -> NodeChange:
    """Undo exactly the changes that we ``applied``; with None no change of ours is known.

    ``overruled`` is all that the node is to remember; with None its memory stays. ``more``:
    annotations that change in the same patch.

    ``uncordoned``: our cordon was undone by a person; if there is one now it is theirs.
    """
    annotations: dict[str, str | None] = {
        APPLIED: None,
        RELEASED: f"{quarantine_uid}@{node.version}",
        **undo_notices_change(node.annotations),
        **(more or {}),
    }
    if overruled is not None:
        annotations |= clear_overrides_change(overruled).annotations
    resumed = resume_change(node)
    if applied is None:
        return NodeChange(labels=resumed, annotations=annotations)
    annotations.setdefault(CODES, applied.codes)
    return NodeChange(
        taints=_undone(node.taints, applied),
        unschedulable=False if node.unschedulable and applied.cordoned and not uncordoned else None,
        labels={
            LABEL: applied.label,
            **({OFF_BALANCERS: None} if applied.off_balancers else {}),
            **resumed,
        },
        annotations=annotations,
    )


def _undone(taints: Iterable[Taint], applied: AppliedChanges) -> tuple[Taint, ...]:
    """The taints without ours, and with the one whose place ours had taken."""
    ours = applied_taint(applied)
    theirs = tuple(taint for taint in taints if not _same_place(taint, ours))
    return theirs if applied.taint is None else (*theirs, replace(ours, value=applied.taint))


def clear_overrides_change(overruled: frozenset[Override]) -> NodeChange:
    """Write the remaining overrides; without one, the annotation is removed."""
    text = write_overruled(overruled) if overruled else None
    return NodeChange(annotations={OVERRULED: text})


def read_overruled(annotations: Mapping[str, str]) -> frozenset[Override]:
    """The node's memory of overrides. An unreadable annotation counts as no override."""
    text = annotations.get(OVERRULED)
    return _words(_object(text).get("evidence")) if text else frozenset()


def is_readable_memory(annotations: Mapping[str, str]) -> bool:
    """Whether the memory of overrides can be read; an absent annotation can."""
    text = annotations.get(OVERRULED, "")
    rows = _object(text).get("evidence")
    return not text or (isinstance(rows, list) and bool(_words(rows)) == bool(rows))


def write_overruled(overruled: frozenset[Override]) -> str:
    """The annotation that `read_overruled` reads; bounded."""
    return json.dumps({"evidence": _rows(overruled, _MOST_TEXT)})


def _applied(annotations: Mapping[str, str]) -> Mapping[str, Any]:
    return _object(annotations.get(APPLIED) or "")


def _object(text: str) -> Mapping[str, Any]:
    """The JSON object in an annotation, or an empty one where an edit made it invalid."""
    return _parsed_once(text) if len(text) <= _SHORT else _parse(text)


@lru_cache(maxsize=1024)
def _parsed_once(text: str) -> Mapping[str, Any]:
    """The answer to a patch, its watch event and the next steps show the same text."""
    return _parse(text)


def _parse(text: str) -> Mapping[str, Any]:
    try:
        data = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _rows(words: Iterable[Override], most: int) -> list[list[str]]:
    """As many of the overrides as fit into ``most`` characters of an annotation."""
    rows, left = [], most
    for word in sorted(words)[:_MOST_WORDS]:
        row = [word.code, word.component, word.boot_id, word.cleared_by]
        size = len(json.dumps(row)) + 2
        if size <= left:
            rows.append(row)
            left -= size
    return rows


def _words(rows: Any) -> frozenset[Override]:
    try:
        return frozenset(
            Override(str(code), str(component), str(boot), str(kind))
            for code, component, boot, kind in rows or ()
        )
    except (ValueError, TypeError):
        return frozenset()
