"""Whole drains on a real API server: real budgets, real preconditions, real grace periods.

The controller runs in this process; the pods are kwok's.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.objects import PodObject, decode, to_pod
from aggregator.cluster.node_names import TAINT
from aggregator.cluster.port import UNGUARDED, Evicted, Pod
from aggregator.composition.core import build_controller
from aggregator.events import EventKind
from aggregator.jobs.notice import READY, REQUESTED
from aggregator.jobs.settings import NoticeRules
from aggregator.quarantine.decide.drain_plan import DrainRules, Leave, NamespaceRule
from aggregator.quarantine.decide.node_marks import OFF_BALANCERS
from aggregator.quarantine.drain import drainer as drain_module
from aggregator.quarantine.settings import Settings
from aggregator.quarantine.state.fleet import FleetState
from aggregator.workloads.notices import EvictionNotices
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.objects import LINGER
from tests.controlplane.pytest_plugin import Space
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.present import present
from tests.support.replica import SETTINGS as MEMORY_SETTINGS
from tests.support.replica import FakeLine, Notes, fault, hello, shipped_policy, snapshot
from tests.support.stack import remove_quarantines
from tests.support.waiting import PATIENCE

QUARANTINES = "/apis/sickbay.dev/v1alpha1/quarantines"
SETTINGS = replace(
    MEMORY_SETTINGS,
    limits=replace(MEMORY_SETTINGS.limits, concurrent=1000),
    drain=DrainRules(evict_unmanaged=True),
)


T = TypeVar("T")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is written each half second: tests wait for it."""
    monkeypatch.setattr(drain_module, "STATUS_EVERY", 0.5)


async def until(ask: Callable[[], Coroutine[Any, Any, T]], holds: Callable[[T], object]) -> T:
    """The answer, once it holds; bounded."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await ask()
            if holds(found):
                return found
            await asyncio.sleep(0.1)


class Aggregator:
    """A running controller over the real API server."""

    def __init__(
        self, kube: KubeCluster, space: Space, settings: Settings, notes: Notes | None = None
    ) -> None:
        self.plane, self.space = space.plane, space
        self._kube, self._settings, self._notes = kube, settings, notes

    async def start(self) -> None:
        """A process with no memory of earlier events; returns once it has its view."""
        self.fleet, self.notes = FleetState(), self._notes or Notes()
        self.controller = build_controller(
            cluster=self._kube,
            policy=shipped_policy(),
            settings=self._settings,
            fleet=self.fleet,
            event_sink=self.notes,
            clocks=Clocks(time.monotonic, time.time),
            rng=random.Random(3),
        )
        self._task = asyncio.create_task(self.controller.run())
        await until(lambda: asyncio.sleep(0, self.fleet.view_lost), lambda lost: not lost)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def falls_ill(self, node: str) -> None:
        self.controller.on_connect(hello(node), FakeLine())
        self.controller.on_evidence(node, snapshot(fault()), time.monotonic())

    async def quarantine_by_hand(self, node: str) -> None:
        body = {
            "apiVersion": "sickbay.dev/v1alpha1",
            "kind": "Quarantine",
            "metadata": {"name": node},
            "spec": {"action": "drain", "reason": "smells of smoke", "requester": "alice"},
        }
        await asyncio.to_thread(self.plane.call, "POST", QUARANTINES, body)

    async def status(self, node: str) -> dict[str, Any]:
        answer = await asyncio.to_thread(self.plane.request, "GET", f"{QUARANTINES}/{node}")
        found: dict[str, Any] = answer.body.get("status", {}) if answer.status == 200 else {}
        return found

    async def until_phase(self, node: str, phase: str) -> dict[str, Any]:
        return await self.until_status(node, lambda status: status.get("phase") == phase)

    async def until_status(
        self, node: str, holds: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any]:
        return await until(lambda: self.status(node), holds)

    async def until_blocked(self, node: str, pod: str) -> str:
        """The reason that the status names for the pod."""

        def reason(status: dict[str, Any]) -> str:
            found = [one["reason"] for one in status.get("blockers", []) if one["pod"] == pod]
            return found[0] if found else ""

        return reason(await self.until_status(node, reason))

    async def release(self, node: str) -> None:
        """Delete it as a person does, and see it undone."""
        await asyncio.to_thread(self.plane.request, "DELETE", f"{QUARANTINES}/{node}")
        await until(lambda: self.status(node), lambda status: not status)


@asynccontextmanager
async def aggregator(
    kube: KubeCluster, space: Space, settings: Settings = SETTINGS, notes: Notes | None = None
) -> AsyncIterator[Aggregator]:
    running = Aggregator(kube, space, settings, notes)
    try:
        await running.start()
        yield running
    finally:
        await running.stop()
        await asyncio.to_thread(remove_quarantines, space.plane, space.node_prefix)


async def pod(space: Space, node: str, name: str, **arguments: Any) -> dict[str, Any]:
    """A pod on the node, running; returns its object."""
    namespace = arguments.pop("namespace", space.namespace)
    plane = space.plane
    await asyncio.to_thread(plane.create_pod, namespace, name, node=node, **arguments)
    found: dict[str, Any] = await asyncio.to_thread(
        plane.wait_pod_running, namespace, name, timeout_s=40
    )
    return found


async def budget(space: Space, name: str, app: str, *, namespace: str = "", most: int = 0) -> None:
    """A budget that lets ``most`` pods of the app be away, counted by the real controller."""
    namespace = namespace or space.namespace
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": 1 - most, "selector": {"matchLabels": {"app": app}}},
    }
    base = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    await asyncio.to_thread(space.plane.call, "POST", base, body)
    await until(
        lambda: asyncio.to_thread(space.plane.call, "GET", f"{base}/{name}"),
        lambda found: found.get("status", {}).get("currentHealthy"),
    )


async def pods_left(space: Space, namespace: str = "") -> dict[str, bool]:
    """The namespace's pods by name, with whether each is being deleted."""
    path = f"/api/v1/namespaces/{namespace or space.namespace}/pods"
    items = (await asyncio.to_thread(space.plane.call, "GET", path))["items"]
    return {one["metadata"]["name"]: "deletionTimestamp" in one["metadata"] for one in items}


