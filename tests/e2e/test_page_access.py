"""Two replicas whose pages ask who reads: readers, each other, and a person who acts."""

import http.client
import json
import ssl
from contextlib import ExitStack
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

    def ask(self, method: str, path: str, token: str = "", body: object = None) -> tuple[int, str]:
        replica = self.replicas.one(0)
        trust = ssl.create_default_context(cafile=str(self.replicas.authority.certificate))
        page = http.client.HTTPSConnection(
            replica.host, replica.web_port, context=trust, timeout=20
        )
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            page.request(method, path, json.dumps(body) if body else None, headers)
            answer = page.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            page.close()


def test_replicas_show_each_others_nodes_to_readers_alone_and_a_person_acts(
    cluster_space: Space, tmp_path: Path
) -> None:
    plane = cluster_space.plane
    with ExitStack() as ends:
        pages = ClosedPages(cluster_space, tmp_path, ends)
        replicas, reader = pages.replicas, pages.replicas.reader

        def whole(name: str) -> bool:
            rows = replicas.answer(name, "nodes?limit=1000")["items"]
            mine = [one for one in rows if one["node"] in pages.nodes]
            return len(mine) == len(pages.nodes) and all(
                one["standing"] == "ok" and not one["last_known"] for one in mine
            )

        for name in replicas.names:
            wait_until(partial(whole, name), what=f"{name} to show all", timeout_s=60)
            listed = {one["name"]: one for one in replicas.answer(name, "replicas")["items"]}
            # A third may be listed as having left: the last one of an earlier test on this plane.
            assert [listed[one]["trouble"] for one in replicas.names] == ["", ""]
        token_file = replicas.folder / f"{replicas.names[0]}.token"
        of_replica = token_file.read_text()
        for path in ("/", "/metrics", "/api/v1/fleet", "/replica/part"):
            assert pages.ask("GET", path)[0] == 401
            assert pages.ask("GET", path, "garbage")[0] == 401
        assert pages.ask("GET", "/replica/part", reader)[0] == 401
        assert pages.ask("GET", "/replica/part", of_replica)[0] == 200
        assert pages.ask("GET", "/api/v1/fleet", of_replica)[0] == 401
        assert pages.ask("GET", "/healthz")[0] == 200

        node = pages.nodes[0]
        plane.create_service_account(cluster_space.namespace, "alice")
        bind(plane, cluster_space, "sickbay-operator", "alice")
        alice = plane.token_for(cluster_space.namespace, "alice", None)
        path = f"/api/v1/nodes/{node}"
        assert pages.ask("POST", f"{path}/release", alice)[0] == 409
        assert pages.ask("POST", f"{path}/quarantine", reader, {"reason": "fan"})[0] == 403
        status, text = pages.ask("POST", f"{path}/quarantine", alice, {"reason": "fan"})
        assert status == 200, text
        wait_until(
            lambda: plane.node(node)["spec"].get("unschedulable"),
            what="the node to be cordoned",
            timeout_s=60,
        )
        status, text = pages.ask("POST", f"{path}/release", alice, {"reason": "replaced"})
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
            return f"{node}: release asked for by {who}: replaced" in summaries

        wait_until(recorded, what="the history of both replicas to have it", timeout_s=60)
