"""A site's choices about the marks that a quarantine sets on a node. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from aggregator.cluster.node_names import KEPT, TAINT, own_annotations
from aggregator.cluster.port import AppliedChanges, NodeChange, Taint
from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import LabelKey, refuse, shaped, show

#: cluster-autoscaler and Karpenter do not remove a node that has theirs at "true".
SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
KEEPING = (SCALE_DOWN_DISABLED, DO_NOT_DISRUPT)
_KEPT = "true"
_SAID = "sickbay: "
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
    """The taint. An empty ``value`` stands for the quarantine's kind: gpu, disk, network, ..."""

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


def notices_change(
    present: Mapping[str, str], rules: MarkRules, reason: str
) -> dict[str, str | None]:
    """The annotations for other tools to set. One that another has set is left as it is."""
    known = own_annotations(present)
    texts = dict.fromkeys(KEEPING, _KEPT) if rules.keep_from_autoscalers else {}
    if rules.reason_annotation:
        texts[rules.reason_annotation] = f"{_SAID}{reason}"[:_MOST_REASON]
    new = {key: text for key, text in texts.items() if key not in present}
    if not new:
        return {}
    return {**new, KEPT: ",".join((*(key for key in known if key not in new), *new))}


def without_notices(change: NodeChange) -> NodeChange | None:
    """The change without annotations for other tools, set or removed; None if it has none."""
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
        if (text := present.get(key, "")) == _KEPT or text.startswith(_SAID)
    }
    return {**ours, KEPT: None}
