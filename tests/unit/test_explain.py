"""The answer of the rules about one piece of evidence: each part of the answer."""

from dataclasses import replace
from typing import Any

import pytest

from aggregator.policy.explain import Explanation, Question, _latched, explain
from aggregator.policy.rules import Rule
from aggregator.policy.windows import MOST_JOBS
from aggregator.rfc3339 import span
from tests.support.replica import POLICY


def rule(name: str, action: str = "cordon", /, **keys: Any) -> Rule:
    return replace(Rule(name, "gpu", action, "a reason"), **keys)


def asked(question: Question, *rules: Rule) -> Explanation:
    return explain(replace(POLICY, rules=rules), question)


def names(answer: Explanation) -> tuple[str, list[tuple[str, str]]]:
    decides = answer.rule.name if answer.rule is not None else ""
    return decides, [(one.name, wants) for one, wants in answer.others]


XID = Question("xid:48")


@pytest.mark.parametrize(
    ("actions", "decides", "others"),
    [
        ((), "", []),
        (("observe",), "r0", []),
        (("observe", "drain", "cordon"), "r1", ["r0", "r2"]),
        (("cordon", "cordon"), "r0", ["r1"]),
        (("observe", "cordon", "drain", "drain"), "r2", ["r0", "r1", "r3"]),
    ],
)
def test_the_strongest_action_decides_and_of_equals_the_first(
    actions: tuple[str, ...], decides: str, others: list[str]
) -> None:
    rules = [rule(f"r{place}", action, faults=("xid:48",)) for place, action in enumerate(actions)]
    assert names(asked(XID, *rules)) == (decides, [(name, "") for name in others])


@pytest.mark.parametrize(
    ("keys", "question", "wants"),
    [
        ({"min_count": 2}, XID, "seen 2 times within 1d"),
        ({"min_count": 2}, replace(XID, count=2), None),
        ({"min_count": 3}, replace(XID, count=2), "seen 3 times within 1d"),
        ({"min_count": 3}, replace(XID, jobs=3), None),  # each of three jobs has seen it once
        ({"min_count": 3}, replace(XID, count=3, jobs=2), None),
        (
            {"min_jobs": 2},
            XID,
            "seen on it alone over 2 jobs within 1d (10m or more apart)",
        ),
        ({"min_jobs": 2}, replace(XID, jobs=2), None),
        ({"min_jobs": 3, "apart": 3600.0}, replace(XID, jobs=3), None),
        (
            {"min_jobs": 3, "apart": 90.0, "within": 5400.0},
            replace(XID, jobs=2),
            "seen on it alone over 3 jobs within 90m (90s or more apart)",
        ),
        (
            {"min_jobs": 15, "apart": 60.0},
            replace(XID, jobs=2, count=2),
            "seen on it alone over 15 jobs within 1d (1m or more apart)",
        ),
        ({"details": {"verdict": ("reset",)}}, XID, "verdict is reset"),
        (
            {"details": {"verdict": ("reset", "reboot"), "unit": ("a",)}},
            XID,
            "verdict is reset or reboot, and unit is a",
        ),
        (
            {"details": {"verdict": ("reset",), "unit": ("a",)}},
            replace(XID, details={"unit": "a"}),
            "verdict is reset",
        ),
        (
            {"details": {"verdict": ("reset", "reboot")}},
            replace(XID, details={"verdict": "reboot"}),
            None,
        ),
        ({"confirmed_by": "gpu-rows"}, XID, "check gpu-rows has failed too"),
        (
            {"confirmed_by": "gpu-rows", "min_count": 2},
            XID,
            "seen 2 times within 1d, and check gpu-rows has failed too",
        ),
    ],
)
def test_a_rule_about_a_fault_decides_or_says_what_it_wants_besides(
    keys: dict[str, Any], question: Question, wants: str | None
) -> None:
    found = names(asked(question, rule("r", faults=("xid:48",), **keys)))
    assert found == (("r", []) if wants is None else ("", [("r", wants)]))


LINK = Question(check="nic-link", component="eth0")


