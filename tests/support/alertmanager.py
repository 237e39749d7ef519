"""A real Alertmanager on loopback, in a folder of the test's own."""

import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.controlplane.ports import ReservedPort

PROGRAM = "prometheus-alertmanager"
_START_S = 60.0
_CONFIG = "route: {receiver: none}\nreceivers: [{name: none}]\n"


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


class Alertmanager:
    """``tls``: files of its certificate and key, and of the CA of clients' certificates."""

    def __init__(
        self, folder: Path, tls: tuple[Path, Path, Path] | None = None, config: str = _CONFIG
    ) -> None:
        self._folder = folder
        self._port = ReservedPort()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._port.number}"
        (folder / "alertmanager.yml").write_text(config)
        self._web = folder / "web.yml"
        if tls is not None:
            certificate, key, clients = tls
            self._web.write_text(
                f"tls_server_config: {{cert_file: {certificate}, key_file: {key}, "
                f"client_ca_file: {clients}, client_auth_type: RequireAndVerifyClientCert}}\n"
            )

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        command = [
            PROGRAM,
            f"--config.file={self._folder / 'alertmanager.yml'}",
            f"--storage.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port.number}",
            "--cluster.listen-address=",
        ]
        if self._web.exists():
            command.append(f"--web.config.file={self._web}")
        log = (self._folder / "alertmanager.log").open("ab")
        self._process = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + _START_S
        while b"Listening on" not in (self._folder / "alertmanager.log").read_bytes():
            told = (self._folder / "alertmanager.log").read_text()
            assert self._process.poll() is None, told
            assert time.monotonic() < deadline, told
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9; it keeps no alerts."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            (self._folder / "alertmanager.log").write_bytes(b"")

    def close(self) -> None:
        self.kill()
        self._port.close()

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that last, as its API has them."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=300) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found
