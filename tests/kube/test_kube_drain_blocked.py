"""Drains without progress, on a real API server with its StatefulSet controller and scheduler.

A pod that comes back to its node, a pod that admission rejects, and evictions that wait while the
server is busy.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.node_names import TAINT
from aggregator.quarantine.decide.drain_plan import DrainRules
from aggregator.quarantine.drain import drainer as drain_module
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_kube_drain import SETTINGS, aggregator, pod, pods_left, until
from tests.support.evictions import accepted_evictions
from tests.support.faulty_proxy import ApiFaults, FaultyProxy
from tests.support.kube_cluster import kube_cluster
from tests.support.waiting import until as until_true

TOLERATES_ALL = [{"operator": "Exists"}]
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture(autouse=True)
def _progress_is_written_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_module, "STATUS_EVERY", 0.5)


def stateful_set(name: str, node: str) -> dict[str, Any]:
    """One replica that tolerates every taint and fits on this node alone."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "tolerations": TOLERATES_ALL,
                    "affinity": affinity,
                    "containers": [{"name": "c", "image": "example.test/c:1"}],
                },
            },
        },
    }


async def until_running(space: Space, name: str) -> None:
    await until(
        lambda: asyncio.to_thread(space.plane.request, "GET", space.path("pods", name)),
        lambda answer: answer.status == 200 and answer.body["status"].get("phase") == "Running",
    )


async def test_a_stateful_sets_pod_that_tolerates_every_taint_is_evicted_once_and_named(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """The controller makes it again on the node at once, hundreds of times a minute if evicted."""
    space, plane, [node] = cluster_space, cluster_space.plane, cluster_space.create_nodes(1)
    sets = f"/apis/apps/v1/namespaces/{space.namespace}/statefulsets"
    plane.call("POST", sets, stateful_set("web", node))
    await until_running(space, "web-0")
    first = plane.call("GET", space.path("pods", "web-0"))["metadata"]["uid"]
    mark = plane.audit_mark()
    async with aggregator(kube, space) as running:
        await running.quarantine_by_hand(node)
        reason = await running.until_blocked(node, f"{space.namespace}/web-0")
        assert reason == f"it tolerates the taint {TAINT} and came back (StatefulSet web)"
        await asyncio.sleep(60)  # the time in which there were 387
        accepted = await asyncio.to_thread(accepted_evictions, plane, mark, space.namespace)
        assert 1 <= len(accepted) <= 3
        status = await running.status(node)
        assert (status["phase"], status["podsRemaining"]) == ("Draining", 1)
        assert status["podsReadAt"] >= status["drainStartedAt"]
        assert running.notes.kinds(node).count("work.blocked") == 1
    second = plane.call("GET", space.path("pods", "web-0"))["metadata"]["uid"]
    assert second != first


async def test_a_drain_that_another_process_takes_up_evicts_no_pod_that_came_back(
    kube: KubeCluster, cluster_space: Space
) -> None:
    space, plane, [node] = cluster_space, cluster_space.plane, cluster_space.create_nodes(1)
    sets = f"/apis/apps/v1/namespaces/{space.namespace}/statefulsets"
    plane.call("POST", sets, stateful_set("web", node))
    await until_running(space, "web-0")
    async with aggregator(kube, space) as running:
        await running.quarantine_by_hand(node)
        await running.until_blocked(node, f"{space.namespace}/web-0")
        mark = plane.audit_mark()
        await running.stop()
        await running.start()
        reads = kube.counters.answers["GET", "pods", 200]
        await until(
            lambda: asyncio.sleep(0, kube.counters.answers["GET", "pods", 200]),
            lambda now: now >= reads + 4,
        )
        assert await asyncio.to_thread(accepted_evictions, plane, mark, space.namespace) == []
        assert "work.blocked" not in running.notes.kinds(node)
        await running.release(node)


# -- admission ---------------------------------------------------------------------------


@asynccontextmanager
async def registered(plane: ControlPlane, kind: str, body: dict[str, Any]) -> AsyncIterator[None]:
    name = body["metadata"]["name"]
    await asyncio.to_thread(plane.call, "POST", f"{ADMISSION}/{kind}", body)
    try:
        yield
    finally:
        await asyncio.to_thread(plane.request, "DELETE", f"{ADMISSION}/{kind}/{name}")


EVICTIONS = [
    {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods/eviction"],
    }
]


def namespace_alone(space: Space) -> dict[str, Any]:
    return {"matchLabels": {"kubernetes.io/metadata.name": space.namespace}}


def webhook_of(space: Space) -> dict[str, Any]:
    """A webhook on a port of this machine on which no server listens."""
    name = f"{space.namespace}.sickbay.test"
    return {
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": name,
                "clientConfig": {"url": "https://127.0.0.1:9/evictions"},
                "rules": EVICTIONS,
                "namespaceSelector": namespace_alone(space),
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 2,
            }
        ],
    }


