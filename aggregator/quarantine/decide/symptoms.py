"""Extracts a node's evidence that may have a cause shared with other nodes. Pure.

A check that fails counts from the moment it fails, long before a rule acts on it, whether or not a
rule does. A latched fault counts when a rule acts on it, and while the time of that rule (`for`)
runs: else the first of many nodes would be admitted a moment before the others count. A fault that
its agent has lost has no time that could be compared, and does not.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from aggregator.health.model import Component, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.check_traits import EDGES, SHARED_TARGETS
from aggregator.policy.check_traits import NVLINK as NVLINK_CHECKS
from aggregator.policy.incident import Evidence, Incident
from aggregator.policy.rules import Policy, waiting_faults
from aggregator.policy.silent_agent import SILENT_FAILING
from aggregator.quarantine.decide.fabric import (
    gpus_with_nvlink_evidence,
    is_ignored,
    is_nvlink,
    is_nvlink_code,
    is_verdict_on,
)

#: Evidence of the NVLink fabric, whatever rule it meets: its cause may be at the other end.
NVLINK = "nvlink"
#: The symptom of a silent agent, where the configuration acts on it: held while many are silent.
SILENCE = "silence"


#: Symptoms counted of one node; a healthy node has none, an unhealthy one a few.
MOST_SIGNS = 128
_NONE: frozenset[str] = frozenset()


class Symptom(NamedTuple):
    """One thing that is wrong with a node. ``since`` is in monotonic seconds.

    ``what``: "check:NAME", "rule:NAME" (of latched faults) or "nvlink". ``component`` is a target
    that other nodes look at too; empty for a part of the node. ``acting``: a rule that acts is
    about it.
    """

    what: str
    component: str
    since: float
    acting: bool


def acting_checks(policy: Policy) -> frozenset[str]:
    """The checks on whose results some rule acts."""
    return frozenset(rule.check for rule in policy.rules if rule.check and rule.acts)


def symptoms_of(
    health: NodeHealth, incidents: Mapping[str, Incident], policy: Policy, acting: frozenset[str]
) -> frozenset[Symptom]:
    """All symptoms of one node. ``acting`` is the result of `acting_checks` for the policy.

    Results of checks that the agent's Hello does not name are left out: no other node could share
    them.
    """
    named = {check.name for check in health.checks}
    bad = list(_bad(health, policy))
    gpus = gpus_with_nvlink_evidence(health, incidents, policy) if bad or incidents else _NONE
    found = [
        _sign_of(one, acting, gpus)
        for one in bad
        if one.check not in EDGES and (not named or one.check in named or one.key in health.own)
    ]
    for incident in incidents.values():
        for item in incident.evidence:
            if item.over:
                continue
            fault = health.faults.get(item.key)
            if fault is None or fault.missing:
                continue
            what = what_of(item, policy, gpus)
            acts = item.action != "observe"
            of_fabric = what == NVLINK and not is_ignored(fault, health, policy)
            if acts or of_fabric:
                found.append(Symptom(what, "", fault.first_at, acts))
    evidence = (item for incident in incidents.values() for item in incident.evidence)
    known = {item.key for item in evidence if item.over or item.action != "observe"}
    found += [
        Symptom(
            _what_of_fault(match.code, match.component, match.rule.name, policy, gpus),
            "",
            match.since,
            acting=True,
        )
        for match in waiting_faults(policy, health)
        if (match.code, match.component) not in known and not match.lost
    ]
    return fewest(frozenset(found))


def fewest(signs: frozenset[Symptom]) -> frozenset[Symptom]:
    """As many as count: those that a rule acts on go first, then the oldest."""
    if len(signs) <= MOST_SIGNS:
        return signs
    ordered = sorted(signs, key=lambda one: (not one.acting, one.since, one))
    return frozenset(ordered[:MOST_SIGNS])


def _bad(health: NodeHealth, policy: Policy) -> Iterator[Component]:
    """The failed components, and the degraded ones of checks where a rule acts on these."""
    yield from health.components.that_are(Status.FAILED)
    if policy.acting_on_degraded:
        for one in health.components.that_are(Status.DEGRADED):
            if one.check in policy.acting_on_degraded:
                yield one


def _sign_of(one: Component, acting: frozenset[str], gpus: frozenset[str]) -> Symptom:
    of_link = is_verdict_on(f"{one.check}:{one.reason}", one.component, gpus)
    if of_link or one.check in NVLINK_CHECKS:
        return Symptom(NVLINK, "", one.since, one.check in acting)
    target = one.component if one.check in SHARED_TARGETS else ""
    return Symptom(f"check:{one.check}", target, one.since, one.check in acting)


def what_of(item: Evidence, policy: Policy, gpus: frozenset[str] = _NONE) -> str:
    """The `Symptom.what` of a piece of evidence. ``gpus``: those with NVLink evidence."""
    if item.code == SILENT_FAILING:
        return SILENCE
    if item.cleared_by is not None:
        return _what_of_fault(item.code, item.component, item.rule, policy, gpus)
    if is_nvlink(item, policy) or is_verdict_on(item.code, item.component, gpus):
        return NVLINK
    return f"check:{item.code.partition(':')[0]}"


def _what_of_fault(
    code: str, component: str, rule: str, policy: Policy, gpus: frozenset[str]
) -> str:
    if is_nvlink_code(code, policy) or is_verdict_on(code, component, gpus):
        return NVLINK
    return f"rule:{rule}"


def target_of(item: Evidence) -> str:
    """The `Symptom.component` of a piece of evidence."""
    check = item.code.partition(":")[0]
    return item.component if item.cleared_by is None and check in SHARED_TARGETS else ""


def actionable_evidence(
    incidents: Iterable[Incident], overruled: frozenset[tuple[str, str]]
) -> Iterable[Evidence]:
    """The evidence that asks for a quarantine now."""
    for incident in incidents:
        for item in incident.in_force:
            if item.action != "observe" and item.key not in overruled:
                yield item
