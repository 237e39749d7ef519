"""The real aggregator and a receiver of its alerts that is away, and comes back."""

import json
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aggregator.demo.ports import free_port
from tests.controlplane.waiting import wait_until
from tests.support.simulator import Simulator


class Taker(BaseHTTPRequestHandler):
    """Accepts every request."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Writes no line to stderr."""


def test_a_receiver_that_is_away_is_told_of_until_it_takes_alerts_again(tmp_path: Path) -> None:
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
  webhooks: [{{url: "http://127.0.0.1:{receiver}/x", secret_file: {tmp_path}/secret}}]
"""
    )

    def trouble() -> Any:
        """The trouble that the API reports, or None while no server answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{web}/api/v1/fleet") as answer:
                return json.load(answer)["alert_trouble"]
        except OSError:
            return None

    program = Path(sys.executable).parent / "sickbay-aggregator"
    log = tmp_path / "aggregator.log"
    with log.open("wb") as out:
        process = subprocess.Popen([program, "run", "--config", file], stdout=out, stderr=out)
    try:
        wait_until(lambda: trouble() == "", what=log.read_text, timeout_s=60)
        where = ["--nodes", "1", "--aggregator", f"127.0.0.1:{grpc}"]
        with Simulator(where, log=tmp_path / "simulator.log") as agents:
            agents.until_streaming(1, timeout_s=60)
            agents.inject(node="sim-0001", fault="xid:79")
            away = f"webhook 127.0.0.1:{receiver}: can't be reached"
            wait_until(lambda: away in (trouble() or ""), what=log.read_text, timeout_s=60)
            server = ThreadingHTTPServer(("127.0.0.1", receiver), Taker)
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                wait_until(lambda: trouble() == "", what=log.read_text, timeout_s=120)
            finally:
                server.shutdown()
                thread.join()
                server.server_close()
    finally:
        process.terminate()
        process.wait(timeout=60)
