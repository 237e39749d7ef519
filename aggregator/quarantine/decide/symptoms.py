"""Extracts a node's evidence that may have a cause shared with other nodes. Pure.

A check that fails counts from the moment it fails, long before a rule acts on it, whether or not a
rule does. A latched fault counts when a rule acts on it, and while the time of that rule (`for`)
runs: else the first of many nodes would be admitted a moment before the others count. A fault that
its agent has lost has no time that could be compared, and does not.

Some evidence of a node may be the NVLink fabric's: its cause is at a link's other end. One switch
tray that fails makes the driver of every node of the rack log an NVLink error on each GPU, and a
millisecond later its verdict on that GPU (Xid 154). The verdict names no cause, so it belongs to
the fabric where the GPU has NVLink evidence.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from aggregator.health.model import Component, Fault, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.check_traits import EDGES, SHARED_TARGETS
from aggregator.policy.check_traits import NVLINK as NVLINK_CHECKS
from aggregator.policy.check_traits import VERDICTS as VERDICT_CHECKS
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.policy.rules import Policy, waiting_faults
from aggregator.policy.silent_agent import SILENT_FAILING

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
    that other nodes check too; empty for a part of the node. ``acting``: a rule that acts is about
    it.
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
    evidence = [item for incident in incidents.values() for item in incident.evidence]
    for item in evidence:
        fault = health.faults.get(item.key)
        if item.over or fault is None or fault.missing:
            continue
        what = what_of(item, policy, gpus)
        acts = item.action != "observe"
        of_fabric = what == NVLINK and not is_ignored(fault, health, policy)
        if acts or of_fabric:
            found.append(Symptom(what, "", fault.first_at, acts))
    known = {item.key for item in evidence if item.over or item.action != "observe"}
    for match in waiting_faults(policy, health):
        if match.lost or (match.code, match.component) in known:
            continue
        of_link = is_nvlink_code(match.code, policy)
        of_link = of_link or is_verdict_on(match.code, match.component, gpus)
        what = NVLINK if of_link else f"rule:{match.rule.name}"
        found.append(Symptom(what, "", match.since, acting=True))
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
    if is_nvlink(item, policy) or is_verdict_on(item.code, item.component, gpus):
        return NVLINK
    is_fault = item.cleared_by is not None
    return f"rule:{item.rule}" if is_fault else f"check:{item.code.partition(':')[0]}"


def target_of(item: Evidence) -> str:
    """The `Symptom.component` of a piece of evidence."""
    check = item.code.partition(":")[0]
    return item.component if item.cleared_by is None and check in SHARED_TARGETS else ""


def actionable_evidence(
    incidents: Iterable[Incident], overruled: frozenset[tuple[str, str]]
) -> Iterable[Evidence]:
    """The evidence that calls for a quarantine now."""
    for incident in incidents:
        for item in incident.in_force:
            if item.action != "observe" and item.key not in overruled:
                yield item


#: The agent's name of its node's NVLink cliques: "CLUSTER.CLIQUE", several with a comma between.
TRAIT = "fabric_clique"
#: The label of the groups of nodes that share one NVLink fabric; its value is the cluster's UUID.
#: No node label can have this name.
FABRIC = "fabric:nvlink"
#: The same by the Nodes' clique label. These are groups of their own, because the agent of a node
#: that has no such label could claim the fabric of nodes that have one.
FABRIC_BY_LABEL = "fabric:nvlink-label"
#: Evidence of GPUs that the driver has not named yet: any GPU of the node may be meant.
_UNNAMED = "pci:"

_NVLINK = frozenset({"nvlink", "nvlink-fatal", "nvlink5", "switch-fatal", "switch-non-fatal"})
#: Classes of lines that are to be ignored by NVIDIA's catalogue: no evidence of anything.
_IGNORED = frozenset({"nvlink-ignore", "nvlink5-ignore"})
_MEMORY = frozenset({"contained", "memory-errors", "memory-fatal"})
#: A verdict that comes so close to a memory error of its GPU is about that (seconds). The checks
#: that read verdicts run every minute.
_CLOSE = 90.0
_VERDICT = "xid:154"
_RESET_REQUIRED = "gpu-inventory:reset-required"
#: Cliques of one node that count: the GPUs of a node are of one, or of two while that changes.
_MOST = 4
_CLIQUE = re.compile(r"([0-9a-f-]{1,36})\.[0-9]{1,10}")


def domains(trait: str) -> tuple[str, ...]:
    """The NVLink domains (cluster UUIDs) in the agent's trait, or in a Node's clique label, which
    NVIDIA's GPU feature discovery writes in the same form; empty for a text that is none.

    A switch tray serves all cliques of its domain, which are only a division of it.
    """
    found = (_CLIQUE.fullmatch(one) for one in trait.split(",", _MOST)[:_MOST])
    return tuple(sorted({one[1] for one in found if one is not None}))


def is_nvlink(item: Evidence, policy: Policy) -> bool:
    """Whether the evidence itself is of NVLink, by its code or its check."""
    if item.cleared_by is None:
        return item.code.partition(":")[0] in NVLINK_CHECKS
    return is_nvlink_code(item.code, policy)


def is_nvlink_code(code: str, policy: Policy) -> bool:
    """Whether faults of this code are NVLink's."""
    return policy.catalogue.classify(code) in _NVLINK


