"""How rules of one node's evidence add up: which rule decides, what supersedes, what is over."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.health.model import Cleared, ClearedBy, Component, Delta, Fault, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import (
    MOST_EVIDENCE,
    Evaluation,
    Evidence,
    Incident,
    evaluate,
    incident_id,
)
from aggregator.policy.rules import Policy, Rule, matches, waiting_faults
from aggregator.policy.silent_agent import SILENT_FAILING, SILENT_RULE, silent_match
from tests.support.replica import POLICY, fault, hello, snapshot

OK, FAILED, UNKNOWN = Status.OK, Status.FAILED, Status.UNKNOWN


def rule(name: str, action: str = "cordon", **changes: Any) -> Rule:
    made: dict[str, Any] = {"kind": "disk", "why": "w", "check": "disk", "healthy_for": 60.0}
    return Rule(name=name, action=action, **{**made, **changes})


def policy(*rules: Rule) -> Policy:
    return Policy(rules, POLICY.catalogue, "h")


def disk(reason: str = "a", *, since: float = 900.0, of: str = "/") -> Component:
    return Component("disk", of, FAILED, reason, f"says {reason}", since)


def well(*, since: float = 1_000.0, status: Status = OK, of: str = "/") -> Component:
    return Component("disk", of, status, "", "", since)


def health(*evidence: Component | Fault) -> NodeHealth:
    found = NodeHealth(hello("n1"))
    found.snapshot(snapshot(*evidence))
    return found


def one(found: Evaluation) -> Incident:
    (incident,) = found.incidents.values()
    return incident


def rules_of(incident: Incident) -> list[tuple[str, str, str]]:
    return [(item.code, item.rule, item.action) for item in incident.evidence]


# -- which rule decides --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "decides"),
    [
        (("observe", "cordon", "drain"), 2),
        (("drain", "cordon", "observe"), 0),
        (("cordon", "drain", "cordon"), 1),
        (("cordon", "cordon"), 0),
        (("drain",), 0),
    ],
)
def test_the_strongest_rule_decides_and_of_equals_the_first(
    actions: tuple[str, ...], decides: int
) -> None:
    rules = policy(*(rule(f"r{place}", action) for place, action in enumerate(actions)))
    found = one(evaluate(rules, health(disk()), {}, 1_000.0))
    assert rules_of(found) == [("disk:a", f"r{decides}", actions[decides])]
    assert (found.action, found.kind, found.node) == (actions[decides], "disk", "n1")


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (("xid:31",), ["xid:31"]),
        (("xid:48", "xid:31"), ["xid:31", "xid:48"]),
        (("xid:3?",), ["xid:31"]),
        (("xid:[34]*", "xid:79"), ["xid:31", "xid:48", "xid:79"]),
        (("xid:48", "xid:*"), ["xid:31", "xid:48", "xid:79", "xid:119"]),
        (("xid:4", "XID:48", "xid:48 "), []),
    ],
)
def test_a_rule_of_codes_matches_their_faults_in_the_order_of_the_faults(
    patterns: tuple[str, ...], expected: list[str]
) -> None:
    known = ("xid:31", "xid:48", "xid:79", "xid:119")
    of_codes = rule("codes", "observe", check="", faults=patterns)
    found = matches(policy(of_codes), health(*(fault(code) for code in known)), 2_000.0)
    assert [match.code for match in found] == expected


class _Everywhere:
    """Finds every rule, whatever the evidence is."""

    on_degraded = True

    def __init__(self, found: Policy) -> None:
        self._all = set(range(len(found.rules)))
        self.waiting = {
            place
            for place, rule in enumerate(found.rules)
            if rule.acts and rule.hold and not rule.check
        }

    def of_checks(self, *_: object) -> set[int]:
        return self._all

    def of_faults(self, *_: object) -> set[int]:
        return self._all


_CHECKS = sorted({one.check for one in POLICY.rules if one.check} | {"no-rule"})
_REASONS = sorted({reason for one in POLICY.rules for reason in one.reasons} | {""})
_CODES = sorted({code for one in POLICY.rules for code in one.faults} | {"xid:48", "xid:999"})


@given(
    st.lists(
        st.builds(
            Component,
            st.sampled_from(_CHECKS),
            st.sampled_from(["", "gpu0", "eth0"]),
            st.sampled_from(Status),
            st.sampled_from(_REASONS),
            st.just(""),
            st.just(900.0),
        ),
        max_size=6,
        unique_by=lambda found: found.key,
    ),
    st.lists(st.sampled_from(_CODES), max_size=6, unique=True),
)
def test_the_rules_that_are_visited_are_all_that_could_match(
    components: list[Component], codes: list[str]
) -> None:
    any_code = policy(*POLICY.rules, rule("any", check="", faults=("xid:*",)))
    everywhere = replace(any_code)
    object.__setattr__(everywhere, "places", _Everywhere(everywhere))
    found = health(*components, *(fault(code) for code in codes))
    expected = list(matches(everywhere, found, 1_000.0))
    assert list(matches(any_code, found, 1_000.0)) == expected
    assert list(waiting_faults(any_code, found)) == list(waiting_faults(everywhere, found))
    assert not codes or expected, "the pattern matches each code"


def test_a_rule_whose_time_has_not_come_decides_nothing() -> None:
    rules = policy(rule("now", "cordon"), rule("later", "drain", hold=101.0))
    found = evaluate(rules, health(disk()), {}, 1_000.0)
    assert one(found).action == "cordon"
    assert found.evaluate_again == 1_001.0
    later = evaluate(rules, health(disk()), found.incidents, 1_001.0)
    assert (one(later).action, later.evaluate_again) == ("drain", None)


def test_evidence_keeps_its_stronger_rule_and_takes_the_newer_message() -> None:
    both = policy(rule("strong", "drain", hold=50.0), rule("weak", "cordon"))
    first = evaluate(both, health(disk()), {}, 1_000.0)
    again = health(replace(disk(since=995.0), message="anew"))
    second = one(evaluate(both, again, first.incidents, 1_001.0))
    (item,) = second.evidence
    assert (item.rule, item.action, item.message, item.since) == ("strong", "drain", "anew", 900.0)


def test_what_was_observed_and_acts_now_leaves_the_observed_incident() -> None:
    rules = policy(rule("watch", "observe"), rule("act", "cordon", hold=150.0))
    first = evaluate(rules, health(disk()), {}, 1_000.0)
    assert one(first).action == "observe"
    assert one(first).id == incident_id("n1", "boot-1", "disk:observed")
    second = one(evaluate(rules, health(disk()), first.incidents, 1_050.0))
    assert second.action == "cordon"
    assert second.id == incident_id("n1", "boot-1", "disk")
    assert second.since == 1_050.0


def test_observed_evidence_of_another_reason_supersedes_nothing_that_acts() -> None:
    rules = policy(rule("act", reasons=("a",)), rule("watch", "observe", reasons=("b",)))
    first = evaluate(rules, health(disk("a")), {}, 1_000.0)
    second = evaluate(rules, health(disk("b")), first.incidents, 1_001.0)
    by_action = {incident.action: incident for incident in second.incidents.values()}
    assert [item.over for item in by_action["cordon"].evidence] == [""]
    assert [item.code for item in by_action["observe"].evidence] == ["disk:b"]
    # An acting reason does not end what is observed either.
    back = evaluate(rules, health(disk("a")), second.incidents, 1_002.0)
    by_action = {incident.action: incident for incident in back.incidents.values()}
    assert [item.over for item in by_action["observe"].evidence] == [""]


def test_a_reason_of_another_kind_or_component_supersedes_nothing() -> None:
    rules = policy(
        rule("a", reasons=("a",)),
        rule("b", reasons=("b",), kind="node"),
        rule("c", reasons=("c",)),
    )
    first = evaluate(rules, health(disk("a")), {}, 1_000.0)
    for other, over in ((disk("b"), ""), (disk("c"), "changed")):
        second = evaluate(rules, health(other), first.incidents, 1_001.0)
        mine = next(found for found in second.incidents.values() if found.kind == "disk")
        assert mine.evidence[0].over == over, other.reason
    elsewhere = health(disk("b"), disk("c", of="/data"))
    second = evaluate(rules, elsewhere, first.incidents, 1_001.0)
    mine = next(found for found in second.incidents.values() if found.kind == "disk")
    assert mine.evidence[0].over == ""


def test_a_failure_without_a_reason_is_named_failed() -> None:
    rules = policy(rule("any"))
    first = evaluate(rules, health(disk("")), {}, 1_000.0)
    assert rules_of(one(first)) == [("disk:failed", "any", "cordon")]
    second = evaluate(rules, health(disk("a")), first.incidents, 1_001.0)
    over = {item.code: item.over for item in one(second).evidence}
    assert over == {"disk:failed": "changed", "disk:a": ""}
    third = evaluate(rules, health(disk("")), second.incidents, 1_002.0)
    over = {item.code: item.over for item in one(third).evidence}
    assert over == {"disk:failed": "", "disk:a": "changed"}


# -- time ----------------------------------------------------------------------------------------


def test_it_closes_at_the_end_of_its_time_and_not_before() -> None:
    rules = policy(rule("a"), rule("b", check="nic", healthy_for=90.0))
    nic = Component("nic", "x", FAILED, "down", "", 900.0)
    first = evaluate(rules, health(disk(), nic), {}, 1_000.0)
    assert one(first).healthy_for == 90.0, "the longest of its rules"
    found = health(well(), replace(nic, status=OK))
    second = evaluate(rules, found, first.incidents, 1_001.0)
    assert one(second).recovering_since == 1_001.0
    assert second.evaluate_again == 1_091.0
    third = evaluate(rules, found, second.incidents, 1_090.9)
    assert third.closed == ()
    last = evaluate(rules, found, third.incidents, 1_091.0)
    assert [incident.id for incident in last.closed] == [one(first).id]
    assert (last.incidents, last.evaluate_again) == ({}, None)


def test_evidence_whose_rule_is_gone_needs_the_default_healthy_time() -> None:
    rules = policy(rule("a", reasons=("a",)), rule("b", reasons=("b",), healthy_for=30.0))
    broken = health(disk("a"), disk("b", of="/data"))
    first = evaluate(rules, broken, {}, 1_000.0)
    assert one(first).healthy_for == 60.0
    for left, time in ((rules.rules[1:], 600.0), ((), 600.0)):
        second = evaluate(policy(*left), broken, first.incidents, 1_001.0)
        assert one(second).healthy_for == time
        assert one(second).in_force, "a rule that is gone is no positive sign"


def test_silence_counts_nothing_towards_recovery() -> None:
    rules = policy(rule("a"))
    first = evaluate(rules, health(disk()), {}, 1_000.0)
    found = health(well())
    second = evaluate(rules, found, first.incidents, 1_001.0)
    silent = evaluate(rules, found, second.incidents, 1_030.0, reporting=False)
    assert one(silent).recovering_since is None
    again = evaluate(rules, found, silent.incidents, 1_040.0)
    assert one(again).recovering_since == 1_040.0


def test_no_result_between_good_and_bad_ends_nothing() -> None:
    rules = policy(rule("a"))
    first = evaluate(rules, health(disk()), {}, 1_000.0)
    unknown = health(well(status=UNKNOWN))
    assert one(evaluate(rules, unknown, first.incidents, 1_001.0)).in_force
    ring = ((900.0, FAILED), (950.0, OK))
    seen = health(replace(well(status=UNKNOWN), recent=ring))
    assert not one(evaluate(rules, seen, first.incidents, 1_001.0)).in_force
    missing = NodeHealth(hello("n1"))
    assert one(evaluate(rules, missing, first.incidents, 1_001.0)).in_force
    recovered = evaluate(rules, health(well()), first.incidents, 1_001.0)
    kept = one(evaluate(rules, unknown, recovered.incidents, 1_002.0))
    assert [item.over for item in kept.evidence] == ["ok"]


# -- silence -------------------------------------------------------------------------------------


def test_a_silent_agents_checks_begin_nothing_and_its_faults_do() -> None:
    rules = policy(rule("a"), rule("gpu", "drain", check="", faults=("xid:79",), kind="gpu"))
    broken = health(disk(), fault())
    silent = evaluate(rules, broken, {}, 1_000.0, reporting=False)
    assert rules_of(one(silent)) == [("xid:79", "gpu", "drain")]
    begun = evaluate(rules, health(disk()), {}, 1_000.0)
    kept = evaluate(rules, health(disk()), begun.incidents, 1_001.0, reporting=False)
    assert one(kept).in_force


@pytest.mark.parametrize(
    ("stronger", "reporting", "action"),
    [
        ("drain", False, "cordon"),
        ("drain", True, "drain"),
        ("cordon", False, "cordon"),
    ],
)
def test_silence_makes_no_action_stronger(stronger: str, *, reporting: bool, action: str) -> None:
    rules = policy(rule("a"), rule("b", stronger, hold=110.0))
    first = evaluate(rules, health(disk()), {}, 1_000.0)
    later = evaluate(rules, health(disk()), first.incidents, 1_020.0, reporting=reporting)
    assert one(later).action == action


def test_an_agent_that_is_silent_and_was_failing_is_over_when_it_speaks() -> None:
    broken = health(disk())
    match = silent_match(broken, "disk /: bad", 990.0, "cordon")
    silent = evaluate(policy(), broken, {}, 1_000.0, reporting=False, more=[match])
    incident = one(silent)
    assert rules_of(incident) == [(SILENT_FAILING, SILENT_RULE, "cordon")]
    assert incident.summary == (
        "its agent is silent, its kubelet is ready, and this was failing: disk /: bad"
    )
    still = evaluate(policy(), broken, silent.incidents, 1_001.0, reporting=False)
    assert one(still).in_force
    spoken = evaluate(policy(), broken, silent.incidents, 1_001.0)
    assert [item.over for item in one(spoken).evidence] == ["reporting"]
    assert one(spoken).healthy_for == 600.0


# -- faults --------------------------------------------------------------------------------------

GPU = policy(rule("gpu", "drain", check="", faults=("xid:*",), kind="gpu"))


def known(found: NodeHealth, before: Mapping[str, Incident], at: float = 1_010.0) -> Evidence:
    (item,) = one(evaluate(GPU, found, before, at)).evidence
    return item


def test_a_fault_ends_by_its_own_sign_and_comes_back_in_force() -> None:
    sick = health(fault())
    first = evaluate(GPU, sick, {}, 1_000.0)
    sick.delta(Delta(cleared=(Cleared("xid:79", "GPU-1", "operator"),)))
    cleared = evaluate(GPU, sick, first.incidents, 1_001.0)
    assert [item.over for item in one(cleared).evidence] == ["operator"]
    sick.delta(Delta(faults=(fault(source_seq=9),)))
    assert known(sick, cleared.incidents).over == ""


def test_a_late_stream_of_the_faults_own_boot_undoes_its_end_by_a_boot() -> None:
    sick = health(fault())
    first = evaluate(GPU, sick, {}, 1_000.0)
    sick.greet(hello("n1", "boot-2"))
    sick.snapshot(snapshot())
    ended = evaluate(GPU, sick, first.incidents, 1_001.0)
    assert [item.over for item in one(ended).evidence] == ["reboot"]
    late = known(health(), ended.incidents)
    assert (late.over, late.lost) == ("", True)
    assert known(sick, ended.incidents).over == "reboot"
    # Another sign than a boot stands in whatever boot.
    (incident,) = ended.incidents.values()
    by_hand = replace(
        incident, evidence=tuple(replace(item, over="operator") for item in incident.evidence)
    )
    assert known(health(), {by_hand.id: by_hand}).over == "operator"


def test_a_verdict_that_no_action_is_due_ends_a_fault_that_stands() -> None:
    first = evaluate(GPU, health(fault()), {}, 1_000.0)
    none = policy(replace(GPU.rules[0], details={"verdict": ("gpu-reset",)}))
    for verdict, over in (("none", "verdict"), ("gpu-reset", ""), ("", "")):
        sick = health(fault(details={"verdict": verdict}))
        (item,) = one(evaluate(none, sick, first.incidents, 1_001.0)).evidence
        assert (item.over, item.lost) == (over, False), verdict


def test_a_lost_fault_opens_nothing_and_is_in_force_where_it_was_known() -> None:
    sick = health(fault())
    first = evaluate(GPU, sick, {}, 1_000.0)
    sick.snapshot(snapshot())
    assert evaluate(GPU, sick, {}, 1_001.0).incidents == {}
    item = known(sick, first.incidents)
    assert (item.over, item.lost) == ("", True)


# -- bounds --------------------------------------------------------------------------------------


def test_an_incident_rests_on_so_much_evidence_and_drops_first_what_is_over() -> None:
    many = [fault("xid:79", f"GPU-{number:04}") for number in range(MOST_EVIDENCE + 1)]
    first = evaluate(GPU, health(*many), {}, 1_000.0)
    assert len(one(first).evidence) == MOST_EVIDENCE
    sick = health(*many[:MOST_EVIDENCE])
    cleared = tuple(Cleared("xid:79", item.component, "operator") for item in many[:700])
    sick.delta(Delta(cleared=cleared))
    second = one(evaluate(GPU, sick, first.incidents, 1_001.0))
    assert len(second.evidence) == MOST_EVIDENCE // 2
    over = [item.component for item in second.evidence if item.over]
    assert over == [f"GPU-{number:04}" for number in range(500, 700)]
    assert len(second.in_force) == 300


def test_the_summary_counts_the_rest_and_names_the_strongest_in_force() -> None:
    rules = policy(
        rule("gpu", "drain", check="", faults=("xid:79",), kind="gpu"),
        rule("more", "cordon", check="", faults=("xid:48",), kind="gpu"),
    )
    sick = health(fault("xid:48", "", cleared_by=ClearedBy.GPU_RESET), fault())
    first = evaluate(rules, sick, {}, 1_000.0)
    assert one(first).summary.startswith("xid:79")
    assert one(first).summary.endswith(" on GPU-1, and 1 more")
    sick.delta(Delta(cleared=(Cleared("xid:79", "GPU-1", "operator"),)))
    second = one(evaluate(rules, sick, first.incidents, 1_001.0))
    assert (second.action, second.since) == ("cordon", one(first).since)
    assert second.summary.startswith("xid:48")
    assert " on " not in second.summary.rpartition(")")[2]


def test_a_healthy_node_without_incidents_asks_for_nothing() -> None:
    assert evaluate(policy(rule("a")), health(well()), {}, 1_000.0) == Evaluation({}, (), None)
