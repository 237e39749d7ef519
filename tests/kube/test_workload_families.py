"""Each family of jobs by the real definitions of its objects, on a real API server.

The definitions and the names of the markers are those of the families' published modules.
"""

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Pod
from aggregator.events import EventKind
from aggregator.jobs.family import Loss
from aggregator.jobs.identity import JobSize, job_of, lost_with, size_of
from aggregator.policy.slurm_reason import condition_of
from aggregator.workloads.slurm_pods import AT_WORK, DOWN, DRAIN, SLURMD, UNDRAIN, SlurmPods
from tests.controlplane import sources
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.toolchain import NoControlPlane
from tests.kube.test_coexistence import with_marks
from tests.kube.test_kube_drain import SETTINGS, aggregator, pods_left, until
from tests.kube.test_notice_examples import EXAMPLES
from tests.support.workload_objects import GPUS, WORKLOADS, Site, Workload, defined
from tests.support.yaml_documents import read_yaml


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
    cluster = read_yaml((EXAMPLES / "ray-cluster.yaml").read_text("utf-8"))
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
        assert EventKind.MOVED not in {one.kind for one in running.notes.transitions}
        for name in WORKLOADS:
            await asyncio.to_thread(space.plane.request, "DELETE", _budgets(space, name))
        await running.until_phase(node, "Drained")
        evicted = [
            one.details["pod"] for one in running.notes.transitions if one.kind is EventKind.MOVED
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


SLINKY = "slinky.slurm.net/v1beta1"
CORDON_REASON = "nodeset.slinky.slurm.net/node-cordon-reason"


async def test_a_pod_of_slurmd_leaves_once_slurm_has_drained_its_node_and_others_at_once(
    kube: KubeCluster,
    cluster_space: Space,
    control_plane: ControlPlane,
    definitions: dict[str, sources.Definitions],
) -> None:
    """Its states are conditions of the pod, as slurm-operator writes them."""
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    path = f"{space.path('pods', 'h100-0')}/status"

    async def slurm_shows(*states: str) -> None:
        conditions = [{"type": f"SlurmNodeState{one}", "status": "True"} for one in states]
        body = {"status": {"conditions": conditions}}
        await asyncio.to_thread(control_plane.call, "PATCH", path, body, MERGE_PATCH)

    site = Site(space, node)
    with defined(control_plane, definitions["slurm-operator"].files):
        owner = site.create(SLINKY, "NodeSet", "h100", {"controllerRef": {"name": "slurm"}})
        labels = {SLURMD: "h100-0", "app.kubernetes.io/name": "slurmd"}
        await asyncio.to_thread(site.pod, "h100-0", labels, None, owner)
        await asyncio.to_thread(control_plane.wait_pod_running, space.namespace, "h100-0")
        await asyncio.to_thread(site.pod, "other", {})
        await slurm_shows("Mixed")
        settings = with_marks(SETTINGS, reason_annotation=CORDON_REASON)
        settings = replace(settings, waits=SlurmPods(86400.0))
        async with aggregator(kube, space, settings) as running:
            await running.quarantine_by_hand(node)
            reason = await running.until_blocked(node, f"{space.namespace}/h100-0")
            assert "Slurm lets its jobs end (pod condition SlurmNodeStateMixed)" in reason
            await until(lambda: pods_left(space), lambda left: left == {"h100-0": False})
            found = control_plane.node(node)
            assert found["spec"]["unschedulable"], "slurm-operator drains the Slurm node by that"
            assert found["metadata"]["annotations"][CORDON_REASON].startswith("sickbay: ")
            await slurm_shows("Idle", "Drain")
            await running.until_phase(node, "Drained")
            assert await pods_left(space) == {}
            await running.release(node)
            assert CORDON_REASON not in control_plane.node(node)["metadata"]["annotations"]


def test_the_names_of_slurm_operator_are_those_of_its_published_source(
    definitions: dict[str, sources.Definitions],
) -> None:
    folder = definitions["slurm-operator"].folder
    known = (folder / "api/v1beta1/well_known.go").read_text("utf-8")
    states = (folder / "pkg/conditions/conditions.go").read_text("utf-8")
    drain = folder / "internal/controller/nodeset/slurmcontrol/slurmcontrol.go"
    for key in (SLURMD, CORDON_REASON):
        assert f'NodeSetPrefix + "{key.removeprefix("nodeset.slinky.slurm.net/")}"' in known
    assert '"SlurmNodeState"' in states
    for state in (*AT_WORK, *DOWN, DRAIN, UNDRAIN):
        assert f'Prefix + "{state.removeprefix("SlurmNodeState")}"' in states
    [prefix] = re.findall(r'nodeReasonPrefix = "(.*)"', drain.read_text("utf-8"))
    assert condition_of(f"{prefix} Kill task failed") == "", "its drains are no evidence: no loop"
