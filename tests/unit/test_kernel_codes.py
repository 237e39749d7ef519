"""Every code that the kernel log checks send is one that the catalogue names and a rule answers."""

from pathlib import Path

import pytest

from aggregator.policy.catalogue import UNKNOWN
from aggregator.policy.rules import Rule
from aggregator.policy.shipped_yaml import read_shipped_file
from nodeagent.checks import registry, xid_codes
from nodeagent.checks.kernel_lines import ROWS
from nodeagent.local.findings import DISPUTED, OBSERVED, Findings, Latched, Result
from nodeagent.model import ClearedBy, Status
from nodeagent.terminal.kmsg_file import decode_file
from tests.agent.kernel_log import FIXTURES
from tests.support.replica import POLICY

#: Fixtures of lines that kernels print, and the actions that the faults in them may cause.
MACHINE = (
    *("disk-io.log", "disk-lines.log", "nic-driver.log", "kernel-lines.log"),
    *("machine-check.log", "pcie-aer.log", "context.log", "layer-lines.log"),
)
#: The reasons of the checks' levels; some have any.
LEVELS = {
    name: of
    for name, of in read_shipped_file("aggregator.policy", "checks.yaml").items()
    if "any" not in (of, isinstance(of, dict) and of.get("reasons"))
}


def codes_of(fixture: str) -> set[str]:
    return {entry["code"] for entry in decode_file(Path(FIXTURES / fixture))}


def rules_for(code: str) -> list[Rule]:
    found = POLICY.catalogue.classify(code)
    return [rule for rule in POLICY.rules if found in rule.classes or code in rule.faults]


@pytest.mark.parametrize(
    "fixture", [*MACHINE, "sxid.log", "xid-variants.log", "nvidia-lines.log", "nvidia-driver.log"]
)
def test_every_code_has_a_class_or_is_one_that_nobody_has_published(fixture: str) -> None:
    unnamed = {c for c in codes_of(fixture) if POLICY.catalogue.classify(c) == UNKNOWN}
    assert unnamed <= {
        "xid:999",
        "sxid:19999:unstated",
        "sxid:10004:unstated",
        "sxid:28001:unstated",
    }


@pytest.mark.parametrize("fixture", MACHINE)
def test_what_is_context_or_says_little_is_only_observed(fixture: str) -> None:
    for code in codes_of(fixture):
        assert {rule.action for rule in rules_for(code)} == {"observe"}, code


def test_what_ends_an_xid_is_the_catalogues_word_on_the_node_too() -> None:
    """Except for codes decided by their line, and contained errors: a day without one suffices."""
    catalogue = POLICY.catalogue
    by_line = {xid_codes.RECOVERY_ACTION, *xid_codes.NVLINK5}
    for code in range(1, 1000):
        name = catalogue.classify(f"xid:{code}")
        if code in by_line or name in (UNKNOWN, "contained"):
            continue
        assert xid_codes.cleared_by(code).name.lower() == catalogue.classes[name].clears.value, code


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("sxid:26006:fatal", "drain"),
        ("sxid:26006:unstated", "drain"),  # as an older agent reports it
        ("sxid:10006:unstated", "drain"),
        ("sxid:11012:correctable", "observe"),
        ("xid:173", "drain"),
        ("nvidia-driver:init-failed", "cordon"),
        ("nvidia-driver:uvm-fatal", "cordon"),
        ("nvidia-driver:nvlink", "observe"),
        ("nvidia-driver:peermem", "observe"),
        ("xid:174", "observe"),
        ("xid:175", "observe"),
        ("xid:176", "observe"),
    ],
)
def test_the_action_for_codes_that_the_published_catalogue_lacks(code: str, action: str) -> None:
    assert {rule.action for rule in rules_for(code)} == {action}


def alone(code: str) -> set[str]:
    """The actions for one occurrence that nothing else confirms."""
    rules = (rule for rule in rules_for(code) if rule.min_count <= 1 and not rule.confirmed_by)
    return {rule.action for rule in rules}


def test_the_faults_that_fail_no_slurm_node_are_observed_by_the_shipped_rules() -> None:
    for code in (*OBSERVED, DISPUTED):
        assert alone(code) == {"observe"}, code


def test_no_fault_that_the_shipped_rules_observe_fails_a_slurm_node() -> None:
    ends = [(f"{name}:{row.kind}", row.clears) for name, rows in ROWS.items() for row in rows]
    ends += [("gpu-off-bus", ClearedBy.REBOOT), ("ecc-uncorrectable", ClearedBy.GPU_RESET)]
    ends += [(f"xid:{code}", xid_codes.cleared_by(code)) for code in range(1, 1000)]
    failing = [
        code
        for code, end in ends
        if Latched(code, "x", "", "", 1, 0.0, 0.0, end).status is Status.FAILED
    ]
    assert {"xid:79", "xid:95", "nvidia-driver:init-failed"} <= {*failing}
    assert [code for code in failing if alone(code) == {"observe"}] == []
    twice = Latched(DISPUTED, "x", "", "", 2, 0.0, 0.0, ClearedBy.GPU_RESET)
    assert twice.status is Status.FAILED


def fails(check: str, reason: str) -> bool:
    found = Findings("n1", "agent", [Result(check, "x", Status.FAILED, reason)])
    return found.of_this_node().worst is Status.FAILED


def test_a_level_fails_a_slurm_node_where_a_shipped_rule_acts_or_the_site_has_set_it() -> None:
    ours = {spec.name for spec in registry.SPECS}
    reasons = {name: of if isinstance(of, list) else of["reasons"] for name, of in LEVELS.items()}
    levels = [(name, reason) for name in ours & {*reasons} for reason in reasons[name]]
    acts = {
        level
        for level in levels
        for rule in POLICY.rules
        if rule.acts and rule.check == level[0] and level[1] in (rule.reasons or level)
    }
    assert {level for level in levels if fails(*level)} - acts == {
        *(("gpu-settings", each) for each in ("power-limit", "persistence-off", "compute-mode")),
        *((name, "unlike-siblings") for name in ("gpu-pcie", "gpu-settings")),
        *((name, each) for name in ("gpu-pcie", "pcie-link") for each in ("narrow", "slow")),
        *(("infiniband", "slow"), ("infiniband", "never-up"), ("nic-health", "slow")),
    }
    assert [level for level in acts if not fails(*level)] == []
    assert fails("a-sites-own", "reason")
