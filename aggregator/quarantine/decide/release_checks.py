"""Whether a node that has recovered may be released now, or the reason to hold it. Pure.

Cleared is not released. The checks take the node as just read in full; a person's release is never
checked. They undo no step: they can only make a release wait, with a reason that is shown.
"""

import json
import math
from collections.abc import Iterable, Mapping

from aggregator.cluster.port import EvidenceItem, Node, Quarantine, RepairState
from aggregator.health.model import ClearedBy, Component, Status
from aggregator.health.node import NodeHealth, name_gpus
from aggregator.policy.repairs import TEST
from aggregator.policy.rules import LONGEST_REPEAT, Policy, Rule
from aggregator.quarantine.decide.operator_requests import PIN, OperatorRequests
from aggregator.quarantine.decide.verdicts import unknown_repair

#: The node's memory of the faults that it was released from, and when.
RELEASE_HISTORY = "sickbay.dev/release-history"
#: At most this many faults, the latest; an annotation is not a history.
_MOST_REMEMBERED = 64
_MOST_TEXT = 32 * 1024
#: Two replicas' wall clocks may be so far apart (seconds). A time further in the future was written
#: by a wrong clock, and is ignored.
_SKEW = 300.0

_INVENTORY, _RECOVERY = "gpu-inventory", "gpu-recovery"
_UNSETTLED = {
    _INVENTORY: (Status.FAILED, Status.UNKNOWN),
    _RECOVERY: (Status.FAILED, Status.UNKNOWN, Status.DEGRADED),  # any action but "none"
}


def release_hold(
    quarantine: Quarantine,
    *,
    node: Node,
    health: NodeHealth | None,
    policy: Policy,
    requests: OperatorRequests,
    lost: str = "",
) -> str:
    """Why the node stays in quarantine although its cause is over; empty: it may go.

    ``health`` is None for a node that was made anew: its agent need not have reported yet.
    ``lost``: the repair whose order may come although its operation is gone.
    """
    rules = {rule.name: rule for rule in policy.rules}
    hold = _by_request(requests) or _by_rule(quarantine, rules)
    hold = hold or _unknown(quarantine, node, health) or _lost(quarantine, node, lost)
    if hold or health is None:
        return hold
    found = (
        _repeated(quarantine, node, rules)
        or _same_boot(quarantine, node, health)
        or (_gpus(node, health) if _is_about_gpus(quarantine, rules) else "")
    )
    return name_gpus(found, health)


def state_of_gpus(health: NodeHealth) -> frozenset[tuple[str, str, Status]]:
    """The results of checks that may hold its release, without texts, which often change."""
    return frozenset(
        (check, one.component, one.status)
        for check in _UNSETTLED
        for one in health.components.of(check)
    )


def remember(
    node: Node, evidence: Iterable[EvidenceItem], *, earliest: float, latest: float
) -> str:
    """The memory of this release and of those before, for the node's annotation.

    ``earliest`` and ``latest``: bounds of the present time, as far as the clocks can be trusted.
    """
    since = earliest - LONGEST_REPEAT
    until = latest + _SKEW
    kept = {key: at for key, at in _remembered(node.annotations).items() if since <= at <= until}
    for item in evidence:
        if item.cleared_by:
            kept[item.code, item.component] = latest
    newest = sorted(kept.items(), key=lambda pair: pair[1])[-_MOST_REMEMBERED:]
    rows = [[code, component, round(at)] for (code, component), at in newest]
    while len(json.dumps(rows)) > _MOST_TEXT:
        del rows[0]
    return json.dumps(rows)


def memory_change(memory: str) -> dict[str, str | None]:
    """The annotations that make ``memory`` the node's; None removes one."""
    return {RELEASE_HISTORY: memory if memory != "[]" else None}


def _by_request(requests: OperatorRequests) -> str:
    if requests.pinned:
        return f"pinned by a person ({requests.pin_reason or 'no reason given'}), by {PIN}"
    if requests.force is not None:
        return f"a person wants it in quarantine: {requests.force_reason}"
    return ""


def _by_rule(quarantine: Quarantine, rules: Mapping[str, Rule]) -> str:
    for item in quarantine.spec.evidence:
        rule = rules.get(item.rule)
        if rule is not None and rule.release == "manual":
            return f"by rule {rule.name} a person alone releases it, when they have looked"
    return ""


