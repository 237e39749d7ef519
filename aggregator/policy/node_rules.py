"""Rules that are about some nodes only: the policy of one node by its labels. Pure.

A rule with a selector (`Rule.nodes`) has its action on the nodes that it selects; elsewhere it has
the action `Rule.elsewhere`, or does not apply.
"""

from collections.abc import Mapping
from dataclasses import replace

from aggregator.policy.evaluate import Incident
from aggregator.policy.rules import ACTIONS, Policy, Rule


def selection_of(policy: Policy, labels: Mapping[str, str] | None) -> int:
    """Which of the rules with a selector have their action on a node with these labels: a bit for
    each. Where the labels are not known, each has the milder of its two.
    """
    return sum(
        1 << place for place, rule in enumerate(policy.selecting) if _has_action(rule, labels)
    )


def policy_for(policy: Policy, labels: Mapping[str, str] | None) -> Policy:
    """The policy as it is on a node with these labels: the same where no rule has a selector.

    ``by_name`` still has every rule as the file has it: evidence outlives a change of labels.
    """
    if not policy.selecting:
        return policy
    selection = selection_of(policy, labels)
    found = policy.variants.get(selection)
    if found is None:
        found = policy.variants[selection] = _variant(policy, selection)
    return found


def reweighed(incidents: Mapping[str, Incident], policy: Policy) -> Mapping[str, Incident]:
    """The incidents without actions that the rules do not have on this node any more.

    ``policy`` is that of the node. For incidents without a quarantine: a change of labels
    ends none, and lowers no quarantine that has begun.
    """
    if not policy.selecting or not incidents:
        return incidents
    here = {rule.name: rule.action for rule in policy.rules}
    concerned = {rule.name: here.get(rule.name, ACTIONS[0]) for rule in policy.selecting}
    return {ident: _reweighed(one, concerned) for ident, one in incidents.items()}


def _reweighed(incident: Incident, concerned: Mapping[str, str]) -> Incident:
    evidence = tuple(
        replace(item, action=min(item.action, concerned[item.rule], key=ACTIONS.index))
        if item.rule in concerned
        else item
        for item in incident.evidence
    )
    if evidence == incident.evidence:
        return incident
    weighty = [item for item in evidence if not item.over] or evidence
    action = max((item.action for item in weighty), key=ACTIONS.index)
    return replace(incident, evidence=evidence, action=action)


def _has_action(rule: Rule, labels: Mapping[str, str] | None) -> bool:
    if labels is not None:
        return rule.nodes is not None and rule.nodes.matches(labels)
    return bool(rule.elsewhere) and ACTIONS.index(rule.action) < ACTIONS.index(rule.elsewhere)


def _variant(policy: Policy, selection: int) -> Policy:
    places = {rule.name: place for place, rule in enumerate(policy.selecting)}
    rules = []
    for rule in policy.rules:
        place = places.get(rule.name)
        if place is None or selection >> place & 1:
            rules.append(rule)
        elif rule.elsewhere:
            rules.append(replace(rule, action=rule.elsewhere))
    return policy.with_rules(rules)
