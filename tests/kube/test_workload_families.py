"""Each family of jobs by the real definitions of its objects, on a real API server.

The definitions and the names of the markers are those of the families' published modules.
"""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Pod
from aggregator.events import EventKind
from aggregator.jobs.family import Loss
from aggregator.jobs.identity import JobSize, job_of, lost_with, size_of
from tests.controlplane import sources
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.toolchain import NoControlPlane
from tests.kube.test_ask_examples import EXAMPLES
from tests.kube.test_kube_drain import aggregator, pods_left, until
from tests.support.workload_objects import GPUS, WORKLOADS, Site, Workload, defined


@pytest.fixture(scope="module")
def definitions() -> dict[str, sources.Definitions]:
    """The published modules; skips (CI=true: fails) where they can't be downloaded."""
    try:
        return sources.workload_definitions()
    except NoControlPlane as missing:
        if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
            pytest.fail(missing.reason, pytrace=False)
        pytest.skip(missing.reason)


@pytest.fixture
def site(
    control_plane: ControlPlane, definitions: dict[str, sources.Definitions], cluster_space: Space
) -> Iterator[Site]:
    """A node in a plane that knows the objects of all families."""
    [node] = cluster_space.create_nodes(1, gpus=128)
    with defined(control_plane, (file for one in definitions.values() for file in one.files)):
        yield Site(cluster_space, node)


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_marker_is_in_the_published_source_of_its_family(
    definitions: dict[str, sources.Definitions], name: str
) -> None:
    one = WORKLOADS[name]
    left = set(one.markers)
    for file in definitions[one.source].folder.rglob("*.go"):
        text = file.read_text("utf-8", errors="replace")
        left -= {marker for marker in left if f'"{marker}"' in text}
        if not left:
            return
    assert left == set()


@pytest.mark.kubernetes_from(34)
async def test_jobs_of_each_family_are_known_and_leave_as_gangs(
    kube: KubeCluster, site: Site
) -> None:
    space, node = site.space, site.node
    cluster = yaml.safe_load((EXAMPLES / "ray-cluster.yaml").read_text("utf-8"))
    path = f"/apis/ray.io/v1/namespaces/{space.namespace}/rayclusters"
    await asyncio.to_thread(
        space.plane.call, "POST", f"{path}?dryRun=All&fieldValidation=Strict", cluster
    )
    for one in WORKLOADS.values():
        await asyncio.to_thread(one.make, site)
    pods = await until(
        lambda: kube.pods_on(node),
        lambda found: (
            len(found) == 2 * len(WORKLOADS) and all(pod.phase == "Running" for pod in found)
        ),
    )
    for one in WORKLOADS.values():
        _has_its_identity(pods, one, space.namespace)
    for name, one in WORKLOADS.items():
        await _budget(space, name, one.one)
    async with aggregator(kube, space) as running:
        await running.quarantine_by_hand(node)
        for one in WORKLOADS.values():
            [held], [free] = _held(pods, one), _free(pods, one)
            reason = await running.until_blocked(node, free.key)
            assert f"goes together with its gang: {held.key}: " in reason
        assert {name for name, deleting in (await pods_left(space)).items() if deleting} == set()
        assert EventKind.EVICTED not in {one.kind for one in running.notes.transitions}
        for name in WORKLOADS:
            await asyncio.to_thread(space.plane.request, "DELETE", _budgets(space, name))
        await running.until_phase(node, "Drained")
        evicted = [
            one.details["pod"] for one in running.notes.transitions if one.kind is EventKind.EVICTED
        ]
        assert sorted(evicted) == sorted(pod.key for pod in pods)
        await running.release(node)


def _has_its_identity(pods: list[Pod], one: Workload, namespace: str) -> None:
    family, kind, name, gang, queue, team, declared, loss = one.expected
    [held], [free] = _held(pods, one), _free(pods, one)
    # A worker of Ray is started again, and a lost head takes the cluster with it.
    assert job_of(held).loss is (Loss.REPLICA if family == "kuberay" else loss)
    job = job_of(free)
    assert job.loss is loss
    assert (job.family, job.kind, job.name, job.namespace) == (family, kind, name, namespace)
    assert job.gang is not None
    assert (job.gang.name, job.queue, job.team) == (gang, queue, team or namespace)
    assert job.declared == declared
    lost = lost_with(free, job, pods)
    assert {pod.uid for pod in lost} == {held.uid, free.uid}
    assert size_of(lost) == JobSize(2, 2 * GPUS)


def _held(pods: list[Pod], one: Workload) -> list[Pod]:
    return [pod for pod in pods if one.one.items() <= pod.labels.items()]


def _free(pods: list[Pod], one: Workload) -> list[Pod]:
    """The other pod of the same job."""
    [held] = _held(pods, one)
    return [pod for pod in pods if job_of(pod) == job_of(held) and pod.uid != held.uid]


def _budgets(space: Space, name: str = "") -> str:
    base = f"/apis/policy/v1/namespaces/{space.namespace}/poddisruptionbudgets"
    return f"{base}/{name}" if name else base


async def _budget(space: Space, name: str, labels: Any) -> None:
    """A budget of one pod, which may not go; counted by the real controller."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": dict(labels)}},
    }
    await asyncio.to_thread(space.plane.call, "POST", _budgets(space), body)
    await until(
        lambda: asyncio.to_thread(space.plane.call, "GET", _budgets(space, name)),
        lambda found: found.get("status", {}).get("currentHealthy"),
    )