async def test_each_kind_of_pod_goes_or_stays(kube: KubeCluster, cluster_space: Space) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    uid = space.plane.node(node)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    plain = {"containers": [{"name": "c", "image": "i"}], "nodeName": node}

    def create(name: str, meta: dict[str, Any], **spec: Any) -> None:
        body = {"metadata": {"name": name, **meta}, "spec": {**plain, **spec}}
        space.plane.call("POST", space.path("pods"), body)

    owned = {"ownerReferences": [owner]}
    create("owned", owned)
    create("bare", {})
    create("scratch", owned, volumes=[{"name": "v", "emptyDir": {}}])
    willing = {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}}
    create("own-scratch", owned | willing, volumes=[{"name": "v", "emptyDir": {}}])
    shared_memory = [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]
    create("training", owned, volumes=shared_memory)
    named = {"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": "v"}
    create("own-volume", owned | {"annotations": named}, volumes=[{"name": "v", "emptyDir": {}}])
    unwilling = {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}
    create("unwilling", owned | unwilling)
    create("pending", owned | {"annotations": {"sickbay.test/pending": "true"}})
    create("mirror", owned | {"annotations": {"kubernetes.io/config.mirror": "x"}})
    daemons = {**owner, "apiVersion": "apps/v1", "kind": "DaemonSet", "controller": True}
    create("daemon", {"ownerReferences": [{**daemons, "uid": uid}]})
    for kind in ("ExtendedDaemonSetReplicaSet", "SiteDaemon"):
        create(kind.lower(), {"ownerReferences": [{**daemons, "kind": kind, "uid": uid}]})
    own_daemon = {"annotations": {"cluster-autoscaler.kubernetes.io/daemonset-pod": "true"}}
    create("own-daemon", owned | own_daemon)
    await ended(space, node, "done")
    settings = replace(SETTINGS, drain=DrainRules(node_owner_kinds=("SiteDaemon",)))
    async with aggregator(kube, space, settings) as running:
        await running.quarantine_by_hand(node)
        await running.until_status(node, lambda status: status.get("podsRemaining") == 3)
        status = await running.status(node)
        assert status["phase"] == "Draining"
        assert {one["pod"].partition("/")[2] for one in status["blockers"]} == {
            "bare",
            "scratch",
            "unwilling",
        }
        left = await pods_left(space)
        kept = {"bare", "scratch", "unwilling", "mirror", "done", "own-daemon"}
        daemons_of_others = {"extendeddaemonsetreplicaset", "sitedaemon"}
        assert set(left) - {"daemon"} == kept | daemons_of_others
        assert not any(left.values())
        await running.release(node)


