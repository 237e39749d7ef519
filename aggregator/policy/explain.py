"""What policy would do about one piece of evidence, and by which rule. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aggregator.health.model import ClearedBy, Component, Fault, Hello, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.catalogue import UNKNOWN
from aggregator.policy.rules import ACTIONS, Policy, Rule, matches


@dataclass(frozen=True, slots=True)
class Question:
    """A fault by its ``code``, or level evidence by ``check`` and ``reason``.

    ``count``: how often the fault was seen; ``details``: what its line said besides.
    """

    code: str = ""
    check: str = ""
    reason: str = ""
    component: str = ""
    count: int = 1
    details: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """``rule`` decides; None where no rule is about the evidence.

    ``others`` are further rules that are about it, each with what it wants besides; empty text
    where it wants nothing more and is only weaker.
    """

    evidence: str
    meaning: str
    ended_by: str
    rule: Rule | None
    others: tuple[tuple[Rule, str], ...]


def explain(policy: Policy, asked: Question) -> Answer:
    """Ask the rules themselves: what they say of a node that has this evidence and no other."""
    met = _met(policy, asked)
    decides = max(met, key=lambda rule: ACTIONS.index(rule.action), default=None)
    others = [(rule, "") for rule in met if rule is not decides]
    for rule in policy.rules:
        wants = _wants(rule, asked)
        if rule not in met and wants and rule in _met(policy, _obliging(rule, asked), rule):
            others.append((rule, wants))
    return Answer(_evidence(policy, asked), *_catalogued(policy, asked), decides, tuple(others))


def _met(policy: Policy, asked: Question, obliged: Rule | None = None) -> list[Rule]:
    health = NodeHealth(Hello("node", "boot", "epoch", "", 1, ""))
    components: list[Component] = []
    faults: list[Fault] = []
    if asked.check:
        components.append(_failed(asked.check, asked.component, asked.reason))
    else:
        faults.append(_latched(policy, asked))
    if obliged is not None and obliged.confirmed_by:
        components.append(_failed(obliged.confirmed_by, "", "failed"))
    health.snapshot(Snapshot(tuple(components), tuple(faults)))
    of_it = {
        match.rule.name: match.rule
        for match in matches(policy, health)
        if bool(match.rule.check) == bool(asked.check)
    }
    return list(of_it.values())


def _failed(check: str, component: str, reason: str) -> Component:
    return Component(check, component, Status.FAILED, reason, "", 0.0)


def _latched(policy: Policy, asked: Question) -> Fault:
    fault = Fault(
        code=asked.code,
        check="",
        component=asked.component,
        message="",
        boot_id="boot",
        source="",
        source_seq=0,
        first_at=0.0,
        last_at=0.0,
        count=asked.count,
        cleared_by=ClearedBy.OPERATOR,
        details=asked.details or {},
    )
    return replace(fault, cleared_by=policy.catalogue.clears(fault))


def _obliging(rule: Rule, asked: Question) -> Question:
    """The same evidence with what the rule wants besides."""
    details = {name: values[0] for name, values in rule.details.items() if values}
    return replace(
        asked,
        count=max(asked.count, rule.min_count),
        details={**details, **(asked.details or {})},
        reason=asked.reason or next(iter(rule.reasons), ""),
    )


def _wants(rule: Rule, asked: Question) -> str:
    given = asked.details or {}
    wants = []
    if not asked.check and rule.min_count > asked.count:
        wants.append(f"seen {rule.min_count} times")
    for name, values in rule.details.items():
        if given.get(name, "") not in values:
            wants.append(f"{name} is {' or '.join(values)}")
    if rule.confirmed_by:
        wants.append(f"check {rule.confirmed_by} has failed too")
    if asked.check and not asked.reason and rule.reasons:
        wants.append(f"its reason is {' or '.join(rule.reasons)}")
    return ", and ".join(wants)


def _evidence(policy: Policy, asked: Question) -> str:
    if asked.check:
        return f"{asked.check}:{asked.reason or 'failed'}"
    return policy.catalogue.describe(asked.code)


def _catalogued(policy: Policy, asked: Question) -> tuple[str, str]:
    """What it means, and what ends it."""
    if asked.check:
        return f"check {asked.check} has failed", "the check is well again"
    name = policy.catalogue.classify(asked.code)
    if name == UNKNOWN:
        return "unknown: a code that the catalogue does not have", "what its agent says"
    found = policy.catalogue.classes[name]
    return f"{name}: {found.means}", _ENDS[found.clears]


_ENDS = {
    ClearedBy.REBOOT: "a boot",
    ClearedBy.GPU_RESET: "a reset of the GPU, or a boot",
    ClearedBy.EXPIRY: "a day without it, or a boot",
    ClearedBy.OPERATOR: "a person's word (they delete the quarantine), or another GPU",
}
