"""Machine checks, OOM kills and hung tasks, from lines that kernels print; and forged ones."""

import pytest

from nodeagent.checks.base import LogCheck
from nodeagent.model import ClearedBy, FaultSighting
from tests.agent.kernel_log import FIXTURES, fixture_records, only_records, open_log
from tests.agent.line_checks import faults, line_check


def seen(check: LogCheck, fixture: str) -> dict[int, FaultSighting]:
    found = [fault for each in fixture_records(fixture) for fault in faults(check, each)]
    return {fault.source_seq - 1000: fault for fault in found}


def test_every_machine_check_has_the_severity_that_its_line_states() -> None:
    found = seen(line_check("machine-check"), "machine-check.log")
    assert {at: fault.code.removeprefix("machine-check:") for at, fault in found.items()} == {
        0: "unstated",
        1: "fatal",  # processor context corrupt
        2: "corrected",
        3: "uncorrected",
        4: "fatal",
        9: "corrected",
        10: "uncorrected",
        11: "corrected",
        14: "corrected",
        16: "uncorrected",
        17: "fatal",
        19: "corrected",
        20: "uncorrected",
        21: "uncorrected",
        22: "fatal",
        24: "uncorrected",
        25: "uncorrected",
        26: "uncorrected",
        30: "fatal",
    }
    assert {fault.cleared_by for fault in found.values()} == {ClearedBy.EXPIRY}


def test_a_memory_module_is_named_where_its_driver_names_it() -> None:
    found = seen(line_check("machine-check"), "machine-check.log")
    assert found[9].component == "mc1/CPU_SrcID#1_Ha#0_Chan#0_DIMM#0"
    assert found[9].details["what"] == "memory scrubbing error"
    assert found[10].component == "mc0/CPU_SrcID#0_MC#0_Chan#0_DIMM#0"
    assert found[11].component == "mc2/mc#2csrow#3channel#0"
    assert found[11].details["errors"] == "3"
    assert found[2].component == ""
    assert dict(found[2].details) == {
        "by": "mce",
        "cpu": "2",
        "bank": "9",
        "status": "8c000045000800c0",
    }


def test_the_whole_nodes_memory_is_told_from_one_containers_limit() -> None:
    found = seen(line_check("oom"), "context.log")
    assert {at: fault.code for at, fault in found.items()} == {
        0: "oom:node",
        1: "oom:cgroup",
        2: "oom:cgroup",
    }
    assert dict(found[0].details) == {
        "pid": "4711",
        "name": "python3",
        "resident_kib": "33061232",
    }
    assert found[1].details["name"] == "my (odd), name"


def test_what_hangs_is_named() -> None:
    found = seen(line_check("hung-task"), "context.log")
    assert {at: fault.code for at, fault in found.items()} == {
        5: "hung-task:blocked",
        6: "hung-task:blocked",
        7: "hung-task:blocked",
        8: "hung-task:soft-lockup",
        9: "hung-task:soft-lockup",
        10: "hung-task:hard-lockup",
        11: "hung-task:hard-lockup",
        12: "hung-task:rcu-stall",
        13: "hung-task:rcu-stall",
        14: "hung-task:rcu-stall",
    }
    assert dict(found[5].details) == {"name": "jbd2/sda1-8", "pid": "310", "seconds": "120"}
    assert dict(found[6].details) == {"name": "a: b:9", "pid": "4711", "seconds": "241"}
    assert dict(found[8].details) == {
        "cpu": "3",
        "seconds": "22",
        "name": "python3",
        "pid": "4711",
    }
    assert found[9].details["name"] == "kworker/1:2"


CHECKS = ["machine-check", "oom", "hung-task"]


@pytest.mark.parametrize("check", CHECKS)
def test_text_that_a_user_made_the_kernel_print_is_not_believed(check: str) -> None:
    """The fixture has mount options, netfilter prefixes and process names at a line's start."""
    assert seen(line_check(check), "forged-machine.log") == {}


def test_each_forged_line_would_be_believed_without_its_mark() -> None:
    """The fixture quotes true lines of the kernel, so the test is not empty."""
    reader = open_log(FIXTURES / "forged-machine.log", accept_user_records=True)
    records = reader.read_batch()
    reader.close()
    checks: list[LogCheck] = [
        line_check("machine-check"),
        line_check("oom"),
        line_check("hung-task"),
    ]
    codes = {
        fault.code
        for each in only_records(records)
        for check in checks
        for fault in faults(check, each)
    }
    assert codes == {"machine-check:fatal", "oom:node", "hung-task:blocked"}
