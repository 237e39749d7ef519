"""Access control of the real aggregator, as its configuration asks for it."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.waiting import wait_until
from tests.support.local_aggregator import LocalAggregator
from tests.support.simulator import Simulator

TOKEN = "t" * 24


class GuardedAggregator(LocalAggregator):
    """It asks with the token of a viewer."""

    token = TOKEN

    def _open(self, path: str, *, timeout: float) -> Any:
        request = urllib.request.Request(
            f"http://{self.web}/{path}", headers={"Authorization": f"Bearer {self.token}"}
        )
        return urllib.request.urlopen(request, timeout=timeout)

    def act(self, path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            f"http://{self.web}/api/v1/{path}",
            data=json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[GuardedAggregator]:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN},dashboards,viewer\n")
    more = {"access": {"anonymous": False, "tokens_file": str(file)}}
    running = GuardedAggregator(tmp_path / "aggregator", more)
    try:
        yield running
    finally:
        running.close()


def test_the_configuration_closes_the_page_and_the_metrics(aggregator: GuardedAggregator) -> None:
    assert aggregator.ask("fleet")["mode"] == "drain"
    assert aggregator.metric("sickbay_stopped") == 0
    aggregator.token = "x" * 24
    for path in ("", "metrics", "api/v1/fleet", "api/v1/stream"):
        with pytest.raises(urllib.error.HTTPError) as raised:
            aggregator._open(path, timeout=300)
        assert raised.value.code == 401
    assert aggregator.alive() < 60
    assert '"event": "access.refused"' in aggregator.log()
    for token in (TOKEN, aggregator.token):
        assert token not in aggregator.log()


def test_a_node_whose_agent_reports_is_no_unknown_name_to_a_person_who_acts(
    tmp_path: Path,
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN},otto,operator\n")
    more = {"access": {"anonymous": False, "actions": True, "tokens_file": str(file)}}
    running = GuardedAggregator(tmp_path / "aggregator", more)
    try:
        names = ["--nodes", "1", "--aggregator", running.address]
        with Simulator(names, log=tmp_path / "simulator.log"):
            wait_until(lambda: running.ask("nodes/sim-0001"), what="the agent's node")
            known = running.act("nodes/sim-0001/quarantine", reason="a fan")
            unknown = running.act("nodes/sim-0002/quarantine", reason="a fan", dry_run=True)
    finally:
        running.close()
    assert known["message"].startswith("sim-0001: cordon asked for: a fan")
    assert "BUT" not in known["message"]
    assert "BUT: this file has no node sim-0002" in unknown["message"]


def test_a_file_of_tokens_that_can_not_be_used_ends_the_start_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("short,a,viewer\n")
    file = tmp_path / "aggregator.yaml"
    file.write_text(
        f"cluster: {{kind: local, local: {{database: {tmp_path}/cluster.db}}}}\n"
        "listen: {grpc: '127.0.0.1:0', web: 'localhost:0'}\n"
        "identity: {kind: insecure-trust-hello}\n"
        f"history: {{database: 'sqlite:///{tmp_path}/history.db'}}\n"
        f"alerts: {{outbox: {tmp_path}/outbox.db}}\n"
        "access: {anonymous: false, tokens_file: tokens}\n"
    )
    program = Path(sys.executable).parent / "sickbay-aggregator"
    done = subprocess.run(
        [program, "run", "--config", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert f"access.tokens_file: {tmp_path}/tokens:1: the token is shorter" in done.stderr
    assert "Traceback" not in done.stderr
