"""The control plane that the other tests rely on is a real one: it refuses, blocks and counts."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.objects import LINGER
from tests.controlplane.plane import ADMIN, ControlPlane
from tests.controlplane.ports import ReservedPort
from tests.controlplane.processes import ended
from tests.controlplane.pytest_plugin import Space
from tests.controlplane.waiting import wait_until

QUARANTINES = "/apis/sickbay.dev/v1alpha1/quarantines"
KIND = {"apiVersion": "sickbay.dev/v1alpha1", "kind": "Quarantine"}


def _deployment(name: str, replicas: int) -> dict[str, Any]:
    pod = {"containers": [{"name": "main", "image": "example.test/main:1"}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
        },
    }


def _running(space: Space, app: str) -> list[Any]:
    pods = space.plane.call("GET", f"{space.path('pods')}?labelSelector=app%3D{app}")["items"]
    return [pod for pod in pods if pod["status"]["phase"] == "Running"]


def test_a_cleared_space_has_no_nodes_no_pods_and_no_quarantines_and_a_deployment_makes_none_anew(
    control_plane: ControlPlane, cluster_space: Space, quarantine_definition: None
) -> None:
    spaces = [Space(control_plane, f"t-cleared-{name}", f"n-cleared-{name}") for name in "ab"]
    for space in spaces:
        control_plane.create_namespace(space.namespace)
        [node] = space.create_nodes(1)
        control_plane.create_pod(space.namespace, "own", node=node, annotations={LINGER: "true"})
        marked = {"name": node, "finalizers": ["sickbay.dev/test"]}
        spec = {"action": "drain", "reason": "test", "requester": "test"}
        control_plane.call("POST", QUARANTINES, {**KIND, "metadata": marked, "spec": spec})
    control_plane.apply(json.dumps(_deployment("web", 2)), namespace=spaces[1].namespace)
    wait_until(lambda: len(_running(spaces[1], "web")) == 2, what="2 pods to run")

    for space in spaces:
        space.clear()

    # A Deployment that came later has its pods: the controllers have seen the others go.
    cluster_space.create_nodes(1)
    control_plane.apply(json.dumps(_deployment("later", 2)), namespace=cluster_space.namespace)
    wait_until(lambda: len(_running(cluster_space, "later")) == 2, what="2 later pods to run")
    # A controller that has not yet seen its owner go makes one more pod, which is collected.
    wait_until(
        lambda: not any(control_plane.call("GET", each.path("pods"))["items"] for each in spaces),
        what="the pods of both spaces to be gone",
    )
    nodes = control_plane.call("GET", "/api/v1/nodes")["items"]
    quarantines = control_plane.call("GET", QUARANTINES)["items"]
    assert not any(
        one["metadata"]["name"].startswith("n-cleared-") for one in [*nodes, *quarantines]
    )


def test_the_audit_log_counts_requests_by_user_and_verb(cluster_space: Space) -> None:
    plane = cluster_space.plane
    nobody = plane.client_for("nobody-special")
    mark = plane.audit_mark()
    for _ in range(3):
        nobody.request("GET", "/api/v1/nodes/no-such-node")
    nobody.request("GET", cluster_space.path("pods"))

    counts = plane.requests_by_user_and_verb(mark)

    assert counts["nobody-special", "get"] == 3
    assert counts["nobody-special", "list"] == 1
    assert counts[ADMIN, "get"] == 0
    assert plane.requests_by_user_and_verb(plane.audit_mark())["nobody-special", "get"] == 0


def test_an_object_that_another_client_changed_or_deleted_is_applied_again(
    cluster_space: Space,
) -> None:
    plane, path = cluster_space.plane, cluster_space.path("configmaps", "one")
    document = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": '
    document += '{"size": "1"}}'

    def applied() -> tuple[Any, int]:
        mark = plane.audit_mark()
        [made] = plane.apply(document, namespace=cluster_space.namespace)
        assert made == plane.call("GET", path)
        return made["data"], plane.requests_by_user_and_verb(mark)[ADMIN, "patch"]

    assert applied() == ({"size": "1"}, 1)
    assert applied() == ({"size": "1"}, 0)
    plane.call("PATCH", path, {"data": {"size": "2", "more": "x"}}, MERGE_PATCH)
    assert applied() == ({"size": "1", "more": "x"}, 1)
    plane.call("DELETE", path)
    assert applied() == ({"size": "1"}, 1)


def test_a_reserved_port_is_for_its_server_alone_before_between_and_after() -> None:
    with ReservedPort() as port:
        address = ("127.0.0.1", port.number)
        for _ in range(2):
            with socket.socket() as client, pytest.raises(ConnectionRefusedError):
                client.connect(address)
            with socket.socket() as other, pytest.raises(OSError, match="already in use"):
                other.bind(address)
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(address)
                server.listen()
                with socket.create_connection(address), server.accept()[0]:
                    pass


#: The guard of the process kills each server that the plane has started, so that a start of all of
#: them shows no more with a second signal. kube-apiserver takes 3 s of a processor.
_STARTER = """
import sys, time
from tests.controlplane import binaries
from tests.controlplane.plane import ControlPlane
plane = ControlPlane(controller_manager=False, scheduler=False, kwok=False)
if sys.argv[1] == "all":
    plane.start()
