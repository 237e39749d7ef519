"""What the open incidents of a node ask for, and back: what a quarantine was made for. Pure.

Intent is what stands in a Quarantine's spec. It is written when it has changed in what matters, and
read again by whoever comes next: an aggregator that lost its memory starts from it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from aggregator.health.node import GONE, boot_ends
from aggregator.policy.incident import Evidence, Incident
from aggregator.policy.rules import ACTIONS, Policy
from aggregator.quarantine.cluster import Action, EvidenceItem, Quarantine, QuarantineSpec
from aggregator.quarantine.decide.words import clears

#: The requester of what we make ourselves.
OURS = "sickbay"
#: Characters of evidence that a Quarantine holds; etcd takes no object of more than 1.5 MiB. An
#: agent may tell of more than any machine has. What is left out is known as long as it speaks.
MOST_EVIDENCE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the open incidents of a node ask for, after the mode's cap and people's word.

    ``in_force`` is the most that evidence asks for which nothing has ended: an incident that is
    recovering keeps a quarantine, but begins none and evicts nobody.
    """

    spec: QuarantineSpec
    uncapped: Action
    in_force: Action


def unsaved(quarantine: Quarantine, wanted: Wanted | None) -> bool:
    """Whether the intent has changed, or a sign has come, that is not durable yet."""
    return (
        quarantine.spec.requester == OURS
        and wanted is not None
        and changed_intent(quarantine.spec, wanted) is not None
    )


def changed_intent(spec: QuarantineSpec, wanted: Wanted) -> QuarantineSpec | None:
    """The spec to write, or None when what is durable says it already.

    Written are a changed action, evidence that has come to it, and a fault's positive sign.
    Level evidence that comes and goes is not: that can be seen again, but for a component's end.

    The mode caps what is done, so it keeps an action from being raised. It lowers none: what was
    decided before stands, and is shown as it is; only evidence that asks for less lowers it.
    """
    raised = max(spec.action, wanted.spec.action, key=lambda action: action.strength)
    action = min(raised, wanted.uncapped, key=lambda action: action.strength)
    if action is spec.action and wanted.spec.evidence == spec.evidence:
        return None  # by far the most: asked before each step
    known = {(item.code, item.component): item for item in spec.evidence}
    merged = dict(known)
    for item in wanted.spec.evidence:
        key = (item.code, item.component)
        before = known.get(key)
        if before is None:
            merged[key] = item
        elif item.cleared != before.cleared:
            merged[key] = replace(before, cleared=item.cleared)
    old = tuple(item for key, item in merged.items() if key in known)
    evidence = old + _fitting((item for key, item in merged.items() if key not in known), old)
    if evidence == spec.evidence and action is spec.action:
        return None
    return replace(spec, evidence=evidence, action=action)


def wanted_of(
    incidents: Mapping[str, Incident],
    overruled: frozenset[tuple[str, str]],
    mode: Action,
    policy_hash: str,
) -> Wanted | None:
    """What the open incidents ask for together; None when none of them asks for anything.

    An incident that is recovering still asks: it ends by closing. One whose evidence in force a
    person has overruled asks for nothing.
    """
    asking = [
        incident
        for incident in incidents.values()
        if incident.action != "observe"
        and any(
            item.key not in overruled and item.action != "observe"
            for item in (incident.in_force or incident.evidence)
        )
    ]
    if not asking:
        return None
    lead = max(asking, key=lambda incident: (ACTIONS.index(_asks_for(incident)), -incident.since))
    uncapped = Action(_asks_for(lead))
    action = min(uncapped, mode, key=lambda a: a.strength)
    return Wanted(
        spec=QuarantineSpec(
            action=action,
            kind=lead.kind,
            reason=lead.summary,
            requester=OURS,
            incident=lead.id,
            boot_id=lead.boot_id,
            policy_hash=policy_hash,
            evidence=_fitting(
                _item(incident, evidence)
                for incident in asking
                for evidence in incident.evidence
                if evidence.action != "observe"
            ),
        ),
        uncapped=uncapped,
        in_force=max(
            (
                Action(item.action)
                for incident in asking
                for item in incident.in_force
                if item.key not in overruled
            ),
            key=lambda a: a.strength,
            default=Action.OBSERVE,
        ),
    )


