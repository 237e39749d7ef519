"""Evidence whose cause several nodes may share, and the name of that cause."""

from dataclasses import replace

import pytest

from aggregator.health.model import CheckOff, ClearedBy, Component, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import Evidence, evaluate
from aggregator.policy.rules import matches
from aggregator.policy.silent_agent import SILENT_FAILING
from aggregator.quarantine.decide.symptoms import (
    NVLINK,
    SILENCE,
    Symptom,
    acting_checks,
    actionable_evidence,
    symptoms_of,
    target_of,
    what_of,
)
from tests.support.replica import POLICY, component, fault, hello, shipped_policy, snapshot

ACTING = acting_checks(POLICY)
NOW = 5000.0


def level(check: str, component: str = "x") -> Evidence:
    return Evidence(f"{check}:reason", component, "boot-1", "a-rule", "cordon", "", None, 1.0)


def latched(code: str, rule: str = "gpu-fatal") -> Evidence:
    return Evidence(code, "GPU-1", "boot-1", rule, "drain", "", ClearedBy.REBOOT, 1.0)


@pytest.mark.parametrize(
    ("item", "what", "target"),
    [
        (level("reach", "10.0.0.1"), "check:reach", "10.0.0.1"),
        (level("dns", "kube-dns"), "check:dns", "kube-dns"),
        (level("disk-mounts", "/home"), "check:disk-mounts", "/home"),
        (level("pod-network", "svc"), "check:pod-network", "svc"),
        (level("disk-space", "/"), "check:disk-space", ""),
        (level("gpu-nvlink", "GPU-1"), NVLINK, ""),
        (level("gpu-fabric", ""), NVLINK, ""),
        (latched("xid:79"), "rule:gpu-fatal", ""),
        (latched("xid:74"), NVLINK, ""),
        # A latched fault belongs to its node, whichever target its check looks at.
        (replace(latched("xid:79"), code="reach:timeout"), "rule:gpu-fatal", ""),
        (replace(level("disk-space"), code=SILENT_FAILING), SILENCE, ""),
    ],
)
def test_a_piece_of_evidence_has_its_cause_and_its_target(
    item: Evidence, what: str, target: str
) -> None:
    assert (what_of(item, POLICY), target_of(item)) == (what, target)


def signs(told: Snapshot, *, then: Snapshot | None = None) -> set[Symptom]:
    """The symptoms of a node that sent this, and was evaluated after each."""
    health = NodeHealth(hello("n1"))
    health.snapshot(told)
    evaluated = evaluate(POLICY, health, {}, NOW)
    if then is not None:
        health.snapshot(then)
        evaluated = evaluate(POLICY, health, evaluated.incidents, NOW)
    return set(symptoms_of(health, evaluated.incidents, POLICY, ACTING))


def failed(check: str, name: str) -> Component:
    return component(check, name, Status.FAILED, "reason", since=100.0)


def test_a_failing_check_is_a_sign_from_when_it_failed() -> None:
    well = component("disk-space", "/b", Status.OK)
    degraded = component("disk-space", "/c", Status.DEGRADED, "full")
    assert signs(snapshot(failed("disk-space", "/a"), well, degraded)) == {
        Symptom("check:disk-space", "", 100.0, "disk-space" in ACTING)
    }
    assert signs(snapshot(failed("reach", "10.0.0.1"))) == {
        Symptom("check:reach", "10.0.0.1", 100.0, "reach" in ACTING)
    }
    assert signs(snapshot(failed("gpu-fabric", "GPU-1"))) == {
        Symptom(NVLINK, "", 100.0, "gpu-fabric" in ACTING)
    }
    assert signs(snapshot(failed("peers", "10.0.0.2"))) == set(), "an edge accuses neither end"


def test_a_latched_fault_is_a_sign_where_a_rule_acts_or_the_fabric_is_meant() -> None:
    assert signs(snapshot(fault("xid:79"))) == {Symptom("rule:gpu-gone", "", 990.0, True)}
    application = fault("xid:31", cleared_by=ClearedBy.EXPIRY)
    assert signs(snapshot(application)) == set(), "nothing acts on it"
    [link] = signs(snapshot(fault("xid:74", cleared_by=ClearedBy.GPU_RESET)))
    assert (link.what, link.since) == (NVLINK, 990.0)


