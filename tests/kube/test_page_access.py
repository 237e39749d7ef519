"""Tokens and rights of the page's readers, by a real API server and the aggregator's own rights."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aggregator.access.gate import METRICS, READ, AccessGate
from aggregator.access.identity import AccessRefused, RequestFacts
from aggregator.access.review_budget import ALLOWED_FOR
from aggregator.access.subject_access_review import SubjectAccessAuthorizer
from aggregator.access.token_review import TokenReviewAuthenticator
from aggregator.cluster.kind import OpenOptions
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.users import Access, User
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.waiting import wait_until
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.present import present
from tests.support.waiting import PATIENCE


class Gate:
    """The page's gate, with a clock that a test moves."""

    def __init__(self, cluster: KubeCluster, *, audiences: tuple[str, ...] = ()) -> None:
        self.time = 1000.0
        self.cluster = cluster
        reviews = present(cluster.capabilities.access_reviews)
        tokens = TokenReviewAuthenticator(reviews, audiences=audiences, now=lambda: self.time)
        rights = SubjectAccessAuthorizer(reviews, now=lambda: self.time)
        self.gate = AccessGate([tokens], rights, anonymous=False)

    async def status(self, token: str, *rights: Access) -> int:
        """200, or the status of the refusal."""
        try:
            await self.gate.require(RequestFacts(token=token), *(rights or (READ,)))
        except AccessRefused as refused:
            return refused.status
        return 200


@pytest.fixture
def account(control_plane: ControlPlane, quarantine_definition: None) -> Path:
    """A kubeconfig of the aggregator's own account; the roles of people are there too."""
    control_plane.apply(DEPLOY / "aggregator-rbac.yaml")
    control_plane.apply(DEPLOY / "access.yaml")
    return control_plane.kubeconfig_for_service_account("sickbay", "sickbay-aggregator")


@pytest.fixture
async def gate(account: Path) -> AsyncIterator[Gate]:
    async with kube_cluster(
        account, options=OpenOptions(agents="sickbay:x", access=True)
    ) as cluster:
        yield Gate(cluster)


def bind(plane: ControlPlane, space: Space, role: str, account: str) -> None:
    """Grant a ClusterRole to an account of the test's namespace."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": space.namespace}
    plane.bind(f"{space.namespace}-{account}-{role}", role, subject)


async def test_the_viewers_account_reads(gate: Gate, control_plane: ControlPlane) -> None:
    token = control_plane.token_for("sickbay", "sickbay-viewer", None)
    assert await gate.status(token) == 200
    assert await gate.status(token, READ, METRICS) == 200
    assert await gate.status(token, Access("delete", "sickbay.dev", "quarantines", name="x")) == 403


def test_the_clusters_own_roles_view_and_edit_reach_quarantines(
    control_plane: ControlPlane, cluster_space: Space, account: Path
) -> None:
    """By aggregation: a site that has given `view` to its people need bind no role of sickbay's."""
    plane, quarantines = control_plane, "/apis/sickbay.dev/v1alpha1/quarantines"
    people = {}
    for role in ("view", "edit", "nothing"):
        user = f"{cluster_space.namespace}-{role}"
        people[role] = plane.client_for(user)
        if role != "nothing":
            plane.bind(user, role, {"kind": "User", "name": user})
    made = {
        "apiVersion": "sickbay.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": cluster_space.namespace},
        "spec": {"reason": "a fan is dead"},
    }

    def may(role: str) -> tuple[bool, bool]:
        """Read, and make one."""
        read = people[role].request("GET", quarantines).status
        create = people[role].request("POST", f"{quarantines}?dryRun=All", made).status
        return read == 200, create == 201

    wanted = {"view": (True, False), "edit": (True, True), "nothing": (False, False)}
    wait_until(
        lambda: {role: may(role) for role in people} == wanted,
        what="the aggregated roles",
        timeout_s=PATIENCE,
    )


async def test_tokens_that_are_none_or_meant_for_others_are_refused(
    gate: Gate, control_plane: ControlPlane, cluster_space: Space
) -> None:
    control_plane.create_service_account(cluster_space.namespace, "reader")
    bind(control_plane, cluster_space, "sickbay-viewer", "reader")
    good = control_plane.token_for(cluster_space.namespace, "reader", None)
    head, body, signature = good.split(".")
    forged = f"{head}.{body}.{signature[:-4]}AAAA"
    agents = control_plane.token_for(cluster_space.namespace, "reader", "sickbay")
    replicas = control_plane.token_for(cluster_space.namespace, "reader", "sickbay-replicas")
    assert await gate.status(good) == 200
    for token in ("garbage", forged, f"{head}.{body}.", agents, replicas):
        assert await gate.status(token) == 401, token[:20]


