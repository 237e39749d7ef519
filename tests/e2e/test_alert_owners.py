"""Owners of jobs learn of their evicted pods, from the whole program on a real API server."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.e2e.conftest import Start
from tests.support.kube_cluster import DEPLOY
from tests.support.stack import start_job

OWNERS_RBAC = DEPLOY.parent / "examples" / "alert-owners-rbac.yaml"
pytestmark = pytest.mark.cluster


class _Hook(ThreadingHTTPServer):
    """Accepts every request, and keeps the alerts of each path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.alerts: dict[str, list[dict[str, Any]]] = {}

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class _Taker(BaseHTTPRequestHandler):
    server: _Hook

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.alerts.setdefault(self.path, []).extend(body["alerts"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Writes no line to stderr."""


@pytest.fixture
def rights(cluster_space: Space) -> Iterator[None]:
    """The right to read namespaces, for this test alone."""
    with cluster_space.plane.applied(OWNERS_RBAC):
        yield


@pytest.fixture
def hook() -> Iterator[_Hook]:
    with _Hook() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_owner_of_a_stopped_job_hears_of_it_and_the_fault_once_and_no_other_owner_does(
    cluster_space: Space, rights: None, tmp_path: Path, stack_of: Start, hook: _Hook
) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    [node] = cluster_space.create_nodes(1)
    start_job(plane, namespace, "train", node)
    body = {"metadata": {"labels": {"sickbay.dev/owner": "vision"}}}
    plane.call("PATCH", f"/api/v1/namespaces/{namespace}", body, content_type=MERGE_PATCH)
    secret = tmp_path / "secret"
    secret.write_text("s")

    def receiver(name: str) -> dict[str, Any]:
        return {"name": name, "webhook": {"url": hook.url(f"/{name}"), "secret_file": str(secret)}}

    names = ("vision", "speech")
    stack = stack_of(
        {
            "alerts": {
                "outbox": str(tmp_path / "outbox.db"),
                "receivers": [receiver(name) for name in names],
                "routes": [
                    {"name": name, "receiver": name, "owners": [name], "group_wait": "1s"}
                    for name in names
                ],
            }
        }
    )
    stack.agent(node).xid(79)
    stack.until_phase(node, "Drained", timeout_s=90)
    stack.until(lambda: hook.alerts.get("/vision"), "the owner to hear")
    [alert] = hook.alerts["/vision"]  # one message for the job, whose pods are two
    assert (alert["kind"], alert["labels"]["owner"]) == ("job.stopped", "vision")
    assert alert["details"]["pod"].startswith(f"{namespace}/train-")
    assert alert["details"]["key"] == f"{namespace}/job/train"
    assert alert["details"]["code"] == "xid:79"
    # The pods are read after the requests that act: one of the two may have left by then.
    assert alert["details"]["pods_here"] in ("1", "2")
    assert f"Job {namespace}/train (team {namespace}) stopped: xid:79" in alert["summary"]
    assert "/speech" not in hook.alerts
