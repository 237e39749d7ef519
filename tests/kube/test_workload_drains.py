"""Drains that know of workloads, on a real API server: one GPU's pods, and an EvictionRequest."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.ingest import codec as received
from aggregator.jobs.gpu_reader import PodGpuReader
from aggregator.jobs.gpu_report import GpuReport
from aggregator.jobs.settings import AskRules
from aggregator.quarantine.drain import drainer as drain_module
from aggregator.quarantine.drain.pod_waits import DrainRound, PodWaits
from aggregator.workloads import eviction_requests
from aggregator.workloads.eviction_requests import EvictionRequests
from aggregator.workloads.gpu_scope import GpuScope
from aggregator.workloads.notices import EvictionNotices
from nodeagent.repair import gpu_pods
from nodeagent.repair.gpu_use import GpuUse
from nodeagent.repair.pod_resources import SOCKET
from nodeagent.sources.gpus import GpuMap
from nodeagent.uplink import codec as sent
from tests import nvml
from tests.controlplane.api import MERGE_PATCH, ApiError
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_kube_drain import SETTINGS, aggregator, pod, pods_left, until
from tests.nvml.gpu_bench import Bench
from tests.support.gpu_reports import no_reports
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.pod_resources import container, pod_resources, uses
from tests.support.replica import FakeLine, fault, hello, shipped_policy, snapshot
from tests.support.waiting import PATIENCE

DEFINITION = Path(__file__).parents[1] / "support" / "eviction_request_definition.yaml"
DEFINED = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/evictionrequests.lifecycle.k8s.io"
)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is written each half second: tests wait for it."""
    monkeypatch.setattr(drain_module, "STATUS_EVERY", 0.5)


