"""From a node's open incidents to the intent of its quarantine, and back. Pure.

Intent is the content of a Quarantine's spec. It is written when it has changed in a way that
matters, and read again by the next replica: an aggregator that lost its memory starts from it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from aggregator.cluster.port import (
    STRENGTH,
    Action,
    EvidenceItem,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.health.node import GONE, boot_ends
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.policy.rules import ACTIONS, HEALTHY_FOR, Policy, Rule
from aggregator.quarantine.decide.operator_requests import FORCED
from aggregator.quarantine.decide.overrides import clears

#: The requester of Quarantines that sickbay makes itself.
OURS = "sickbay"
#: Characters of evidence that a Quarantine holds; etcd takes no object of more than 1.5 MiB. An
#: agent may report more than any machine has. Evidence that is left out is known as long as the
#: agent reports.
MOST_EVIDENCE = 256 * 1024


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The action that the open incidents of a node call for, after the mode's cap and overrides.

    ``in_force`` is the strongest action of evidence that has not ended: an incident
    that is recovering keeps a quarantine, but begins none and evicts no pods.
    """

    spec: QuarantineSpec
    uncapped: Action
    in_force: Action


def releasing(status: QuarantineStatus, because: str) -> QuarantineStatus:
    """The status of a quarantine that ends before it was, or was not quite, carried out."""
    return replace(status, phase=Phase.RELEASING, message=because, released_because=because)


def unsaved(quarantine: Quarantine, wanted: DesiredState | None) -> bool:
    """Whether the intent has changed, or a positive sign has come, and this is not durable yet."""
    if wanted is None or quarantine.spec.requester != OURS:
        return False
    return changed_intent(quarantine.spec, wanted) is not None


def changed_intent(spec: QuarantineSpec, wanted: DesiredState) -> QuarantineSpec | None:
    """The spec to write, or None when the durable one is the same.

    Written are a changed action, evidence that has come to it, and a fault's positive sign. Level
    evidence that comes and goes is not, as it can be seen again; the exception is the end of a
    component.

    The mode caps what is done, so it keeps an action from being raised. It lowers no action: an
    earlier decision stays in force, and is shown as it is; only evidence that calls for less lowers
    it. An action that a person has set is not changed either: see `is_overridden`.
    """
    if is_overridden(spec):
        action, intent = spec.action, spec.intent_action
    else:
        raised = max(spec.action, wanted.spec.action, key=STRENGTH)
        action = intent = min(raised, wanted.uncapped, key=STRENGTH)
    same = action is spec.action and intent is spec.intent_action
    if same and wanted.spec.evidence == spec.evidence:
        return None  # by far the most common case: this runs before each step
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
    if evidence == spec.evidence and same:
        return None
    return replace(spec, evidence=evidence, action=action, intent_action=intent)


def is_overridden(spec: QuarantineSpec) -> bool:
    """Whether a person has set another action than the aggregator decided on.

    Both are in the spec and are written in one request, so no crash can make the aggregator's own
    write look like a person's. An override holds until the quarantine ends, or until the action is
    set to the decided one; new evidence does not end it, since evictions can't be undone.
    """
    decided = spec.intent_action if spec.requester in (OURS, FORCED) else None
    return decided is not None and decided is not spec.action


def describe_override(spec: QuarantineSpec) -> str:
    """The action that a person has set instead of the decided one; empty without an override."""
    if not is_overridden(spec):
        return ""
    return (
        f"a person set {spec.action} where {spec.intent_action} was decided; it holds until the "
        f"quarantine ends, or spec.action is set to {spec.intent_action} again"
    )


def wanted_of(
    incidents: Mapping[str, Incident],
    overruled: frozenset[tuple[str, str]],
    mode: Action,
    policy_hash: str,
) -> DesiredState | None:
    """The desired state by all open incidents, or None when no incident calls for an action.

    An incident that is recovering still calls for its action: it ends by closing. An incident whose
    evidence in force a person has overruled calls for no action.
    """
    requesting = [
        incident
        for incident in incidents.values()
        if incident.action != "observe"
        and any(
            item.key not in overruled and item.action != "observe"
            for item in (incident.in_force or incident.evidence)
        )
    ]
    if not requesting:
        return None
    lead = max(requesting, key=lambda one: (ACTIONS.index(_requests(one)), -one.since))
    uncapped = Action(_requests(lead))
    action = min(uncapped, mode, key=STRENGTH)
    return DesiredState(
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
                for incident in requesting
                for evidence in incident.evidence
                if evidence.action != "observe"
            ),
        ),
        uncapped=uncapped,
        in_force=max(
            (
                Action(item.action)
                for incident in requesting
                for item in incident.in_force
                if item.key not in overruled
            ),
            key=STRENGTH,
            default=Action.OBSERVE,
        ),
    )


def _fitting(
    items: Iterable[EvidenceItem], others: Iterable[EvidenceItem] = ()
) -> tuple[EvidenceItem, ...]:
    """As many of the items, the first before the others, as an object accepts in addition to
    ``others``.
    """
    left = MOST_EVIDENCE - sum(_size(item) for item in others)
    kept = []
    for item in items:
        size = _size(item)
        if size <= left:
            kept.append(item)
            left -= size
    return tuple(kept)


def _size(item: EvidenceItem) -> int:
    texts = (item.code, item.component, item.boot_id, item.rule, item.incident, item.message)
    return 128 + sum(map(len, texts))  # the fields' names, and the short fields


def _requests(incident: Incident) -> str:
    """The strongest action that it calls for. A check's result counts until the incident closes.

    Else a check that flaps next to weaker evidence would change the intent, which is written, each
    time. The action that is allowed now is `DesiredState.in_force`.
    """
    seen = [item.action for item in incident.evidence if item.over and item.cleared_by is None]
    return max((incident.action, *seen), key=ACTIONS.index)


def ended_by_birth(spec: QuarantineSpec, boot_id: str) -> bool:
    """Whether a new Node, in this boot, ends all evidence of the quarantine.

    Level evidence is of the machine as it was; its successor's agent reports the present state.
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


def _action_of(rule: Rule | None, quarantine: Quarantine) -> str:
    """The action that restored evidence calls for.

    A rule that is about some nodes has two, and the node's labels may have changed since: it is the
    stronger one, and no more than was decided.
    """
    decided = (quarantine.spec.intent_action or quarantine.spec.action).value
    if rule is None:
        return decided
    if rule.nodes is None:
        return rule.action
    strongest = max(rule.action, rule.elsewhere or rule.action, key=ACTIONS.index)
    return min(strongest, decided, key=ACTIONS.index)


def incidents_of(quarantine: Quarantine, policy: Policy, now: float) -> dict[str, Incident]:
    """The incidents that a quarantine of ours was made for, as far as it remembers them.

    The aggregator starts from these after it lost its memory: evidence in force until a positive
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
                action=_action_of(rules.get(item.rule), quarantine),
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
            healthy_for=max((rule.healthy_for for rule in known), default=HEALTHY_FOR),
            remembered=True,
        )
    return restored