async def ended(space: Space, node: str, name: str) -> None:
    """A pod that has ended, and that a finalizer holds."""
    await pod(space, node, name)
    path = space.path("pods", name)
    space.plane.call("PATCH", f"{path}/status", {"status": {"phase": "Succeeded"}}, MERGE_PATCH)
    held = {"metadata": {"finalizers": ["example.test/backup"]}}
    space.plane.call("PATCH", path, held, MERGE_PATCH)


async def test_a_node_is_empty_of_work_although_pods_that_ended_are_on_it(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """One of them is deleted, and its finalizer stays; the pod that runs is evicted alone."""
    space, plane, [node] = cluster_space, cluster_space.plane, cluster_space.create_nodes(1)
    for name in ("a", "b"):
        await ended(space, node, name)
    plane.call("DELETE", space.path("pods", "b"))
    await pod(space, node, "z-runs")
    try:
        async with aggregator(kube, space) as running:
            await running.quarantine_by_hand(node)
            status = await running.until_phase(node, "Drained")
            assert (status["podsRemaining"], status.get("blockers", [])) == (0, [])
            assert await pods_left(space) == {"a": False, "b": True}
            notes = running.notes.transitions
            told = [one.details["pod"] for one in notes if "pod" in one.details]
            assert told == [f"{space.namespace}/z-runs"]
            await running.release(node)
    finally:
        for name in ("a", "b"):
            free = {"metadata": {"finalizers": None}}
            plane.request("PATCH", space.path("pods", name), free, MERGE_PATCH)


async def test_a_long_grace_without_a_kubelet_is_named_at_once_and_its_wait_is_bounded(
    kube: KubeCluster, cluster_space: Space
) -> None:
    space, plane, [node] = cluster_space, cluster_space.plane, cluster_space.create_nodes(1)
    long = {"terminationGracePeriodSeconds": 604800}
    await pod(space, node, "a", spec=long, annotations={LINGER: "true"})
    rules = DrainRules(evict_unmanaged=True, unreachable_wait=8)
    plane.lose_kubelet(node)
    async with aggregator(kube, space, replace(SETTINGS, drain=rules)) as running:
        await running.quarantine_by_hand(node)
        reason = await running.until_blocked(node, f"{space.namespace}/a")
        end = plane.call("GET", space.path("pods", "a"))["metadata"]["deletionTimestamp"]
        assert reason.startswith(
            f"Terminating: its grace ends at {end}; the node is NotReady since"
        )
        status = await running.until_phase(node, "Drained")
        assert f"not waited for: {space.namespace}/a; the node is NotReady" in status["message"]
        assert await pods_left(space) == {"a": True}
        await running.release(node)


async def test_past_its_time_a_pod_is_deleted_where_its_namespace_allows_it_and_nowhere_else(
    kube: KubeCluster, cluster_space: Space
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    other = f"{space.namespace}-x"
    space.plane.create_namespace(other)
    try:
        await pod(space, node, "held", labels={"app": "held"})
        # Its own grace is 0, which would be taken literally: the kubelet is given 1 s.
        hasty = {"terminationGracePeriodSeconds": 0}
        await pod(space, node, "both", labels={"app": "both"}, spec=hasty)
        await pod(space, node, "theirs", labels={"app": "held"}, namespace=other)
        await budget(space, "one", "held")
        await budget(space, "two", "both")
        await budget(space, "three", "both")
        await budget(space, "one", "held", namespace=other)
        forces = NamespaceRule(space.namespace, Leave.FORCE, force_after=3)
        rules = DrainRules(evict_unmanaged=True, namespaces=(forces,), deadline=4)
        mark = space.plane.audit_mark()
        settings = replace(SETTINGS, drain=rules)
        async with aggregator(kube, space, settings) as running:
            began = time.monotonic()
            await running.quarantine_by_hand(node)
            named = await running.until_blocked(node, f"{space.namespace}/both")
            assert "does not heal by itself" in named
            assert "more than one PodDisruptionBudget" in named
            assert "one" in await running.until_blocked(node, f"{space.namespace}/held")
            await until(lambda: pods_left(space), lambda left: not left)
            assert time.monotonic() - began >= 3
            await running.until_status(node, lambda one: one.get("overdueAt"))
            status = await running.until_status(node, lambda one: one.get("podsRemaining") == 1)
            assert "past its deadline: 1 pod still there" in status["message"]
            assert status["overdueAt"] >= status["deadlineAt"]
            assert [one["pod"] for one in status["blockers"]] == [f"{other}/theirs"]
            assert await pods_left(space, other) == {"theirs": False}
            await running.release(node)
        assert running.notes.kinds(node).count("work.forced") == 2
        assert running.notes.kinds(node).count("quarantine.overdue") == 1
        deleted = [
            entry
            for entry in space.plane.audit_entries(mark)
            if entry["verb"] == "delete"
            and entry.get("objectRef", {}).get("resource") == "pods"
            and entry["objectRef"]["namespace"] == space.namespace
            and entry["responseStatus"]["code"] == 200
        ]
        assert {entry["objectRef"]["name"] for entry in deleted} == {"held", "both"}
    finally:
        space.plane.delete_namespace(other)


async def test_a_deletion_past_a_budget_carries_the_pod_as_it_was_read(
    kube: KubeCluster, cluster_space: Space
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    await pod(space, node, "a", annotations={LINGER: "true"})
    [read] = await kube.pods_on(node)
    assert (
        await kube.delete_pod(replace(read, uid="another"), grace=1, guard=UNGUARDED)
    ).outcome is Evicted.GONE
    space.plane.call(
        "PATCH", space.path("pods", "a"), {"metadata": {"labels": {"x": "y"}}}, MERGE_PATCH
    )
    assert (
        await kube.delete_pod(read, grace=1, guard=UNGUARDED)
    ).outcome is Evicted.GONE  # another version
    assert await pods_left(space) == {"a": False}
    [read] = await kube.pods_on(node)
    assert (await kube.delete_pod(read, grace=0, guard=UNGUARDED)).outcome is Evicted.ACCEPTED
    left = space.plane.call("GET", space.path("pods", "a"))["metadata"]
    assert left["deletionGracePeriodSeconds"] == 1  # never 0: it is still there, terminating


async def test_pods_are_deleted_only_where_the_right_is_bound(
    kube: KubeCluster, cluster_space: Space
) -> None:
    space, plane = cluster_space, cluster_space.plane
    [node] = space.create_nodes(1)
    await pod(space, node, "a")
    plane.apply(DEPLOY / "aggregator-rbac.yaml")
    plane.apply(DEPLOY.parent / "examples" / "force-rbac.yaml")
    account: Path = plane.kubeconfig_for_service_account("sickbay", "sickbay-aggregator")
    async with kube_cluster(account) as restricted:
        [read] = await restricted.pods_on(node)
        refused = await restricted.delete_pod(read, grace=30, guard=UNGUARDED)
        assert refused.outcome is Evicted.FORBIDDEN
        assert f"{space.namespace} has not bound the ClusterRole" in refused.message
        assert await pods_left(space) == {"a": False}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "force"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "sickbay-aggregator-force",
            },
            "subjects": [
                {"kind": "ServiceAccount", "namespace": "sickbay", "name": "sickbay-aggregator"}
            ],
        }
        bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.namespace}/rolebindings"
        plane.call("POST", bindings, binding)

        async def delete() -> Evicted:
            [read] = await restricted.pods_on(node)
            return (await restricted.delete_pod(read, grace=30, guard=UNGUARDED)).outcome

        # The server's view of its rights may trail.
        await until(delete, lambda outcome: outcome is Evicted.ACCEPTED)
        other = replace(read, namespace="default", name="nobody")
        assert (
            await restricted.delete_pod(other, grace=1, guard=UNGUARDED)
        ).outcome is Evicted.FORBIDDEN
        # The reads of a whole gang are within the rights that every drain has.
        assert await restricted.pods_labelled(space.namespace, "app", "x") == []


