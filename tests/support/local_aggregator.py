"""The real aggregator as a process on a local cluster, which trusts the agents' own claims."""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from aggregator.demo.ports import free_port
from tests.controlplane.waiting import wait_until
from tests.support.aggregator_program import AGGREGATOR
from tests.support.fork_server import start_program

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
    """It runs until `close`. ``address`` is where agents connect, ``web`` where the page is.

    Both are in plain text on loopback, or with TLS: ``tls`` has the files of the certificate, its
    key and its authority.
    """

    def __init__(
        self,
        folder: Path,
        more: Mapping[str, Any] | None = None,
        *,
        tls: tuple[Path, Path, Path] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        given = (more or {}).get("listen", {})
        self.address = given.get("grpc", f"127.0.0.1:{free_port()}")
        self.web = given.get("web", f"127.0.0.1:{free_port()}")
        self.database = folder / "cluster.db"
        self._trust = ssl.create_default_context(cafile=tls[2]) if tls is not None else None
        certificate = {"tls": {"cert_file": str(tls[0]), "key_file": str(tls[1])}} if tls else {}
        self.log_path = folder / "aggregator.log"
        config = {
            "mode": "drain",
            "cluster": {"kind": "local", "local": {"database": str(self.database)}},
            "listen": {"grpc": self.address, "web": self.web, **certificate},
            "identity": {"kind": "insecure-trust-hello"},
            "limits": LIMITS,
            "history": {"database": f"sqlite:///{folder / 'history.db'}"},
            "alerts": {"outbox": str(folder / "outbox.db")},
        }
        self._config = folder / "aggregator.yaml"
        self._config.write_text(yaml.safe_dump({**config, **(more or {})}))
        self._start()

    def _start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = start_program(AGGREGATOR, ["--config", self._config], output=log)
        wait_until(lambda: self.ask("fleet"), what="the page", timeout_s=60)

    def kill_and_restart(self) -> None:
        """kill -9, and the same program on the same files."""
        self.process.kill()
        self.process.wait()
        self._start()

    def ask(self, what: str) -> Any:
        """The answer of /api/v1/``what``, or None while there is none, or it is unknown."""
        try:
            with self._open(f"api/v1/{what}", timeout=300) as answer:
                return json.load(answer)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None

    def alive(self) -> float:
        """Seconds that /healthz takes to answer."""
        began = time.monotonic()
        with self._open("healthz", timeout=300) as answer:
            assert answer.status == 200
        return time.monotonic() - began

    def metric(self, name: str) -> float:
        with self._open("metrics", timeout=300) as answer:
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

    def _open(self, path: str, *, timeout: float) -> Any:
        scheme = "https" if self._trust is not None else "http"
        url = f"{scheme}://{self.web}/{path}"
        return urllib.request.urlopen(url, timeout=timeout, context=self._trust)
