"""Rules about degraded components: when they begin, what ends them, and what they never touch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.health.model import CheckOff, Component, Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import Evaluation, Incident, evaluate
from aggregator.policy.explain import Question, explain
from aggregator.policy.rules import Policy, Rule
from aggregator.quarantine.decide.overrides import Override, may_be_open
from aggregator.quarantine.decide.symptoms import Symptom, acting_checks, symptoms_of
from tests.support.replica import POLICY, hello

OK, DEGRADED, FAILED, UNKNOWN = Status.OK, Status.DEGRADED, Status.FAILED, Status.UNKNOWN
NOW = 10_000.0


def rule(name: str = "slow", **changes: Any) -> Rule:
    made: dict[str, Any] = {"kind": "gpu", "action": "cordon", "why": "w", "check": "heat"}
    made |= {"status": "degraded", "hold": 600.0, "healthy_for": 60.0}
    return Rule(name=name, **{**made, **changes})


def policy(*rules: Rule) -> Policy:
    return Policy(rules, POLICY.catalogue, "h")


def heat(*past: tuple[float, Status], reason: str = "hot") -> Component:
    """A component with these transitions, the last of which is its present status."""
    since, status = past[-1]
    return Component("heat", "GPU-1", status, reason, f"says {reason}", since, past)


class Node:
    """A node that is evaluated after each of its reports."""

    def __init__(self, *rules: Rule) -> None:
        self.policy = policy(*rules)
        self.health = NodeHealth(hello("n1"))
        self.incidents: Mapping[str, Incident] = {}

    def incidents_of(self, component: Component, now: float = NOW) -> Evaluation:
        self.health.snapshot(Snapshot((component,), ()))
        evaluated = evaluate(self.policy, self.health, self.incidents, now)
        self.incidents = evaluated.incidents
        return evaluated

    def action(self, component: Component, now: float = NOW) -> str:
        evaluated = self.incidents_of(component, now)
        return ",".join(one.action for one in evaluated.incidents.values() if one.in_force)


@pytest.mark.parametrize(("hold", "acts_after"), [(29.0, 29.0), (30.0, 375.0), (600.0, 600.0)])
def test_a_rule_with_a_for_of_thirty_seconds_waits_for_a_second_run_of_its_check(
    hold: float, acts_after: float
) -> None:
    node = Node(rule(hold=hold))
    checks = (CheckOff("other", 9000.0, ""), CheckOff("heat", 300.0, ""))
    node.health = NodeHealth(replace(hello("n1"), checks=checks))
    assert node.action(heat((NOW - acts_after + 1, DEGRADED))) == ""
    assert node.action(heat((NOW - acts_after, DEGRADED))) == "cordon"


def test_a_degraded_component_counts_from_the_start_of_that_status() -> None:
    node = Node(rule())
    assert node.action(heat((NOW - 599, DEGRADED))) == ""
    assert node.action(heat((NOW - 600, DEGRADED))) == "cordon"


def test_a_rule_without_the_key_is_about_failures_alone() -> None:
    assert Node(rule(status="failed")).action(heat((0.0, DEGRADED))) == ""
    assert Node(rule(status="failed")).action(heat((0.0, FAILED))) == "cordon"


def test_failed_is_worse_than_degraded_and_counts_too() -> None:
    past = ((NOW - 700, DEGRADED), (NOW - 300, FAILED), (NOW - 100, DEGRADED))
    assert Node(rule()).action(heat(*past)) == "cordon"


def test_no_unknown_status_counts_and_none_ends_it() -> None:
    past = ((NOW - 700, DEGRADED), (NOW - 600, UNKNOWN), (NOW - 300, DEGRADED))
    assert Node(rule()).action(heat(*past)) == "", "400 s of 600 s"
    assert Node(rule()).action(heat((0.0, UNKNOWN))) == ""
    node = Node(rule())
    assert node.action(heat((0.0, DEGRADED))) == "cordon"
    assert node.action(heat((0.0, DEGRADED), (NOW, UNKNOWN)), NOW + 1) == "cordon"


def test_only_a_healthy_result_ends_it_and_a_moment_of_degradation_begins_recovery_anew() -> None:
    node = Node(rule())
    assert node.action(heat((0.0, DEGRADED))) == "cordon"
    assert node.action(heat((0.0, DEGRADED), (NOW, OK)), NOW + 1) == ""
    past = ((0.0, DEGRADED), (NOW, OK), (NOW + 30, DEGRADED), (NOW + 40, OK))
    evaluated = node.incidents_of(heat(*past), NOW + 70)
    assert not evaluated.closed, "degraded between two reports, 30 s ago"
    evaluated = node.incidents_of(heat(*past), NOW + 100)
    assert [one.kind for one in evaluated.closed] == ["gpu"]


def test_an_acting_rule_about_failures_ends_where_the_check_is_degraded() -> None:
    acts, observes = rule("acts", status="failed"), rule("sees", action="observe", hold=0.0)
    node = Node(acts, observes)
    assert node.action(heat((0.0, FAILED))) == "cordon"
    assert node.action(heat((0.0, FAILED), (NOW, DEGRADED)), NOW + 1) == "observe"
    evaluated = node.incidents_of(heat((0.0, FAILED), (NOW, DEGRADED)), NOW + 100)
    assert [one.action for one in evaluated.closed] == ["cordon"]


def test_reasons_of_a_degraded_component_are_those_of_the_rule() -> None:
    node = Node(rule(reasons=("hot",)))
    assert node.action(heat((0.0, DEGRADED), reason="worn")) == ""
    assert node.action(heat((0.0, DEGRADED))) == "cordon"
    assert node.action(heat((0.0, DEGRADED), reason="worn")) == "cordon", "no sign of its end"


def test_a_common_cause_counts_degraded_components_where_a_rule_acts_on_them() -> None:
    for action, expected in (
        ("cordon", {Symptom("check:heat", "", 100.0, True)}),
        ("observe", set()),
    ):
        node = Node(rule(action=action))
        node.health.snapshot(Snapshot((heat((100.0, DEGRADED)),), ()))
        acting = acting_checks(node.policy)
        assert set(symptoms_of(node.health, {}, node.policy, acting)) == expected


def test_a_persons_override_lasts_as_long_as_the_component_is_degraded() -> None:
    word = Override("heat:hot", "GPU-1", "boot-1", "")
    node = Node(rule())
    for component, still in (
        (heat((0.0, DEGRADED)), True),
        (heat((0.0, UNKNOWN)), True),
        (heat((0.0, DEGRADED), reason="worn"), True),
        (heat((0.0, OK)), False),
    ):
        node.health.snapshot(Snapshot((component,), ()))
        assert may_be_open(word, node.health, node.policy.acting_on_degraded) == still, component
    node.health.snapshot(Snapshot((heat((0.0, DEGRADED)),), ()))
    assert not may_be_open(word, node.health), "no rule acts on it"


def test_explain_asks_the_rules_for_the_status_that_is_given() -> None:
    rules = (rule("worse", status="failed", action="drain"), rule())
    asked = Question(check="heat", reason="hot", status="degraded")
    answer = explain(policy(*rules), asked)
    assert answer.rule is not None
    assert (answer.rule.name, answer.meaning) == ("slow", "check heat is degraded")
    assert [(one.name, wants) for one, wants in answer.others] == [("worse", "it fails")]
    answer = explain(policy(*rules), Question(check="heat", reason="hot"))
    assert answer.rule is not None
    assert answer.rule.name == "worse"


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.floats(0, NOW), st.sampled_from([OK, DEGRADED, FAILED, UNKNOWN])),
        min_size=1,
        max_size=8,
    )
)
def test_a_rule_acts_only_on_what_is_degraded_or_failed_now(
    past: list[tuple[float, Status]],
) -> None:
    component = heat(*sorted(past, key=lambda one: one[0]))
    acted = Node(rule()).action(component) == "cordon"
    assert not acted or component.status in (DEGRADED, FAILED)
    failures = Node(rule(status="failed")).action(component) == "cordon"
    assert not failures or acted, "a rule about more statuses is met wherever the other is"