def policy_of(space: Space) -> tuple[dict[str, Any], dict[str, Any]]:
    """A policy that denies the evictions of the namespace, and its binding."""
    name = f"{space.namespace}.sickbay.test"
    policy = {
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "namespaceSelector": namespace_alone(space),
                "resourceRules": EVICTIONS,
            },
            "validations": [{"expression": "false", "message": "a backup runs"}],
        },
    }
    binding = {
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return policy, binding


async def until_enforced(space: Space, text: str, *, pod: str = "a") -> None:
    """Wait until the API server rejects evictions of the namespace: its admission trails."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": space.namespace},
        "deleteOptions": {"dryRun": ["All"]},
    }
    path = f"{space.path('pods', pod)}/eviction?dryRun=All"
    await until(
        lambda: asyncio.to_thread(space.plane.request, "POST", path, body),
        lambda answer: text in str(answer.body),
    )


@pytest.mark.parametrize("gang", [False, True])
@pytest.mark.parametrize("rejected_by", ["webhook", "policy"])
async def test_an_eviction_that_admission_rejects_is_a_blocker_and_its_deadline_comes(
    kube: KubeCluster, cluster_space: Space, rejected_by: str, *, gang: bool
) -> None:
    space, plane, [node] = cluster_space, cluster_space.plane, cluster_space.create_nodes(1)
    labels = {"scheduling.x-k8s.io/pod-group": "train"} if gang else {}
    await pod(space, node, "a", labels=labels)
    settings = replace(SETTINGS, drain=DrainRules(evict_unmanaged=True, deadline=5))
    if gang:
        await pod(space, node, "b", labels=labels)
    if rejected_by == "webhook":
        kinds, words = [("validatingwebhookconfigurations", webhook_of(space))], "calling webhook"
    else:
        policy, binding = policy_of(space)
        kinds = [
            ("validatingadmissionpolicies", policy),
            ("validatingadmissionpolicybindings", binding),
        ]
        words = "a backup runs"
    async with AsyncExitStack() as stack:
        for kind, body in kinds:
            await stack.enter_async_context(registered(plane, kind, body))
        await until_enforced(space, words)
        async with aggregator(kube, space, settings) as running:
            await running.quarantine_by_hand(node)
            assert words in await running.until_blocked(node, f"{space.namespace}/a")
            status = await running.until_status(node, lambda one: one.get("overdueAt"))
            assert status["podsRemaining"] == 1 + gang
            # The transition is noted once the write of the status is answered.
            await until_true(lambda: running.notes.kinds(node).count("quarantine.overdue") == 1)
            assert await pods_left(space) == {"a": False} | ({"b": False} if gang else {})
            await running.release(node)


@pytest.mark.parametrize("follows", [True, False])
async def test_a_gang_whose_dry_runs_alone_admission_refuses_is_evicted_after_a_bounded_time(
    kube: KubeCluster, cluster_space: Space, *, follows: bool
) -> None:
    """Issue kubevirt#12696: such a webhook starts to move the work by the real request alone."""
    space, plane, [node] = cluster_space, cluster_space.plane, cluster_space.create_nodes(1)
    for name in ("a", "b"):
        await pod(space, node, name, labels={"scheduling.x-k8s.io/pod-group": "train"})
    policy, binding = policy_of(space)
    policy["spec"]["validations"] = [
        {
            "expression": "!has(request.dryRun) || !request.dryRun || request.name != 'b'",
            "message": "in earnest alone",
        }
    ]
    rules = DrainRules(evict_unmanaged=True, gang_request_after=3.0 if follows else 0.0)
    async with AsyncExitStack() as stack:
        kind = "validatingadmissionpolicies"
        await stack.enter_async_context(registered(plane, kind, policy))
        await stack.enter_async_context(
            registered(plane, "validatingadmissionpolicybindings", binding)
        )
        await until_enforced(space, "in earnest alone", pod="b")
        mark = plane.audit_mark()
        async with aggregator(kube, space, replace(SETTINGS, drain=rules)) as running:
            await running.quarantine_by_hand(node)
            reason = await running.until_blocked(node, f"{space.namespace}/b")
            assert "in earnest alone" in reason
            assert "drain.gang_request_after" in reason
            if follows:
                await running.until_phase(node, "Drained")
                sent = await asyncio.to_thread(accepted_evictions, plane, mark, space.namespace)
                assert sorted(sent) == [f"{space.namespace}/a", f"{space.namespace}/b"]
                assert sent[0].endswith("/b"), "the refused pod's request is the first"
            else:
                waits = "goes together with its gang"
                assert waits in await running.until_blocked(node, f"{space.namespace}/a")
                assert await pods_left(space) == {"a": False, "b": False}
            await running.release(node)


# -- a server that is busy ------------------------------------------------------------------

RETRY_AFTER = 12
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def administrator(space: Space) -> Path:
    """The kubeconfig of a service account with all rights: the proxy passes tokens on."""
    space.plane.create_service_account(space.namespace, "administrator")
    account = {"kind": "ServiceAccount", "name": "administrator", "namespace": space.namespace}
    space.plane.bind(space.namespace, "cluster-admin", account)
    return space.plane.kubeconfig_for_service_account(space.namespace, "administrator")


@pytest.mark.parametrize("how", ["uncordon", "delete"])
async def test_evictions_that_a_busy_server_puts_off_are_not_sent_after_a_release(
    cluster_space: Space, tmp_path: Path, quarantine_definition: None, how: str
) -> None:
    """One eviction is answered 429 with Retry-After; the others wait for that time."""
    space, plane, [node] = cluster_space, cluster_space.plane, cluster_space.create_nodes(1)
    names = [f"job-{number}" for number in range(8)]
    for name in names:
        await pod(space, node, name)
    faults = ApiFaults(retry_after=RETRY_AFTER)
    with FaultyProxy(plane, tmp_path / "proxy", faults) as proxy, ExitStack() as stack:
        stack.callback(plane.request, "DELETE", f"{BINDINGS}/{space.namespace}")
        by_proxy = proxy.kubeconfig(administrator(space))
        async with (
            kube_cluster(by_proxy, namespace=space.namespace) as kube,
            aggregator(kube, space, SETTINGS) as running,
        ):
            proxy.busy_once = "/eviction"
            mark = plane.audit_mark()
            running.falls_ill(node)
            await until(lambda: asyncio.sleep(0, proxy.busy_once), lambda left: not left)
            told = time.monotonic()
            if how == "uncordon":
                uncordon = {"spec": {"unschedulable": False}}
                plane.call("PATCH", f"/api/v1/nodes/{node}", uncordon, MERGE_PATCH)
            else:
                plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{node}")
            await until(
                lambda: asyncio.to_thread(plane.node, node),
                lambda found: TAINT not in str(found["spec"].get("taints")),
            )
            assert time.monotonic() - told < RETRY_AFTER, "it did not wait for the pause's end"
            # All of these were on their way at the 429; the others wait for RETRY_AFTER at least.
            sent = [one for one in proxy.log if one.request.endswith("/eviction")]
            assert not plane.node(node)["spec"].get("unschedulable")
            await asyncio.sleep(RETRY_AFTER * 1.25 + 2)  # past all that was put off
            later = [one for one in proxy.log if one.request.endswith("/eviction")]
            assert later == sent
            accepted = await asyncio.to_thread(accepted_evictions, plane, mark, space.namespace)
            assert len(accepted) <= len(sent)
            assert len(accepted) < len(names)
