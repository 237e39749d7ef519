"""The real aggregator in the container of its StatefulSet: as user nobody, on a read-only root.

There is no API server: it says so, goes on trying, and serves all that needs none, with a
certificate that no client trusts until the cluster gives it an authority.
"""

import os
import socket
import ssl
import sys
from pathlib import Path

import pytest

from aggregator.demo.ports import free_port
from tests.controlplane.waiting import PATIENCE, wait_until
from tests.deploy import pod
from tests.deploy.manifests import container, find, pod_spec
from tests.deploy.pod import Container

NAME = "sickbay-aggregator.sickbay.svc"
TLS = "/var/lib/sickbay-aggregator/tls"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(pod.missing()), reason=pod.missing() or "-"),
]


def _get(port: int, path: str) -> tuple[int, str]:
    """Status and text of an answer over TLS, not verified, as a kubelet's probe; 0: no server."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection(("127.0.0.1", port), PATIENCE) as raw,
            context.wrap_socket(raw, server_hostname=NAME) as tls,
        ):
            tls.sendall(f"GET {path} HTTP/1.0\r\nHost: {NAME}\r\n\r\n".encode())
            answer = b"".join(iter(lambda: tls.recv(65536), b"")).decode()
    except ConnectionRefusedError:
        return 0, ""
    return int(answer.split(" ", 2)[1]), answer.partition("\r\n\r\n")[2]


def test_it_runs_as_nobody_with_nothing_but_its_volumes_writable(tmp_path: Path) -> None:
    spec = pod_spec("StatefulSet", "sickbay-aggregator")
    user = spec["securityContext"]["runAsUser"]
    volumes = {
        name: tmp_path / name for name in ("config", "tls", "ca", "replica-token", "data", "tmp")
    }
    for name, folder in volumes.items():
        folder.mkdir()
        if name in {"data", "tmp"}:
            os.chown(folder, user, user)  # fsGroup, and emptyDir's mode
    text = find("ConfigMap", "sickbay-aggregator")["data"]["aggregator.yaml"]
    ports = [free_port(), free_port()]
    # In the host's network here, so on ports that are free.
    text = text.replace("0.0.0.0:8443", f"127.0.0.1:{ports[0]}")
    text = text.replace("0.0.0.0:8080", f"127.0.0.1:{ports[1]}")
    # As it is by default where other machines can reach a listener.
    text += "certificates: {automatic: true}\n"
    (volumes["config"] / "aggregator.yaml").write_text(text)
    (volumes["replica-token"] / "token").write_text("x")

    with Container(
        spec | {"hostNetwork": True},
        [f"{sys.prefix}/bin/sickbay-aggregator", "run", "--config", "/etc/sickbay/aggregator.yaml"],
        volumes=volumes,
        folder=tmp_path,
        environ={"PATH": os.defpath, "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"},
    ) as aggregator:
        probes = container(spec)
        healthz = probes["livenessProbe"]["httpGet"]["path"]
        alive = wait_until(
            lambda: _get(ports[1], healthz)[0] or aggregator.ended(),
            what="the page's port",
            timeout_s=60,
        )
        assert alive == 200, aggregator.log.read_text()
        readyz = probes["readinessProbe"]["httpGet"]["path"]
        wait_until(
            lambda: "kubeconfig" in _get(ports[1], readyz)[1],
            what="it to say what it lacks",
            timeout_s=30,
        )
        status, why = _get(ports[1], readyz)
        assert status == 503
        assert "there is no certificate that agents trust" in why
        made = aggregator.run("stat", "-c", "%a %u", f"{TLS}/tls.key").stdout.strip()
        assert made == f"600 {user}"
        assert "Read-only file system" in aggregator.run("touch", "/sickbay-test-x").stderr
        assert aggregator.run("touch", "/var/lib/sickbay-aggregator/x").returncode == 0
        assert aggregator.run("id", "-u").stdout.strip() == str(user)
        aggregator.signal("TERM")
        assert aggregator.wait(spec["terminationGracePeriodSeconds"]) == 0
    log = aggregator.log.read_text()
    assert "Traceback" not in log
    assert "the cluster can't be used" in log
