"""The real aggregator on a PostgreSQL that dies, comes back and stands still: it goes on."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aggregator.demo.ports import free_port
from tests.controlplane.waiting import wait_until
from tests.support.aggregator_program import AGGREGATOR
from tests.support.fork_server import start_program
from tests.support.histories import Place
from tests.support.postgres import PASSWORD, PostgresServer, StartPostgres
from tests.support.simulator import Simulator
from tests.support.text_files import text_file


class Aggregator:
    """A process on a local cluster, its history on ``server``."""

    def __init__(self, folder: Path, url: str, server: PostgresServer) -> None:
        self.grpc, self._web, self.log = free_port(), free_port(), folder / "aggregator.log"
        config = {
            "mode": "drain",
            "cluster": {"kind": "local", "local": {"database": str(folder / "cluster.db")}},
            "listen": {"grpc": f"127.0.0.1:{self.grpc}", "web": f"127.0.0.1:{self._web}"},
            "identity": {"kind": "insecure-trust-hello"},
            "limits": {
                "concurrent": 100,
                "concurrent_percent": "100%",
                "pool_percent": "100%",
                "new_per_window": 100,
                "new_per_window_percent": "100%",
                "common_cause_percent": "100%",
                "domain_percent": "100%",
                "cooldown": "0s",
                "after_upgrade": "0s",
            },
            "history": {"database": url, "password_file": str(server.password_file)},
        }
        file = text_file(folder / "aggregator.yaml", yaml.safe_dump(config))
        with self.log.open("wb") as log:
            self.process = start_program(AGGREGATOR, ["--config", file], output=log)
        wait_until(lambda: self.ask("fleet"), what="the page", timeout_s=60)

    def ask(self, what: str) -> Any:
        """The answer of /api/v1/``what``, which is None while no server answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._web}/api/v1/{what}", timeout=300
            ) as answer:
                return json.load(answer)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None

    def metric(self, name: str) -> float:
        url = f"http://127.0.0.1:{self._web}/metrics"
        with urllib.request.urlopen(url, timeout=300) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])

    def end(self) -> float:
        """Seconds that it takes, in order."""
        began = time.monotonic()
        self.process.terminate()
        self.process.wait(timeout=300)
        return time.monotonic() - began


@pytest.fixture
def aggregator(tmp_path: Path, start_postgres: StartPostgres) -> Iterator[tuple[Aggregator, Place]]:
    server = start_postgres()
    place = Place(server.new_database(), server)
    one = Aggregator(tmp_path, place.url, server)
    try:
        yield one, place
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_faults_are_acted_on_while_the_database_is_away_and_all_of_it_is_kept(
    aggregator: tuple[Aggregator, Place], tmp_path: Path
) -> None:
    ours, place = aggregator
    assert place.server is not None
    kinds = "SELECT node, kind FROM transitions"
    where = ["--nodes", "4", "--aggregator", f"127.0.0.1:{ours.grpc}"]
    with Simulator(where, log=tmp_path / "simulator.log") as agents:
        agents.until_streaming(4, timeout_s=60)
        # It takes agents in before its history has tables.
        tables = "SELECT to_regclass('transitions') IS NOT NULL"
        wait_until(lambda: place.sql(tables)[0][0], what="the tables", timeout_s=60)
        agents.inject(node="sim-0001", fault="xid:79")
        told = ("sim-0001", "quarantine.cordoned")
        wait_until(
            lambda: told in map(tuple, place.sql(kinds)),
            what=lambda: (place.sql(kinds), ours.log.read_text()[-1500:]),
            timeout_s=60,
        )
        place.server.kill()
        agents.inject(node="sim-0002", fault="xid:79")
        wait_until(
            lambda: "sim-0002" in [one["node"] for one in ours.ask("quarantines")["items"]],
            what="the second quarantine",
            timeout_s=60,
        )
        wait_until(
            lambda: "Connect call failed" in ours.ask("fleet")["history_trouble"],
            what="the trouble to be said",
            timeout_s=60,
        )
        assert ours.metric("sickbay_history_up") == 0
        assert "Connect call failed" in ours.ask("nodes/sim-0002")["timeline_trouble"]
        place.server.start()
        wait_until(
            lambda: ("sim-0002", "quarantine.cordoned") in map(tuple, place.sql(kinds)),
            what="the history to catch up",
            timeout_s=90,
        )
        wait_until(
            lambda: not ours.ask("fleet")["history_trouble"], what="no trouble", timeout_s=60
        )
        assert ours.metric("sickbay_history_up") == 1
        place.server.pause()
        agents.inject(node="sim-0003", fault="xid:79")
        wait_until(
            lambda: "sim-0003" in [one["node"] for one in ours.ask("quarantines")["items"]],
            what="the third quarantine",
            timeout_s=60,
        )
        assert ours.end() < 60
        assert ours.process.returncode == 0
    assert PASSWORD not in ours.log.read_text()
