"""The verdict of a test's Job about its node: only a program's own exit code is a verdict."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer
from aggregator.repairers.job_manifest import deadline, job_manifest, job_name
from aggregator.repairers.job_verdict import is_over, verdict, why_waiting
from tests.support.active_test_jobs import DISRUPTED, job_section, order_of_a_test
from tests.support.present import present

NODE = {"metadata": {"name": "n1", "uid": "u"}}
COMPLETE = {"type": "Complete", "status": "True"}
BY_CODE = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "why"}
DEADLINE = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}


def job(condition: dict[str, str] | None, **counts: int) -> dict[str, Any]:
    return {"status": {"conditions": [condition] if condition else [], **counts}}


def pod(code: Any = 0, reason: str | None = None, **status: Any) -> dict[str, Any]:
    told = ("Completed" if code == 0 else "Error") if reason is None else reason
    ended = {"terminated": {"exitCode": code, "reason": told, "message": "told"}}
    container = {"name": "test", "restartCount": 0, "state": ended}
    return {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n1"},
        "status": {"containerStatuses": [container], **status},
    }


PASSED, FAILED = job(COMPLETE, succeeded=1), job(BY_CODE, failed=1)


def test_the_exit_code_of_the_one_program_is_the_verdict() -> None:
    assert verdict(PASSED, [pod()], "n1") == RepairAnswer(AnswerState.DONE, "passed: told")
    assert verdict(FAILED, [pod(1)], "n1") == RepairAnswer(AnswerState.FAILED, "failed: told")
    assert verdict(job(None), [pod()], "n1") is None  # until the Job's own record agrees
    assert verdict(job(None, failed=1), [pod(1)], "n1") is None


@pytest.mark.parametrize(
    ("record", "pods", "why"),
    [
        (PASSED, [], "its pod is gone"),
        (job(DEADLINE), [], "DeadlineExceeded; its pod is gone"),
        (PASSED, [pod(), pod()], "its Job has had 2 pods"),
        (job(COMPLETE, succeeded=1, failed=1), [pod()], "its Job has had 2 pods"),
        (job(COMPLETE), [pod()], "its Job counts no pod that ended"),
        (PASSED, [pod(1)], "exit code 1"),
        (FAILED, [pod()], "exit code 0"),
        (job(DEADLINE, failed=1), [pod(1)], "exit code 1"),
        (FAILED, [pod(3)], "exit code 3: told"),
        (FAILED, [pod(1, "OOMKilled")], "exit code 1 (OOMKilled)"),
        (PASSED, [pod(0, "Strange")], "exit code 0 (Strange)"),
        (FAILED, [pod(True)], "reports no exit code"),
        (FAILED, [pod("1")], "reports no exit code"),
        (FAILED, [pod(1, conditions=[DISRUPTED])], "was disrupted"),
        (FAILED, [pod(1) | {"spec": {"nodeName": "n2"}}], "was on node n2"),
        (FAILED, [pod(1) | {"metadata": {"deletionTimestamp": "x"}}], "was deleted"),
        (FAILED, [pod(1, containerStatuses=[{"name": "other"}])], "did not begin"),
        (FAILED, [pod(1, containerStatuses=[{"name": "test", "restartCount": 1}])], "than once"),
        (FAILED, [pod(1, containerStatuses=[{"name": "test", "state": {}}])], "did not end"),
        (FAILED, [pod(1, containerStatuses="x")], "did not begin"),
    ],
)
def test_all_else_is_no_verdict(
    record: dict[str, Any], pods: list[dict[str, Any]], why: str
) -> None:
    answer = present(verdict(record, pods, "n1"))
    assert answer.state is AnswerState.INCONCLUSIVE
    assert why in answer.text


def test_a_garbage_message_is_shown_in_part_and_harmless() -> None:
    garbage = pod(1)
    ended = garbage["status"]["containerStatuses"][0]["state"]["terminated"]
    ended["message"] = "\x1b[2J\u202e" + "<script>" * 3000 + "\nPASSED"
    answer = present(verdict(FAILED, [garbage], "n1"))
    assert answer.state is AnswerState.FAILED
    assert answer.text.isprintable()
    assert len(answer.text) < 400


def test_a_pod_that_the_kubelet_ended_is_no_verdict() -> None:
    evicted = pod(1)
    evicted["status"]["reason"] = "Evicted"
    answer = present(verdict(FAILED, [evicted], "n1"))
    assert answer.state is AnswerState.INCONCLUSIVE
    assert "Evicted" in answer.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["conditions", "containerStatuses", "state", "terminated", "exitCode", "name"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(status=JSON, record=st.sampled_from([PASSED, FAILED]))
def test_no_garbage_in_a_pods_status_is_a_verdict_or_an_error(
    status: Any, record: dict[str, Any]
) -> None:
    answer = present(verdict(record, [{"status": status}], "n1"))
    assert answer.state is AnswerState.INCONCLUSIVE
    why_waiting([{"status": status}])
    is_over({"status": status})


def test_the_deadline_of_the_job_is_before_that_of_its_attempt() -> None:
    for lasts in (1.0, 60.0, 100.0, 119.0, 121.0, 2700.0, 86400.0):
        order = order_of_a_test(NODE, lasts=lasts)
        assert 1 <= deadline(order) <= max(1, lasts)
    assert deadline(order_of_a_test(NODE, lasts=2700.0)) == 2640
    assert deadline(order_of_a_test(NODE, lasts=60.0)) == 30


def test_a_template_adds_and_takes_nothing_away_that_makes_the_end_readable() -> None:
    container = {
        "env": [{"name": "A", "value": "b"}],
        "securityContext": {"privileged": True, "capabilities": {"add": ["IPC_LOCK"]}},
        "resources": {"limits": {"memory": "1Gi"}},
    }
    spec = {
        "containers": [container],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    }
    template = {"metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}}, "spec": spec}
    section = job_section("tests", template=template, priority_class="low")
    made = job_manifest(section, order_of_a_test(NODE), gpus=4, taint="example.test/sick")
    pod_template = made["spec"]["template"]
    assert pod_template["metadata"]["labels"]["team"] == "a"
    assert pod_template["metadata"]["annotations"]["b"] == "c"
    found = pod_template["spec"]
    assert found["priorityClassName"] == "low"
    assert found["volumes"] == spec["volumes"]
    assert [one["key"] for one in found["tolerations"]] == [
        "example.test/sick",
        "node.kubernetes.io/unschedulable",
        "sickbay.dev/quarantine",
        "nvidia.com/gpu",
    ]
    [test] = found["containers"]
    assert test["env"] == container["env"]
    assert test["securityContext"]["privileged"] is False
    assert test["resources"] == {
        "limits": {"memory": "1Gi", "nvidia.com/gpu": 4},
        "requests": {"nvidia.com/gpu": 4},
    }
    assert test["terminationMessagePolicy"] == "File"
    assert section == job_section("tests", template=template, priority_class="low")


def test_the_name_follows_from_the_operation_and_fits_a_label() -> None:
    one, two = order_of_a_test(NODE), order_of_a_test(NODE, number=2)
    assert job_name(one) == job_name(order_of_a_test(NODE))
    assert job_name(one) != job_name(two)
    assert len(job_name(one)) <= 63
    again = replace(one, began_at=1790000000.125)  # the node's annotation was removed meanwhile
    assert len({job_name(one), job_name(again), job_name(replace(again, began_at=2.0))}) == 3


def test_the_pod_of_an_idle_nodes_test_has_its_class_and_only_the_sites_tolerations() -> None:
    pool = {"key": "nvidia.com/gpu", "operator": "Exists"}
    section = job_section("t", priority_class="high", template={"spec": {"tolerations": [pool]}})
    idle = order_of_a_test(NODE, idle_class="sickbay-idle-test")
    found = job_manifest(section, idle, gpus=8)["spec"]["template"]["spec"]
    assert found["priorityClassName"] == "sickbay-idle-test"
    assert found["tolerations"] == [pool]
    other = job_manifest(section, order_of_a_test(NODE), gpus=8)["spec"]["template"]["spec"]
    assert other["priorityClassName"] == "high"
