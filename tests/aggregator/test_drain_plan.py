"""Which pods of a node go, which wait, which stay: decided without a cluster."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cluster.port import Node, Pod
from aggregator.quarantine.decide.drain_plan import (
    DrainMoment,
    DrainPlan,
    DrainRules,
    Leave,
    NamespaceRule,
    NotReady,
    plan_drain,
)
from aggregator.rfc3339 import span

HOUR = 3600.0
BEGAN = 1_000_000.0
DEADLINE = BEGAN + 168 * HOUR
POD = Pod("jobs", "a", "uid-a", "1", "Running", False, False, "Job", "j", ())
TERMINATING = replace(POD, deleting=True, deletion_at=BEGAN + 30)


def at(seconds: float) -> DrainMoment:
    return DrainMoment(BEGAN + seconds, BEGAN, DEADLINE)


def plan(*pods: Pod, rules: DrainRules | None = None, after: float = 1.0) -> DrainPlan:
    return plan_drain(pods, rules or DrainRules(), at(after))


def rules_of(leave: Leave, **times: Any) -> DrainRules:
    return DrainRules(namespaces=(NamespaceRule("jobs", leave, **times),))


def where(found: DrainPlan, pod: Pod) -> str:
    """In which heap of the plan the pod is; empty for none."""
    heaps = {
        "evict": [one.key for one in found.evict],
        "force": [one.key for one in found.force],
        "leaving": [one.key for one in found.leaving],
        "kept": found.kept or {},
        "waiting": found.waiting or {},
        "stuck": found.stuck or {},
    }
    [*heap] = [name for name, keys in heaps.items() if pod.key in keys]
    assert len(heap) <= 1
    return heap[0] if heap else ""


OFF, ON = DrainRules(), DrainRules(True, True, True)
PROTECTED = DrainRules(protected_selector={"tier": "db"})
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


@given(
    volumes=st.sets(st.sampled_from("abcd")),
    released=st.sets(st.sampled_from("abcdx")),
    spaces=st.sampled_from([",", ", ", " ,"]),
)
def test_each_volume_with_data_has_to_be_released_by_name(
    volumes: set[str], released: set[str], spaces: str
) -> None:
    annotations = {f"{SAFE_TO_EVICT}-local-volumes": spaces.join(released)}
    found = replace(POD, empty_dirs=tuple(sorted(volumes)), annotations=annotations)
    assert where(plan(found), found) == ("evict" if volumes <= released else "kept")
    left = sorted(volumes - released)
    if len(left) == 1:
        assert f"would be lost: {left[0]} (drain" in plan(found).named[found.key]


def test_a_pod_is_protected_by_every_label_of_the_selector_and_not_by_one() -> None:
    rules = DrainRules(protected_selector={"tier": "db", "site": "a"})
    for labels, heap in (
        ({"tier": "db", "site": "a", "also": "x"}, "kept"),
        ({"tier": "db"}, "evict"),
        ({"tier": "db", "site": "b"}, "evict"),
        ({"site": "a"}, "evict"),
        ({}, "evict"),
    ):
        pod = replace(POD, labels=labels)
        assert where(plan(pod, rules=rules), pod) == heap, labels


@pytest.mark.parametrize(
    ("rules", "after", "heap"),
    [
        (rules_of(Leave.EVICT), 1, "evict"),
        # Without its policy no pod is forced.
        (rules_of(Leave.EVICT, force_after=0.0), 200 * HOUR, "evict"),
        (rules_of(Leave.FORCE, force_after=0.0), 1, "force"),
        (rules_of(Leave.NEVER), 200 * HOUR, "kept"),
        (rules_of(Leave.WAIT, wait=2 * HOUR), 2 * HOUR - 1, "waiting"),
        (rules_of(Leave.WAIT, wait=2 * HOUR), 2 * HOUR, "evict"),
        (rules_of(Leave.WAIT, wait=2 * HOUR), 200 * HOUR, "evict"),
        (rules_of(Leave.FORCE, force_after=24 * HOUR), 24 * HOUR - 1, "evict"),
        (rules_of(Leave.FORCE, force_after=24 * HOUR), 24 * HOUR, "force"),
        (rules_of(Leave.FORCE), 168 * HOUR - 1, "evict"),  # at the deadline
        (rules_of(Leave.FORCE), 168 * HOUR, "force"),
        (rules_of(Leave.FORCE, wait=HOUR, force_after=2 * HOUR), HOUR - 1, "waiting"),
        (rules_of(Leave.FORCE, wait=HOUR, force_after=2 * HOUR), HOUR, "evict"),
        (rules_of(Leave.FORCE, wait=HOUR, force_after=2 * HOUR), 2 * HOUR, "force"),
    ],
)
def test_a_namespaces_policy_says_how_its_pods_leave(
    rules: DrainRules, after: float, heap: str
) -> None:
    assert where(plan(POD, rules=rules, after=after), POD) == heap
    other = replace(POD, namespace="other")
    assert where(plan(other, rules=rules, after=after), other) == "evict"


@pytest.mark.parametrize("rules", [OFF, rules_of(Leave.EVICT), rules_of(Leave.FORCE)])
def test_a_drain_that_began_by_a_clock_ahead_of_ours_keeps_nobody_who_need_not_wait(
    rules: DrainRules,
) -> None:
    """Another replica began it, or our own clock has been set back since."""
    assert where(plan(POD, rules=rules, after=-24 * HOUR), POD) == "evict"


def test_force_takes_no_pod_that_is_kept() -> None:
    bare = replace(POD, owner_kind="")
    found = plan(bare, rules=rules_of(Leave.FORCE, force_after=HOUR), after=2 * HOUR)
    assert where(found, bare) == "kept"


def test_the_first_namespace_that_matches_decides() -> None:
    rules = DrainRules(
        namespaces=(
            NamespaceRule("slurm-login", Leave.NEVER),
            NamespaceRule("slurm-*", Leave.WAIT, HOUR),
            NamespaceRule("*", Leave.FORCE),
        )
    )
    told = [rules.of(name).policy for name in ("slurm-login", "slurm-a", "web")]
    assert told == [Leave.NEVER, Leave.WAIT, Leave.FORCE]


@given(
    phase=st.sampled_from(["Succeeded", "Failed"]),
    deleting=st.booleans(),
    leave=st.sampled_from(Leave),
    after=st.floats(0, 1e9),
    owner=st.sampled_from(["", "Job"]),
    labels=st.dictionaries(
        st.sampled_from(["tier", "scheduling.x-k8s.io/pod-group"]), st.just("db")
    ),
)
def test_a_pod_that_has_ended_is_in_no_heap_of_a_plan(
    phase: str, leave: Leave, after: float, owner: str, labels: dict[str, str], *, deleting: bool
) -> None:
    """No finalizer and no rule changes that."""
    rules = replace(rules_of(leave), protected_selector={"tier": "db"})
    done = replace(POD, phase=phase, deleting=deleting, owner_kind=owner, labels=labels)
    found = plan_drain([done], rules, at(after))
    assert (found.remaining, found.named, where(found, done)) == (0, {}, "")


GONE = NotReady(since=BEGAN - 100, silent=True)


@pytest.mark.parametrize(
    ("after", "grace", "kubelet", "heap"),
    [
        (0, 7 * 24 * HOUR, GONE, "leaving"),
        (199, 7 * 24 * HOUR, GONE, "leaving"),
        (200, 7 * 24 * HOUR, GONE, "stuck"),
        (200, 7 * 24 * HOUR, replace(GONE, silent=False), "leaving"),
        (200, 7 * 24 * HOUR, None, "leaving"),
        (30 + 600, 30, replace(GONE, silent=False), "stuck"),
    ],
)
def test_without_a_kubelet_a_grace_is_waited_for_no_longer_than_its_bound(
    after: float, grace: float, kubelet: NotReady | None, heap: str
) -> None:
    pod = replace(TERMINATING, deletion_at=BEGAN + grace)
    found = plan_drain([pod], DrainRules(), replace(at(after), not_ready=kubelet))
    assert where(found, pod) == heap
    assert found.remaining == (heap == "leaving")
    assert (pod.key in found.named) == (kubelet is not None)


def test_a_terminating_pod_is_named_with_the_end_of_its_grace_and_the_state_of_the_node() -> None:
    pod = replace(TERMINATING, deletion_at=BEGAN + HOUR)

    def reason(after: float, kubelet: NotReady) -> str:
        plan = plan_drain([pod], DrainRules(), replace(at(after), not_ready=kubelet))
        return plan.named[pod.key]

    grace = "Terminating: its grace ends at 1970-01-12T14:46:40Z; the node is NotReady since "
    since = f"{grace}1970-01-12T13:45:00Z "
    gone = f"{since}(Unknown, no kubelet answers): "
    assert reason(0, GONE) == f"{gone}waited for until 1970-01-12T13:50:00Z"
    assert reason(200, GONE) == f"{gone}not waited for, 5m after that (drain.unreachable_wait)"
    assert reason(200, replace(GONE, silent=False)) == f"{since}(False): waited for"


@pytest.mark.parametrize(
    ("changes", "kubelet"),
    [
        ({"ready": True, "ready_since": 7.0}, None),
        ({"ready": None, "ready_since": 7.0}, NotReady(7.0, silent=True)),
        ({"ready": False, "ready_since": 7.0}, NotReady(7.0, silent=False)),
        ({"ready": None}, None),  # a cluster of another kind has no such condition
    ],
)
def test_the_state_of_a_kubelet_is_read_from_its_node(
    changes: dict[str, object], kubelet: NotReady | None
) -> None:
    found = NotReady.of(replace(NODE, **changes))  # type: ignore[arg-type]  # a test's words
    assert found == kubelet
    assert NotReady.of(None) is None


NODE = Node("n1", "uid", "1", False, (), {}, {})


@pytest.mark.parametrize(
    ("seconds", "text"), [(604800, "7d"), (7200, "2h"), (90, "90s"), (600, "10m"), (0.5, "0.5s")]
)
def test_a_duration_reads_as_it_is_configured(seconds: float, text: str) -> None:
    assert span(seconds) == text
