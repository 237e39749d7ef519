"""Rules: what a node's evidence calls for. Pure.

Structure that no rule can change: only FAILED level evidence and latched faults of the present
boot can ask for an action; unknown statuses, unknown codes, silence and historical faults never do.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from aggregator.health.model import ClearedBy, Component, Fault, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.catalogue import UNKNOWN, Catalogue

ACTIONS = ("observe", "cordon", "drain")
KINDS = ("gpu", "disk", "network", "node")


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of policy. ``hold`` ("for" in the file) and ``healthy_for`` are seconds.

    A rule is for faults (``faults`` are patterns of codes, ``classes`` of the catalogue) or for
    level evidence (``check``, and ``reasons`` where not every one counts).
    """

    name: str
    kind: str
    action: str
    why: str
    faults: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    details: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    min_count: int = 1
    confirmed_by: str = ""
    check: str = ""
    reasons: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    hold: float = 0.0
    healthy_for: float = 600.0


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules in order, the catalogue they stand on, and the hash that names them both."""

    rules: tuple[Rule, ...]
    catalogue: Catalogue
    hash: str


@dataclass(frozen=True, slots=True)
class Match:
    """One rule meets one piece of evidence. ``due`` is when its ``for`` is over (monotonic)."""

    rule: Rule
    code: str
    component: str
    boot_id: str
    message: str
    cleared_by: ClearedBy | None
    since: float
    due: float
    lost: bool = False


def matches(policy: Policy, health: NodeHealth) -> Iterator[Match]:
    """Every rule that meets some evidence of the node, in the order of the rules."""
    for rule in policy.rules:
        if rule.check:
            for component in health.components.values():
                if _meets_component(rule, component):
                    code = f"{component.check}:{component.reason or 'failed'}"
                    yield Match(
                        rule,
                        code,
                        component.component,
                        health.boot_id,
                        component.message,
                        None,
                        component.since,
                        component.since + rule.hold,
                    )
        else:
            for fault in health.faults.values():
                if _meets_fault(rule, fault, health, policy.catalogue):
                    yield Match(
                        rule,
                        fault.code,
                        fault.component,
                        fault.boot_id,
                        fault.message,
                        policy.catalogue.clears(fault),
                        fault.first_at,
                        fault.first_at + rule.hold,
                        lost=fault.missing,
                    )


def _meets_component(rule: Rule, component: Component) -> bool:
    return (
        component.status is Status.FAILED
        and component.check == rule.check
        and (not rule.reasons or component.reason in rule.reasons)
        and _meets_name(rule, component.component)
    )


def _meets_fault(rule: Rule, fault: Fault, health: NodeHealth, catalogue: Catalogue) -> bool:
    if fault.historical or fault.count < rule.min_count:
        return False
    if not _meets_name(rule, fault.component):
        return False
    if rule.faults:
        if not any(fnmatchcase(fault.code, pattern) for pattern in rule.faults):
            return False
    elif catalogue.classify(fault.code) not in rule.classes:
        return False
    if rule.action != "observe" and catalogue.classify(fault.code) == UNKNOWN:
        return False
    if any(fault.details.get(name, "") not in values for name, values in rule.details.items()):
        return False
    return not rule.confirmed_by or any(
        component.check == rule.confirmed_by and component.status is Status.FAILED
        for component in health.components.values()
    )


def _meets_name(rule: Rule, component: str) -> bool:
    return not rule.components or any(fnmatchcase(component, glob) for glob in rule.components)
