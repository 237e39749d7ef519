"""A kubelet that forwards ports, for pods of the test control plane: kwok, with Kubernetes' code.

The shared plane's own kwok serves no TLS, which kube-apiserver asks of a kubelet.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregator.demo.process_guard import ProcessGuard
from tests.controlplane import binaries
from tests.controlplane.api import STRATEGIC_PATCH
from tests.controlplane.commands import STAGES_FILE
from tests.controlplane.plane import ControlPlane
from tests.controlplane.ports import ReservedPort
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.servers import Server
from tests.support.pki import Authority

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
