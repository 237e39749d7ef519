"""The reasons, bounds and precedences of a drain's plan."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.port import Pod
from aggregator.jobs.gangs import Gangs
from aggregator.quarantine.decide.drain_plan import (
    DrainMoment,
    DrainPlan,
    DrainRules,
    Leave,
    NamespaceRule,
    kept_because,
    plan_drain,
    stays_by_nature,
)
from aggregator.runtime.interning import EMPTY

POD = Pod("jobs", "a", "uid-a", "1", "Running", False, False, "Job", "j", ())
MOMENT = DrainMoment(now=1_100.0, began=1_000.0, deadline=5_000.0)
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
UNDISTURBED = "karpenter.sh/do-not-disrupt"


def pod(name: str = "a", **changes: Any) -> Pod:
    return replace(POD, name=name, uid=f"uid-{name}", **changes)


def ruled(leave: Leave, match: str = "jobs", **times: Any) -> DrainRules:
    return DrainRules(namespaces=(NamespaceRule(match, leave, **times),))


def plan(*pods: Pod, rules: DrainRules | None = None, back: Mapping[str, str] = EMPTY) -> DrainPlan:
    return plan_drain(pods, rules or DrainRules(), MOMENT, back)


def test_the_defaults_lose_no_data_and_force_no_pod() -> None:
    rules = DrainRules()
    assert not any((rules.delete_empty_dir_data, rules.evict_unmanaged, rules.evict_unwilling))
    assert (rules.stuck_after, rules.unreachable_wait, rules.gangs, rules.gang_pods) == (
        600.0,
        300.0,
        Gangs.NODE,
        256,
    )
    assert rules.of("any") == NamespaceRule("*", Leave.EVICT, None, None)


def test_what_belongs_to_its_node_stays() -> None:
    assert stays_by_nature(pod(mirror=True, owner_kind="Node"))
    assert stays_by_nature(pod(owner_kind="DaemonSet"))
    assert not stays_by_nature(POD)
    assert plan(pod(mirror=True), pod(owner_kind="DaemonSet", deleting=True)).remaining == 0


EMPTY_DIR = "has emptyDir data that would be lost: scratch (drain.delete_empty_dir_data is off)"
UNMANAGED = "has no controller that would make it anew (drain.evict_unmanaged is off)"
PROTECTED = "protected by drain.protected_selector"


@pytest.mark.parametrize(
    ("changes", "rules", "reason"),
    [
        ({}, {}, ""),
        ({"empty_dirs": ("scratch",)}, {}, EMPTY_DIR),
        ({"empty_dirs": ("scratch",)}, {"delete_empty_dir_data": True}, ""),
        (
            {"empty_dirs": ("scratch",)},
            {"evict_unmanaged": True, "evict_unwilling": True},
            EMPTY_DIR,
        ),
        ({"owner_kind": ""}, {}, UNMANAGED),
        ({"owner_kind": ""}, {"evict_unmanaged": True}, ""),
        (
            {"owner_kind": ""},
            {"delete_empty_dir_data": True, "evict_unwilling": True},
            UNMANAGED,
        ),
        (
            {"annotations": {SAFE_TO_EVICT: "false"}},
            {"delete_empty_dir_data": True, "evict_unmanaged": True},
            f"must not be evicted ({SAFE_TO_EVICT}; drain.evict_unwilling is off)",
        ),
        (
            {"annotations": {UNDISTURBED: "true"}},
            {},
            f"must not be evicted ({UNDISTURBED}; drain.evict_unwilling is off)",
        ),
        ({"annotations": {UNDISTURBED: "false"}}, {}, ""),
        ({"annotations": {UNDISTURBED: "true"}}, {"evict_unwilling": True}, ""),
        ({"empty_dirs": ("scratch",), "phase": "Pending"}, {}, EMPTY_DIR),
        (
            {"labels": {"tier": "db"}},
            {"protected_selector": {"tier": "db"}},
            PROTECTED,
        ),
        ({}, {"protected_selector": {}}, ""),
        ({"empty_dirs": ("scratch",), "annotations": {SAFE_TO_EVICT: "true"}}, {}, ""),
        ({"owner_kind": "", "annotations": {SAFE_TO_EVICT: "true"}}, {}, UNMANAGED),
    ],
)
def test_a_pod_is_kept_for_the_reason_that_names_its_setting(
    changes: dict[str, Any], rules: dict[str, Any], reason: str
) -> None:
    assert kept_because(pod(**changes), DrainRules(**rules)) == reason


def test_a_namespace_that_is_never_evicted_keeps_its_pods() -> None:
    assert kept_because(POD, ruled(Leave.NEVER, "j*")) == 'never evicted (drain.namespaces "j*")'


@pytest.mark.parametrize(
    ("at", "stuck"), [(0.0, False), (501.0, False), (500.0, True), (400.0, True)]
)
def test_a_pod_is_stuck_so_long_after_its_grace_and_not_without_a_time(
    *, at: float, stuck: bool
) -> None:
    found = plan(pod(deleting=True, deletion_at=at))
    assert (len(found.stuck or ()), len(found.leaving)) == (int(stuck), int(not stuck))
    if stuck:
        assert found.named == {"jobs/a": "stuck in Terminating for more than 10m: not waited for"}


def test_a_pod_that_may_complete_is_named_with_its_time_and_pattern() -> None:
    rules = ruled(Leave.WAIT, "j*", wait=101.0)
    found = plan(POD, rules=rules)
    assert found.waiting == {"jobs/a": 'may complete, for 101s at most (drain.namespaces "j*")'}
    assert plan(POD, rules=ruled(Leave.WAIT, wait=100.0)).evict == (POD,)


def test_a_pod_that_came_back_is_asked_again_and_never_forced() -> None:
    found = plan(
        POD, rules=ruled(Leave.FORCE, force_after=0.0), back={POD.uid: "tolerates the taint"}
    )
    assert (found.returned, found.force, found.evict) == ((POD,), (), ())
    assert found.named == {"jobs/a": "tolerates the taint"}
    assert found.remaining == 1
    waits = plan(POD, rules=ruled(Leave.WAIT, wait=200.0), back={POD.uid: "back"})
    assert (waits.returned, list(waits.waiting or ())) == ((), ["jobs/a"])
    kept = plan(pod(owner_kind=""), back={POD.uid: "back"})
    assert (kept.returned, list(kept.kept or ())) == ((), ["jobs/a"])


def test_all_that_has_to_leave_remains_and_what_is_stuck_does_not() -> None:
    pods = (pod("a"), pod("b"), pod("c"), pod("d"))
    found = DrainPlan(
        evict=pods[:1],
        force=pods[:2],
        leaving=pods[:3],
        returned=pods,
        kept=dict.fromkeys("12345", "kept"),
        waiting=dict.fromkeys("abcdef", "waiting"),
        back={"x": "back"},
        lingering={"z": "lingers"},
        stuck={"y": "stuck"},
    )
    assert found.remaining == 1 + 2 + 3 + 4 + 5 + 6
    assert found.named.keys() == {*"12345abcdefxyz"}
    assert (DrainPlan().remaining, DrainPlan().named) == (0, {})


GANG = {"labels": {"scheduling.x-k8s.io/pod-group": "train"}}


def test_a_gang_waits_for_its_first_pod_that_may_not_go() -> None:
    kept = pod("k", empty_dirs=("scratch",), **GANG)
    unmanaged = pod("u", owner_kind="", **GANG)
    goes, done = pod("a", **GANG), pod("d", phase="Succeeded", owner_kind="", **GANG)
    other = pod("o", labels={"scheduling.x-k8s.io/pod-group": "other"})
    elsewhere = pod("e", namespace="web", **GANG)
    found = plan(goes, done, other, elsewhere, pod("single"), kept, unmanaged)
    assert found.waiting == {"jobs/a": f"goes together with its gang: jobs/k {EMPTY_DIR}"}
    assert [one.name for one in found.evict] == ["o", "e", "single"]
    assert found.kept == {"jobs/k": EMPTY_DIR, "jobs/u": UNMANAGED}


def test_a_gang_is_not_forced_apart_and_earlier_waits_stay() -> None:
    rules = DrainRules(
        namespaces=(
            NamespaceRule("jobs", Leave.FORCE, force_after=0.0),
            NamespaceRule("slow", Leave.WAIT, wait=500.0),
        )
    )
    kept, goes = pod("k", empty_dirs=("scratch",), **GANG), pod("a", **GANG)
    slow = pod("s", namespace="slow")
    found = plan(kept, goes, slow, pod("free"), rules=rules)
    assert [one.name for one in found.force] == ["free"]
    assert (found.waiting or {}).keys() == {"jobs/a", "slow/s"}


def test_a_pod_that_came_back_or_is_stuck_holds_up_no_gang() -> None:
    back, goes = pod("b", **GANG), pod("a", **GANG)
    assert plan(back, goes, back={back.uid: "back"}).evict == (goes,)
    stuck = pod("s", deleting=True, deletion_at=1.0, **GANG)
    done = pod("d", phase="Succeeded", owner_kind="", **GANG)
    assert plan(stuck, done, goes).evict == (goes,)
    assert plan(goes, pod("too", **GANG)).evict == (goes, pod("too", **GANG))