def test_a_fault_is_a_sign_while_the_time_of_its_rule_runs() -> None:
    """Else the first of many nodes would be admitted a moment before the others count."""
    alone = replace(fault("xid:48", cleared_by=ClearedBy.GPU_RESET), first_at=NOW - 0.1)
    assert signs(snapshot(alone)) == {Symptom("rule:gpu-memory-alone", "", NOW - 0.1, True)}


def test_a_fault_that_its_agent_has_lost_is_no_sign() -> None:
    assert signs(snapshot(fault("xid:79")), then=snapshot()) == set()
    alone = fault("xid:48", cleared_by=ClearedBy.GPU_RESET)
    assert signs(snapshot(alone), then=snapshot()) == set()


def test_a_fault_of_the_fabric_is_a_sign_even_where_it_is_only_watched() -> None:
    link = fault("xid:74", cleared_by=ClearedBy.GPU_RESET)
    health = NodeHealth(hello("n1"))
    health.snapshot(snapshot(link, fault("xid:79")))
    names = {match.rule.name for match in matches(POLICY, health, NOW)}
    site = shipped_policy(f"rules: {[{'name': name, 'action': 'observe'} for name in names]}")
    evaluated = evaluate(site, health, {}, NOW)
    assert set(symptoms_of(health, evaluated.incidents, site, acting_checks(site))) == {
        Symptom(NVLINK, "", 990.0, False)
    }


def test_evidence_that_is_over_is_no_sign_while_its_fault_is_still_told_of() -> None:
    """The driver's later word may end a fault that stays latched."""
    health = NodeHealth(hello("n1"))
    health.snapshot(snapshot(fault("xid:79")))
    incidents = evaluate(POLICY, health, {}, NOW).incidents
    assert symptoms_of(health, incidents, POLICY, ACTING)
    over = {
        key: replace(one, evidence=tuple(replace(item, over="verdict") for item in one.evidence))
        for key, one in incidents.items()
    }
    assert not symptoms_of(health, over, POLICY, ACTING)


def test_what_an_agent_says_of_a_check_that_it_does_not_have_is_no_sign() -> None:
    named = replace(hello("n1"), checks=(CheckOff("disk-space", 60.0, ""),))
    health = NodeHealth(named)
    health.snapshot(snapshot(failed("disk-space", "/a"), failed("reach", "10.0.0.1")))
    evaluated = evaluate(POLICY, health, {}, NOW)
    found = symptoms_of(health, evaluated.incidents, POLICY, ACTING)
    assert {sign.what for sign in found} == {"check:disk-space"}


def test_what_is_only_watched_overruled_or_over_accuses_nobody() -> None:
    health = NodeHealth(hello("n1"))
    health.snapshot(snapshot(fault("xid:79"), fault("xid:31", cleared_by=ClearedBy.EXPIRY)))
    incidents = evaluate(POLICY, health, {}, NOW).incidents.values()
    assert {item.code for one in incidents for item in one.evidence} == {"xid:79", "xid:31"}
    assert [item.code for item in actionable_evidence(incidents, frozenset())] == ["xid:79"]
    assert list(actionable_evidence(incidents, frozenset({("xid:79", "GPU-1")}))) == []
    over = [
        replace(one, evidence=tuple(replace(item, over="reboot") for item in one.evidence))
        for one in incidents
    ]
    assert list(actionable_evidence(over, frozenset())) == []


def test_the_acting_checks_are_those_that_some_rule_acts_on() -> None:
    site = shipped_policy("rules: [{name: disk-full, action: observe}]")
    assert "disk-space" in ACTING
    assert "" not in ACTING, "the rules of latched faults have no check"
    lost = ACTING - acting_checks(site)
    assert lost == {"disk-space"}, "what is only watched acts on nothing"
    assert not acting_checks(replace(POLICY, rules=()))
