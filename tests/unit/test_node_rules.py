"""Rules that are about some nodes only."""

from dataclasses import replace

import pytest

from aggregator.configfile.yaml_source import ConfigError
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import evaluate
from aggregator.policy.label_selector import LabelSelector
from aggregator.policy.lint import warnings
from aggregator.policy.node_rules import policy_for, reweighed, selection_of
from aggregator.policy.rules import Policy
from tests.support.replica import POLICY, fault, hello, shipped_policy, snapshot

pytestmark = pytest.mark.slow

CANARY, OTHER = {"pool": "canary"}, {"pool": "other"}
SITE = """rules:
  - name: gpu-gone
    nodes: {matchLabels: {pool: canary}}
    elsewhere: %s
"""


def site(elsewhere: str = "observe") -> Policy:
    return shipped_policy(SITE % elsewhere)


def action(policy: Policy, labels: dict[str, str] | None) -> str:
    """The action on a node with these labels whose GPU is off the bus; empty: no rule has one."""
    health = NodeHealth(hello("n1"))
    health.snapshot(snapshot(fault()))
    found = evaluate(policy_for(policy, labels), health, {}, 2000.0).incidents
    return next((one.action for one in found.values()), "")


def test_a_rule_has_its_action_on_the_nodes_that_it_selects() -> None:
    assert action(site(), CANARY) == "drain"
    assert action(site(), OTHER) == "observe"
    assert action(site("cordon"), {}) == "cordon"


def test_without_another_action_it_does_not_apply_elsewhere() -> None:
    alone = shipped_policy("rules: [{name: gpu-gone, nodes: {matchLabels: {pool: canary}}}]")
    assert action(alone, CANARY) == "drain"
    assert action(alone, OTHER) == ""


def test_where_labels_are_not_known_the_milder_action_is_taken() -> None:
    assert action(site(), None) == "observe"
    stronger = shipped_policy(
        "rules: [{name: gpu-gone, action: observe, nodes: {matchLabels: {pool: quiet}},"
        " elsewhere: drain}]"
    )
    assert action(stronger, None) == "observe"
    assert action(stronger, {"pool": "quiet"}) == "observe"
    assert action(stronger, OTHER) == "drain"


def test_a_policy_without_selectors_is_the_same_on_every_node() -> None:
    assert policy_for(POLICY, CANARY) is POLICY
    assert policy_for(POLICY, None) is POLICY
    assert selection_of(POLICY, CANARY) == 0


def test_the_policies_of_nodes_are_made_once_and_know_every_rule() -> None:
    policy = site()
    assert policy_for(policy, CANARY) is policy_for(policy, {**CANARY, "rack": "r1"})
    assert policy_for(policy, OTHER).by_name == policy.by_name
    assert policy_for(policy, OTHER).hash == policy.hash


def test_the_hash_names_the_selector_and_is_the_same_without_one() -> None:
    assert site().hash != POLICY.hash
    assert site().hash != site("cordon").hash
    assert shipped_policy("rules: []").hash == POLICY.hash


def test_incidents_lose_the_actions_that_the_node_has_no_more() -> None:
    policy = site()
    health = NodeHealth(hello("n1"))
    health.snapshot(snapshot(fault()))
    before = evaluate(policy_for(policy, CANARY), health, {}, 2000.0).incidents
    moved = policy_for(policy, OTHER)
    kept = evaluate(moved, health, before, 2001.0).incidents
    assert "drain" in {one.action for one in kept.values()}, "evidence in force keeps its action"
    after = evaluate(moved, health, reweighed(before, moved), 2001.0).incidents
    assert [one.action for one in after.values()] == ["observe"]
    back = evaluate(policy_for(policy, CANARY), health, after, 2002.0).incidents
    assert [(one.id, one.action) for one in back.values()] == [
        (one.id, "drain") for one in before.values()
    ]
    assert reweighed(before, POLICY) is before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("elsewhere: observe", "rules[0].elsewhere: is the action on other nodes; expected nodes"),
        ("nodes: canary", "rules[0].nodes: this text; expected a section"),
        ("nodes: {pool: canary}", "rules[0].nodes.pool: unknown key; expected one of matchLabels"),
        ("nodes: {matchLabels: {pool: 1}}", "rules[0].nodes.matchLabels.pool: 1; expected text"),
        (
            "nodes: {matchExpressions: [{key: pool, operator: in, values: [a]}]}",
            'rules[0].nodes.matchExpressions[0].operator: "in"; expected In, NotIn, Exists',
        ),
        (
            "nodes: {matchExpressions: [{key: pool, operator: In}]}",
            "rules[0].nodes.matchExpressions[0]: operator In without values; expected values",
        ),
        ("nodes: {}, elsewhere: never", 'rules[0].elsewhere: "never"; expected observe'),
    ],
)
def test_a_selector_that_is_wrong_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        shipped_policy(f"rules:\n  - {{name: gpu-gone, {text}}}\n")
    [line] = refused.value.lines()
    assert says in line, line


def test_a_rule_that_would_act_elsewhere_alone_is_evaluated_as_one_that_acts() -> None:
    with pytest.raises(ConfigError, match="would act on a code that the catalogue doesn't"):
        shipped_policy(
            "rules: [{name: r, kind: gpu, faults: ['xid:4711'], action: observe, nodes: {},"
            " elsewhere: cordon}]"
        )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "nodes: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: DoesNotExist}]}",
            "selects no node: a must be there and must not; the rule has its action nowhere",
        ),
        ("nodes: {matchLabels: {a: b}}, elsewhere: drain", "the same as action"),
    ],
)
def test_a_selector_without_effect_is_warned_of(text: str, says: str) -> None:
    written = f"rules:\n  - {{name: gpu-gone, {text}}}\n"
    found = warnings(shipped_policy(written), written, "s.yaml", {})
    assert any(says in one.text for one in found), found


def test_a_rule_about_some_nodes_shadows_none_that_is_about_all() -> None:
    every = POLICY.by_name["gpu-gone"]
    wide = replace(every, name="wide", nodes=LabelSelector(CANARY))
    policy = replace(POLICY, rules=(wide, every))
    assert not [
        one
        for one in warnings(policy, "rules: [{name: gpu-gone}]", "s.yaml", {})
        if "never decides" in one.text
    ]
