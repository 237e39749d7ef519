"""An aggregator that meets a cluster of a version that is too old."""

import http.server
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.server_version import OLDEST, describe
from aggregator.cluster.port import ClusterTooOld, Refused
from tests.support.aggregator_program import AGGREGATOR
from tests.support.fork_server import run_program

MAJOR, MINOR = OLDEST


class QuietServer(http.server.ThreadingHTTPServer):
    """A client that closes its connection is no error."""

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class ApiServer:
    """Answers /version; to any other request, that this user may not do it."""

    def __init__(self) -> None:
        self.status, self.version = 200, ""
        #: Another body than the version's.
        self.other = b""
        self.asked: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked.append(self.path)
                of_version = self.path == "/version"
                body = json.dumps({"gitVersion": outer.version} if of_version else {}).encode()
                body = outer.other if of_version and outer.other else body
                self.send_response(outer.status if of_version else 403)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def api_server() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def kubeconfig(api_server: ApiServer, tmp_path: Path) -> Path:
    file = tmp_path / "kubeconfig"
    user = {"token": "a.b.c"}
    cluster = {"server": api_server.url}
    context = {"cluster": "c", "user": "u"}
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": context}],
        "current-context": "x",
    }
    file.write_text(yaml.safe_dump(text))
    return file


async def start(kubeconfig: Path) -> None:
    cluster = KubeCluster(kubeconfig=str(kubeconfig))
    try:
        await cluster.start()
    finally:
        await cluster.close()


@pytest.mark.parametrize("text", [f"v{MAJOR}.{MINOR - 1}.9", f"v{MAJOR}.9.0", "v0.99.1"])
async def test_a_cluster_that_is_too_old_is_named_with_both_versions(
    api_server: ApiServer, kubeconfig: Path, text: str
) -> None:
    api_server.version = text
    with pytest.raises(ClusterTooOld) as error:
        await start(kubeconfig)
    assert text in str(error.value)
    assert f"needs {describe(OLDEST)} or later" in str(error.value)
    assert api_server.asked == ["/version"]


@pytest.mark.parametrize(
    "text", [f"v{MAJOR}.{MINOR}.0", f"v{MAJOR}.{MINOR}.1-gke.5", f"v{MAJOR}.100.0", "v2.0.0", "own"]
)
async def test_any_other_version_is_taken(
    api_server: ApiServer, kubeconfig: Path, text: str
) -> None:
    api_server.version = text
    with pytest.raises(Refused):  # the rights are asked for next
        await start(kubeconfig)
    assert len(api_server.asked) > 1


@pytest.mark.parametrize(
    ("status", "other"), [(403, b""), (200, b"<html>"), (200, b'{"a":' + 9_999 * b"[")]
)
async def test_a_version_that_can_not_be_read_is_logged_and_no_obstacle(
    api_server: ApiServer,
    kubeconfig: Path,
    caplog: pytest.LogCaptureFixture,
    status: int,
    other: bytes,
) -> None:
    api_server.status, api_server.other = status, other
    with caplog.at_level(logging.WARNING), pytest.raises(Refused):
        await start(kubeconfig)
    assert "does not report its version" in caplog.text
    assert len(api_server.asked) > 1


@pytest.mark.slow
def test_the_aggregator_says_so_and_ends_with_2(
    api_server: ApiServer, kubeconfig: Path, tmp_path: Path
) -> None:
    api_server.version = f"v{MAJOR}.{MINOR - 1}.9"
    config = tmp_path / "aggregator.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "cluster": {"kubeconfig": str(kubeconfig)},
                "listen": {"grpc": "127.0.0.1:0", "web": "127.0.0.1:0"},
                "identity": {"keys_cache": str(tmp_path / "jwks.json")},
                "history": {"database": f"sqlite:///{tmp_path / 'history.db'}"},
                "alerts": {"outbox": str(tmp_path / "outbox.db")},
            }
        )
    )
    done = run_program(AGGREGATOR, ["--config", config], limit=300)
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith(f"sickbay-aggregator: the cluster runs Kubernetes {api_server.version}")
    assert "Traceback" not in done.stdout