GANG = "scheduling.x-k8s.io/pod-group"


@pytest.mark.parametrize("place", ["labels", "annotations"])
async def test_a_gang_goes_together_and_a_dry_run_evicts_nobody(
    kube: KubeCluster, cluster_space: Space, place: str
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    key = GANG if place == "labels" else "gang.scheduling.koordinator.sh/name"
    for name, app in (("rank-0", "free"), ("rank-1", "held")):
        marks = {"labels": {"app": app}, "annotations": {}}
        marks[place][key] = "train"
        await pod(space, node, name, **marks)
    await pod(space, node, "single")
    await budget(space, "llm", "held")
    if place == "labels":
        found = await kube.pods_labelled(space.namespace, GANG, "train")
        assert {(one.name, one.node) for one in found} == {("rank-0", node), ("rank-1", node)}
        assert all(one.created_at > time.time() - 600 for one in found)
    async with aggregator(kube, space) as running:
        await running.quarantine_by_hand(node)
        mine = await running.until_blocked(node, f"{space.namespace}/rank-0")
        assert f"goes together with its gang: {space.namespace}/rank-1: " in mine
        assert "llm" in mine
        await until(lambda: pods_left(space), lambda left: "single" not in left)
        assert await pods_left(space) == {"rank-0": False, "rank-1": False}
        path = f"/apis/policy/v1/namespaces/{space.namespace}/poddisruptionbudgets/llm"
        await asyncio.to_thread(space.plane.request, "DELETE", path)
        await running.until_phase(node, "Drained")
        assert await pods_left(space) == {}
        notes = running.notes.transitions
        evicted = [one.details["pod"] for one in notes if one.kind is EventKind.MOVED]
        assert len(evicted) == len(set(evicted)) == 3
        await running.release(node)


async def test_a_budget_that_is_not_counted_yet_names_the_pause_and_slows_nobody(
    kube: KubeCluster, cluster_space: Space, caplog: pytest.LogCaptureFixture
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    await pod(space, node, "a", labels={"app": "db"})
    counter = space.plane.servers["kube-controller-manager"]
    counter.pause()
    try:
        body = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "fresh"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}},
        }
        base = f"/apis/policy/v1/namespaces/{space.namespace}/poddisruptionbudgets"
        space.plane.call("POST", base, body)
        [read] = await kube.pods_on(node)
        result = await kube.evict(read, guard=UNGUARDED)
        assert result.outcome is Evicted.BLOCKED
        assert "still being processed" in result.message
        assert result.retry_after == 10
        await kube.read_node(node)
        assert "pausing" not in caplog.text
        assert kube.counters.throttled == 0
    finally:
        counter.resume()


