"""The real aggregator and a receiver of its alerts that is away, and comes back."""

import json
import re
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aggregator.demo.ports import free_port
from tests.controlplane.waiting import wait_until
from tests.support.aggregator_program import AGGREGATOR
from tests.support.fork_server import start_program
from tests.support.simulator import Simulator

GPU = re.compile(r"on GPU \d at [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}")
TAKEN: list[dict[str, Any]] = []


class Taker(BaseHTTPRequestHandler):
    """Accepts every request, and keeps its alerts."""

    def do_POST(self) -> None:
        TAKEN.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Writes no line to stderr."""


def test_a_receiver_that_was_away_gets_the_alert_with_its_gpu_and_advice(tmp_path: Path) -> None:
    grpc, web, receiver = free_port(), free_port(), free_port()
    (tmp_path / "secret").write_text("s")
    file = tmp_path / "aggregator.yaml"
    file.write_text(
        f"""cluster: {{kind: local, local: {{database: {tmp_path}/cluster.db}}}}
listen: {{grpc: "127.0.0.1:{grpc}", web: "127.0.0.1:{web}"}}
identity: {{kind: insecure-trust-hello}}
history: {{database: "sqlite:///{tmp_path}/history.db"}}
alerts:
  outbox: {tmp_path}/outbox.db
  receivers:
    - name: hook
      webhook: {{url: "http://127.0.0.1:{receiver}/x", secret_file: {tmp_path}/secret}}
  routes: [{{name: all, receiver: hook}}]
"""
    )

    def trouble() -> Any:
        """The trouble that the API reports, or None while no server answers."""
        try:
            return of_api("fleet")["alert_trouble"]
        except OSError:
            return None

    def of_api(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/api/v1/{path}") as answer:
            return json.load(answer)

    log = tmp_path / "aggregator.log"
    with log.open("wb") as out:
        process = start_program(AGGREGATOR, ["--config", file], output=out)
    try:
        wait_until(lambda: trouble() == "", what=log.read_text, timeout_s=60)
        where = ["--nodes", "1", "--aggregator", f"127.0.0.1:{grpc}"]
        with Simulator(where, log=tmp_path / "simulator.log") as agents:
            agents.until_streaming(1, timeout_s=60)
            agents.inject(node="sim-0001", fault="xid:79")
            away = "route all (webhook hook): can't be reached"
            wait_until(lambda: away in (trouble() or ""), what=log.read_text, timeout_s=60)
            server = ThreadingHTTPServer(("127.0.0.1", receiver), Taker)
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                wait_until(lambda: trouble() == "" and TAKEN, what=log.read_text, timeout_s=120)
            finally:
                server.shutdown()
                thread.join()
                server.server_close()
            told = TAKEN[0]
            assert GPU.search(told["summary"])
            assert "Reboot the node" in told["advice"]
            assert "sickbay explain sim-0001" in told["advice"]
            [incident] = of_api("nodes/sim-0001")["incidents"]
            found = of_api("transitions")["items"]
            [event] = [one for one in found if one["kind"] == "incident.opened"]
            for text in (told["summary"], incident["summary"], event["summary"]):
                assert GPU.search(text)
                assert "GPU-" not in text
            assert event["details"]["evidence"].startswith("xid:79 GPU-")
    finally:
        process.terminate()
        process.wait(timeout=300)
