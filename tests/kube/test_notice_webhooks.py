"""Webhooks of ``drain.notice`` that misbehave: a real API server, an HTTPS server as a process."""

import asyncio
import json
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aggregator.clock import Clocks
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.hooks.factory import notice_hooks
from aggregator.jobs.settings import NoticeRules, NoticeWebhook
from aggregator.workloads.notices import EvictionNotices, WebhookRoute
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_kube_drain import SETTINGS, aggregator, pod, pods_left, until
from tests.support.pki import Authority

ROOT = Path(__file__).parents[2]
READY = {"huge", "recovers"}
WAITS = {"never", "twice", "broken", "redirects"}
CASES = READY | WAITS | {"gone"}


@dataclass
class Server:
    url: str
    context: ssl.SSLContext

    def get(self, path: str = "/") -> dict[str, Any]:
        with urllib.request.urlopen(self.url + path, timeout=30, context=self.context) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Its authority is one of those that aiohttp trusts, as a site's own would be."""
    authority = Authority.create(tmp_path / "authority")
    pair = authority.server("hook", ["127.0.0.1"])
    context = ssl.create_default_context(cafile=str(authority.certificate))
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", context)
    command = [sys.executable, "-m", "tests.support.hostile_webhook"]
    command += [str(pair.certificate), str(pair.key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield Server(f"https://127.0.0.1:{port}", context)
        process.kill()


def routes(server: Server, secret: Path, namespace: str) -> list[WebhookRoute]:
    webhooks = [
        NoticeWebhook.model_validate(
            {
                "match": namespace,
                "pods": f"case={case}",
                "url": f"{server.url}/{case}",
                "secret_file": str(secret),
            }
        )
        for case in sorted(CASES)
    ]
    return [WebhookRoute(takes, hook) for takes, hook in notice_hooks(webhooks, wall=time.time)]


async def test_no_misbehaviour_of_a_webhook_evicts_a_pod_early_or_holds_another(
    kube: KubeCluster, cluster_space: Space, server: Server, tmp_path: Path
) -> None:
    space, [node] = cluster_space, cluster_space.create_nodes(1)
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    for case in sorted(CASES):
        await pod(space, node, case, labels={"case": case})
    notices = EvictionNotices(
        kube,
        rules=NoticeRules(within=3600),
        webhooks=routes(server, secret, space.namespace),
        keys=(),
        clocks=Clocks(time.monotonic, time.time),
    )
    async with aggregator(kube, space, replace(SETTINGS, waits=notices)) as running:
        await running.quarantine_by_hand(node)
        await until(lambda: pods_left(space), lambda left: not READY & set(left))
        calls = await until(
            lambda: asyncio.to_thread(server.get),
            lambda found: (
                found["calls"].get("/broken", 0) > 1 and found["calls"].get("/redirects", 0) > 1
            ),
        )
        assert set(await pods_left(space)) == CASES - READY
        path = f"{space.path('pods', 'gone')}?gracePeriodSeconds=0"
        await asyncio.to_thread(space.plane.call, "DELETE", path)
        await asyncio.to_thread(server.get, "/go")  # "ready", for a pod that is gone
        await until(lambda: pods_left(space), lambda left: "gone" not in left)
        for case in sorted(WAITS):
            assert "may end by itself" in await running.until_blocked(
                node, f"{space.namespace}/{case}"
            )
        status = await running.status(node)
        states = {one["workload"].partition(" ")[0]: one for one in status["notices"]}
        for case in CASES:
            found = states[f"{space.namespace}/{case}"]
            assert found["state"] == ("Ready" if case in READY else "Sent"), found
            assert len(found.get("message", "")) <= 500
        await running.release(node)
    assert calls["calls"]["/recovers"] == 2
    assert calls["calls"]["/huge"] == calls["calls"]["/twice"] == 1
    assert "/elsewhere" not in calls["calls"]
    for ids in calls["deliveries"].values():
        assert len(set(ids)) == 1  # a receiver knows a call that it has had
    assert len({ids[0] for ids in calls["deliveries"].values()}) == len(calls["deliveries"])
