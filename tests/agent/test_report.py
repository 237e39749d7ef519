"""The table of findings: a message that concerns many components is printed once."""

import pytest

from nodeagent.local.findings import Findings, Latched, Result
from nodeagent.model import ClearedBy, Status
from nodeagent.terminal.report import findings_table, slurm_line

NO_LIBRARY = "the NVML library cannot be loaded; set nvml.library to its path"


def table(*results: Result) -> list[str]:
    return findings_table(Findings("n1", "probe", results)).splitlines()[2:]


def test_a_message_of_fourteen_checks_is_in_one_row_that_names_them() -> None:
    names = [f"gpu-{letter}" for letter in "abcdefghijklmn"]
    results = [Result(name, "", Status.UNKNOWN, "no-library", NO_LIBRARY) for name in names]
    lines = table(Result("clock", "", Status.OK, "", "synchronised"), *results)
    text = " ".join(" ".join(lines).split())
    assert text.count(NO_LIBRARY) == 1
    assert f"unknown gpu-a - - {NO_LIBRARY}; the same: {', '.join(names[1:])}" in text
    assert lines[-1].startswith("ok       clock")


def test_few_components_of_a_message_are_named_and_many_are_counted() -> None:
    def text(number: int) -> str:
        found = [Result("c", f"eth{n}", Status.FAILED, "r", "no carrier") for n in range(number)]
        return " ".join(" ".join(table(*found)).split())

    assert "failed c eth0 - no carrier failed c eth1 - no carrier" in text(2)
    assert "failed c eth0 - no carrier; the same: c eth1, c eth2" in text(3)
    assert "failed c eth0 - no carrier; the same: c (9)" in text(10)


def test_components_that_are_ok_alike_are_one_row_for_each_check() -> None:
    results = [
        Result(check, f"GPU-{n}", Status.OK, "", "18 NVLinks are up")
        for check in ("a", "b")
        for n in range(8)
    ]
    assert table(*results) == [
        "STATUS  CHECK  COMPONENT     AGE  WHAT",
        "ok      a      8 components  -    18 NVLinks are up",
        "ok      b      8 components  -    18 NVLinks are up",
    ]


def test_statuses_are_kept_apart_and_rows_without_a_message_stay() -> None:
    results = [Result("a", f"x{n}", Status(1 + n % 2), "", "same words") for n in range(4)]
    results += [Result("b", f"y{n}", Status.OK) for n in range(4)]
    assert len(table(*results)) == 1 + 8


def test_the_line_for_slurm_names_a_fault_s_code_once() -> None:
    fault = latched("nvidia-driver:uvm-fatal", ClearedBy.REBOOT)
    assert slurm_line(fault) == "sickbay: nvidia-driver:uvm-fatal GPU-1: what the line says"


@pytest.mark.parametrize("code", ["xid:63", "xid:94", "kernel-oops:bug", "kernel-oops:oops"])
def test_a_fault_that_asks_for_no_action_fails_no_slurm_node(code: str) -> None:
    assert latched(code, ClearedBy.REBOOT).worst is Status.DEGRADED
    assert latched("xid:48", ClearedBy.GPU_RESET).worst is Status.FAILED


def latched(code: str, ends: ClearedBy) -> Findings:
    fault = Latched(code, "check", "GPU-1", "what the line says", 1, 5.0, 5.0, ends)
    return Findings("n1", "agent", (), (fault,))


def test_the_line_for_slurm_still_counts_each() -> None:
    found = [Result("c", f"eth{n}", Status.FAILED, "r", "no carrier") for n in range(4)]
    assert slurm_line(Findings("n1", "probe", found)) == "sickbay: c eth0: no carrier (and 3 more)"


@pytest.mark.parametrize(
    ("check", "reason", "status"),
    [
        ("dns", "timeout", Status.DEGRADED),  # its server fails for every node
        ("reach", "unreachable", Status.DEGRADED),
        ("disk-mounts", "hung", Status.DEGRADED),
        ("processes", "stuck", Status.DEGRADED),  # in a dead filesystem
        ("disk-mounts", "not-mounted", Status.FAILED),
        ("nic-link", "link-down", Status.FAILED),
    ],
)
def test_a_server_that_fails_fails_no_node(check: str, reason: str, status: Status) -> None:
    found = Findings("n1", "probe", [Result(check, "x", Status.FAILED, reason)])
    assert found.of_this_node().worst is status
    assert found.worst is Status.FAILED, "for people"
