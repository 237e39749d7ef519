"""Owners of namespaces, read from the real API server with the rights of the example alone."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aggregator.cluster.kubernetes import namespace_informer
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.namespace_owners import NamespaceOwners
from aggregator.runtime.backoff import Backoff
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.waiting import until

EXAMPLE = DEPLOY.parent / "examples" / "alert-owners-rbac.yaml"
ACCOUNT = ("sickbay", "sickbay-aggregator")
KEY = "sickbay.dev/owner"


@asynccontextmanager
async def following(cluster: KubeCluster, owners: NamespaceOwners) -> AsyncIterator[None]:
    task = asyncio.create_task(cluster.follow_namespaces(owners))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def account(cluster_space: Space, quarantine_definition: None) -> Path:
    """A kubeconfig of the aggregator's own service account, with its usual rights."""
    plane = cluster_space.plane
    plane.apply(DEPLOY / "aggregator-rbac.yaml")
    return plane.kubeconfig_for_service_account(*ACCOUNT)


async def test_owners_are_known_once_the_right_is_granted_and_follow_each_change(
    cluster_space: Space,
    account: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespace_informer.NamespaceInformer, "_BACKOFF", Backoff(0.2, 0.2))
    caplog.set_level(logging.INFO, "sickbay.kubernetes")
    plane, name = cluster_space.plane, cluster_space.namespace
    owners = NamespaceOwners(KEY)

    def edit(labels: dict[str, str | None], annotations: dict[str, str | None]) -> None:
        body = {"metadata": {"labels": labels, "annotations": annotations}}
        plane.call("PATCH", f"/api/v1/namespaces/{name}", body, content_type=MERGE_PATCH)

    async def known(owner: str) -> None:
        await until(lambda: owners.owner_of(name) == owner, lambda: owners.owner_of(name))

    edit({KEY: "vision"}, {})
    async with kube_cluster(account) as cluster, following(cluster, owners):
        await until(lambda: "alert-owners-rbac.yaml" in _errors(caplog))
        assert owners.owner_of(name) == ""
        with plane.applied(EXAMPLE):
            await known("vision")
            assert _events(caplog) == ["alerts.owners_unknown", "alerts.owners_known"]
            edit({KEY: "speech"}, {KEY: "an annotation"})
            await known("speech")
            edit({KEY: None}, {})
            await known("an annotation")
            edit({}, {KEY: None})
            await known("")
            edit({}, {KEY: "vision"})
            await known("vision")
            plane.create_namespace(f"{name}-more")
            more = f"/api/v1/namespaces/{name}-more"
            body = {"metadata": {"labels": {KEY: "gone-soon"}}}
            plane.call("PATCH", more, body, content_type=MERGE_PATCH)
            await until(lambda: owners.owner_of(f"{name}-more") == "gone-soon")
            plane.request("DELETE", more)
            await until(lambda: owners.owner_of(f"{name}-more") == "")


def _errors(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(str(getattr(record, "error", "")) for record in caplog.records)


def _events(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [str(getattr(record, "event", "")) for record in caplog.records]
    return [event for event in found if event.startswith("alerts.")]