@pytest.mark.parametrize(
    ("keys", "question", "wants"),
    [
        ({}, LINK, None),
        ({"components": ("eth*",)}, LINK, None),
        ({"components": ("eth*", "ib0")}, replace(LINK, component=""), "it is on eth* or ib0"),
        ({"reasons": ("down",)}, replace(LINK, reason="down"), None),
        ({"reasons": ("down",)}, LINK, "its reason is down"),
        ({"reasons": ("down", "gone")}, LINK, "its reason is down or gone"),
        ({"flaps": 2}, LINK, "it begins to fail 2 times within 1d"),
        ({"flaps": 2}, replace(LINK, flaps=1), "it begins to fail 2 times within 1d"),
        ({"flaps": 2}, replace(LINK, flaps=2), None),
        ({"flaps": 2}, replace(LINK, flaps=3), None),
        ({"flaps": 20, "within": 120.0}, replace(LINK, flaps=20), None),
        ({"flaps": 20, "within": 38.5}, replace(LINK, flaps=20), None),  # two seconds apart
        (
            {"flaps": 20, "within": 120.0},
            replace(LINK, flaps=19),
            "it begins to fail 20 times within 2m",
        ),
        ({"flaps": 3, "within": 60.0}, LINK, "it begins to fail 3 times within 1m"),
    ],
)
def test_a_rule_about_a_check_decides_or_says_what_it_wants_besides(
    keys: dict[str, Any], question: Question, wants: str | None
) -> None:
    found = names(asked(question, rule("r", check="nic-link", **keys)))
    assert found == (("r", []) if wants is None else ("", [("r", wants)]))


@pytest.mark.parametrize(
    ("question", "keys"),
    [
        (XID, {"faults": ("xid:79",), "min_count": 2}),
        (XID, {"faults": ("xid:79",)}),
        (replace(XID, component="GPU-1"), {"faults": ("xid:48",), "components": ("GPU-2",)}),
        (XID, {"faults": ("xid:48",), "details": {"verdict": ()}}),  # no value meets it
        (
            replace(XID, details={"verdict": "none"}),
            {"faults": ("xid:48",), "details": {"verdict": ("reset",)}},
        ),
        (LINK, {"check": "disk-space"}),
        (LINK, {"check": "nic-link", "components": ("ib*",)}),
        (replace(LINK, reason="slow"), {"check": "nic-link", "reasons": ("down",)}),
        (LINK, {"faults": ("xid:48",), "min_count": 2}),
        (LINK, {"faults": ("xid:48",), "min_jobs": 2}),
        (XID, {"check": "nic-link", "flaps": 2}),
        (XID, {"check": "nic-link"}),
    ],
)
def test_a_rule_about_something_else_is_not_named(question: Question, keys: dict[str, Any]) -> None:
    assert names(asked(question, rule("r", **keys))) == ("", [])


def test_a_check_that_confirms_a_fault_brings_no_rule_of_its_own() -> None:
    confirmed = rule("r", faults=("xid:48",), confirmed_by="gpu-rows")
    rows = rule("rows", check="gpu-rows")
    assert names(asked(XID, confirmed, rows)) == ("", [("r", "check gpu-rows has failed too")])


def test_jobs_of_a_rule_with_long_pauses_between_them_fit_into_its_time() -> None:
    """12 h apart, within 24 h: a question's usual distance of its jobs is too short for it."""
    wide = rule("r", faults=("xid:48",), min_jobs=2, apart=43_200.0, within=86_400.0)
    assert names(asked(XID, wide)) == (
        "",
        [("r", "seen on it alone over 2 jobs within 1d (12h or more apart)")],
    )


@pytest.mark.parametrize(
    ("question", "evidence", "meaning", "ended_by"),
    [
        (
            XID,
            "xid:48 (GPU ECC DBE)",
            "memory-fatal: An uncorrected memory error, or a failed repair of one.",
            "a reset of the GPU, or a boot",
        ),
        (
            Question("xid:79"),
            "xid:79 (GPU has fallen off the bus)",
            (
                "fatal-node: The GPU is gone from the bus; only the whole node's restart brings it "
                "back."
            ),
            "a boot",
        ),
        (
            Question("xid:45"),
            "xid:45 (preemptive removal)",
            "follow-on: Follows another Xid or a killed process; proves nothing by itself.",
            "a day without it, or a boot",
        ),
        (
            Question("xid:54"),
            "xid:54 (silent running pwr reduced clocking)",
            "person: By NVIDIA a person must look (power, cabling, support).",
            "a person's release after the repair, or another GPU",
        ),
        (
            Question("xid:4711"),
            "xid:4711",
            "unknown: a code that the catalogue does not have",
            "as its agent reports",
        ),
        (
            Question("xid:1"),
            "xid:1 (FIFO error FIFO method)",
            "unknown: NVIDIA names the code and marks it unused, and no class here has it",
            "as its agent reports",
        ),
        (LINK, "nic-link:failed", "check nic-link has failed", "the check is well again"),
        (
            replace(LINK, reason="link-down"),
            "nic-link:link-down",
            "check nic-link has failed",
            "the check is well again",
        ),
        (
            Question(
                "xid:145",
                details={"intr_info": "0x00000004", "error_status": "0x00000040"},
                driver="580.82.07",
            ),
            "xid:145 (NVLINK rlw error)",
            "nvlink5-reset: NVLink 5 event whose registers call for a reset of the GPU.",
            "a reset of the GPU, or a boot",
        ),
    ],
)
def test_what_the_evidence_means_and_what_ends_it_is_told(
    question: Question, evidence: str, meaning: str, ended_by: str
) -> None:
    answer = asked(question)
    assert answer.evidence == evidence
    assert (answer.meaning, answer.ended_by) == (meaning, ended_by)


