"""`sickbay` without --url: through a real API server and a kubelet's port-forward, or, while no
aggregator answers, from the Quarantines.
"""

import asyncio
import signal
import socket
import ssl
import tarfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aggregator.access.client_certificate import CaCertificates, ClientCertificateAuthenticator
from aggregator.access.gate import AccessGate
from aggregator.access.identity import UserIdentity
from aggregator.access.subject_access_review import SubjectAccessAuthorizer
from aggregator.access.token_review import TokenReviewAuthenticator
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import UNGUARDED, Action, QuarantineSpec
from aggregator.cluster.users import Access
from aggregator.demo.process_guard import ProcessGuard
from aggregator.web.access_guard import PageAccess
from tests.controlplane import binaries
from tests.controlplane.api import STRATEGIC_PATCH
from tests.controlplane.commands import STAGES_FILE
from tests.controlplane.plane import ControlPlane
from tests.controlplane.ports import ReservedPort
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.servers import Server
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.pki import Authority
from tests.support.present import present
from tests.support.waiting import PATIENCE, until
from tests.web.cli import in_process, sickbay, start
from tests.web.support import Hands, running_clocks, serving, small_fleet

LABELS = {"app.kubernetes.io/name": "sickbay", "app.kubernetes.io/component": "aggregator"}
_CONFIG = """
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: ClusterPortForward
metadata: {{name: all}}
spec: {{forwards: [{{target: {{address: 127.0.0.1, port: {port}}}}}]}}
"""


