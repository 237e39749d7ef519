"""Marks on a node or a pod: gangs, maintenance, people's requests, pods that came back."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.node_names import APPLIED, CODES, LABEL, TAINT
from aggregator.cluster.port import (
    AppliedChanges,
    MarksStatus,
    Node,
    Pod,
    Taint,
    Toleration,
)
from aggregator.jobs.gangs import SHIPPED_KEYS, Gang, gang_of
from aggregator.quarantine.decide.drain_plan import NODE_OWNERS, stays_by_nature, work_of
from aggregator.quarantine.decide.lost_marks import (
    RestoreRules,
    counted,
    describe_lost,
    describe_missing,
    restore_at,
)
from aggregator.quarantine.decide.returned_pods import find_returned, is_return, slot_of
from aggregator.quarantine.state.cluster_view import OthersMarks


def pod(name: str = "p", **changes: Any) -> Pod:
    made: dict[str, Any] = {"owner_kind": "Job", "owner_name": "j", "uid": f"uid-{name}"}
    made = {**made, "mirror": False, **changes}
    return Pod(
        namespace="ns",
        name=name,
        version="1",
        phase="Running",
        deleting=False,
        empty_dirs=(),
        **made,
    )


def node(**changes: Any) -> Node:
    made: dict[str, Any] = {"taints": (), "labels": {}, "annotations": {}, **changes}
    return Node("n1", "uid", "1", unschedulable=True, **made)


# -- gangs -----------------------------------------------------------------------------------------


def test_a_gang_is_named_by_the_spec_then_by_the_narrowest_key() -> None:
    named = {key: f"by-{key}" for key in SHIPPED_KEYS}
    assert gang_of(pod(group="g", labels=named)) == Gang("ns", "spec", "g")
    for place, key in enumerate(SHIPPED_KEYS):
        some = {one: named[one] for one in SHIPPED_KEYS[place:]}
        by_label = gang_of(pod(labels=some, annotations=some))
        assert by_label == Gang("ns", key, f"by-{key}")
        assert by_label.label == key
        by_annotation = gang_of(pod(labels=dict.fromkeys(some, ""), annotations=some))
        assert by_annotation == by_label
        assert by_annotation.label == ""
    assert gang_of(pod(annotations=dict.fromkeys(SHIPPED_KEYS, ""))) is None
    assert gang_of(pod()) is None
    assert str(Gang("ns", "spec", "g")) == "ns/g"


@given(
    key=st.sampled_from(["example.test/gang", *SHIPPED_KEYS]),
    mine=st.sampled_from(["", "g", "h"]),
    other=st.sampled_from(["", "g", "h"]),
    label=st.booleans(),
)
def test_pods_with_an_equal_value_of_a_key_are_one_gang(
    key: str, mine: str, other: str, *, label: bool
) -> None:
    place = "labels" if label else "annotations"
    pods = [replace(pod(), **{place: {key: value}}) for value in (mine, other)]  # type: ignore[arg-type]  # a test's words
    first, second = (gang_of(one, ["example.test/gang"]) for one in pods)
    assert (first is None, second is None) == (not mine, not other)
    assert (first == second) == (mine == other)
    unknown = gang_of(pods[0])
    assert (unknown is not None) == (bool(mine) and key in SHIPPED_KEYS)


def test_a_sites_own_key_goes_before_the_shipped_ones() -> None:
    both = {"example.test/gang": "mine", SHIPPED_KEYS[0]: "theirs"}
    assert gang_of(pod(labels=both), ["example.test/gang"]) == Gang(
        "ns", "example.test/gang", "mine"
    )


@given(
    owner=st.sampled_from([*NODE_OWNERS, "SiteDaemon", "Job", ""]),
    kinds=st.sampled_from([(), ("SiteDaemon",)]),
    annotation=st.sampled_from(["true", "false", ""]),
    mirror=st.booleans(),
)
def test_which_pods_belong_to_their_node(
    owner: str, kinds: tuple[str, ...], annotation: str, *, mirror: bool
) -> None:
    marks = {"cluster-autoscaler.kubernetes.io/daemonset-pod": annotation}
    one = pod(owner_kind=owner, annotations=marks, mirror=mirror)
    belongs = mirror or annotation == "true" or owner in {*NODE_OWNERS, *kinds}
    assert stays_by_nature(one, kinds) is belongs
    assert work_of([one], kinds) == ([] if belongs else [one])


# -- who is at work --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"taints": (Taint("other", "", "NoSchedule"),)}, ""),
        (
            {"taints": (Taint("ToBeDeletedByClusterAutoscaler", "1", "NoSchedule"),)},
            (
                "a mark of another tool is stale, older than 1h: the autoscaler is removing it "
                "(taint ToBeDeletedByClusterAutoscaler)"
            ),
        ),
        ({"taints": (Taint("DeletionCandidateOfClusterAutoscaler", "1", "NoSchedule"),)}, ""),
        (
            {"taints": (Taint("node.cloudprovider.kubernetes.io/shutdown", "", "NoExecute"),)},
            "the cloud has shut it down (taint node.cloudprovider.kubernetes.io/shutdown)",
        ),
        (
            {"taints": (Taint("node.kubernetes.io/out-of-service", "x", "NoExecute"),)},
            "it was declared out of service (taint node.kubernetes.io/out-of-service)",
        ),
        (
            {
                "taints": (
                    Taint("other", "", "NoSchedule"),
                    Taint("karpenter.sh/disrupted", "", "NoSchedule"),
                )
            },
            "Karpenter is removing it (taint karpenter.sh/disrupted)",
        ),
        ({"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}}, ""),
        ({"labels": {"nvidia.com/gpu-driver-upgrade-state": ""}}, ""),
        (
            {"labels": {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}},
            (
                "its GPU driver is being upgraded "
                "(label nvidia.com/gpu-driver-upgrade-state=drain-required)"
            ),
        ),
        ({"labels": {"nvidia.com/mig.config.state": "success"}}, ""),
        ({"labels": {"nvidia.com/mig.config.state": "failed"}}, ""),
        (
            {"labels": {"nvidia.com/mig.config.state": "pending"}},
            "its MIG configuration is being changed (label nvidia.com/mig.config.state=pending)",
        ),
        (
            {"labels": {"nvidia.com/mig.config.state": "rebooting"}},
            "its MIG configuration is being changed (label nvidia.com/mig.config.state=rebooting)",
        ),
        ({"labels": {"remediation.medik8s.io/exclude-from-remediation": "false"}}, ""),
        (
            {"labels": {"remediation.medik8s.io/exclude-from-remediation": "true"}},
            (
                "it is excluded from remediation "
                "(label remediation.medik8s.io/exclude-from-remediation=true)"
            ),
        ),
        ({"annotations": {"karpenter.sh/do-not-disrupt": "true"}}, ""),
    ],
)
def test_who_is_at_work_on_a_node_is_told_by_its_mark(changes: dict[str, Any], said: str) -> None:
    assert OthersMarks().forbids_all(node(**changes)) == said


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("true", "it is not to be disrupted (annotation karpenter.sh/do-not-disrupt)"),
        ("false", ""),
    ],
)
def test_karpenters_mark_forbids_evictions_alone(value: str, says: str) -> None:
    marked_so = node(annotations={"karpenter.sh/do-not-disrupt": value})
    assert OthersMarks().forbidden(marked_so) == ("", says)


# -- pods that came back ---------------------------------------------------------------------------

BEGAN = 100.0
OURS = Taint(TAINT, "gpu", "NoSchedule")
TOLERANT = (Toleration(key=TAINT, operator="Exists", value="", effect=""),)
TOLERATES = f"it tolerates the taint {TAINT} and came back (Job j)"
BOUND = f"it came back although it does not tolerate the taint {TAINT} (Job j)"


@pytest.mark.parametrize(
    ("changes", "first_seen", "evicted", "blocking", "said"),
    [
        ({"created_at": 100.0, "tolerations": TOLERANT}, None, 9, False, None),
        ({"created_at": 100.1, "tolerations": TOLERANT}, None, 0, False, TOLERATES),
        ({"created_at": 0.0, "tolerations": TOLERANT}, ["uid-p"], 0, False, None),
        ({"created_at": 0.0, "tolerations": TOLERANT}, ["another"], 0, False, TOLERATES),
        ({"created_at": 0.0, "tolerations": TOLERANT}, [], 0, False, TOLERATES),
        ({"created_at": 0.0, "tolerations": TOLERANT}, ["uid-p"], 0, True, TOLERATES),
        ({"created_at": 100.1}, None, 1, False, None),
        ({"created_at": 100.1}, None, 2, False, BOUND),
        ({"created_at": 100.1}, None, 0, True, BOUND),
        ({"created_at": 0.0}, None, 2, False, None),
    ],
)
def test_a_pod_is_a_return_by_its_age_its_toleration_and_its_evictions(
    changes: dict[str, Any],
    first_seen: list[str] | None,
    evicted: int,
    *,
    blocking: bool,
    said: str | None,
) -> None:
    found = find_returned(
        [pod(created_at=0.0, name="other"), pod(**changes)],
        taint=OURS,
        began=BEGAN,
        first_seen=None if first_seen is None else [*first_seen, "uid-other"],
        evicted={"ns/Job/j": evicted},
        blocking=["ns/p"] if blocking else [],
    )
    assert found == ({} if said is None else {"uid-p": said})
    assert all(map(is_return, found.values()))
    assert not is_return("it has a disruption budget")


def test_a_pod_without_an_owner_is_a_place_of_its_own() -> None:
    bare = pod(owner_kind="", owner_name="", created_at=200.0, tolerations=TOLERANT)
    assert (slot_of(bare), slot_of(pod())) == ("ns/p", "ns/Job/j")
    found = find_returned([bare], taint=OURS, began=BEGAN, first_seen=None, evicted={})
    assert found == {"uid-p": f"it tolerates the taint {TAINT} and came back"}


# -- marks that are missing ------------------------------------------------------------------------

DAY = 86_400.0


@pytest.mark.parametrize(
    ("restored", "restored_at", "since", "at"),
    [
        (0, 0.0, 1000.0, 1060.0),
        (1, 900.0, 1000.0, 1240.0),
        (2, 900.0, 1000.0, 1960.0),
        (3, 900.0, 1000.0, None),
        (3, 900.0, 900.0 + DAY - 1, None),
        (3, 900.0, 900.0 + DAY, 960.0 + DAY),  # forgotten
    ],
)
def test_marks_are_set_again_ever_later_and_then_no_more(
    restored: int, restored_at: float, since: float, at: float | None
) -> None:
    marks = MarksStatus(("taint", "codes"), since, restored, restored_at)
    assert restore_at(marks, RestoreRules()) == at
    assert restore_at(MarksStatus((), since, restored, restored_at), RestoreRules()) is None
    said = describe_lost(marks, RestoreRules(), None)
    if at is None:
        assert said.endswith(f"; not set again any more, after {restored} times")
    else:
        shown = 0 if since - restored_at >= DAY else restored
        assert said.endswith(f" ({shown + 1} of 3), unless sickbay is stopped")


def test_marks_are_counted_and_named() -> None:
    again = counted(MarksStatus(("taint",), 1000.0, 1, 900.0), 1100.0)
    assert again == MarksStatus(restored=2, restored_at=1100.0)
    late = counted(MarksStatus(("taint",), 900.0 + DAY, 2, 900.0), 1100.0)
    assert late == MarksStatus(restored=1, restored_at=1100.0)
    assert counted(MarksStatus(("taint",), 0.0, 2, -DAY), 1.0).restored == 3
    every = ("taint", "label", "applied", "codes", "condition", "new")
    assert describe_missing(every, AppliedChanges(True, "gpu")) == (
        f"taint {TAINT}, label {LABEL}, annotation {APPLIED}, annotation {CODES}, "
        "condition SickbayQuarantined, new"
    )
    chosen = AppliedChanges(True, "gpu", own_taint="example.com/broken=yes:NoSchedule")
    assert describe_missing(("taint",), chosen) == "taint example.com/broken"
    assert describe_missing(("taint",), None) == "taint"
