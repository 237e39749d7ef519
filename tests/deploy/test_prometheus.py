"""A real Prometheus scrapes a running aggregator over TLS and evaluates the shipped rules while
faults are injected.
"""

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.ports import ReservedPort
from tests.controlplane.waiting import wait_until
from tests.dashboard.panels import scoped
from tests.deploy.test_alert_rules import FILES
from tests.deploy.test_dashboard import QUERIES, chosen
from tests.support.local_aggregator import LIMITS, LocalAggregator
from tests.support.pki import Authority
from tests.support.simulator import Simulator
from tests.support.yaml_documents import read_yaml

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
            content = read_yaml(file.read_text("utf-8"))
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


pytestmark = pytest.mark.skipif(
    not is_installed(),
    reason="there is no prometheus: tests/setup-debian.sh installs it",
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "pki")


@pytest.fixture
def aggregator(tmp_path: Path, authority: Authority) -> Iterator[LocalAggregator]:
    pair = authority.server("aggregator", ["localhost", "127.0.0.1"])
    found = LocalAggregator(
        tmp_path / "aggregator",
        {"limits": LIMITS | {"concurrent": 1}},
        tls=(pair.certificate, pair.key, authority.certificate),
    )
    yield found
    found.close()


@pytest.fixture
def watcher(
    tmp_path: Path, authority: Authority, aggregator: LocalAggregator
) -> Iterator[Prometheus]:
    found = Prometheus(
        tmp_path / "prometheus",
        target=aggregator.web,
        ca_file=authority.certificate,
        rules=FILES,
    )
    yield found
    found.close()


#: Two nodes have failed, and a limit lets one of them be quarantined: 8 of 24 GPUs.
COUNTED = {
    'sickbay_gpus{quarantined="true",state="failed"}': 1,
    "sickbay_kernel_to_ingest_seconds_count": 2,
    "sickbay_ingest_to_decision_seconds_count": 2,
    'sickbay_decision_to_taint_seconds_count{held="false"}': 1,
    "sickbay_taint_to_drained_seconds_count": 1,
    'sickbay_quarantine_causes_total{code="xid:79"}': 1,
    "sickbay:gpus_quarantined:ratio": 8 / 24,
}


def sickbay(*arguments: str) -> None:
    program = Path(sys.executable).parent / "sickbay"
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=300)


def test_the_shipped_alerts_fire_when_faults_are_injected(
    tmp_path: Path, authority: Authority, aggregator: LocalAggregator, watcher: Prometheus
) -> None:
    # The certificate of the test is valid for two days.
    found = watcher.until_firing("SickbayWatchdog", "SickbayCertificateExpires")
    # On a busy machine two answers may be late, which are absent ones.
    assert found.keys() - {"SickbayAbsent"} == {"SickbayWatchdog", "SickbayCertificateExpires"}
    assert "ends in 1d 2" in found["SickbayCertificateExpires"]["summary"]
    line: list[str | Path] = ["--nodes", "3", "--aggregator", aggregator.address]
    line += ["--ca-file", authority.certificate]
    with Simulator(line, log=tmp_path / "simulator.log") as nodes:
        nodes.until_streaming(3)
        nodes.inject(node="sim-0001", fault="xid:79")
        full = watcher.until_firing("SickbayLimitFull")["SickbayLimitFull"]
        assert full["summary"] == "sickbay's limit limits.concurrent is used up."
        nodes.inject(node="sim-0002", fault="xid:79")
        held = watcher.until_firing("SickbayNodesHeld")["SickbayNodesHeld"]
        assert held["summary"].startswith("Nodes that should be in quarantine, held back by ")
        for series, number in COUNTED.items():
            watcher.until_value(series, number)
        for query in QUERIES:  # an expression that is none is refused
            watcher.query(chosen(query))
        watcher.until_value(chosen(scoped("sum(sickbay_quarantines)")), 1)
        # The first of the day: its series began at 0.
        watcher.until_value("sum(sickbay:quarantine_causes:increase_1d) > bool 0", 1)
        sickbay("stop", "--local", str(aggregator.database), "--reason", "a drill")
        watcher.until_firing("SickbayStopped")
    aggregator.close()
    watcher.until_firing("SickbayAbsent")
    assert "SickbayWatchdog" not in watcher.firing()
