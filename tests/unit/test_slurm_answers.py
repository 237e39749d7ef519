"""Slurm's JSON, of Slurm 22.05 as it was printed, and of the data parsers by their schema."""

import json

import pytest

from aggregator.cluster.slurm.drain import LONGEST, OurDrain, Whose, reason_of, whose
from aggregator.cluster.slurm.state import (
    SlurmNode,
    UnreadableOutput,
    first_error,
    jobs_on,
    read_jobs,
    read_nodes,
)

#: `sinfo --json` of Slurm 22.05.8, without the fields that are not read.
OLD = """{"meta": {"plugin": {"type": "openapi/v0.0.38"}}, "errors": [], "nodes": [
{"boot_time": 1795844262, "name": "n1", "hostname": "localhost", "state": "idle",
 "state_flags": ["DRAIN"], "partitions": ["main"], "reason": "fan 3 dead RMA 123",
 "reason_changed_at": 1795880532, "reason_set_by_user": "root"},
{"boot_time": 0, "name": "n4", "hostname": "localhost", "state": "down",
 "state_flags": ["NOT_RESPONDING"], "partitions": ["main"], "reason": "",
 "reason_changed_at": 0, "reason_set_by_user": null}]}"""
#: The same by data_parser v0.0.40, after its published schema.
NEW = """{"meta": {"plugin": {"data_parser": "data_parser/v0.0.40"}}, "errors": [], "nodes": [
{"boot_time": {"set": true, "infinite": false, "number": 1795844262}, "name": "n1",
 "hostname": "localhost", "state": ["IDLE", "DRAIN"], "partitions": ["main"],
 "reason": "fan 3 dead RMA 123", "instance_id": "",
 "reason_changed_at": {"set": true, "infinite": false, "number": 1795880532},
 "reason_set_by_user": "root"},
{"boot_time": {"set": false, "infinite": false, "number": 0}, "name": "n4",
 "hostname": "localhost", "state": ["DOWN", "NOT_RESPONDING"], "partitions": ["main"],
 "reason": "", "reason_changed_at": {"set": true, "infinite": false, "number": 0},
 "reason_set_by_user": ""}]}"""


def test_both_forms_of_the_answer_are_the_same_nodes() -> None:
    old, new = read_nodes(json.loads(OLD)), read_nodes(json.loads(NEW))
    assert old == new
    first, second = old
    assert (first.has_drain, first.is_at_work, first.shown) == (True, False, "IDLE+DRAIN")
    assert (first.reason_user, first.reason_at) == ("root", 1795880532)
    assert (second.base, second.has_drain) == ("DOWN", False)


@pytest.mark.parametrize(
    ("words", "at_work"),
    [
        (["MIXED", "DRAIN"], True),
        (["ALLOCATED", "DRAIN"], True),
        (["IDLE", "DRAIN", "COMPLETING"], True),
        (["IDLE", "DRAIN"], False),
        (["DOWN", "DRAIN"], False),
    ],
)
def test_drained_goes_by_the_flags_of_the_state(words: list[str], *, at_work: bool) -> None:
    [node] = read_nodes({"nodes": [{"name": "n", "state": words}]})
    assert node.is_at_work is at_work


def test_a_job_that_ends_still_has_its_node_and_one_that_waits_has_none() -> None:
    jobs = read_jobs(
        "m|1|RUNNING|ann|vision|main|1795887654|gres:gpu:8|a|b\n"
        "m|2|COMPLETING|ann|(null)|main|N/A|N/A|b\nthe rest of its name\n"
        "m|3|PENDING|ann|vision|main|N/A|N/A|c\n"
        "m|4|COMPLETED|ann|vision|main|7|N/A|d\n"
        "m|5|RUNNING|ann|vision|main|7|gres/gpu:h100:4,gres/gpu:a30:2,gres/nic:9|e\n",
        "m",
    )
    assert [
        (job.job_id, job.state, job.name, job.account, job.ends_at, job.gpus) for job in jobs
    ] == [
        ("1", "RUNNING", "a|b", "vision", 1795887654, 8),
        ("2", "COMPLETING", "b", "", 0, 0),
        ("5", "RUNNING", "e", "vision", 7, 6),
    ]


