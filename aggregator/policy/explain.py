"""The action of a policy for one piece of evidence, and the rule that decides it. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from aggregator.health.model import ClearedBy, Component, Fault, Hello, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.policy import nvlink4
from aggregator.policy.catalogue import UNKNOWN
from aggregator.policy.rules import ACTIONS, CONDITION_CHECK, Policy, Rule, matches
from aggregator.policy.windows import MOST_JOBS, ONE_OCCURRENCE
from aggregator.rfc3339 import span


@dataclass(frozen=True, slots=True)
class Question:
    """A fault by its ``code``, or level evidence by ``check``, ``status`` and ``reason``.

    ``status``: "failed" or "degraded".
    ``count``: how often the fault was seen, in ``jobs`` jobs; ``details``: the further fields of
    its line; ``flaps``: how often the component began to fail; ``driver``: the node's version.
    """

    code: str = ""
    check: str = ""
    status: str = "failed"
    reason: str = ""
    component: str = ""
    count: int = 1
    jobs: int = 1
    flaps: int = 0
    driver: str = ""
    details: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """``rule`` decides, or is None where no rule is about the evidence. ``published`` is NVIDIA's
    catalogue entry for an Xid, ``row`` the one for its registers; each empty where there is none.

    ``others`` are further rules about it, each with the conditions that it adds; empty text where a
    rule adds none and is only weaker.
    """

    evidence: str
    meaning: str
    ended_by: str
    rule: Rule | None
    others: tuple[tuple[Rule, str], ...]
    published: str = ""
    row: str = ""


def explain(policy: Policy, question: Question) -> Explanation:
    """Evaluate the rules themselves, for a node that has this evidence and no other."""
    met = _met(policy, question)
    decides = max(met, key=lambda rule: ACTIONS.index(rule.action), default=None)
    others = [(rule, "") for rule in met if rule is not decides]
    for rule in policy.rules:
        wants = _wants(rule, question)
        anywhere = rule.components if question.component else ()
        alone = replace(rule, with_faults=(), components=anywhere)
        eased = replace(policy, rules=(alone,))
        if rule not in met and _met(eased, _obliging(rule, question), rule):
            others.append((rule, wants))
    return Explanation(
        _evidence(policy, question),
        *_catalogued(policy, question),
        decides,
        tuple(others),
        _published(policy, question),
        _row(policy, question),
    )


def _met(policy: Policy, question: Question, obliged: Rule | None = None) -> list[Rule]:
    health = NodeHealth(replace(_HELLO, traits=_traits(question)))
    components: list[Component] = []
    faults: list[Fault] = []
    if question.check:
        components.append(_flapped(question))
    else:
        faults.append(_latched(policy, question, obliged))
    if obliged is not None and obliged.confirmed_by:
        components.append(_level(obliged.confirmed_by, "", "failed"))
    health.snapshot(Snapshot(tuple(components), tuple(faults)))
    met = {match.rule.name: match.rule for match in matches(policy, health, _NOW)}
    return list(met.values())


def _traits(question: Question) -> Mapping[str, str]:
    return {"driver": question.driver} if question.driver else {}


def _flapped(question: Question) -> Component:
    """A component that fails or is degraded now; failed as often as the question states, a second
    apart.
    """
    turns = (Status.OK, Status.FAILED) * question.flaps
    past = tuple((_NOW - ago, turn) for ago, turn in enumerate(turns[::-1]))[::-1]
    now = _level(question.check, question.component, question.reason, _STATUSES[question.status])
    return replace(now, recent=past)


def _level(check: str, component: str, reason: str, status: Status = Status.FAILED) -> Component:
    return Component(check, component, status, reason, "", _NOW)


def _latched(policy: Policy, question: Question, obliged: Rule | None = None) -> Fault:
    apart = obliged.apart if obliged is not None else _JOBS_APART
    jobs = [-apart * ago for ago in range(question.jobs)]
    lasts = obliged.lasts if obliged is not None else 0.0
    jobs += [-_NEXT_LINE * ago for ago in range(1, math.ceil(lasts / _NEXT_LINE) + 1)]
    further = min(question.count - question.jobs, MOST_JOBS)  # no rule counts more
    more = [-ONE_OCCURRENCE * ago for ago in range(1, further + 1)]
    fault = replace(
        _FAULT,
        code=question.code,
        component=question.component,
        count=max(question.count, question.jobs),
        occurrences=tuple(sorted({*jobs, *more})),
        details=question.details or {},
    )
    return replace(fault, cleared_by=policy.catalogue.clears(fault, _traits(question)))


def _obliging(rule: Rule, question: Question) -> Question:
    """The same evidence with the further conditions of the rule."""
    details = {name: next(iter(values), "") for name, values in rule.details.items()}
    return replace(
        question,
        count=max(question.count, rule.min_count),
        jobs=max(question.jobs, rule.min_jobs),
        flaps=max(question.flaps, rule.flaps),
        details={**details, **(question.details or {})},
        status=question.status if rule.status == "degraded" else "failed",
        reason=question.reason or next(iter(rule.reasons), ""),
    )


def _wants(rule: Rule, question: Question) -> str:
    given = question.details or {}
    wants = []
    if not question.check and rule.min_count > question.count:
        wants.append(f"seen {rule.min_count} times within {span(rule.within)}")
    if not question.check and rule.lasts:
        wants.append(f"it goes on for {span(rule.lasts)} without a pause of a minute")
    if not question.check and rule.min_jobs > question.jobs:
        wants.append(
            f"seen on it alone over {rule.min_jobs} jobs within {span(rule.within)} "
            f"({span(rule.apart)} or more apart)"
        )
    if rule.flaps > question.flaps:
        wants.append(f"it begins to fail {rule.flaps} times within {span(rule.within)}")
    for name, values in rule.details.items():
        if given.get(name, "") not in values:
            wants.append(f"{name} is {' or '.join(values)}")
    if rule.with_faults:
        wants.append(f"{' or '.join(rule.with_faults)} came with it")
    if rule.confirmed_by:
        wants.append(f"check {rule.confirmed_by} has failed too")
    if question.check and question.status == "degraded" and rule.status == "failed":
        wants.append("it fails")
    if rule.components and not question.component:
        wants.append(f"it is on {' or '.join(rule.components)}")
    if question.check and not question.reason and rule.reasons:
        wants.append(f"its reason is {' or '.join(rule.reasons)}")
    return ", and ".join(wants)


def _evidence(policy: Policy, question: Question) -> str:
    if question.check:
        of_type = f" on {question.component}" if question.check == CONDITION_CHECK else ""
        return f"{question.check}:{question.reason or question.status}{of_type}"
    return policy.catalogue.describe(question.code)


def _catalogued(policy: Policy, question: Question) -> tuple[str, str]:
    """Its meaning, and the sign that ends it."""
    if question.check == CONDITION_CHECK:
        means = (
            f"the node condition {question.component} is unhealthy, by the program that writes it"
        )
        return f"{means}; it is read only where a rule names it", "the opposite status, renewed"
    if question.check:
        now = "is degraded" if question.status == "degraded" else "has failed"
        return f"check {question.check} {now}", "the check is well again"
    name = policy.catalogue.class_of(_latched(policy, question), _traits(question))
    if name == UNKNOWN:
        return f"unknown: {_why_unknown(policy, question)}", "as its agent reports"
    found = policy.catalogue.classes[name]
    return f"{name}: {found.means}", _ENDS[found.clears]


def _why_unknown(policy: Policy, question: Question) -> str:
    published = policy.catalogue.published.get(question.code)
    if published is None:
        near = [code for code in policy.catalogue.codes if code.endswith(f":{question.code}")]
        meant = f" (did you mean {near[0]}?)" if near else ""
        return f"a code that the catalogue does not have{meant}"
    marked = " and marks it unused" if published.unused else ""
    return f"NVIDIA names the code{marked}, and no class here has it"


def _published(policy: Policy, question: Question) -> str:
    found = policy.catalogue.published.get(question.code)
    if found is None:
        return ""
    on = f", on {', '.join(name.upper() for name in found.on)}" if found.on else ""
    if found.unused:
        on = f"{on}, and marked unused there" if on else ", unused since the A100"
    first = f"; first {found.now}" if found.now else "; no action is published"
    return f"{found.mnemonic}{on}{first}{f', then {found.then}' * bool(found.then)}"


def _row(policy: Policy, question: Question) -> str:
    if question.code == nvlink4.CODE:
        bits = policy.catalogue.nvlink4.decode(question.code, question.details or {})
        return "; ".join(f"register {one.register}: {one.means}" for one in bits)
    if policy.catalogue.classify(question.code) != "nvlink5":
        return ""
    row = policy.catalogue.decode(_latched(policy, question), _traits(question))
    if row is not None:
        return f"{row.unit}, {row.severity}: {row.action}; then {row.then}"
    return (
        "no row matches: add --detail intr_info=0x..., --detail error_status=0x... and "
        "--driver, and if you have, NVIDIA's table has no row for them"
    )


_STATUSES = {"failed": Status.FAILED, "degraded": Status.DEGRADED}

#: The present of a question, and what its node and its fault have where it does not state it.
_NOW = 0.0
_HELLO = Hello("node", "boot", "epoch", "", 1, "")
_FAULT = Fault("", "", "", "", "boot", "", 0, _NOW, _NOW, 1, ClearedBy.OPERATOR)
#: Seconds between two jobs of a question: apart for any rule.
_JOBS_APART = 5760.0
#: Seconds between two lines of a fault that lasts.
_NEXT_LINE = 20.0

_ENDS = {
    ClearedBy.REBOOT: "a boot",
    ClearedBy.GPU_RESET: "a reset of the GPU, or a boot",
    ClearedBy.EXPIRY: "a day without it, or a boot",
    ClearedBy.OPERATOR: "a person's release after the repair, or another GPU",
}
