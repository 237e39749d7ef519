"""Tokens that the real API server issued, verified offline with the keys that it publishes."""

import time
from pathlib import Path

import grpc
import pytest

from aggregator.cluster.agent_pods import PodsListed
from aggregator.cluster.kind import OpenOptions
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Unreachable
from aggregator.ingest.checked_auth import CheckedAuthenticator
from aggregator.ingest.deleted_pods import DeletedPods
from aggregator.ingest.identity import IdentityError, Refusal
from aggregator.ingest.jwks import JwksCache
from aggregator.ingest.tokens import TokenAuthenticator
from tests.controlplane.pytest_plugin import Space
from tests.support.ingest import site
from tests.support.kube_cluster import following_pods, kube_cluster
from tests.support.present import present
from tests.support.waiting import until

AGENT = "sickbay-agent"


@pytest.fixture
def node(cluster_space: Space) -> str:
    """A node with an agent's pod and a tenant's pod on it."""
    [name] = cluster_space.create_nodes(1)
    plane, namespace = cluster_space.plane, cluster_space.namespace
    for account, pod in ((AGENT, "agent"), ("tenant", "job")):
        plane.create_service_account(namespace, account)
        plane.create_pod(namespace, pod, node=name, service_account=account)
    return name


def authenticator(keys: JwksCache, space: Space) -> TokenAuthenticator:
    return TokenAuthenticator(
        keys,
        audience="sickbay",
        service_account=f"{space.namespace}:{AGENT}",
        issuer="",
        now=time.time,
    )


def store(kube: KubeCluster, folder: Path) -> JwksCache:
    return JwksCache(
        present(kube.capabilities.signing_keys), folder / "jwks.json", now=time.monotonic
    )


async def test_an_agents_token_proves_its_node_and_that_nodes_uid(
    cluster_space: Space, node: str, kube: KubeCluster, tmp_path: Path
) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    token = plane.token_for(namespace, AGENT, pod="agent", expiration_s=3600)
    identity = await authenticator(store(kube, tmp_path), cluster_space).verify(token)
    assert identity.node == node
    assert identity.node_uid == plane.node(node)["metadata"]["uid"]
    pod = plane.call("GET", cluster_space.path("pods", "agent"))
    assert identity.pod_uid == pod["metadata"]["uid"]
    assert identity.expires == pytest.approx(time.time() + 3600, abs=60)


async def test_a_token_of_another_service_account_that_names_the_node_is_refused(
    cluster_space: Space, node: str, kube: KubeCluster, tmp_path: Path
) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    verifier = authenticator(store(kube, tmp_path), cluster_space)
    tenants = plane.token_for(namespace, "tenant", pod="job")
    async with (
        site(authenticator=verifier) as running,
        running.agent(node, token=tenants) as agent,
    ):
        await agent.hello()
        code, text = await agent.ending()
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert f"system:serviceaccount:{namespace}:tenant" in text
        assert running.stats.refused == {"other_account": 1}
        assert running.intake.events == []


async def test_other_audiences_and_tokens_bound_to_nothing_are_refused(
    cluster_space: Space, node: str, kube: KubeCluster, tmp_path: Path
) -> None:
    del node
    plane, namespace = cluster_space.plane, cluster_space.namespace
    verifier = authenticator(store(kube, tmp_path), cluster_space)
    for token, why in (
        (plane.token_for(namespace, AGENT, "vault", pod="agent"), Refusal.BAD_TOKEN),
        (plane.token_for(namespace, AGENT, None, pod="agent"), Refusal.BAD_TOKEN),
        (plane.token_for(namespace, AGENT), Refusal.NO_NODE),
    ):
        with pytest.raises(IdentityError) as refused:
            await verifier.verify(token)
        assert refused.value.refusal is why


async def test_after_a_restart_tokens_are_verified_without_the_api_server(
    cluster_space: Space, node: str, kube: KubeCluster, tmp_path: Path
) -> None:
    """A deleted pod's token, too: while the API server is away none can be told from another."""
    plane, namespace = cluster_space.plane, cluster_space.namespace
    token = plane.token_for(namespace, AGENT, pod="agent")
    await authenticator(store(kube, tmp_path), cluster_space).verify(token)
    plane.call("DELETE", cluster_space.path("pods", "agent"))
    plane.wait_gone(cluster_space.path("pods", "agent"))

    async def away() -> tuple[str, str]:
        raise Unreachable("connection refused")

    offline = JwksCache(away, tmp_path / "jwks.json", now=time.monotonic)
    offline.load()
    assert (await authenticator(offline, cluster_space).verify(token)).node == node


async def test_the_stream_and_the_token_of_a_deleted_pod_end_and_a_new_pod_attaches(
    cluster_space: Space, node: str, tmp_path: Path, quarantine_definition: None
) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    [other] = cluster_space.create_nodes(1, start=1)
    plane.create_pod(namespace, "agent-2", node=other, service_account=AGENT)
    old = plane.token_for(namespace, AGENT, pod="agent")
    others = plane.token_for(namespace, AGENT, pod="agent-2")
    deleted = DeletedPods(now=time.monotonic)
    options = OpenOptions(agents=f"{namespace}:{AGENT}")
    async with (
        kube_cluster(plane.kubeconfig, namespace=namespace, options=options) as kube,
        following_pods(kube, deleted) as listener,
        site(
            authenticator=CheckedAuthenticator(
                authenticator(store(kube, tmp_path), cluster_space), deleted
            ),
            deleted_pods=deleted,
        ) as running,
        running.agent(node, token=old) as agent,
        running.agent(other, token=others) as neighbour,
    ):
        await agent.attend()
        await neighbour.attend()
        await until(lambda: listener.has(PodsListed))
        [listed] = (one for one in listener.heard if isinstance(one, PodsListed))
        assert len(listed.uids) == 2, "the pods of agents, and no tenant's"
        plane.call("DELETE", cluster_space.path("pods", "agent"))
        code, text = await agent.ending()
        assert (code, "was deleted" in text) == (grpc.StatusCode.UNAUTHENTICATED, True)
        async with running.agent(node, token=old) as again:
            await again.try_hello()
            assert (await again.ending())[0] is grpc.StatusCode.UNAUTHENTICATED
        assert running.stats.ended["pod_deleted"] == running.stats.refused["pod_deleted"] == 1
        plane.wait_gone(cluster_space.path("pods", "agent"))
        plane.create_pod(namespace, "agent", node=node, service_account=AGENT)
        new = plane.token_for(namespace, AGENT, pod="agent")
        async with running.agent(node, token=new) as successor:
            await successor.attend()
            await neighbour.beat(0)
            await until(lambda: running.stats.messages["heartbeat"] == 1)
            assert running.stats.attached == 2
        requests = {key[:2]: n for key, n in kube.counters.answers.items() if key[1] == "pods"}
        assert requests == {("GET", "pods"): 1, ("WATCH", "pods"): 1}
