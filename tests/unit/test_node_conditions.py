"""The content of a condition for other tools, by its entry in the configuration."""

from dataclasses import replace
from typing import Literal

import pytest

from aggregator.cluster.condition_record import (
    CONDITIONS,
    WrittenCondition,
    read_written,
    record_written,
)
from aggregator.cluster.port import (
    Action,
    EvidenceItem,
    NodeCondition,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
)
from aggregator.policy.evaluate import Evidence, Incident
from aggregator.quarantine.decide.node_conditions import NodeConditionRule, condition_of
from tests.support.present import present

READY = NodeConditionRule("AcceleratedHardwareReady", ("gpu-*", "watched"), "False")
BY_EVIDENCE = replace(READY, basis="evidence")


def quarantine(*rules: str, phase: Phase = Phase.CORDONED, foreign: str = "") -> Quarantine:
    evidence = tuple(EvidenceItem("xid:79", "GPU-1", "b", "", rule, "i", "lost") for rule in rules)
    spec = QuarantineSpec(Action.CORDON, "gpu", "r", evidence=evidence)
    return Quarantine("n", "u", "1", spec, QuarantineStatus(phase), foreign=foreign)


def incidents(rule: str, action: str = "drain", over: str = "") -> dict[str, Incident]:
    item = Evidence("disk-space:full", "/", "b", rule, action, "", None, 0.0, over)
    return {"i": Incident("i", "n", "b", "gpu", action, "s", 0.0, (item,), 0.0)}


def said(
    rule: NodeConditionRule,
    standing: Quarantine | None = None,
    known: dict[str, Incident] | None = None,
    *,
    settled: bool = True,
    reported: bool = True,
) -> NodeCondition | None:
    return condition_of(
        rule, quarantine=standing, incidents=known or {}, settled=settled, reported=reported
    )


def status_of(found: NodeCondition | None) -> str | None:
    return found.status if found is not None else None


def test_a_quarantine_for_evidence_of_its_rules_is_told_with_the_code_and_the_place() -> None:
    found = said(READY, quarantine("other", "gpu-fatal", "gpu-gone"), settled=False)
    assert found == NodeCondition(
        "False", "Xid79", "xid:79 on GPU-1: lost (and 1 more)", unhealthy=True
    )
    fixed = present(said(replace(READY, reason="BadHardware"), quarantine("gpu-fatal")))
    assert fixed.reason == "BadHardware"


@pytest.mark.parametrize("unhealthy", ["True", "False"])
def test_either_polarity_is_the_sites_choice(unhealthy: Literal["True", "False"]) -> None:
    rule = replace(READY, unhealthy=unhealthy)
    assert status_of(said(rule, quarantine("gpu-fatal"))) == unhealthy
    assert status_of(said(rule)) != unhealthy


@pytest.mark.parametrize("phase", [Phase.ADMITTED, Phase.RELEASING, Phase.INVALID])
def test_on_the_way_in_and_out_the_condition_stays_as_it_is(phase: Phase) -> None:
    assert said(READY, quarantine("gpu-fatal", phase=phase), settled=False) is None


@pytest.mark.parametrize("phase", [Phase.CORDONED, Phase.DRAINING, Phase.DRAINED])
def test_a_quarantine_for_other_reasons_is_no_evidence(phase: Phase) -> None:
    assert status_of(said(READY, quarantine("disk-full", phase=phase), settled=False)) == "True"


def test_marks_that_are_left_behind_do_not_make_a_node_healthy() -> None:
    assert said(READY, None, settled=False) is None
    assert status_of(said(READY, None)) == "True"


def test_another_installations_quarantine_is_not_ours_to_tell() -> None:
    assert said(READY, quarantine("gpu-fatal", foreign="other"), settled=False) is None


def test_by_evidence_an_open_incident_counts_without_any_quarantine() -> None:
    found = present(said(BY_EVIDENCE, None, incidents("gpu-fatal")))
    assert (found.status, found.reason) == ("False", "DiskSpaceFull")
    assert status_of(said(READY, None, incidents("gpu-fatal"))) == "True"
    # It does not flap: until the incident is closed a sign that the fault is over changes nothing.
    assert status_of(said(BY_EVIDENCE, None, incidents("gpu-fatal", over="reset"))) == "False"


def test_a_rule_that_only_observes_counts_where_it_is_named_and_not_by_a_pattern() -> None:
    assert status_of(said(BY_EVIDENCE, None, incidents("gpu-link", "observe"))) == "True"
    assert status_of(said(BY_EVIDENCE, None, incidents("watched", "observe"))) == "False"


def test_by_evidence_a_silent_agent_makes_no_node_healthy() -> None:
    assert said(BY_EVIDENCE, None, {}, reported=False) is None
    assert status_of(said(BY_EVIDENCE, None, incidents("gpu-fatal"), reported=False)) == "False"


def test_names_that_no_rule_has_are_found() -> None:
    assert READY.unmatched(["gpu-fatal"]) == ("watched",)
    assert READY.unmatched(["gpu-fatal", "watched"]) == ()


def test_the_record_of_written_conditions_survives_and_an_edited_one_counts_as_none() -> None:
    written = {
        "A": WrittenCondition("False", "Xid79", "sickbay"),
        "example.com/B": WrittenCondition("True", "Recovered", "staging"),
    }
    text = present(record_written(written))
    assert read_written({CONDITIONS: text}) == written
    assert record_written({}) is None
    for bad in ("", "{", "[]", '{"A": "x"}', '{"A": ["x"]}', '{"A": [1, 2, 3]}', "[" * 100_000):
        assert read_written({CONDITIONS: bad}) == {}
