"""Traits of checks, from the shipped checks.yaml."""

import pytest

from aggregator.policy import check_traits
from aggregator.policy.check_traits import TRAITS, checks_with
from aggregator.policy.lint import Reasons, parse_checks

TEXT = """
a: [x]
b: any
c: {reasons: any, traits: [shared-target, network]}
d: {reasons: [y], traits: [edge, network]}
e: {reasons: [], degraded: [z]}
f: {reasons: [], degraded: any}
"""


def test_checks_are_found_by_their_trait() -> None:
    checks = {
        "a": ["x"],
        "c": {"reasons": "any", "traits": ["shared-target", "network"]},
        "d": {"reasons": ["y"], "traits": ["edge", "network"]},
    }
    assert checks_with("network", checks) == {"c", "d"}
    assert checks_with("edge", checks) == {"d"}
    assert checks_with("nvlink", checks) == set()
    with pytest.raises(ValueError, match="'edges' is no trait of a check; expected one of shared-"):
        checks_with("edges", checks)


def test_reasons_are_read_with_and_without_traits() -> None:
    assert parse_checks(TEXT) == {
        "a": Reasons(("x",)),
        "b": Reasons(None),
        "c": Reasons(None),
        "d": Reasons(("y",)),
        "e": Reasons((), ("z",)),
        "f": Reasons((), None),
    }


def test_the_shipped_checks_have_known_traits_alone() -> None:
    shipped = check_traits._CHECKS
    named = {one for of in shipped.values() if isinstance(of, dict) for one in of.get("traits", ())}
    assert named == set(TRAITS)
    assert {"reach", "dns", "disk-mounts", "pod-network"} == check_traits.SHARED_TARGETS
    assert {"peers"} == check_traits.EDGES
    assert {"peers", "reach", "dns", "pod-network"} == check_traits.NETWORK
    assert {"gpu-nvlink", "gpu-fabric"} == check_traits.NVLINK
    assert {"gpu-recovery"} == check_traits.VERDICTS
