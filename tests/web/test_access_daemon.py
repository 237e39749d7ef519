"""Access control of the real aggregator, as its configuration asks for it."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.controlplane.waiting import wait_until
from tests.support.aggregator_program import AGGREGATOR
from tests.support.fork_server import run_program
from tests.support.local_aggregator import LocalAggregator
from tests.support.simulator import Simulator
from tests.support.text_files import text_file
from tests.web.oidc_issuer import CLIENT, SECRET, issuing

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
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[GuardedAggregator]:
    file = text_file(tmp_path / "tokens", f"{TOKEN},dashboards,viewer\n")
    more = {"access": {"anonymous": False, "tokens_file": str(file)}}
    running = GuardedAggregator(tmp_path / "aggregator", more)
    with closing(running):
        yield running


def test_the_configuration_closes_the_page_and_the_metrics(aggregator: GuardedAggregator) -> None:
    assert aggregator.ask("fleet")["mode"] == "drain"
    assert aggregator.metric("sickbay_stopped") == 0
    aggregator.token = "x" * 24
    for path in ("", "metrics", "api/v1/fleet", "api/v1/stream"):
        with pytest.raises(urllib.error.HTTPError) as raised:
            aggregator._open(path, timeout=300)
        with raised.value as refusal:
            assert refusal.code == 401
    assert aggregator.alive() < 60
    assert '"event": "access.refused"' in aggregator.log()
    for token in (TOKEN, aggregator.token):
        assert token not in aggregator.log()


def test_a_node_whose_agent_reports_is_no_unknown_name_to_a_person_who_acts(tmp_path: Path) -> None:
    file = text_file(tmp_path / "tokens", f"{TOKEN},otto,operator\n")
    more = {"access": {"anonymous": False, "actions": True, "tokens_file": str(file)}}
    running = GuardedAggregator(tmp_path / "aggregator", more)
    with closing(running):
        names = ["--nodes", "1", "--aggregator", running.address]
        with Simulator(names, log=tmp_path / "simulator.log"):
            wait_until(lambda: running.ask("nodes/sim-0001"), what="the agent's node")
            known = running.act("nodes/sim-0001/quarantine", reason="a fan")
            unknown = running.act("nodes/sim-0002/quarantine", reason="a fan", dry_run=True)
    assert known["message"].startswith("sim-0001: cordon requested: a fan")
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
    done = run_program(AGGREGATOR, ["--config", file], limit=300)
    assert done.returncode != 0
    assert f"access.tokens_file: {tmp_path}/tokens:1: the token is shorter" in done.stderr
    assert "Traceback" not in done.stderr


async def test_people_log_in_and_act_by_openid_connect(tmp_path: Path) -> None:
    """The real program with a real provider: an operator acts, a viewer does not."""
    tokens, secret = tmp_path / "tokens", tmp_path / "secret"
    tokens.write_text(f"{TOKEN},dashboards,viewer\n")
    secret.write_text(SECRET)
    async with issuing(time.time) as issuer, aiohttp.ClientSession() as session:
        oidc = {
            "issuer": issuer.url,
            "client_id": CLIENT,
            "client_secret_file": str(secret),
            "page": "http://localhost:1",
            "viewers": ["everyone"],
            "operators": ["sre"],
        }
        access = {"anonymous": False, "actions": True, "tokens_file": str(tokens), "oidc": oidc}
        folder = tmp_path / "aggregator"
        running = await asyncio.to_thread(GuardedAggregator, folder, {"access": access})
        base = f"http://{running.web}"

        async def log_in(*groups: str) -> dict[str, str]:
            """The cookie of the session. The redirect goes to the page's own address."""
            issuer.claims["groups"] = list(groups)
            begin = f"{base}/login/oidc"
            async with session.get(begin, allow_redirects=False) as answer:
                cookie, url = answer.cookies["sickbay-log-in"].value, answer.headers["Location"]
            async with session.get(url, allow_redirects=False) as answer:
                query = answer.headers["Location"].partition("?")[2]
            headers = {"Cookie": f"sickbay-log-in={cookie}"}
            async with session.get(f"{begin}/callback?{query}", headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                return {"Cookie": f"sickbay-session={answer.cookies['sickbay-session'].value}"}

        async def stop(headers: dict[str, str]) -> tuple[int, Any]:
            own = {"X-Sickbay-Action": "1"}
            url = f"{base}/api/v1/stop"
            async with session.post(url, json={"reason": "x"}, headers=headers | own) as answer:
                return answer.status, await answer.json()

        try:
            viewer, operator = await log_in("everyone"), await log_in("sre")
            async with session.get(f"{base}/api/v1/fleet", headers=viewer) as answer:
                assert answer.status == 200
            status, told = await stop(viewer)
            assert status == 403
            assert "access.oidc.operators" in told["hint"]
            assert (await stop(operator))[0] == 200

            def stopped() -> Any:
                return running.ask("fleet")["stop"]

            await asyncio.to_thread(wait_until, stopped, what="the stop")
            assert "oidc:ada@example.com" in stopped()
            log = running.log()
            assert '"user": "ada@example.com"' in log
            assert SECRET not in log
        finally:
            await asyncio.to_thread(running.close)