async def test_a_token_ends_with_its_pod_and_its_account(
    gate: Gate, control_plane: ControlPlane, cluster_space: Space
) -> None:
    plane, namespace = control_plane, cluster_space.namespace
    for account in ("reader", "former-reader"):
        plane.create_service_account(namespace, account)
        bind(plane, cluster_space, "sickbay-viewer", account)
    bind(plane, cluster_space, "sickbay-viewer", "default")
    [node] = cluster_space.create_nodes(1)
    plane.create_pod(namespace, "dashboard", node=node)
    of_pod = plane.token_for(namespace, "default", None, pod="dashboard")
    of_account = plane.token_for(namespace, "former-reader", None)
    own = plane.token_for(namespace, "reader", None)
    for token in (of_pod, of_account, own):
        assert await gate.status(token) == 200
    plane.call("DELETE", cluster_space.path("pods", "dashboard"), {"gracePeriodSeconds": 0})
    plane.call("DELETE", cluster_space.path("serviceaccounts", "former-reader"))
    gate.time += ALLOWED_FOR + 1
    # kube-apiserver itself remembers a valid token for ten seconds.
    async with asyncio.timeout(PATIENCE):
        while [await gate.status(token) for token in (of_pod, of_account)] != [401, 401]:
            await asyncio.sleep(0.5)
            gate.time += ALLOWED_FOR + 1
    assert await gate.status(own) == 200


async def test_an_account_without_rights_is_told_which_one_it_lacks(
    gate: Gate, control_plane: ControlPlane, cluster_space: Space
) -> None:
    control_plane.create_service_account(cluster_space.namespace, "nobody")
    token = control_plane.token_for(cluster_space.namespace, "nobody", None)
    with pytest.raises(AccessRefused) as raised:
        await gate.gate.require(RequestFacts(token=token), READ)
    assert raised.value.status == 403
    assert "list quarantines.sickbay.dev" in raised.value.error
    account = f"--serviceaccount={cluster_space.namespace}:nobody"
    assert f"--clusterrole=sickbay-viewer {account}" in raised.value.hint


async def test_prometheus_reads_the_metrics_alone(
    gate: Gate, control_plane: ControlPlane, cluster_space: Space
) -> None:
    control_plane.create_service_account(cluster_space.namespace, "prometheus")
    bind(control_plane, cluster_space, "sickbay-metrics-reader", "prometheus")
    token = control_plane.token_for(cluster_space.namespace, "prometheus", None)
    assert await gate.status(token, READ, METRICS) == 200
    assert await gate.status(token, READ) == 403


async def test_an_audience_of_its_own_keeps_other_tokens_out(
    gate: Gate, control_plane: ControlPlane
) -> None:
    own = Gate(gate.cluster, audiences=("sickbay-page",))
    for_page = control_plane.token_for("sickbay", "sickbay-viewer", "sickbay-page")
    for_api = control_plane.token_for("sickbay", "sickbay-viewer", None)
    assert [await own.status(for_page), await own.status(for_api)] == [200, 401]
    assert [await gate.status(for_page), await gate.status(for_api)] == [401, 200]


async def test_groups_of_a_certificate_or_proxy_have_their_rights(
    gate: Gate, control_plane: ControlPlane, cluster_space: Space
) -> None:
    name = f"{cluster_space.namespace}-oncall"
    control_plane.bind(name, "sickbay-operator", {"kind": "Group", "name": name})
    reviews = present(gate.cluster.capabilities.access_reviews)
    delete = Access("delete", "sickbay.dev", "quarantines", name="node-1")
    stop = Access("patch", "", "configmaps", namespace="sickbay", name="sickbay-stop")
    for access in (READ, delete, stop):
        assert await reviews.review_access(User("alice", (name,)), access)
        assert not await reviews.review_access(User("alice", ("other",)), access)
    other = Access("patch", "", "configmaps", namespace="sickbay", name="sickbay-record")
    assert not await reviews.review_access(User("alice", (name,)), other)
