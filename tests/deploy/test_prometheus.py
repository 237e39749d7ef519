"""A real Prometheus scrapes a running aggregator over TLS and evaluates the shipped rules while
faults are injected.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.panels import scoped
from tests.deploy.test_alert_rules import FILES
from tests.deploy.test_dashboard import QUERIES, chosen
from tests.support import prometheus
from tests.support.local_aggregator import LIMITS, LocalAggregator
from tests.support.pki import Authority
from tests.support.prometheus import Prometheus
from tests.support.simulator import Simulator

pytestmark = pytest.mark.skipif(
    not prometheus.is_installed(),
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
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=60)


def test_the_shipped_alerts_fire_when_faults_are_injected(
    tmp_path: Path, authority: Authority, aggregator: LocalAggregator, watcher: Prometheus
) -> None:
    # The certificate of the test is valid for two days.
    found = watcher.until_firing("SickbayWatchdog", "SickbayCertificateExpires")
    assert found.keys() == {"SickbayWatchdog", "SickbayCertificateExpires"}
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
        assert held["summary"].startswith("1 nodes that should be in quarantine are held back by")
        for series, number in COUNTED.items():
            watcher.until_value(series, number)
        for query in QUERIES:  # an expression that is none is refused
            watcher.query(chosen(query))
        [quarantines] = watcher.query(chosen(scoped("sum(sickbay_quarantines)")))
        assert quarantines["value"][1] == "1"
        # The first of the day: its series began at 0.
        watcher.until_value("sum(sickbay:quarantine_causes:increase_1d) > bool 0", 1)
        sickbay("stop", "--local", str(aggregator.database), "--reason", "a drill")
        watcher.until_firing("SickbayStopped")
    aggregator.close()
    watcher.until_firing("SickbayAbsent")
    assert "SickbayWatchdog" not in watcher.firing()
