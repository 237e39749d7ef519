"""The real aggregator as a process on a local cluster, which trusts the agents' own claims."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.controlplane.waiting import wait_until
from tests.support.stack import free_port

LIMITS = {
    "concurrent": 100,
    "concurrent_percent": "100%",
    "pool_percent": "100%",
    "new_per_window": 100,
    "new_per_window_percent": "100%",
    "common_cause_percent": "100%",
    "domain_percent": "100%",
    "quorum_percent": "0%",
    "cooldown": "0s",
    "after_upgrade": "0s",
}


class LocalAggregator:
    """It runs until `close`. ``address`` is where agents connect, in plain text on loopback."""

    def __init__(self, folder: Path, more: Mapping[str, Any] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port, self._web = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.log_path = folder / "aggregator.log"
        config = {
            "mode": "drain",
            "cluster": {"kind": "local", "local": {"database": str(folder / "cluster.db")}},
            "listen": {"grpc": self.address, "web": f"127.0.0.1:{self._web}"},
            "identity": {"kind": "insecure-trust-hello"},
            "limits": LIMITS,
            "history": {"database": f"sqlite:///{folder / 'history.db'}"},
            "alerts": {"outbox": str(folder / "outbox.db")},
        }
        file = folder / "aggregator.yaml"
        file.write_text(yaml.safe_dump({**config, **(more or {})}))
        program = Path(sys.executable).parent / "sickbay-aggregator"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [program, "run", "--config", file], stderr=log, stdout=log
            )
        wait_until(lambda: self.ask("fleet"), what="the page", timeout_s=60)

    def ask(self, what: str) -> Any:
        """The answer of /api/v1/``what``, or None while there is none, or it is unknown."""
        try:
            with urllib.request.urlopen(self._url(f"api/v1/{what}"), timeout=20) as answer:
                return json.load(answer)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None

    def alive(self) -> float:
        """Seconds that /healthz takes to answer."""
        began = time.monotonic()
        with urllib.request.urlopen(self._url("healthz"), timeout=60) as answer:
            assert answer.status == 200
        return time.monotonic() - began

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self._url("metrics"), timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])

    def resident(self) -> int:
        """Bytes of its memory."""
        return psutil.Process(self.process.pid).memory_info().rss

    def log(self) -> str:
        return self.log_path.read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._web}/{path}"
