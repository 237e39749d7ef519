"""docs/reference/rules.md: the shipped rules, the strongest action first."""

import dataclasses
from collections.abc import Iterator

from aggregator.policy.defaults import read_policy
from aggregator.policy.rules import Rule
from aggregator.rfc3339 import span
from release.reference.tables import table

_HEAD = """# The shipped rules
Made from `aggregator/policy/rules.yaml` by `make docs-reference`. [policy.md](../policy.md)
explains the keys, and how a site changes a rule; `sickbay-aggregator policy explain` answers for
one fault.
"""
_ACTIONS = ("drain", "cordon", "observe")


def page() -> str:
    """The page's Markdown."""
    rules = read_policy(None).rules
    lines = [_HEAD]
    for action in _ACTIONS:
        body = [(f"`{one.name}`", _evidence(one), one.why) for one in rules if one.action == action]
        lines += [f"## {action}", *table(("rule", "evidence", "why"), body), ""]
    return "\n".join(lines).rstrip() + "\n"


def _evidence(rule: Rule) -> str:
    return "; ".join(_parts(rule))


def _parts(rule: Rule) -> Iterator[str]:
    standard = {field.name: field.default for field in dataclasses.fields(Rule)}
    if rule.faults:
        yield "faults " + _codes(rule.faults)
    if rule.classes:
        yield "faults of class " + _codes(rule.classes)
    for name, values in rule.details.items():
        yield f"with {name} " + _codes(values)
    if rule.check:
        states = "" if rule.status == standard["status"] else f", {rule.status} too"
        reasons = f" with reason {_codes(rule.reasons)}" if rule.reasons else ""
        yield f"check `{rule.check}`{reasons}{states}"
    if rule.components:
        yield "of components " + _codes(rule.components)
    if rule.with_faults:
        yield "together with " + _codes(rule.with_faults)
    if rule.without_faults:
        yield "without " + _codes(rule.without_faults)
    if rule.min_count > 1:
        yield f"{rule.min_count} times within {span(rule.within)}"
    if rule.min_jobs:
        yield f"in {rule.min_jobs} jobs within {span(rule.within)}"
    if rule.flaps:
        yield f"failed {rule.flaps} times anew within {span(rule.within)}"
    if rule.confirmed_by:
        yield f"confirmed by `{rule.confirmed_by}`"
    if rule.hold:
        yield f"for {span(rule.hold)}"


def _codes(values: tuple[str, ...]) -> str:
    return ", ".join(f"`{value}`" for value in values)