def is_verdict(code: str) -> bool:
    """Whether evidence of this code is the driver's verdict on a GPU, which names no cause."""
    return code in (_VERDICT, _RESET_REQUIRED) or code.partition(":")[0] in VERDICT_CHECKS


def is_verdict_on(code: str, component: str, gpus: frozenset[str]) -> bool:
    """Whether it is a verdict on one of the ``gpus``, by `gpus_with_nvlink_evidence`."""
    if not gpus or not is_verdict(code):
        return False
    return component in gpus or any(one.startswith(_UNNAMED) for one in gpus)


def is_ignored(fault: Fault, health: NodeHealth, policy: Policy) -> bool:
    """Whether the line is to be ignored by NVIDIA's catalogue, by its registers."""
    return policy.catalogue.class_of(fault, health.traits) in _IGNORED


def gpus_with_nvlink_evidence(
    health: NodeHealth | None, incidents: Mapping[str, Incident], policy: Policy
) -> frozenset[str]:
    """The GPUs of the node whose verdicts are about NVLink.

    A reset ends the errors before the next reading of the verdict, so errors that are over count as
    long as their incident is open.
    """
    found = set()
    for incident in incidents.values():
        for item in incident.evidence:
            if item.code.startswith("sxid:") or not (item.component and is_nvlink(item, policy)):
                continue
            fault = health.faults.get(item.key) if health is not None else None
            if fault is None or health is None or not is_ignored(fault, health, policy):
                found.add(item.component)
    if health is None:
        return frozenset(found)
    found |= {
        component
        for check, component, status, _ in health.components.findings()
        if status is Status.FAILED and check in NVLINK_CHECKS and component
    }
    return frozenset(found) - gpus_with_memory_errors(health, found, policy)


def gpus_with_memory_errors(
    health: NodeHealth, gpus: Iterable[str], policy: Policy
) -> frozenset[str]:
    """Those of the ``gpus`` on which the driver's verdict came with an error of the memory."""
    wanted = set(gpus)
    if not wanted:
        return _NONE
    verdicts: dict[str, list[float]] = {}
    errors: list[Fault] = []
    for fault in health.faults.values():
        if fault.component in wanted and not fault.historical:
            if fault.code == _VERDICT:
                verdicts.setdefault(fault.component, []).append(fault.last_at)
            elif policy.catalogue.classify(fault.code) in _MEMORY:
                errors.append(fault)
    if not errors:
        return _NONE
    for one in health.components.that_are(Status.FAILED):
        if one.component in wanted and is_verdict(f"{one.check}:{one.reason}"):
            verdicts.setdefault(one.component, []).append(one.since)
    return frozenset(
        error.component
        for error in errors
        if any(abs(at - error.last_at) <= _CLOSE for at in verdicts.get(error.component, ()))
    )


def may_be_of_fabric(
    health: NodeHealth | None, evidence: Iterable[Evidence], policy: Policy
) -> bool:
    """Whether all of this evidence is, or may yet turn out to be, the fabric's.

    A verdict may come before the evidence of its cause.
    """
    found = list(evidence)
    if not all(is_nvlink(item, policy) or is_verdict(item.code) for item in found):
        return False
    verdicts = {item.component for item in found if is_verdict(item.code)}
    own = gpus_with_memory_errors(health, verdicts, policy) if health is not None else _NONE
    return bool(found) and not own
