"""slurm-operator (Slinky) itself on a real API server: its drains and ours end, and none loops.

The operator is built of its published module; slurmrestd is a server by its published document.
"""

import asyncio
import base64
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aggregator.quarantine.drain import drainer
from aggregator.quarantine.reconcile import rounds
from aggregator.workloads.slurm_pods import SlurmPods
from tests.controlplane import sources
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.binaries import program
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_coexistence import with_marks
from tests.kube.test_kube_drain import SETTINGS, Aggregator, aggregator, pods_left, until
from tests.support.kube_cluster import DEPLOY, unreviewed_cluster
from tests.support.new_slurm import NewSlurm
from tests.support.workload_objects import Site, defined

SLINKY = "slinky.slurm.net/v1beta1"
CORDON_REASON = "nodeset.slinky.slurm.net/node-cordon-reason"
#: Where the operator looks for slurmrestd with DEBUG=1.
PORT = 6820
POD = "h100-0"


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in tests/kube: the controller goes on at once where time has to pass."""
    monkeypatch.setattr(drainer, "EMPTY_FOR", 0.5)
    monkeypatch.setattr(drainer, "STATUS_EVERY", 0.5)
    monkeypatch.setattr(rounds, "ROUNDS", 1.0)


class Slurmrestd(NewSlurm):
    """The newest document's server, for any token. ``writes``: states and reasons of the node."""

    def __init__(self) -> None:
        super().__init__("v0.0.44")
        self.nodes = {POD: self.nodes["n1"] | {"name": POD, "state": ["MIXED"]}}
        self.writes: list[tuple[str, str]] = []
        self.reads = 0

    def respond(
        self, method: str, path: str, token: str, body: Mapping[str, Any] | None
    ) -> tuple[int, dict[str, Any] | str]:
        self.token = token
        self.reads += method == "GET" and "/node" in path
        return super().respond(method, path, token, body)

    def update(self, node: dict[str, Any], body: Mapping[str, Any]) -> None:
        base = node["state"][0]
        super().update(node, body)
        node["state"][0] = base
        if "state" in body:
            self.writes.append((body["state"][0], body.get("reason", "")))

    @property
    def state(self) -> list[str]:
        found: list[str] = self.nodes[POD]["state"]
        return found

    @property
    def reason(self) -> str:
        return str(self.nodes[POD]["reason"])