@dataclass(frozen=True)
class PortForwarder:
    """``port`` of loopback is the target of every forward, and ``kubelet`` the kubelet's own."""

    plane: ControlPlane
    port: int
    kubelet: int

    def create_aggregator(self, space: Space, name: str = "sickbay-aggregator-0") -> str:
        """A pod of the aggregator, ready, on a node of its own; its page is this port."""
        (node,) = space.create_nodes(1)
        status = {
            "addresses": [{"type": "Hostname", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet}},
        }
        where = f"/api/v1/nodes/{node}/status"
        self.plane.call("PATCH", where, {"status": status}, STRATEGIC_PATCH)
        container: dict[str, Any] = {
            "name": "aggregator",
            "image": "example.test/aggregator:1",
            "ports": [{"name": "web", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": "web", "scheme": "HTTPS"}},
        }
        spec = {"containers": [container]}
        self.plane.create_pod(space.namespace, name, node=node, labels=LABELS, spec=spec)
        self.plane.wait_pod_running(space.namespace, name)
        return node

    def certify(self, space: Space, folder: Path) -> tuple[Path, Path]:
        """A certificate and key for the page of this namespace, by an authority that the namespace
        publishes as the aggregator does.
        """
        authority = Authority.create(folder)
        data = {"ca.crt": authority.certificate.read_text("utf-8")}
        body = {"metadata": {"name": "sickbay-ca"}, "data": data}
        self.plane.call("POST", space.path("configmaps"), body)
        pair = authority.server("page", [f"sickbay-page.{space.namespace}.svc"])
        return pair.certificate, pair.key


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def port_forwarder(plane: ControlPlane, folder: Path) -> Iterator[PortForwarder]:
    """The kubelet, until the end of the block."""
    authority = Authority.create(folder / "kubelet")
    pair = authority.server("kubelet", ["127.0.0.1"])
    with ReservedPort() as target, ReservedPort() as kubelet:
        config = folder / "kwok.yaml"
        # kwok starts with no configuration that lacks stages.
        stages = STAGES_FILE.read_text("utf-8")
        config.write_text(stages + _CONFIG.format(port=target.number))
        process_guard = ProcessGuard(folder, remove=False)
        line: list[str | Path] = [
            binaries.program("kwok"),
            f"--kubeconfig={plane.kubeconfig}",
            f"--config={config}",
            "--manage-nodes-with-label-selector=sickbay.test/none=none",
            f"--server-address=127.0.0.1:{kubelet.number}",
            f"--tls-cert-file={pair.certificate}",
            f"--tls-private-key-file={pair.key}",
        ]
        server = Server("kwok-forwarding", line, folder, process_guard)
        server.start()
        try:
            server.wait_ready(lambda: _listens(kubelet.number), 60)
            yield PortForwarder(plane, target.number, kubelet.number)
        finally:
            server.kill()
            process_guard.close()


pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def forwarder(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PortForwarder]:
    with port_forwarder(control_plane, tmp_path_factory.mktemp("forward")) as one:
        yield one


@pytest.fixture
def person(cluster_space: Space) -> list[str]:
    kubeconfig = str(cluster_space.plane.kubeconfig)
    return ["--kubeconfig", kubeconfig, "--namespace", cluster_space.namespace]


def page_context(forwarder: PortForwarder, space: Space, folder: Path) -> ssl.SSLContext:
    certificate, key = forwarder.certify(space, folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


async def test_with_a_kubeconfig_alone_the_aggregator_is_asked_through_the_api_server(
    forwarder: PortForwarder, cluster_space: Space, person: list[str], tmp_path: Path
) -> None:
    forwarder.create_aggregator(cluster_space)
    context = page_context(forwarder, cluster_space, tmp_path)
    address, fleet = f"127.0.0.1:{forwarder.port}", small_fleet(Hands())
    async with serving(fleet, running_clocks(), address=address, ssl=context):
        status = await sickbay("status", *person[2:], KUBECONFIG=person[1])
        listed = await in_process("quarantines", "-o", "name", *person)
        assert status.err == ""
        assert status.out.startswith("2 in quarantine, 1 held back")
        assert listed.out.splitlines() == [
            "quarantine.sickbay.dev/node-2",
            "quarantine.sickbay.dev/node-7",
        ]
        watching = await start("watch", *person)
        assert watching.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = (await watching.stdout.readline()).decode()
        assert line, await watching.communicate()
        watching.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            _, err = await watching.communicate()
        assert (watching.returncode, err) == (130, b"")
        wrong = await in_process("node", "node-99", *person)
    assert "2 in quarantine" in line
    assert (wrong.code, 'there is no node "node-99"' in wrong.err) == (1, True)


async def test_an_aggregator_with_another_certificate_is_not_believed(
    forwarder: PortForwarder, cluster_space: Space, person: list[str], tmp_path: Path
) -> None:
    forwarder.create_aggregator(cluster_space)
    page_context(forwarder, cluster_space, tmp_path / "published")
    other = Space(cluster_space.plane, f"t-{uuid.uuid4().hex[:8]}", cluster_space.node_prefix)
    cluster_space.plane.create_namespace(other.namespace)
    context = page_context(forwarder, other, tmp_path / "other")
    cluster_space.plane.delete_namespace(other.namespace)
    address = f"127.0.0.1:{forwarder.port}"
    async with serving(small_fleet(Hands()), running_clocks(), address=address, ssl=context):
        done = await in_process("incidents", *person)
    assert (done.code, done.out) == (1, "")
    assert "is not believed" in done.err


async def test_while_no_aggregator_answers_the_quarantines_are_read(
    kube: KubeCluster, cluster_space: Space, person: list[str], tmp_path: Path
) -> None:
    (node,) = cluster_space.create_nodes(1)
    spec = QuarantineSpec(Action.DRAIN, "manual", "fan 3\x1b[2J is dead", "hall-2")
    await kube.create_quarantine(node, spec, guard=UNGUARDED)
    listed = await in_process("quarantines", *person)
    status = await in_process("status", *person)
    past = await in_process("history", *person)
    file = tmp_path / "rma.tar.gz"
    packed = await in_process("bundle", node, "--file", str(file), *person)
    assert listed.code == status.code == 0, (listed, status)
    why = f"namespace {cluster_space.namespace} has no aggregator"
    for done in (listed, status):
        assert why in done.err
        assert "Shown are the Quarantines of the cluster." in done.err
    line = next(line for line in listed.out.splitlines() if line.startswith(node))
    assert line.split()[1:3] == ["drain", "Admitted"]
    assert "fan 3?[2J is dead" in line
    assert "THE AGGREGATOR DOES NOT ANSWER" in status.out
    assert (packed.code, f"missing: history.json: {why}" in packed.out.replace("\n", " ")) == (
        0,
        True,
    ), packed
    with tarfile.open(file) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {
        "quarantine.json",
        "operations.json",
        "kubernetes-node.json",
        "events.json",
        "node.json",
    } <= names
    assert (past.code, past.out) == (1, ""), "only the aggregator knows it"
    assert why in past.err


async def test_what_the_kubelet_says_of_a_dead_page_is_told_and_the_quarantines_are_read(
    forwarder: PortForwarder, cluster_space: Space, kube: KubeCluster, person: list[str]
) -> None:
    forwarder.create_aggregator(cluster_space)
    done = await in_process("status", *person)
    assert done.code == 0, done.err
    assert "connection refused" in done.err
    assert "sickbay-aggregator-0" in done.out


async def test_an_account_that_may_not_forward_is_told_the_rights_and_reads_the_quarantines(
    forwarder: PortForwarder, cluster_space: Space, kube: KubeCluster, person: list[str]
) -> None:
    forwarder.create_aggregator(cluster_space)
    user = f"reader-{cluster_space.namespace}"
    plane = cluster_space.plane
    rules = [
        {"apiGroups": ["sickbay.dev"], "resources": ["quarantines"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    ]
    body = {"metadata": {"name": user}, "rules": rules}
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    plane.call("POST", roles, body)
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    plane.call("POST", f"{roles}bindings".replace("rolesb", "roleb"), binding)
    try:
        kubeconfig = str(plane.kubeconfig_for(user))
        await until(lambda: plane.client_for(user).request("GET", "/api/v1/pods").status == 200)
        done = await in_process("quarantines", "--kubeconfig", kubeconfig, *person[2:])
    finally:
        plane.call("DELETE", f"{roles}bindings/{user}".replace("rolesb", "roleb"))
        plane.call("DELETE", f"{roles}/{user}")
    assert done.code == 0, done.err
    assert "get and create pods/portforward" in done.err
    assert "No node is in quarantine." in done.out or "NODE" in done.out


async def test_an_aggregator_that_asks_for_an_identity_gets_a_viewers_token_or_the_certificate(
    forwarder: PortForwarder, cluster_space: Space, person: list[str], tmp_path: Path
) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    plane.apply(DEPLOY / "crd.yaml")
    forwarder.create_aggregator(cluster_space)
    context = page_context(forwarder, cluster_space, tmp_path)
    address, fleet = f"127.0.0.1:{forwarder.port}", small_fleet(Hands())
    async with kube_cluster(plane.kubeconfig, namespace=namespace) as cluster:
        reviews = present(cluster.capabilities.access_reviews)
        seen = list[str]()

        class Remembers(SubjectAccessAuthorizer):
            async def allows(self, identity: UserIdentity, access: Access) -> bool:
                seen.append(f"{identity.how} {identity.name}")
                return await super().allows(identity, access)

        by_token = TokenReviewAuthenticator(reviews, audiences=(), now=time.monotonic)
        by_certificate = ClientCertificateAuthenticator(
            CaCertificates(plane.ca_file), wall=time.time
        )
        rights = Remembers(reviews, now=time.monotonic)
        gate = AccessGate([by_token, by_certificate], rights, anonymous=False)
        access = PageAccess(gate)
        async with serving(
            fleet, running_clocks(), address=address, ssl=context, access=access
        ) as _:
            refused = await in_process("status", *person)
            assert refused.code == 1, refused
            assert "you are not logged in" in refused.err
            plane.create_service_account(namespace, "sickbay-viewer")
            without = await in_process("status", *person)
            assert "lacks the right to list quarantines.sickbay.dev" in without.err
            account = f"system:serviceaccount:{namespace}:sickbay-viewer"
            assert seen[-1] == f"token {account}"
            context.load_verify_locations(cafile=str(plane.ca_file))
            context.verify_mode = ssl.CERT_OPTIONAL
            done = await in_process("status", *person)
            assert done.out.startswith("2 in quarantine"), done
            assert seen[-1].startswith("certificate ")