def test_what_nvidia_publishes_is_told_of_its_codes_alone() -> None:
    assert asked(Question("xid:8")).published == (
        "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT, on A100, H100, B100, GB200; first RESTART_APP, "
        "then CONTACT_SUPPORT"
    )
    assert asked(Question("xid:1")).published == (
        "ROBUST_CHANNEL_FIFO_ERROR_FIFO_METHOD, unused since the A100; first CONTACT_SUPPORT"
    )
    assert asked(Question("xid:4711")).published == ""
    assert asked(LINK).published == ""
    assert asked(Question("xid:173")).published.startswith("C2C_FATAL_LINK_FAILURE; no action")
    unnamed = next((code, one) for code, one in POLICY.catalogue.published.items() if not one.now)
    assert "; no action is published" in asked(Question(unnamed[0])).published


@pytest.mark.parametrize(
    ("code", "mnemonic", "then"),
    [
        ("xid:14", "ROBUST_CHANNEL_FAKE_ERROR", "CONTACT_SUPPORT"),
        ("xid:108", "NVLINK_REMOTE_TRANSLATION_ERROR", "XID_137_FLOW"),
    ],
)
def test_a_code_that_nvidia_lists_on_products_and_marks_unused_is_explained_as_both(
    code: str, mnemonic: str, then: str
) -> None:
    """NVIDIA's catalogue says "ignore": the class says the same, and not "unknown"."""
    answer = explain(POLICY, Question(code))
    assert answer.meaning == "ignore: By NVIDIA it is to be ignored; the GPU remains healthy."
    assert answer.published == (
        f"{mnemonic}, on A100, H100, B100, GB200, and marked unused there; first IGNORE, "
        f"then {then}"
    )
    assert answer.rule is not None
    assert (answer.rule.action, answer.rule.name) == ("observe", "application-xid")


def test_every_code_whose_first_action_is_to_ignore_it_is_of_a_class_that_never_acts() -> None:
    for code, entry in POLICY.catalogue.published.items():
        if entry.now == "IGNORE":
            answer = explain(POLICY, Question(code))
            assert answer.rule is not None
            assert (answer.rule.action, "unknown" in answer.meaning) == ("observe", False), code


def test_the_row_of_the_registers_is_told_of_nvlink_5_alone() -> None:
    registers = {"intr_info": "0x00000004", "error_status": "0x00000040"}
    row = asked(Question("xid:145", details=registers, driver="580.82.07")).row
    assert row.startswith("RLW_REMAP, fatal: reset; then ")
    assert asked(Question("xid:145", details=registers)).row.startswith(
        "no row matches: add --detail"
    )
    assert asked(XID).row == ""
    assert asked(LINK).row == ""


def test_a_count_is_no_more_lines_than_a_rule_can_count() -> None:
    fault = _latched(POLICY, Question("xid:109", count=1_000_000))
    assert (fault.count, len(fault.occurrences)) == (1_000_000, 1 + MOST_JOBS)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0s"),
        (0.5, "0.5s"),
        (59.0, "59s"),
        (60.0, "1m"),
        (61.0, "61s"),
        (90.0, "90s"),
        (120.0, "2m"),
        (3599.0, "3599s"),
        (3600.0, "1h"),
        (5400.0, "90m"),
        (7200.0, "2h"),
        (86_400.0, "1d"),
        (90_000.0, "25h"),
        (172_800.0, "2d"),
    ],
)
def test_a_time_is_told_in_the_largest_unit_that_divides_it(seconds: float, words: str) -> None:
    assert span(seconds) == words