@pytest.fixture
def slurm() -> Iterator[Slurmrestd]:
    made = Slurmrestd()

    class Handler(BaseHTTPRequestHandler):
        """Not aiohttp's: slurm-client sends the header Content-Type twice, which that refuses."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length", "0"))
            body = json.loads(self.rfile.read(size)) if size else None
            token = self.headers.get("X-SLURM-USER-TOKEN", "")
            status, found = made.respond(self.command, self.path.partition("?")[0], token, body)
            content = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - as the library calls it

        def log_message(self, *_: object) -> None:
            """No line for each request."""

    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def site(control_plane: ControlPlane, cluster_space: Space) -> Iterator[Site]:
    """A node in a plane that knows all objects of slurm-operator and of sickbay."""
    [node] = cluster_space.create_nodes(1)
    folder = sources.workload_definitions()["slurm-operator"].folder / "config/crd/bases"
    control_plane.apply(DEPLOY / "crd.yaml")
    with defined(control_plane, sorted(folder.glob("*.yaml"))):
        yield Site(cluster_space, node)


@pytest.fixture
def operator(site: Site, slurm: Slurmrestd, tmp_path: Path) -> Iterator[Path]:
    """slurm-operator with a cluster of one slurmd pod; its log."""
    del slurm
    built, log = program("slurm-operator"), tmp_path / "operator.log"
    key = base64.b64encode(os.urandom(32)).decode()
    secret = {"metadata": {"name": "slurm"}, "data": {"slurm.key": key, "jwt.key": key}}
    site.plane.call("POST", site.space.path("secrets"), secret)
    keys = {
        "slurmKeyRef": {"name": "slurm", "key": "slurm.key"},
        "jwtHs256KeyRef": {"name": "slurm", "key": "jwt.key"},
    }
    image = {"image": "example.test/slurm:1"}
    [other] = site.space.create_nodes(1, start=500)  # the operator needs slurmrestd in any case

    def on(node: str) -> dict[str, Any]:
        return {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}}

    own = {"slurmctld": image, "reconfigure": image, "logfile": image} | on(other)
    site.create(SLINKY, "Controller", "slurm", keys | own | {"persistence": {"enabled": False}})
    ref = {"controllerRef": {"name": "slurm", "namespace": site.space.namespace}}
    site.create(SLINKY, "RestApi", "slurm", ref | {"slurmrestd": image} | on(other))
    worker = {"replicas": 1, "slurmd": image, "logfile": image} | on(site.node)
    site.create(SLINKY, "NodeSet", "h100", ref | worker)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [built, "--health-addr=0", "--metrics-addr=0", "--zap-log-level=4"],
            env=os.environ | {"KUBECONFIG": str(site.plane.kubeconfig), "DEBUG": "1"},
            stdout=output,
            stderr=output,
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait()


async def node_of(site: Site) -> dict[str, Any]:
    path = f"/api/v1/nodes/{site.node}"
    found: dict[str, Any] = await asyncio.to_thread(site.plane.call, "GET", path)
    return found


async def until_reconciled(site: Site, slurm: Slurmrestd) -> None:
    """The operator has read Slurm and its own objects three times more: it does so at changes."""
    path = f"/apis/{SLINKY}/namespaces/{site.space.namespace}/nodesets/h100"
    for _ in range(3):
        seen = slurm.reads
        body = {"metadata": {"annotations": {"example.test/reads": str(seen)}}}
        await asyncio.to_thread(site.plane.call, "PATCH", path, body, MERGE_PATCH)
        await until(lambda: asyncio.sleep(0, slurm.reads), lambda reads: reads > seen)  # noqa: B023


async def conditions(site: Site) -> set[str]:
    """The states of the Slurm node that the operator has written to the pod."""
    answer = await asyncio.to_thread(site.plane.request, "GET", site.space.path("pods", POD))
    listed = answer.body.get("status", {}).get("conditions", ()) if answer.status == 200 else ()
    return {
        one["type"].removeprefix("SlurmNodeState")
        for one in listed
        if one["status"] == "True" and one["type"].startswith("SlurmNodeState")
    }


async def test_our_drain_is_slurms_ends_with_its_jobs_and_is_taken_back_without_a_loop(
    site: Site, slurm: Slurmrestd, operator: Path
) -> None:
    space, settings = site.space, with_marks(SETTINGS, reason_annotation=CORDON_REASON)
    settings = replace(settings, waits=SlurmPods(86400.0))
    try:
        await until(lambda: conditions(site), lambda found: "Mixed" in found)
    except TimeoutError:
        pytest.fail(await asyncio.to_thread(operator.read_text))
    kubeconfig = space.plane.kubeconfig
    async with (
        unreviewed_cluster(kubeconfig, namespace=space.namespace) as kube,
        aggregator(kube, space, settings) as running,
    ):
        await running.quarantine_by_hand(site.node)
        await until(lambda: asyncio.sleep(0, slurm.reason), bool)
        assert slurm.reason.startswith("slurm-operator: sickbay: ")
        await _blocked_while_slurm_drains(site, slurm, running)
        slurm.nodes[POD]["state"][0] = "IDLE"  # its job has ended
        await until_reconciled(site, slurm)
        await running.until_phase(site.node, "Drained")
        left = await pods_left(space)
        assert not [name for name, deleting in left.items() if name == POD and not deleting] or (
            "Pending" in await _phase(site)
        )
        await _nothing_more_is_written(site, slurm)
        await running.release(site.node)
        await until(lambda: asyncio.sleep(0, slurm.state), lambda state: "DRAIN" not in state)
        await _nothing_more_is_written(site, slurm)
        assert not (await node_of(site))["spec"].get("unschedulable")
        drains = [state for state, _ in slurm.writes]
        assert (drains.count("DRAIN"), drains.count("UNDRAIN")) == (1, 1), slurm.writes


async def _phase(site: Site) -> str:
    answer = await asyncio.to_thread(site.plane.request, "GET", site.space.path("pods", POD))
    return str(answer.body.get("status", {}).get("phase", "Pending"))


async def _blocked_while_slurm_drains(site: Site, slurm: Slurmrestd, running: Aggregator) -> None:
    await until(lambda: conditions(site), lambda found: {"Mixed", "Drain"} <= found)
    reason = await running.until_blocked(site.node, f"{site.space.namespace}/{POD}")
    assert "Slurm lets its jobs end" in reason
    await _nothing_more_is_written(site, slurm)
    assert (await pods_left(site.space)).get(POD) is False, "its jobs would die with it"


async def _nothing_more_is_written(site: Site, slurm: Slurmrestd) -> None:
    await until_reconciled(site, slurm)
    written, before = len(slurm.writes), (await node_of(site))["metadata"]["resourceVersion"]
    await until_reconciled(site, slurm)
    assert len(slurm.writes) == written, slurm.writes
    assert (await node_of(site))["metadata"]["resourceVersion"] == before


async def test_a_persons_drain_in_slurm_closes_no_node_and_stays_through_ours(
    site: Site, slurm: Slurmrestd, operator: Path
) -> None:
    space, settings = site.space, with_marks(SETTINGS, reason_annotation=CORDON_REASON)
    settings = replace(settings, waits=SlurmPods(86400.0))
    del operator
    await until(lambda: conditions(site), lambda found: "Mixed" in found)
    slurm.nodes[POD] |= {"state": ["MIXED", "DRAIN"], "reason": "fan 3 dead RMA 123"}
    await until_reconciled(site, slurm)
    await until(lambda: conditions(site), lambda found: "Drain" in found)
    async with (
        unreviewed_cluster(space.plane.kubeconfig, namespace=space.namespace) as kube,
        aggregator(kube, space, settings) as running,
    ):
        await _nothing_more_is_written(site, slurm)
        assert not (await node_of(site))["spec"].get("unschedulable")
        await running.quarantine_by_hand(site.node)
        await running.until_blocked(site.node, f"{space.namespace}/{POD}")
        slurm.nodes[POD]["state"][0] = "IDLE"
        await until_reconciled(site, slurm)
        await running.until_phase(site.node, "Drained")
        await running.release(site.node)
        await _nothing_more_is_written(site, slurm)
    assert (slurm.state[1:], slurm.reason) == (["DRAIN"], "fan 3 dead RMA 123")
    assert slurm.writes == []
    body = {"metadata": {"annotations": {CORDON_REASON: None}}}
    site.plane.call("PATCH", f"/api/v1/nodes/{site.node}", body, MERGE_PATCH)
