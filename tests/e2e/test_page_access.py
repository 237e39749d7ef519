"""Two replicas whose pages have access control: readers, each other, and a person who acts."""

import http.client
import json
import ssl
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.pytest_plugin import Space
from tests.controlplane.waiting import wait_until
from tests.kube.test_page_access import bind
from tests.support.kube_cluster import DEPLOY
from tests.support.replica_processes import TRUSTING_TLS, Replicas
from tests.support.stack import NAMESPACE, remove_quarantines

pytestmark = pytest.mark.cluster

MORE: dict[str, Any] = {**TRUSTING_TLS, "access": {"anonymous": False, "actions": True}}


class ClosedPages:
    """Two replicas and their simulated nodes."""

    def __init__(self, space: Space, folder: Path, ends: ExitStack) -> None:
        plane = space.plane
        self.nodes = space.create_nodes(6)
        ends.callback(remove_quarantines, plane, space.node_prefix)
        self.replicas = ends.enter_context(Replicas(plane, folder / "r", count=2, more=MORE))
        plane.apply(DEPLOY / "access.yaml")
        plane.apply(DEPLOY.parent / "examples" / "page-actions-rbac.yaml")
        self.replicas.reader = plane.token_for(NAMESPACE, "sickbay-viewer", None)
        self.replicas.start()
        names = folder / "names"
        names.write_text("\n".join(self.nodes))
        simulator = ends.enter_context(
            self.replicas.simulator(["--names", names], log=folder / "simulator.log")
        )
        simulator.until_streaming(len(self.nodes), timeout_s=60)

    def ask(
        self, name: str, method: str, path: str, token: str = "", body: object = None
    ) -> tuple[int, str]:
        replica = self.replicas.replicas[name]
        trust = ssl.create_default_context(cafile=str(self.replicas.authority.certificate))
        page = http.client.HTTPSConnection(
            replica.host, replica.web_port, context=trust, timeout=300
        )
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        with closing(page):
            page.request(method, path, json.dumps(body) if body else None, headers)
            answer = page.getresponse()
            return answer.status, answer.read().decode(errors="replace")


def test_each_replica_shows_the_controllers_page_to_readers_alone_and_a_person_acts(
    cluster_space: Space, tmp_path: Path
) -> None:
    plane = cluster_space.plane
    with ExitStack() as ends:
        pages = ClosedPages(cluster_space, tmp_path, ends)
        replicas, reader = pages.replicas, pages.replicas.reader
        controller = replicas.until_served()

        def whole(name: str) -> bool:
            rows = replicas.answer(name, "nodes?limit=1000")["items"]
            mine = [one for one in rows if one["node"] in pages.nodes]
            return len(mine) == len(pages.nodes) and all(one["state"] == "ok" for one in mine)

        for name in replicas.names:
            wait_until(partial(whole, name), what=f"{name} to show all", timeout_s=60)
            listed = replicas.answer(name, "replicas")["items"]
            assert {one["name"] for one in listed if one["controller"]} == {controller}
            assert {one["name"] for one in listed} == set(replicas.names)
            of_replica = (replicas.folder / f"{name}.token").read_text()
            for path in ("/", "/metrics", "/api/v1/fleet"):
                assert pages.ask(name, "GET", path)[0] == 401
                assert pages.ask(name, "GET", path, "garbage")[0] == 401
                assert pages.ask(name, "GET", path, of_replica)[0] == 401
                assert pages.ask(name, "GET", path, reader)[0] == 200
            assert pages.ask(name, "GET", "/healthz")[0] == 200

        # The gateway passes a person's actions on, with that person's token.
        [gateway] = set(replicas.names) - {controller}
        node = pages.nodes[0]
        plane.create_service_account(cluster_space.namespace, "alice")
        bind(plane, cluster_space, "sickbay-operator", "alice")
        alice = plane.token_for(cluster_space.namespace, "alice", None)
        path = f"/api/v1/nodes/{node}"
        assert pages.ask(gateway, "POST", f"{path}/release", alice)[0] == 409
        assert pages.ask(gateway, "POST", f"{path}/quarantine", reader, {"reason": "fan"})[0] == 403
        status, text = pages.ask(gateway, "POST", f"{path}/quarantine", alice, {"reason": "fan"})
        assert status == 200, text
        wait_until(
            lambda: plane.node(node)["spec"].get("unschedulable"),
            what="the node to be cordoned",
            timeout_s=60,
        )
        status, text = pages.ask(gateway, "POST", f"{path}/release", alice, {"reason": "replaced"})
        assert status == 200, text
        wait_until(
            lambda: not plane.node(node)["spec"].get("unschedulable"),
            what="the node to be released",
            timeout_s=60,
        )
        who = f"system:serviceaccount:{cluster_space.namespace}:alice"

        def recorded() -> bool:
            found = replicas.answer(replicas.names[1], f"transitions?node={node}")["items"]
            summaries = [one["summary"] for one in found]
            return f"{node}: release requested by {who}: replaced" in summaries

        wait_until(recorded, what="the history of both replicas to have it", timeout_s=60)