async def test_a_node_of_somebody_elses_is_left_alone_and_a_drain_is_told_off_the_balancers(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """The autoscaler's node is held beside one that is drained; then it is let go of."""
    space, plane = cluster_space, cluster_space.plane
    theirs, ours, gone, *_ = space.create_nodes(6)
    await pod(space, theirs, "t")
    soon = {"terminationGracePeriodSeconds": 1}
    await pod(space, ours, "stuck", annotations={LINGER: "true"}, spec=soon)
    await pod(space, gone, "g", labels={"app": "held"})
    await budget(space, "held", "held")
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    plane.call("PATCH", f"/api/v1/nodes/{theirs}", {"spec": {"taints": [taint]}}, MERGE_PATCH)
    before = plane.node(theirs)
    rules = DrainRules(evict_unmanaged=True, stuck_after=2)
    async with aggregator(kube, space, replace(SETTINGS, drain=rules)) as running:
        for node in (theirs, ours, gone):
            running.falls_ill(node)
        await running.until_phase(gone, "Draining")
        # A pod that hangs in Terminating is named, and waited for no longer than its time.
        status = await running.until_phase(ours, "Drained")
        assert "stuck in Terminating" in status["message"]
        assert await pods_left(space) == {"t": False, "stuck": True, "g": False}
        marked = plane.node(ours)["metadata"]
        assert OFF_BALANCERS in marked["labels"]
        # The node is deleted in the middle of its drain.
        await asyncio.to_thread(plane.delete_nodes, [gone])
        status = await running.until_status(
            gone, lambda one: "the node is gone" in one.get("message", "")
        )
        assert status["podsRemaining"] == 0
        # The autoscaler's is untouched until it lets go.
        hold = present(running.fleet.node_summaries[theirs].decision.hold)
        assert hold.limit == "maintenance"
        assert await running.status(theirs) == {}
        now = plane.node(theirs)
        assert (now["spec"], now["metadata"]["labels"]) == (
            before["spec"],
            before["metadata"]["labels"],
        )
        plane.call("PATCH", f"/api/v1/nodes/{theirs}", {"spec": {"taints": []}}, MERGE_PATCH)
        await running.until_phase(theirs, "Drained")
        assert TAINT in {one["key"] for one in plane.node(theirs)["spec"]["taints"]}
        for node in (theirs, ours):
            await running.release(node)
            after = plane.node(node)
            assert OFF_BALANCERS not in after["metadata"]["labels"]
            assert not after["spec"].get("unschedulable")
        await running.release(gone)


def test_the_pods_grace_and_its_gang_are_read_from_its_spec() -> None:
    """Which of the two gangs' fields a server knows depends on its version."""

    def read(spec: str) -> Pod:
        meta = '{"name": "a", "deletionTimestamp": "2026-01-01T00:00:30Z"}'
        body = f'{{"metadata": {meta}, "spec": {spec}}}'
        return to_pod(decode(body.encode(), PodObject))

    new = read('{"schedulingGroup": {"podGroupName": "g"}, "terminationGracePeriodSeconds": 5}')
    assert (new.group, new.grace, new.deletion_at) == ("g", 5.0, 1767225630.0)
    old = read('{"workloadRef": {"name": "w", "podGroup": "p", "podGroupReplicaKey": "0"}}')
    assert (old.group, old.grace) == ("w/p/0", 30.0)


# -- features next to the drain ------------------------------------------------------------


def with_notices(kube: KubeCluster, within: float) -> Settings:
    notices = EvictionNotices(
        kube,
        rules=NoticeRules(within=within),
        webhooks=[],
        keys=(),
        clocks=Clocks(time.monotonic, time.time),
    )
    return replace(SETTINGS, waits=notices)


async def annotations(space: Space, name: str) -> dict[str, str]:
    found = await asyncio.to_thread(space.plane.call, "GET", space.path("pods", name))
    return dict(found["metadata"].get("annotations", {}))


async def test_a_workload_gets_one_notice_and_its_answer_begins_the_eviction(
    kube: KubeCluster, cluster_space: Space
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    for name in ("rank-0", "rank-1"):
        await pod(space, node, name, labels={GANG: "train"})
    await pod(space, node, "single")
    settings = with_notices(kube, 3600)
    async with aggregator(kube, space, settings) as running:
        await running.quarantine_by_hand(node)
        status = await running.until_status(node, lambda one: len(one.get("notices", ())) == 2)
        assert {one["state"] for one in status["notices"]} == {"Sent"}
        await until(lambda: annotations(space, "rank-1"), lambda found: REQUESTED in found)
        await until(lambda: annotations(space, "single"), lambda found: REQUESTED in found)
        await running.stop()
        mark = space.plane.audit_mark()
        await running.start()  # the next controller
        await running.until_blocked(node, f"{space.namespace}/single")
        again = (await running.status(node))["notices"]
        assert [(one["id"], one["deadlineAt"]) for one in again] == [
            (one["id"], one["deadlineAt"]) for one in status["notices"]
        ]
        texts = [(await annotations(space, name))[REQUESTED] for name in ("rank-0", "rank-1")]
        assert texts[0] == texts[1]
        told = json.loads(texts[0])
        assert (told["node"], told["reason"]) == (node, "smells of smoke")
        answer = {"metadata": {"annotations": {READY: told["id"]}}}
        path = space.path("pods", "rank-1")
        await asyncio.to_thread(space.plane.call, "PATCH", path, answer, MERGE_PATCH)
        await until(lambda: pods_left(space), lambda left: set(left) == {"single"})
        assert await pods_left(space) == {"single": False}
        status = await running.status(node)
        states = {one["workload"].partition("/")[2]: one["state"] for one in status["notices"]}
        assert states[f"train {GANG}"] == "Ready"
        await running.release(node)
    notified = [
        entry
        for entry in space.plane.audit_entries(mark)
        if entry["verb"] == "patch"
        and entry.get("objectRef", {}).get("resource") == "pods"
        and "sickbay" in entry.get("userAgent", "")
    ]
    assert notified == []