async def test_a_fault_of_one_gpu_evicts_the_pods_that_the_kubelet_reports_on_it(
    kube: KubeCluster, cluster_space: Space
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    for name, gpu in (("user", "GPU-1"), ("other", "GPU-2")):
        amount = {"nvidia.com/gpu": "1"}
        container = {"name": "c", "image": "i", "resources": {"limits": amount}}
        await pod(space, node, name, spec={"containers": [container]})
        devices = [{"resourceID": gpu, "health": "Healthy"}]
        resources = [{"name": "nvidia.com/gpu", "resources": devices}]
        containers = [
            {
                "name": "c",
                "image": "i",
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "allocatedResourcesStatus": resources,
            }
        ]
        body = {"status": {"containerStatuses": containers}}
        path = f"{space.path('pods', name)}/status"
        await asyncio.to_thread(space.plane.call, "PATCH", path, body, MERGE_PATCH)
    scopes = {rule.name: rule.scope for rule in shipped_policy().rules}
    scope = GpuScope(SETTINGS.drain, lambda rule: scopes.get(rule, ""), no_reports(time.monotonic))
    async with aggregator(kube, space, replace(SETTINGS, waits=scope)) as running:
        running.controller.on_connect(hello(node), FakeLine())
        running.controller.on_evidence(node, snapshot(fault("xid:48")), time.monotonic())
        await until(lambda: pods_left(space), lambda left: set(left) == {"other"})
        reason = await running.until_blocked(node, f"{space.namespace}/other")
        assert "it does not use GPU-1 (scope: gpu)" in reason
        assert await pods_left(space) == {"other": False}
        await asyncio.to_thread(space.plane.call, "DELETE", space.path("pods", "other"))
        await running.until_phase(node, "Drained")
        await running.release(node)


class AgentReports:
    """Implements `GpuReports`: the agent's own code, and its message over the wire."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._gpus = GpuMap(bench.machine, {nvml.pci_of(n): f"GPU-{n + 1}" for n in range(2)})

    async def read_pods(self, node: str) -> GpuReport:
        del node
        bench = self._bench
        found = await gpu_pods.find_pod_gpus(
            bench.machine, self._gpus, bench.nvml, own_namespace=True
        )
        message = sent.gpu_use("1", GpuUse(pods=found))
        return received.gpu_use(message.FromString(message.SerializeToString()).gpu_use)[1].pods


async def test_a_fault_of_one_gpu_evicts_the_pods_that_podresources_and_nvml_name(
    kube: KubeCluster, cluster_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status names no GPU: the kubelet is older than 1.36, or the pods have claims."""
    for part in ("_KUBELET", "_DRIVER"):
        monkeypatch.setattr(gpu_pods, part, PATIENCE)
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    amount = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    for name in ("user", "other"):
        await pod(space, node, name, spec={"containers": [{"name": "c", "image": "i", **amount}]})
    await pod(space, node, "sees-all")  # privileged: it opens the GPU of another pod
    shown = await asyncio.to_thread(space.plane.call, "GET", space.path("pods", "sees-all"))
    uid = shown["metadata"]["uid"]
    scopes = {rule.name: rule.scope for rule in shipped_policy().rules}
    with tempfile.TemporaryDirectory(prefix="pr-") as path:  # a socket's path is short
        folder = Path(path)
        (folder / "proc/70").mkdir(parents=True)
        (folder / "proc/70/cgroup").write_text(f"0::/kubepods/burstable/pod{uid}/abc\n")
        gpus = [nvml.gpu(0, uuid="GPU-1", pids=(70,)), nvml.gpu(1, uuid="GPU-2")]
        async with (
            pod_resources(folder / "root" / SOCKET.lstrip("/")) as kubelet,
            Bench(folder, gpus, proc=folder / "proc", deadline=PATIENCE) as bench,
        ):
            kubelet.pods = [
                uses(space.namespace, name, container("c", device))
                for name, device in (("user", "GPU-1"), ("other", "GPU-2"))
            ]
            reader = PodGpuReader(AgentReports(bench), Clocks(time.monotonic, time.time))
            scope = GpuScope(SETTINGS.drain, lambda rule: scopes.get(rule, ""), reader)
            async with aggregator(kube, space, replace(SETTINGS, waits=scope)) as running:
                running.controller.on_connect(hello(node), FakeLine())
                evidence = snapshot(fault("xid:48"))
                running.controller.on_evidence(node, evidence, time.monotonic())
                await until(lambda: pods_left(space), lambda left: set(left) == {"other"})
                reason = await running.until_blocked(node, f"{space.namespace}/other")
                assert "it does not use GPU-1 (scope: gpu)" in reason
                assert await pods_left(space) == {"other": False}
                assert kubelet.calls
                await running.release(node)


class Responding:
    """Implements `PodWaits`: each pod has responders, a field that servers before 1.37 drop."""

    def __init__(self, inner: PodWaits) -> None:
        self._inner = inner

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        going = tuple(replace(pod, has_responders=True) for pod in one.plan.evict)
        return await self._inner.reasons(replace(one, plan=replace(one.plan, evict=going)))


async def test_an_eviction_request_counts_where_it_is_served_and_something_acts_on_it(
    kube: KubeCluster, cluster_space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes 1.37 serves the kind and has no controller."""
    space, plane, nodes = cluster_space, cluster_space.plane, cluster_space.create_nodes(3)
    for number, node in enumerate(nodes):
        await pod(space, node, f"p{number}")
    plane.apply(DEPLOY / "aggregator-rbac.yaml")
    account: Path = plane.kubeconfig_for_service_account("sickbay", "sickbay-aggregator")
    path = f"/apis/lifecycle.k8s.io/v1alpha1/namespaces/{space.namespace}/evictionrequests"

    with contextlib.suppress(ApiError):  # of a run that was killed
        await asyncio.to_thread(plane.call, "DELETE", DEFINED)
    await until(lambda: served(plane, path), lambda yes: not yes)

    async def found() -> list[Any]:
        listed = await asyncio.to_thread(plane.call, "GET", path)
        items: list[Any] = listed["items"]
        return items

    async with kube_cluster(account) as bound:  # it may annotate no pod
        notices = EvictionNotices(
            bound,
            rules=AskRules(within=3600),
            webhooks=[],
            keys=(),
            clocks=Clocks(time.monotonic, time.time),
            requests=EvictionRequests(kube.objects("")),
        )
        settings = replace(SETTINGS, waits=Responding(notices))
        async with aggregator(kube, space, settings) as running:

            async def drained(node: str) -> str:
                await running.until_phase(node, "Drained")
                [notice] = (await running.status(node))["notices"]
                await running.release(node)
                return str(notice["message"])

            await running.quarantine_by_hand(nodes[0])
            assert "does not serve EvictionRequest" in await drained(nodes[0])
            plane.apply(DEFINITION)
            try:
                await until(lambda: served(plane, path), lambda yes: yes)
                monkeypatch.setattr(eviction_requests, "TAKEN_WITHIN", 1.0)
                await running.quarantine_by_hand(nodes[1])
                assert "nothing acted on its EvictionRequest" in await drained(nodes[1])
                assert await found() == []
                monkeypatch.setattr(eviction_requests, "TAKEN_WITHIN", PATIENCE)
                monkeypatch.setattr(eviction_requests, "_LOOK_LATER", 0.5)
                await running.quarantine_by_hand(nodes[2])
                [made] = await until(found, lambda items: items)
                assert made["spec"]["target"]["pod"]["name"] == "p2"
                assert made["metadata"]["ownerReferences"][0]["kind"] == "Quarantine"
                own = f"{path}/{made['metadata']['name']}/status"
                await asyncio.to_thread(
                    plane.call, "PATCH", own, {"status": {"observedGeneration": 1}}, MERGE_PATCH
                )
                await running.until_blocked(nodes[2], f"{space.namespace}/p2")
                failed = {
                    "type": "Failed",
                    "status": "True",
                    "reason": "NoResponder",
                    "message": "none",
                    "lastTransitionTime": "2026-11-28T00:00:00Z",
                }
                body = {"status": {"conditions": [failed]}}
                await asyncio.to_thread(plane.call, "PATCH", own, body, MERGE_PATCH)
                assert "its EvictionRequest has failed: none" in await drained(nodes[2])
                await until(found, lambda items: not items)
            finally:
                await asyncio.to_thread(plane.call, "DELETE", DEFINED)


async def served(plane: Any, path: str) -> bool:
    """Whether the API server has the kind by now."""
    try:
        await asyncio.to_thread(plane.call, "GET", path)
    except ApiError:
        return False
    return True