def _fitting(
    items: Iterable[EvidenceItem], beside: Iterable[EvidenceItem] = ()
) -> tuple[EvidenceItem, ...]:
    """As many of the items, the first before the others, as an object takes beside those."""
    left = MOST_EVIDENCE - sum(_size(item) for item in beside)
    kept = []
    for item in items:
        size = _size(item)
        if size <= left:
            kept.append(item)
            left -= size
    return tuple(kept)


def _size(item: EvidenceItem) -> int:
    texts = (item.code, item.component, item.boot_id, item.rule, item.incident, item.message)
    return 128 + sum(map(len, texts))  # the fields' names, and what is short


def _asks_for(incident: Incident) -> str:
    """The most that its evidence asks for. What a check saw counts until the incident closes.

    Else a check that flaps beside weaker evidence would change the intent, which is written, each
    time. What may be done now is `Wanted.in_force`'s to say.
    """
    seen = [item.action for item in incident.evidence if item.over and item.cleared_by is None]
    return max((incident.action, *seen), key=ACTIONS.index)


def ended_by_birth(spec: QuarantineSpec, boot_id: str) -> bool:
    """Whether a new Node, in this boot, has nothing of what the quarantine stands on.

    Level evidence is of the machine as it was; its successor's agent tells how it is now.
    """
    return bool(boot_id) and all(
        item.cleared
        or (item.boot_id != boot_id and (not item.cleared_by or boot_ends(clears(item.cleared_by))))
        for item in spec.evidence
    )


def _item(incident: Incident, evidence: Evidence) -> EvidenceItem:
    return EvidenceItem(
        code=evidence.code,
        component=evidence.component,
        boot_id=evidence.boot_id,
        cleared_by=evidence.cleared_by.value if evidence.cleared_by is not None else "",
        rule=evidence.rule,
        incident=incident.id,
        message=evidence.message[:500],
        cleared=evidence.over if evidence.cleared_by is not None or evidence.over == GONE else "",
    )


def incidents_of(quarantine: Quarantine, policy: Policy, now: float) -> dict[str, Incident]:
    """The incidents that a quarantine of ours was made for, as far as it remembers them.

    What the aggregator starts from after it lost its memory: evidence in force until a positive
    sign, with ``healthy_for`` beginning again.
    """
    if quarantine.spec.requester != OURS:
        return {}
    rules = {rule.name: rule for rule in policy.rules}
    grouped: dict[str, list[EvidenceItem]] = {}
    for item in quarantine.spec.evidence:
        grouped.setdefault(item.incident, []).append(item)
    restored = {}
    for ident, items in grouped.items():
        known = [rules[item.rule] for item in items if item.rule in rules]
        evidence = tuple(
            Evidence(
                code=item.code,
                component=item.component,
                boot_id=item.boot_id,
                rule=item.rule,
                action=rules[item.rule].action
                if item.rule in rules
                else quarantine.spec.action.value,
                message=item.message,
                cleared_by=clears(item.cleared_by) if item.cleared_by else None,
                since=now,
                over=item.cleared,
            )
            for item in items
        )
        restored[ident] = Incident(
            id=ident,
            node=quarantine.node,
            boot_id=quarantine.spec.boot_id,
            kind=known[0].kind if known else quarantine.spec.kind,
            action=max((item.action for item in evidence), key=ACTIONS.index),
            summary=quarantine.spec.reason,
            since=now,
            evidence=evidence,
            healthy_for=max((rule.healthy_for for rule in known), default=600.0),
            remembered=True,
        )
    return restored