def _unknown(quarantine: Quarantine, node: Node, health: NodeHealth | None) -> str:
    """An order that was perhaps carried out may still act on the node, and would meet work."""
    last = unknown_repair(quarantine.status.repair)
    if last is None or node.uid != last.node_uid:
        return ""
    boot = node.boot_id or (health.boot_id if health is not None and node.ready is None else "")
    rebooted = bool(last.boot_id and boot) and last.boot_id != boot
    if rebooted or _is_cleared_by_person(quarantine):
        return ""
    return (
        f"it is not known whether its {last.repair} was carried out, so that it may still come: "
        "another boot, a passed test, or a person ends the wait"
    )


def _lost(quarantine: Quarantine, node: Node, repair: str) -> str:
    """The boot of such an order is not known any more, so another one is no proof."""
    attempts = quarantine.status.repair.attempts
    passed = bool(attempts) and attempts[-1].repair == TEST
    passed = passed and attempts[-1].state is RepairState.SUCCEEDED
    other = node.uid != quarantine.status.node_uid
    if not repair or passed or other or _is_cleared_by_person(quarantine):
        return ""
    return (
        f"the operation of its {repair} is gone, so that the order may still come: "
        "a passed test or a person ends the wait"
    )


def _is_cleared_by_person(quarantine: Quarantine) -> bool:
    return any(item.cleared == ClearedBy.OPERATOR for item in quarantine.spec.evidence)


def _repeated(quarantine: Quarantine, node: Node, rules: Mapping[str, Rule]) -> str:
    """The same fault of the same component so soon after a release was not repaired by it."""
    remembered = _remembered(node.annotations)
    began = quarantine.status.admitted_at or quarantine.created_at
    for item in quarantine.spec.evidence:
        rule, at = rules.get(item.rule), remembered.get((item.code, item.component))
        if rule is None or at is None or not item.cleared_by:
            continue
        after = began - at
        if rule.repeat_within and -_SKEW <= after <= rule.repeat_within:
            where = f" on {item.component}" if item.component else ""
            return f"{item.code}{where} came again {_span(after)} after a release: a person decides"
    return ""


def _same_boot(quarantine: Quarantine, node: Node, health: NodeHealth) -> str:
    """Boot ids have no order: a late stream of an earlier boot runs like a reboot."""
    if node.boot_id in ("", health.boot_id):
        return ""
    for item in quarantine.spec.evidence:
        if item.cleared_by and item.boot_id == node.boot_id:
            return f"the kubelet reports that it is still in the boot of {item.code}"
    return ""


def _is_about_gpus(quarantine: Quarantine, rules: Mapping[str, Rule]) -> bool:
    return quarantine.spec.kind == "gpu" or any(
        item.rule in rules and rules[item.rule].kind == "gpu" for item in quarantine.spec.evidence
    )


def _gpus(node: Node, health: NodeHealth) -> str:
    for check, unsettled in _UNSETTLED.items():
        found = health.components.of(check)
        bad = next((one for one in found if one.status in unsettled), None)
        if bad is not None:
            return f"{_named(bad)} is {bad.status.name.lower()}: {bad.message or bad.reason}"
        runs = any(one.name == check and not one.off_because for one in health.checks)
        if check == _INVENTORY and runs and not found:
            return f"{check} has not run yet"
    for name, (capacity, allocatable) in sorted(node.devices.items()):
        if capacity != allocatable:
            text = f"allocatable {name} is {allocatable} of {capacity}"
            return f"{text}: its device plugin is not done"
    return ""


def _named(component: Component) -> str:
    return f"{component.check} {component.component}".rstrip()


def _remembered(annotations: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """The latest release of each fault; invalid text, as after an edit, is no memory."""
    found = _read_rows(annotations.get(RELEASE_HISTORY, ""))
    return {key: at for key, at in (found or {}).items() if math.isfinite(at)}


def is_readable_history(text: str) -> bool:
    """Whether the text of one annotation is a memory of releases; empty text is."""
    return _read_rows(text) is not None


def _read_rows(text: str) -> dict[tuple[str, str], float] | None:
    try:
        rows = json.loads(text or "[]")
        return {(str(code), str(component)): float(at) for code, component, at in rows}
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _span(seconds: float) -> str:
    hours = max(0.0, seconds) / 3600
    return f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} hours"
