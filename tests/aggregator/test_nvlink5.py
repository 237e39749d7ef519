"""NVLink 5: the meaning of the registers in a real driver's line, by NVIDIA's table."""

import itertools

import pytest

from aggregator.health.model import ClearedBy
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import evaluate
from aggregator.policy.explain import Question, explain
from nodeagent.checks.xid import _nvlink5
from tests.support.present import present
from tests.support.replica import POLICY, fault, hello, snapshot

TABLE = POLICY.catalogue.nvlink5
NEW, OLD = "580.82.07", "570.86.15"

#: The driver's words after "Xid (PCI:...): CODE, pid=..., name=..., ".
LINE = b"RLW_REMAP Fatal XC1 i0 Link 07 (0x00000004, 0x00000040, 0x00000000, 0x0)"


def action(code: str, driver: str = NEW, **details: str) -> str:
    row = TABLE.row(code, details, driver)
    return row.action if row is not None else "none"


def test_the_agents_details_of_a_line_are_what_the_table_is_asked_with() -> None:
    details = _nvlink5(LINE)
    row = present(TABLE.row("xid:145", details, NEW))
    assert (row.unit, row.action, row.severity) == ("RLW_REMAP", "reset", "fatal")


@pytest.mark.parametrize(
    ("code", "first", "second", "driver", "wanted"),
    [
        ("xid:144", "0x00000001", "0x00000002", NEW, "reset"),
        ("xid:144", "0x00000001", "0x00000001", NEW, "ignore"),
        ("xid:144", "0x00000021", "0x00000002", OLD, "reset"),
        ("xid:144", "0xFC000021", "0x00000002", OLD, "reset"),  # the upper bits are any
        ("xid:144", "0x00100001", "0x00000002", NEW, "none"),  # except for six of them
        ("xid:144", "0x00000021", "0x00000002", NEW, "none"),  # another branch's layout
        ("xid:145", "0x00000004", "0x00000008", NEW, "follow-154"),
        ("xid:145", "0x00000006", "0x00000001", NEW, "ignore"),  # RLW_RXPIPE
        ("xid:145", "0x00000086", "0x00000001", NEW, "reset"),  # the same with its second bit
        ("xid:149", "0x00000018", "", NEW, "reset"),  # any second register
        ("xid:149", "0x02600011", "0x0000abcd", NEW, "ignore"),
        ("xid:150", "0x00000000", "0xFFFFFFFF", NEW, "reset"),
        ("xid:144", "0x00000001", "0x00000003", NEW, "none"),  # not guessed from its bits
        ("xid:144", "0x00000001", "", NEW, "none"),
        ("xid:144", "rubbish", "0x00000002", NEW, "none"),
        ("xid:144", "0x100000001", "0x00000002", NEW, "none"),
        ("xid:145", "0x00000001", "0x00000002", NEW, "none"),  # another code's registers
        ("xid:145", "0x00000004", "0x00000040", "", "none"),  # the layouts differ
        ("xid:150", "0x00000000", "0x00000000", "", "reset"),  # both say the same
    ],
)
def test_registers_are_held_against_the_masks_of_the_drivers_branch(
    code: str, first: str, second: str, driver: str, wanted: str
) -> None:
    assert action(code, driver, intr_info=first, error_status=second) == wanted


def test_the_table_is_whole_and_no_two_rows_of_it_disagree() -> None:
    rows = [entry.row.action for rows in TABLE.entries.values() for entry in rows]
    assert len(rows) == 98  # NVIDIA's 95 rows, three of them with a second mask
    assert {name: rows.count(name) for name in set(rows)} == {
        "reset": 45,
        "ignore": 45,
        "follow-154": 8,
    }
    for entries in TABLE.entries.values():
        for one, other in itertools.combinations(entries, 2):
            if one.row.action == other.row.action:
                continue
            same_status = not one.statuses or not other.statuses or one.statuses & other.statuses
            for a, b in (
                (one.before.pattern, other.before.pattern),
                (one.after.pattern, other.after.pattern),
            ):
                overlap = all("." in pair or len(set(pair)) == 1 for pair in zip(a, b, strict=True))
                assert not (same_status and overlap), (one, other)


def test_a_line_that_calls_for_a_reset_drains_and_a_fatal_one_without_a_row_cordons() -> None:
    for registers, wanted in (
        ({"intr_info": "0x00000004", "error_status": "0x00000040"}, ["drain"]),
        ({"intr_info": "0x00000004", "error_status": "0x00000041"}, ["observe"]),
        ({"intr_info": "0x00000004", "error_status": "0x00000100"}, ["observe"]),
        ({"intr_info": "0x00000004", "error_status": "0x00000008"}, ["observe"]),
        ({}, ["observe"]),
        ({"severity": "fatal"}, ["cordon"]),
        ({"severity": "non-fatal"}, ["observe"]),
        ({"severity": "fatal", "intr_info": "0x00000004"}, ["cordon"]),
        (
            {"severity": "fatal", "intr_info": "0x00000004", "error_status": "0x00000040"},
            ["drain"],
        ),
        (
            {"severity": "fatal", "intr_info": "0x00000004", "error_status": "0x00000100"},
            ["observe"],
        ),
    ):
        told = hello("n1")
        health = NodeHealth(told)
        health.traits = {"driver": NEW}
        event = fault("xid:145", cleared_by=ClearedBy.GPU_RESET, details=registers)
        health.snapshot(snapshot(event))
        evaluated = evaluate(POLICY, health, {}, 1000.0).incidents
        assert [one.action for one in evaluated.values()] == wanted, registers


def test_a_milder_line_of_the_same_code_takes_nothing_back() -> None:
    health = NodeHealth(hello("n1"))
    health.traits = {"driver": NEW}
    grave = {"intr_info": "0x00000004", "error_status": "0x00000040"}
    mild = {"intr_info": "0x00000004", "error_status": "0x00000100"}
    health.snapshot(snapshot(fault("xid:145", details=grave)))
    first = evaluate(POLICY, health, {}, 1000.0)
    health.snapshot(snapshot(fault("xid:145", details=mild, count=2)))
    second = evaluate(POLICY, health, first.incidents, 1100.0)
    held = [item for one in second.incidents.values() for item in one.in_force]
    (item,) = [item for item in held if item.action != "observe"]
    assert (item.action, item.cleared_by) == ("drain", ClearedBy.GPU_RESET)


def test_explain_shows_the_row_and_what_nvidia_publishes() -> None:
    answer = explain(
        POLICY,
        Question("xid:149", driver=NEW, details={"intr_info": "0x00000018"}),
    )
    assert answer.rule is not None
    assert answer.rule.name == "gpu-nvlink5-reset"
    assert answer.row.startswith("NETIR/NETIR_INT, link fatal: reset")
    assert answer.published.startswith("NVLINK_NETIR_ERROR, on B100, GB200; first WORKFLOW_NVLINK5")
    unread = explain(POLICY, Question("xid:149"))
    assert unread.row.startswith("no row matches: add --detail intr_info")
    assert "unused" in explain(POLICY, Question("xid:61")).published