else:
    plane._prepare()
    plane._define(binaries.ensure(["etcd", "kube-apiserver"]))
    plane.start_etcd()
started = [server for server in plane.servers.values() if server.running]
print(plane.folder, *(server.pid for server in started), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("end", "servers", "count"),
    [(signal.SIGKILL, "all", 2), (signal.SIGINT, "etcd", 1), (signal.SIGTERM, "etcd", 1)],
)
def test_nothing_is_left_behind_however_its_starter_ends(
    control_plane_programs: dict[str, Path], end: signal.Signals, servers: str, count: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STARTER, servers],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        folder, *pids = starter.stdout.readline().split()
        assert len(pids) == count
        starter.send_signal(end)
        starter.wait(300)
    wait_until(lambda: not Path(folder).exists(), what=f"{folder} to be removed")
    wait_until(lambda: all(ended(int(pid)) for pid in pids), what=f"{pids} to end")


def test_many_nodes_and_their_pods_are_objects_of_their_own(cluster_space: Space) -> None:
    """All except the first come past the API server, which lists and changes them as any other."""
    plane, path = cluster_space.plane, cluster_space.path("pods")
    names = cluster_space.create_nodes(251, labels={"rack": "r1"})
    plane.create_pods(cluster_space.namespace, names[:120], prefix="rank-")
    cached = "/api/v1/nodes?labelSelector=rack%3Dr1&resourceVersion=0"
    nodes = plane.call("GET", cached)["items"]
    assert {node["metadata"]["name"] for node in nodes} == set(names)
    assert len({node["metadata"]["uid"] for node in nodes}) == 251
    for key in ("bootID", "machineID", "systemUUID"):
        assert len({node["status"]["nodeInfo"][key] for node in nodes}) == 251
    for node in nodes:
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == node["metadata"]["name"]
        assert node["status"]["addresses"][0]["address"] == node["metadata"]["name"]
    change = {"metadata": {"labels": {"rack": "r2"}}}
    plane.call("PATCH", f"/api/v1/nodes/{names[7]}", change, MERGE_PATCH)
    assert plane.node(names[7])["metadata"]["labels"]["rack"] == "r2"
    assert plane.node(names[8])["metadata"]["labels"]["rack"] == "r1"

    pods = plane.call("GET", path)["items"]
    placed = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
    assert placed == {f"rank-{name}": name for name in names[:120]}
    assert len({pod["metadata"]["uid"] for pod in pods}) == 120
    plane.wait_pod_running(cluster_space.namespace, f"rank-{names[119]}")
    assert plane.evict(cluster_space.namespace, f"rank-{names[119]}").status == 201
    plane.wait_gone(f"{path}/rank-{names[119]}")
