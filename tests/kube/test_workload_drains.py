"""Drains that know of workloads, on a real API server: one GPU's pods, and an EvictionRequest."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Quarantine
from aggregator.jobs.settings import NoticeRules
from aggregator.quarantine.drain import drainer as drain_module
from aggregator.quarantine.drain.pod_waits import DrainRound, PodWaits
from aggregator.workloads import eviction_requests
from aggregator.workloads.eviction_requests import KIND, EvictionRequests
from aggregator.workloads.gpu_scope import GpuScope
from aggregator.workloads.notices import EvictionNotices
from tests.controlplane.api import MERGE_PATCH, ApiError
from tests.controlplane.pytest_plugin import Space, StartControlPlane
from tests.kube import test_kube_drain as drains
from tests.kube.test_kube_drain import SETTINGS, Aggregator, pod, pods_left, until
from tests.support.gpu_reports import no_reports
from tests.support.kube_cluster import DEPLOY, kube_cluster, unreviewed_cluster
from tests.support.replica import FakeLine, fault, hello, shipped_policy, snapshot
from tests.support.waiting import PATIENCE
from tests.support.yaml_documents import read_yaml


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
    async with drains.aggregator(kube, space, replace(SETTINGS, waits=scope)) as running:
        running.controller.on_connect(hello(node), FakeLine())
        running.controller.on_evidence(node, snapshot(fault("xid:48")), time.monotonic())
        await until(lambda: pods_left(space), lambda left: set(left) == {"other"})
        reason = await running.until_blocked(node, f"{space.namespace}/other")
        assert "it does not use GPU-1 (scope: gpu)" in reason
        assert await pods_left(space) == {"other": False}
        await asyncio.to_thread(space.plane.call, "DELETE", space.path("pods", "other"))
        await running.until_phase(node, "Drained")
        await running.release(node)


class Responding:
    """Implements `PodWaits`: each pod has responders, which servers without the gate drop."""

    def __init__(self, inner: PodWaits) -> None:
        self._inner = inner

    async def reasons(self, one: DrainRound) -> Mapping[str, str]:
        going = tuple(replace(pod, has_responders=True) for pod in one.plan.evict)
        return await self._inner.reasons(replace(one, plan=replace(one.plan, evict=going)))


@asynccontextmanager
async def requesting(
    kube: KubeCluster, space: Space, bound: KubeCluster
) -> AsyncIterator[Aggregator]:
    """A controller that makes and withdraws EvictionRequests as ``bound``; its end withdraws none,
    as that of a process that dies.
    """

    def quarantines() -> list[Quarantine]:
        found = (one.quarantine for one in running.fleet.node_summaries.values())
        return [one for one in found if one is not None]

    clocks = Clocks(time.monotonic, time.time)
    requests = EvictionRequests(bound.objects(""), quarantines, clocks, lambda: True)
    notices = EvictionNotices(
        bound,  # it may annotate no pod
        rules=NoticeRules(within=3600),
        webhooks=[],
        keys=(),
        clocks=clocks,
        requests=requests,
    )
    running = Aggregator(kube, space, replace(SETTINGS, waits=Responding(notices)))
    await running.start()
    rounds = asyncio.create_task(requests.run())
    try:
        yield running
    finally:
        rounds.cancel()
        await running.stop()  # a round of a drain would find its request without a reader
        tasks = [rounds, *notices._calls]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def drained(running: Aggregator, node: str) -> tuple[str, str]:
    """The state and the message of its notice, once the node is empty."""
    await running.until_phase(node, "Drained")
    [notice] = (await running.status(node))["notices"]
    await running.release(node)
    return notice["state"], notice["message"]


async def test_a_workload_that_nobody_can_notify_is_evicted_in_seconds(
    kube: KubeCluster, cluster_space: Space, aggregator: Path
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    await pod(space, node, "p")
    async with kube_cluster(aggregator) as bound, requesting(kube, space, bound) as running:
        await running.quarantine_by_hand(node)
        state, message = await drained(running, node)
        assert state == "Over"
        assert "has not bound the ClusterRole sickbay-aggregator-notice" in message
        assert "does not serve EvictionRequest" in message


#: The gate of Kubernetes 1.37, which has the kinds and no controller for them.
GATED = (
    "--feature-gates=EvictionRequestAPI=true",
    "--runtime-config=lifecycle.k8s.io/v1alpha1=true",
)
OWN, LAST = "example.com/saver", "imperative-eviction.k8s.io/evictor"


@pytest.mark.kubernetes_from(37)
async def test_eviction_requests_on_the_api_of_kubernetes_and_none_outlives_its_need(
    start_control_plane: StartControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the garbage collector, which would remove them with the Quarantine."""
    monkeypatch.setattr(eviction_requests, "EVERY", 0.2)
    monkeypatch.setattr(eviction_requests, "_POLL_LATER", 0.5)
    plane = start_control_plane(
        controller_manager=False, scheduler=False, apiserver_args=list(GATED)
    )
    space = Space(plane, namespace="ml", node_prefix="n")
    for name in ("ml", "sickbay"):
        plane.create_namespace(name)
    for file in ("crd.yaml", "aggregator-rbac.yaml"):
        plane.apply(DEPLOY / file)
    role = read_yaml((DEPLOY.parent / "examples" / "notice-rbac.yaml").read_text())
    role["rules"] = [one for one in role["rules"] if one["apiGroups"] == ["lifecycle.k8s.io"]]
    plane.apply(yaml.safe_dump(role) + ROLE_BINDING)
    nodes = space.create_nodes(3)
    responders = {"evictionResponders": [{"name": OWN, "priority": 10000}]}
    for number, node in enumerate(nodes):
        await pod(space, node, f"p{number}", spec=responders)
    account: Path = plane.kubeconfig_for_service_account("sickbay", "sickbay-aggregator")
    path = "/apis/lifecycle.k8s.io/v1alpha1/namespaces/ml"

    async def call(method: str, what: str, body: Any = None) -> Any:
        kind = (MERGE_PATCH,) if method == "PATCH" else ()
        return await asyncio.to_thread(plane.call, method, f"{path}/{what}", body, *kind)

    async def found() -> list[Any]:
        return list((await call("GET", "evictionrequests"))["items"])

    async def report(own: str, last: str, **more: str) -> None:
        """Write the Eviction's status as the cluster's controller and the responder do."""

        async def written() -> bool:
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            before = (await call("GET", "evictions/e")).get("status", {}).get("responders", [{}])
            saver = {"name": OWN, "startTime": now, **before[0], **more}
            saver |= {"completionTime": now} if more else {}
            evictor = {"name": LAST} | ({"startTime": now} if last == "Active" else {})
            states = [(OWN, 10000, own), (LAST, 100, last)]
            keys = ("name", "priority", "state")
            target = [dict(zip(keys, one, strict=True)) for one in states]
            status = {"targetResponders": target, "responders": [saver, evictor]}
            try:
                await call("PATCH", "evictions/e/status", {"status": status})
            except ApiError as error:  # half a minute has passed on a busy machine
                if "present time" not in str(error):
                    raise
                return False
            return True

        await until(written, bool)

    async with (
        unreviewed_cluster(plane.kubeconfig, namespace="sickbay") as kube,
        kube_cluster(account) as bound,
    ):
        async with requesting(kube, space, bound) as running:
            monkeypatch.setattr(eviction_requests, "TAKEN_WITHIN", 1.0)
            await running.quarantine_by_hand(nodes[0])
            state, message = await drained(running, nodes[0])
            assert (state, "nothing acted on its" in message) == ("Over", True)
            await until(found, lambda items: not items)

            monkeypatch.setattr(eviction_requests, "TAKEN_WITHIN", PATIENCE)
            await running.quarantine_by_hand(nodes[1])
            [made] = await until(found, lambda items: items)
            spec = made["spec"]
            assert spec["target"]["pod"]["name"] == "p1"
            own = f"evictionrequests/{made['metadata']['name']}/status"
            await call("PATCH", own, {"status": {"observedGeneration": 1}})
            meta = {"name": "e", "labels": {spec["requester"]: "requester"}}
            kind = {"apiVersion": "lifecycle.k8s.io/v1alpha1", "kind": "Eviction"}
            await call(
                "POST", "evictions", {**kind, "metadata": meta, "spec": {"target": spec["target"]}}
            )
            await report("Active", "Inactive")
            await running.until_blocked(nodes[1], "ml/p1")
            await report("Active", "Inactive", message="saved step 9")
            await report("Completed", "Active")
            answer = ("Ready", f"its responders have completed ({OWN}: saved step 9)")
            assert await drained(running, nodes[1]) == answer
            await until(found, lambda items: not items)

            await running.quarantine_by_hand(nodes[2])
            [made] = await until(found, lambda items: items)
            assert made["metadata"]["ownerReferences"][0]["kind"] == "Quarantine"
        other = {**made["spec"], "requester": "example.com/other"}
        labels = made["metadata"]["labels"]
        meta = {"name": "other", "labels": labels}
        await call(
            "POST", "evictionrequests", {**kind, "kind": KIND.kind, "metadata": meta, "spec": other}
        )
        stop = {"metadata": {"name": "sickbay-stop"}, "data": {"reason": "drill"}}
        config_maps = "/api/v1/namespaces/sickbay/configmaps"
        await asyncio.to_thread(plane.call, "POST", config_maps, stop)
        monkeypatch.setattr(eviction_requests, "SETTLED", 0.5)
        async with requesting(kube, space, bound) as running:
            [left] = await until(found, lambda items: len(items) == 1)
            assert left["metadata"]["name"] == "other"
            [notice] = (await running.status(nodes[2]))["notices"]
            assert (notice["state"], notice["evictionRequest"]) == ("Sent", True), notice
            assert await pods_left(space) == {"p2": False}


ROLE_BINDING = """---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: sickbay-aggregator-notice, namespace: ml}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: sickbay-aggregator-notice}
subjects: [{kind: ServiceAccount, name: sickbay-aggregator, namespace: sickbay}]
"""
