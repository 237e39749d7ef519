"""The ladder of a rule: its order, its errors, and where it begins for the evidence of a node."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.configfile.yaml_source import ConfigError
from aggregator.health.model import Snapshot, Status
from aggregator.health.node import NodeHealth
from aggregator.policy.repairs import REPAIRS, disorder, is_lemon, joined, rank, verdict_of
from aggregator.policy.rules import Rule
from tests.support.replica import component, fault, hello, shipped_policy

pytestmark = pytest.mark.slow

ladders = st.lists(st.sampled_from(REPAIRS), unique=True).map(
    lambda some: tuple(sorted(some, key=rank))
)


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        shipped_policy(text)
    return refused.value.lines()


@pytest.mark.parametrize(
    ("entry", "reply"),
    [
        (
            "{name: gpu-gone, repair: reboot}",
            'rules[0].repair: "reboot"; expected a list, some of gpu-reset',
        ),
        ("{name: gpu-gone, repair: {a: b}}", "rules[0].repair: a section; expected a list"),
        (
            "{name: gpu-gone, repair: [rebot]}",
            'rules[0].repair[0]: "rebot"; expected gpu-reset, reboot, external, replace or ticket',
        ),
        ("{name: gpu-gone, repair: [reboot, [x]]}", "rules[0].repair[1]: a list"),
        (
            "{name: gpu-gone, repair: [reboot, gpu-reset]}",
            "rules[0].repair: 'gpu-reset' after 'reboot'; expected the order gpu-reset, reboot",
        ),
        (
            "{name: gpu-gone, repair: [reboot, reboot]}",
            "rules[0].repair: has 'reboot' twice; expected each repair once",
        ),
        (
            "{name: gpu-gone, action: observe, repair: [reboot]}",
            "rules[0].repair: no effect under action: observe; expected action: cordon or drain",
        ),
    ],
)
def test_a_ladder_that_is_none_is_refused_with_its_line(entry: str, reply: str) -> None:
    (found,) = problems(f"rules:\n  - {entry}\n")
    assert found.startswith("site.yaml:2: ")
    assert reply in found


def test_a_site_replaces_a_shipped_ladder_and_leaves_the_rest_of_the_rule() -> None:
    before = shipped_policy().by_name["gpu-gone"]
    after = shipped_policy("rules:\n  - {name: gpu-gone, repair: [ticket]}\n").by_name["gpu-gone"]
    assert after == replace(before, repair=("ticket",))


def test_a_shipped_rule_that_a_site_weakens_keeps_its_ladder_without_effect() -> None:
    policy = shipped_policy("rules:\n  - {name: gpu-gone, action: observe}\n")
    assert policy.by_name["gpu-gone"].action == "observe"


def test_a_ladder_does_not_change_the_hash_by_which_replicas_are_compared() -> None:
    site = "rules:\n  - {name: gpu-gone, repair: []}\n"
    assert shipped_policy(site).hash == shipped_policy().hash


def test_every_shipped_ladder_is_in_order_and_belongs_to_a_rule_that_acts() -> None:
    with_ladder = [rule for rule in shipped_policy().rules if rule.repair]
    assert len(with_ladder) >= 20
    for rule in with_ladder:
        assert disorder(rule.repair) == "", rule.name
        assert rule.acts, rule.name


def test_a_gpu_that_is_off_the_bus_is_never_reset_in_software() -> None:
    """It does not answer a reset: a restart of the node alone brings it back."""
    for name in ("gpu-gone", "gpu-off-bus-confirmed"):
        assert "gpu-reset" not in shipped_policy().by_name[name].repair


def test_a_rule_without_a_ladder_has_none() -> None:
    assert Rule("a", "gpu", "drain", "why").repair == ()


@given(st.lists(ladders, min_size=1))
def test_a_joined_ladder_is_one_and_begins_at_the_strongest_first_rung(
    found: list[tuple[str, ...]],
) -> None:
    one = joined(found)
    assert disorder(one) == ""
    if all(found):
        assert one[0] == max((ladder[0] for ladder in found), key=rank)
        assert set(one) <= {repair for ladder in found for repair in ladder}
    else:
        assert one == ()


def test_no_evidence_has_no_ladder() -> None:
    assert joined([]) == ()


def health(*faults: object, levels: tuple[object, ...] = ()) -> NodeHealth:
    found = NodeHealth(hello("n1"))
    found.snapshot(Snapshot(tuple(levels), tuple(faults)))  # type: ignore[arg-type]
    return found


def verdict(word: str, component: str = "GPU-1") -> object:
    return fault("xid:154", component, details={"verdict": word})


@pytest.mark.parametrize(
    ("words", "repair"),
    [
        ((), ""),
        (("none",), ""),
        (("gpu-reset",), "gpu-reset"),
        (("drain-and-reset",), "gpu-reset"),
        (("node-reboot",), "reboot"),
        (("gpu-reset", "node-reboot"), "reboot"),
        (("recover-imex",), ""),
    ],
)
def test_the_drivers_strongest_verdict_names_the_first_rung(
    words: tuple[str, ...], repair: str
) -> None:
    faults = [verdict(word, f"GPU-{number}") for number, word in enumerate(words)]
    assert verdict_of(health(*faults)) == repair


def test_a_verdict_of_an_earlier_boot_is_over() -> None:
    old = fault("xid:154", details={"verdict": "node-reboot"}, historical=True)
    assert verdict_of(health(old)) == ""


def test_the_recovery_action_in_nvml_is_a_verdict_too() -> None:
    level = component("gpu-recovery", "GPU-1", Status.FAILED, "reboot")
    assert verdict_of(health(levels=(level,))) == "reboot"
    well = component("gpu-recovery", "GPU-1", Status.OK, "reboot")
    assert verdict_of(health(levels=(well,))) == ""


def test_without_an_agent_there_is_no_verdict_and_no_lemon() -> None:
    assert verdict_of(None) == ""
    assert not is_lemon(None)


def test_a_lemon_is_known_by_its_evidence() -> None:
    assert is_lemon(health(levels=(component("lemon", "", Status.FAILED, "repeat-offender"),)))
    assert not is_lemon(health(levels=(component("lemon", "", Status.OK),)))
