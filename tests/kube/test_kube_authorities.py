"""Automatic certificates on the real API server: several replicas, people's edits, rights."""

import asyncio
import base64
import random
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aggregator.clock import Clocks
from aggregator.cluster.kind import OpenOptions
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.tls.automatic import AutomaticCertificates
from aggregator.tls.pair_files import writable_files
from aggregator.tls.rotation import Rules
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.present import present

pytestmark = pytest.mark.cluster

ROTATE = "sickbay.dev/rotate-ca"
DAY = 86400.0
RULES = Rules(lifetime=90 * DAY, authority_lifetime=730 * DAY, publish_wait=900.0)


class Fleet:
    """Three replicas of one namespace, and the clock that they share."""

    def __init__(self, kube: KubeCluster, folder: Path) -> None:
        self._kube = kube
        self._folder = folder
        self.ahead = 0.0
        self.replicas = [self.replica(f"replica-{number}") for number in range(3)]

    def replica(self, name: str) -> AutomaticCertificates:
        return AutomaticCertificates(
            present(self._kube.capabilities.authorities),
            writable_files(self._folder / name),
            frozenset({"localhost"}),
            rules=RULES,
            clocks=Clocks(lambda: time.monotonic() + self.ahead, lambda: time.time() + self.ahead),
            rng=random.Random(name),
        )

    async def settle(self) -> None:
        """All at once, until none has anything to do."""
        for _ in range(3):
            await self._read()

    async def pass_time(self, seconds: float) -> None:
        """As replicas see it that read every half a minute; at its end none has anything to do."""
        for _ in range(int(seconds // 30)):
            self.ahead += 30
            await self._read()
        await self.settle()

    async def _read(self) -> None:
        await asyncio.gather(*(one.settle() for one in self.replicas))

    def issuers(self) -> set[int]:
        found = (one.pair.issuer_among(one.known) for one in self.replicas)
        return {issuer.number for issuer in found if issuer is not None}


@pytest.fixture
def fleet(kube: KubeCluster, tmp_path: Path) -> Fleet:
    return Fleet(kube, tmp_path)


@pytest.fixture
def objects(cluster_space: Space) -> "Objects":
    return Objects(cluster_space.plane, cluster_space.namespace)


class Objects:
    """The Secret and the ConfigMap as a person sees them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        core = f"/api/v1/namespaces/{namespace}"
        self.plane = plane
        self.secret = f"{core}/secrets/sickbay-ca-keys"
        self.config_map = f"{core}/configmaps/sickbay-ca"

    def entries(self) -> dict[str, str]:
        data = self.plane.call("GET", self.secret)["data"]
        return {name: base64.b64decode(value).decode() for name, value in data.items()}

    def bundle(self) -> str:
        return str(self.plane.call("GET", self.config_map)["data"]["ca.crt"])

    def patch(self, path: str, body: Any) -> None:
        self.plane.call("PATCH", path, body, MERGE_PATCH)


async def test_three_replicas_that_start_at_once_agree_on_one_authority(
    fleet: Fleet, objects: Objects
) -> None:
    await asyncio.gather(*(one.settle() for one in fleet.replicas))
    await fleet.settle()
    entries = objects.entries()
    assert set(entries) == {"ca-1.crt", "ca-1.key"}
    assert objects.bundle() == entries["ca-1.crt"]
    for one in fleet.replicas:
        assert one.trouble == ""
        await _handshake(one, objects.bundle())


async def _handshake(replica: AutomaticCertificates, bundle: str) -> None:
    """A client that trusts the bundle alone verifies what the replica serves."""
    serves = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serves.load_cert_chain(replica.files.certificate, replica.files.key)
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=serves
    )
    async with server:
        _, port = server.sockets[0].getsockname()
        trusts = ssl.create_default_context(cadata=bundle)
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusts)
        assert await reader.read() == b""
        writer.close()


async def test_a_requested_rotation_waits_until_agents_know_the_next_authority(
    fleet: Fleet, objects: Objects
) -> None:
    await fleet.settle()
    await fleet.pass_time(RULES.publish_wait + 60)
    objects.patch(objects.secret, {"metadata": {"annotations": {ROTATE: "now", "mine": "stays"}}})
    objects.patch(objects.config_map, {"data": {"other": "stays"}})
    old = objects.bundle()
    await fleet.settle()
    assert set(objects.entries()) == {"ca-1.crt", "ca-1.key", "ca-2.crt", "ca-2.key"}
    assert objects.plane.call("GET", objects.secret)["metadata"]["annotations"] == {"mine": "stays"}
    assert objects.plane.call("GET", objects.config_map)["data"]["other"] == "stays"
    both = objects.bundle()
    assert old in both
    assert both.count("BEGIN CERTIFICATE") == 2
    assert fleet.issuers() == {1}
    await fleet.pass_time(RULES.publish_wait - 60)
    assert fleet.issuers() == {1}
    await fleet.pass_time(120)
    assert fleet.issuers() == {2}
    await _handshake(fleet.replicas[0], both)
    # A person ends the trust in the old one.
    objects.patch(objects.secret, {"data": {"ca-1.crt": None, "ca-1.key": None}})
    await fleet.settle()
    assert objects.bundle() == objects.entries()["ca-2.crt"]
    assert fleet.issuers() == {2}


# -- rights --------------------------------------------------------------------------


@pytest.fixture
async def own_account(
    control_plane: ControlPlane, quarantine_definition: None
) -> AsyncIterator[KubeCluster]:
    """The aggregator's own service account, in its own namespace."""
    control_plane.apply(DEPLOY / "aggregator-rbac.yaml")
    kubeconfig = control_plane.kubeconfig_for_service_account("sickbay", "sickbay-aggregator")
    async with kube_cluster(kubeconfig, options=OpenOptions(certificates=True)) as cluster:
        yield cluster


async def test_its_own_rights_suffice(
    own_account: KubeCluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    objects = Objects(control_plane, "sickbay")
    for path in (objects.secret, objects.config_map):
        control_plane.request("DELETE", path)
    fleet = Fleet(own_account, tmp_path)
    await fleet.settle()
    await fleet.pass_time(RULES.publish_wait + 60)
    objects.patch(objects.secret, {"metadata": {"annotations": {ROTATE: "now"}}})
    await fleet.settle()
    assert len(objects.entries()) == 4
    refused = [key for key in own_account.counters.answers if key[2] in {401, 403}]
    assert refused == []


async def test_a_missing_right_is_named_where_the_certificate_is_missed(
    control_plane: ControlPlane, quarantine_definition: None, tmp_path: Path
) -> None:
    kubeconfig = control_plane.kubeconfig_for("nobody")
    cluster = KubeCluster(kubeconfig=str(kubeconfig), options=OpenOptions(certificates=True))
    try:
        [replica, *_] = Fleet(cluster, tmp_path).replicas
        assert not await replica.settle()
    finally:
        await cluster.close()
    assert 'User "nobody" cannot get resource "configmaps"' in replica.trouble
