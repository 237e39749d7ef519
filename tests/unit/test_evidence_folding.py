"""How incidents fold their evidence: how much is kept, and what silence and boots do to it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from aggregator.health.model import ClearedBy, Delta, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.policy import evaluate as folding
from aggregator.policy.evaluate import MOST_EVIDENCE, Evidence, Incident, evaluate
from aggregator.policy.rules import Policy, Rule, matches
from tests.support.replica import POLICY, component, fault, hello, snapshot

NOW = 1000.0


def item(number: int, *, over: str = "") -> Evidence:
    return Evidence("xid:79", f"GPU-{number}", "b", "gpu-gone", "drain", "", None, 1.0, over=over)


HALF = MOST_EVIDENCE // 2


@pytest.mark.parametrize(
    ("over", "in_force", "kept_over"),
    [
        (0, 3, 0),
        (3, 0, 3),
        (HALF - 3, 3, HALF - 3),
        (HALF, 0, HALF),
        (HALF + 1, 0, HALF),
        (HALF, 1, HALF - 1),
        (2 * HALF, 10, HALF - 10),
        (5, HALF, 0),
        (5, HALF + 7, 0),
        (0, HALF + 7, 0),
    ],
)
def test_what_is_over_makes_room_for_what_is_in_force_the_oldest_first(
    over: int, in_force: int, kept_over: int
) -> None:
    past = [item(number, over="ok") for number in range(over)]
    present = [item(number) for number in range(over, over + in_force)]
    # In either order: the first are the oldest.
    for many in ([*past, *present], [*present, *past]):
        kept = folding._bounded(many)
        assert [one for one in kept if one.over] == past[over - kept_over :]
        assert [one for one in kept if not one.over] == present


def evaluated(
    policy: Policy, health: NodeHealth, before: Mapping[str, Incident] | None = None
) -> list[Incident]:
    return list(evaluate(policy, health, before or {}, NOW).incidents.values())


def test_evidence_beyond_the_most_that_an_incident_keeps_is_not_added() -> None:
    health = NodeHealth(hello("n1"))
    many = [fault("xid:79", f"GPU-{number}") for number in range(MOST_EVIDENCE + 5)]
    health.snapshot(snapshot(*many))
    (incident,) = evaluated(POLICY, health)
    assert len(incident.evidence) == MOST_EVIDENCE
    # Evidence that the node has already is evaluated anew all the same.
    health.delta(Delta(faults=(replace(many[0], message="again"),)))
    (again,) = evaluated(POLICY, health, {incident.id: incident})
    assert len(again.evidence) == MOST_EVIDENCE
    assert again.evidence[0].message == "again"


def flapping_rule(*components: str) -> Policy:
    rule = Rule("r", "network", "cordon", "", check="nic-link", flaps=2, components=components)
    return replace(POLICY, rules=(rule,))


def flapped(name: str) -> Snapshot:
    turns = (Status.OK, Status.FAILED) * 3
    told = tuple((900.0 + place, status) for place, status in enumerate(turns))
    one = component("nic-link", name, Status.FAILED, "down", since=905.0)
    return snapshot(replace(one, recent=told), component("nic-link", "a", Status.OK))


def test_a_rule_about_flapping_looks_at_the_components_that_it_names() -> None:
    health = NodeHealth(hello("n1"))
    health.snapshot(flapped("eth0"))
    for wanted, met in (((), True), (("eth*",), True), (("ib*",), False), (("ib*", "eth0"), True)):
        found = [(one.code, one.component) for one in matches(flapping_rule(*wanted), health, NOW)]
        assert found == [("nic-link:flaps", "eth0")] * met
    (one,) = matches(flapping_rule(), health, NOW)
    assert (one.since, one.due, one.cleared_by) == (903.0, 903.0, None)


def test_a_component_that_tells_nothing_keeps_the_last_sign_of_its_evidence() -> None:
    health = NodeHealth(hello("n1"))
    failed = component("disk-space", "/data", Status.FAILED, "bytes", since=900.0)
    health.snapshot(snapshot(failed))
    (incident,) = evaluated(POLICY, health)
    silent = NodeHealth(hello("n1"))
    silent.snapshot(snapshot())
    for over in ("", "ok"):
        known = replace(incident, evidence=(replace(incident.evidence[0], over=over),))
        (after,) = evaluated(POLICY, silent, {known.id: known})
        assert [one.over for one in after.evidence] == [over]
        unknown = NodeHealth(hello("n1"))
        unknown.snapshot(snapshot(replace(failed, status=Status.UNKNOWN)))
        (after,) = evaluated(POLICY, unknown, {known.id: known})
        assert [one.over for one in after.evidence] == [over]


@pytest.mark.parametrize(
    ("code", "ends", "over"),
    [
        ("xid:79", ClearedBy.REBOOT, "reboot"),
        ("xid:48", ClearedBy.GPU_RESET, "reboot"),
        ("xid:54", ClearedBy.OPERATOR, ""),
    ],
)
def test_another_boot_ends_what_a_boot_ends_and_it_is_lost_else(
    code: str, ends: ClearedBy, over: str
) -> None:
    health = NodeHealth(hello("n1"))
    health.snapshot(snapshot(fault(code, cleared_by=ends)))
    (incident,) = evaluated(POLICY, health)
    booted = NodeHealth(hello("n1", "boot-2"))
    booted.snapshot(snapshot())
    (after,) = evaluated(POLICY, booted, {incident.id: incident})
    assert [(one.over, one.lost) for one in after.evidence] == [(over, True)]
    assert (after.recovering_since is not None) == bool(over)


def test_of_our_own_evidence_all_that_fails_is_kept_and_the_latest_that_is_healthy() -> None:
    health = NodeHealth(hello("node-a"))
    health.snapshot(snapshot(component("disk", "/data", Status.OK)))
    names = [f"disk-latency d{number}" for number in range(100)]
    for name in names:
        health.record_own_evidence(component("fleet-outlier", name, Status.FAILED))
    assert len(health.own) == 100
    for name in reversed(names[1:]):
        health.record_own_evidence(component("fleet-outlier", name, Status.OK))
    kept = {key[1] for key in health.own}
    assert kept == set(names[:65])
    assert {one.component for one in health.components.all()} == {*kept, "/data"}