def test_a_name_with_a_line_of_another_job_is_no_other_job() -> None:
    forged = (
        "1|RUNNING|ann|vision|main|7|N/A|a\n7|RUNNING|root|all|main|0|N/A|b\x1b[31m" + 9_000 * "x"
    )
    [job] = read_jobs(f"m|{forged}\n|8|RUNNING|root|all|main|0|N/A|c\nm|", "m")
    assert (job.job_id, job.user, job.name) == ("1", "ann", "a")
    answer = {"jobs": [{"job_id": 1, "job_state": ["RUNNING"], "nodes": "n", "name": forged}]}
    [job] = jobs_on(answer, "n")
    assert (len(job.name), job.name.isprintable()) == (100, True)


def test_an_error_in_an_answer_with_exit_code_0_is_found() -> None:
    answer = {"errors": [{"error": "Unable to contact slurm controller", "description": "x"}]}
    assert first_error(answer) == "Unable to contact slurm controller: x"
    assert first_error({"errors": ["odd"]}) == "odd"
    assert first_error({"errors": []}) == ""


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"nodes": "n1"},
        {"nodes": [1]},
        {"nodes": [{"state": "idle"}]},
        {"nodes": [{"name": "n"}]},
    ],
)
def test_an_answer_of_another_form_is_no_empty_cluster(answer: dict[str, object]) -> None:
    with pytest.raises(UnreadableOutput):
        read_nodes(answer)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("xid:79 on GPU 3", "sickbay: xid:79 on GPU 3"),
        ("two\nlines\t\x1b[31m red", "sickbay: two lines [31m red"),
        ("\"quoted\" 'words' `x`", "sickbay: quoted words x"),
        ("caf\u00e9", "sickbay: caf?"),
    ],
)
def test_a_reason_is_one_line_of_plain_characters(text: str, reason: str) -> None:
    assert reason_of(text) == reason


def test_a_reason_of_ten_thousand_characters_is_cut() -> None:
    assert len(reason_of("x" * 10_000)) == LONGEST


OURS = OurDrain("sickbay: x", "root", 7, slurm_user="slurm")
NODE = SlurmNode("n", "n", "IDLE", frozenset({"DRAIN"}), "sickbay: x", "root", 7)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Whose.OURS),
        ({"reason": "sickbay: x, and RMA"}, Whose.ANOTHER),
        ({"reason_user": "ann"}, Whose.ANOTHER),
        ({"reason_at": 8}, Whose.ANOTHER),
        ({"flags": frozenset()}, Whose.NOBODY),
        # As Slurm 22.05 shows a drained node after state=power_up.
        ({"reason": "", "reason_user": "", "reason_at": 0}, Whose.OURS),
        ({"flags": frozenset({"FAIL"}), "reason": "PSU 2 dies"}, Whose.ANOTHER),
        ({"reason": "sickbay: x : reboot issued", "reason_at": 9}, Whose.OURS),
        (
            {"reason": "sickbay: x : reboot issued : Not responding", "reason_user": "slurm"},
            Whose.OURS,
        ),
        (
            {"reason": "sickbay: x : Low RealMemory (reported:1 < 100.00% of configured:2)"},
            Whose.OURS,
        ),
        ({"reason": "sickbay: x : Low socket*core*thread count, Low CPUs"}, Whose.OURS),
        (
            {
                "reason": "sickbay: x : gres/gpu count reported lower than configured (7 < 8), "
                "Low RealMemory (reported:1 < 100.00% of configured:2)"
            },
            Whose.OURS,
        ),
        ({"reason": "sickbay: x : Low CPUs, RMA 123"}, Whose.ANOTHER),
        ({"reason": "sickbay: x : RMA 123"}, Whose.ANOTHER),
        ({"reason": "sickbay: x : Not responding, RMA 123"}, Whose.ANOTHER),
        ({"reason": "sickbay: x : reboot issued", "reason_at": 6}, Whose.ANOTHER),
    ],
)
def test_a_drain_is_ours_by_its_words_its_user_and_its_time(
    changes: dict[str, object], expected: Whose
) -> None:
    node = SlurmNode(**{field: getattr(NODE, field) for field in NODE.__slots__} | changes)
    assert whose(node, OURS) is expected
    assert whose(node, None) is (Whose.NOBODY if expected is Whose.NOBODY else Whose.ANOTHER)
