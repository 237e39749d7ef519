"""A real Prometheus on loopback, in a folder of the test's own."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.ports import ReservedPort
from tests.controlplane.waiting import wait_until

PROGRAM = "prometheus"
#: Between two scrapes, and between two evaluations of the rules.
INTERVAL = "500ms"


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


class Prometheus:
    """It scrapes ``target`` over TLS by the authority ``ca_file``, and evaluates these rules.

    A rule's `for`, which may be hours, is one second here.
    """

    def __init__(self, folder: Path, *, target: str, ca_file: Path, rules: Sequence[Path]) -> None:
        folder.mkdir(parents=True)
        for file in rules:
            content = yaml.safe_load(file.read_text("utf-8"))
            for rule in (rule for group in content["groups"] for rule in group["rules"]):
                if "for" in rule:
                    rule["for"] = "1s"
            (folder / file.name).write_text(yaml.safe_dump(content))
        config = {
            "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": [str(folder / file.name) for file in rules],
            "scrape_configs": [
                {
                    "job_name": "sickbay",
                    "scheme": "https",
                    "tls_config": {"ca_file": str(ca_file)},
                    "static_configs": [{"targets": [target]}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._port = ReservedPort()
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    PROGRAM,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port.number}",
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, what="Prometheus is ready", timeout_s=60)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now: each with ``metric`` and ``value``."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float | None:
        """The value of the one sample, or None while there is none."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None

    def until_value(self, expression: str, value: float) -> None:
        """Wait until the one sample has this value."""
        wait_until(
            lambda: self.value(expression) == value,
            what=lambda: f"{expression} is {value}; now: {self.value(expression)}",
            timeout_s=60,
        )

    def firing(self) -> dict[str, dict[str, str]]:
        """The annotations of each alert that fires, by its name."""
        return {
            alert["labels"]["alertname"]: alert["annotations"]
            for alert in self._get("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def until_firing(self, *names: str) -> dict[str, dict[str, str]]:
        wait_until(
            lambda: self.firing().keys() >= set(names),
            what=lambda: f"{names} fire; now: {sorted(self.firing())}",
            timeout_s=60,
        )
        return self.firing()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._port.close()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            with urllib.request.urlopen(self._url("-/ready"), timeout=300) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def _get(self, what: str, **query: str) -> Any:
        path = f"api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(self._url(path), timeout=300) as answer:
            return json.load(answer)["data"]

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port.number}/{path}"
