"""A drain leaves the pod of our own active test alone, and no pod that only says so."""

from dataclasses import replace

import pytest

from aggregator.cluster.port import Pod, RepairAttempt, RepairState, RepairStatus
from aggregator.quarantine.decide.own_pods import OPERATION, without_own

TEST = Pod(
    *("tests", "t", "u", "1", "Running", False, False, "Job", "j", ()),
    annotations={OPERATION: "q-2-test"},
)


def status(repair: str = "test", state: RepairState = RepairState.ORDERED) -> RepairStatus:
    return RepairStatus((RepairAttempt("q-2-test", repair, state),))


@pytest.mark.parametrize("state", [RepairState.ORDERING, RepairState.ORDERED])
def test_the_pod_of_the_test_under_way_is_no_work(state: RepairState) -> None:
    other = replace(TEST, name="other", annotations={})
    assert without_own([TEST, other], status(state=state), "tests") == [other]


@pytest.mark.parametrize(
    ("pod", "repair", "namespace"),
    [
        (TEST, status(), ""),  # no repairer has pods
        (TEST, RepairStatus(), "tests"),
        (TEST, status(state=RepairState.SUCCEEDED), "tests"),
        (TEST, status("gpu-reset"), "tests"),
        (replace(TEST, namespace="tenant"), status(), "tests"),
        (replace(TEST, owner_kind=""), status(), "tests"),
        (replace(TEST, annotations={OPERATION: "q-1-test"}), status(), "tests"),
        (replace(TEST, annotations={OPERATION: ""}), status(), "tests"),
    ],
)
def test_another_pod_is_work_whatever_it_says(
    pod: Pod, repair: RepairStatus, namespace: str
) -> None:
    assert without_own([pod], repair, namespace) == [pod]
