"""Label selectors: against a plain model of Kubernetes' semantics, and what a file may say."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from aggregator.policy.label_selector import (
    LabelRequirement,
    LabelSelector,
    contradiction,
    covers,
)

pytestmark = pytest.mark.slow

KEYS, VALUES = ("a", "b"), ("1", "2", "")

some_values = st.lists(st.sampled_from(VALUES), min_size=1, max_size=2, unique=True).map(tuple)
requirements = st.one_of(
    st.builds(
        LabelRequirement, st.sampled_from(KEYS), st.sampled_from(("In", "NotIn")), some_values
    ),
    st.builds(LabelRequirement, st.sampled_from(KEYS), st.sampled_from(("Exists", "DoesNotExist"))),
)
selectors = st.builds(
    LabelSelector,
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)),
    st.lists(requirements, max_size=4).map(tuple),
)
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from((*VALUES, "3")))
#: All labels that the keys can have: no selector here can tell "3" from any further value.
EVERY = [
    {key: value for key, value in (("a", one), ("b", other)) if value is not None}
    for one in (*VALUES, "3", None)
    for other in (*VALUES, "3", None)
]


def model(selector: LabelSelector, given_labels: Mapping[str, str]) -> bool:
    """The nodes of `kubectl get nodes -l`: apimachinery's Requirement.Matches, in sets."""
    for key, value in selector.matchLabels.items():
        if key not in given_labels or given_labels[key] != value:
            return False
    for one in selector.matchExpressions:
        there = one.key in given_labels
        if one.operator == "In" and not (there and given_labels[one.key] in set(one.values)):
            return False
        if one.operator == "NotIn" and there and given_labels[one.key] in set(one.values):
            return False
        if one.operator == "Exists" and not there:
            return False
        if one.operator == "DoesNotExist" and there:
            return False
    return True


@given(selectors, labels)
def test_it_selects_what_kubernetes_selects(
    selector: LabelSelector, given_labels: dict[str, str]
) -> None:
    assert selector.matches(given_labels) == model(selector, given_labels)


@given(selectors)
def test_a_contradiction_is_found_where_no_labels_are_selected(selector: LabelSelector) -> None:
    assert bool(contradiction(selector)) == (not any(model(selector, one) for one in EVERY))


@given(selectors, selectors)
def test_a_selector_covers_another_where_it_selects_all_of_its_labels(
    wide: LabelSelector, narrow: LabelSelector
) -> None:
    if contradiction(narrow):
        return  # it selects no labels, and has a warning of its own
    all_of_it = all(model(wide, one) for one in EVERY if model(narrow, one))
    assert covers(wide, narrow) == all_of_it


def test_a_selector_is_shown_as_kubectl_takes_it() -> None:
    selector = LabelSelector(
        {"pool": "a"},
        (
            LabelRequirement("zone", "In", ("1", "2")),
            LabelRequirement("gpu", "NotIn", ("none",)),
            LabelRequirement("rack", "NotIn", ("r1", "r2")),
            LabelRequirement("gpu", "Exists"),
            LabelRequirement("control-plane", "DoesNotExist"),
        ),
    )
    assert str(selector) == "pool=a,zone in (1,2),gpu!=none,rack notin (r1,r2),gpu,!control-plane"
    assert str(LabelSelector()) == "every node"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"matchLabels": {"a b": "1"}}, 'a key of Kubernetes, such as "topology'),
        ({"matchLabels": {"": "1"}}, 'the key of a label, such as "topology'),
        ({"matchLabels": {"a": "-1"}}, "the value of a label"),
        ({"matchLabels": {"a": True}}, "valid string"),
        ({"matchExpressions": [{"key": "a", "operator": "in", "values": ["1"]}]}, "'In', 'NotIn'"),
        ({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}, "'In', 'NotIn'"),
        ({"matchExpressions": [{"key": "a", "operator": "In"}]}, "operator In without values"),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]}, "without values"),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["1"]}]},
            "operator Exists with values; expected no values",
        ),
        ({"matchExpressions": [{"operator": "Exists"}]}, "key"),
        ({"matchLabel": {"a": "1"}}, "matchLabel"),
        ({"matchLabels": None}, "matchLabels"),
        ({"matchLabels": {"a": "1"}, "matchExpressions": None}, "matchExpressions"),
    ],
)
def test_a_selector_that_kubernetes_would_refuse_is_refused(written: Any, says: str) -> None:
    with pytest.raises(ValidationError, match="LabelSelector") as refused:
        TypeAdapter(LabelSelector).validate_python(written)
    assert says in str(refused.value)
