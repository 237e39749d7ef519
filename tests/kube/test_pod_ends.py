"""Evictions, preemptions and deletions by others, as a real API server reports their ends."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aggregator.cluster.kubernetes import pod_end_informer
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.pod_ends import PodEnd
from aggregator.runtime.backoff import Backoff
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.objects import LINGER
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.support.kube_cluster import unreviewed_cluster
from tests.support.waiting import until

WATCH = ("WATCH", "pods", 200)


class Ends:
    def __init__(self) -> None:
        self.found: list[PodEnd] = []

    def note_pod_end(self, end: PodEnd) -> None:
        self.found.append(end)

    def of(self, name: str) -> list[PodEnd]:
        return [end for end in self.found if end.pod.endswith(f"/{name}")]


@asynccontextmanager
async def following(cluster: KubeCluster) -> AsyncIterator[Ends]:
    """Follow them until the end of the block, which begins once the watch is open."""
    ends = Ends()
    task = asyncio.create_task(cluster.follow_pod_ends(ends))
    try:
        await until(lambda: cluster.counters.answers[WATCH] > 0)
        yield ends
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def run_pod(space: Space, node: str, name: str, *, gpus: int = 4) -> None:
    """A pod that stays in Terminating until it is removed."""
    notes = {LINGER: "true"}
    space.plane.create_pod(space.namespace, name, node=node, gpus=gpus, annotations=notes)
    space.plane.wait_pod_running(space.namespace, name)


def fail(space: Space, name: str, code: int) -> None:
    """As the kubelet reports a pod whose container has ended."""
    ended = {"exitCode": code, "reason": "Error"}
    ended |= dict.fromkeys(("startedAt", "finishedAt"), "2026-01-01T00:00:00Z")
    container: dict[str, Any] = {"name": "main", "image": "i", "imageID": "", "ready": False}
    container |= {"restartCount": 0, "state": {"terminated": ended}}
    status = {"phase": "Failed", "containerStatuses": [container]}
    path = space.path("pods", f"{name}/status")
    space.plane.call("PATCH", path, {"status": status}, MERGE_PATCH)


async def test_a_pod_that_others_stopped_is_reported_when_it_fails_and_no_other(
    kube: KubeCluster, cluster_space: Space
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1, gpus=64)
    kinds = ("evicted", "killed", "obeys", "by-itself")
    for name in kinds:
        run_pod(space, node, name)
    run_pod(space, node, "no-gpu", gpus=0)
    async with following(kube) as ends:
        began = time.time()
        for name in ("evicted", "no-gpu"):
            assert space.plane.evict(space.namespace, name).status == 201
        for name in ("killed", "obeys"):
            space.plane.call("DELETE", space.path("pods", name))
        fail(space, "no-gpu", 137)
        fail(space, "by-itself", 137)
        fail(space, "obeys", 143)
        fail(space, "killed", 137)
        assert not ends.of("evicted"), "it has not failed yet"
        fail(space, "evicted", 1)
        await until(lambda: ends.of("evicted"), lambda: ends.found)
        [evicted] = ends.of("evicted")
        assert (evicted.node, evicted.grace, evicted.how) == (node, 30.0, "evicted from")
        assert evicted.pod == f"{space.namespace}/evicted"
        assert began - 2 < evicted.began <= time.time()
        [killed] = ends.of("killed")
        assert (killed.how, killed.grace) == ("deleted from", 30.0)
        assert began - 2 < killed.began <= time.time()
        assert not any(map(ends.of, ("obeys", "by-itself", "no-gpu")))


async def test_a_preemption_by_the_scheduler_is_reported_with_its_kind(
    kube: KubeCluster, cluster_space: Space
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1, gpus=8)
    run_pod(space, node, "low", gpus=8)
    urgent = {"nodeSelector": {"kubernetes.io/hostname": node}}
    urgent_class: dict[str, Any] = {"priorityClassName": "system-node-critical"}
    async with following(kube) as ends:
        space.plane.create_pod(space.namespace, "urgent", gpus=8, spec=urgent | urgent_class)
        low = space.path("pods", "low")
        await until(
            lambda: "deletionTimestamp" in space.plane.call("GET", low)["metadata"],
            lambda: space.plane.call("GET", space.path("pods", "urgent")),
        )
        fail(space, "low", 137)
        await until(lambda: ends.of("low"), lambda: ends.found)
        [end] = ends.of("low")
        assert (end.node, end.how) == (node, "preempted on")


async def test_the_watch_reads_no_pod_that_failed_before_and_bears_a_missing_right(
    control_plane: ControlPlane,
    cluster_space: Space,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its requests are a list of one pod and a watch, however many nodes and pods there are."""
    monkeypatch.setattr(pod_end_informer.PodEndInformer, "_BACKOFF", Backoff(0.2, 0.2))
    caplog.set_level(logging.INFO, "sickbay.kubernetes")
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    for name in ("early", "late"):
        run_pod(space, node, name)
        space.plane.call("DELETE", space.path("pods", name))
    fail(space, "early", 137)
    async with unreviewed_cluster(control_plane.kubeconfig) as cluster, following(cluster) as ends:
        fail(space, "late", 137)
        await until(lambda: ends.of("late"), lambda: ends.found)
        assert cluster.counters.answers == {("GET", "pods", 200): 1, WATCH: 1}
        assert not ends.of("early")
    async with unreviewed_cluster(control_plane.kubeconfig_for("nobody")) as nobody:
        task = asyncio.create_task(nobody.follow_pod_ends(Ends()))
        await until(lambda: "evictions by others can't be followed" in caplog.text)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
