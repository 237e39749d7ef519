"""`make deploy-check`, on a cluster: install, upgrade, rollback and uninstall with agents attached.

Real: API server, controllers, scheduler, Helm, and the containers of every pod (kubelet.py). One
cluster for all; the tests are steps, in this order.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.installation import (
    AGGREGATOR,
    NEEDS_CONTAINERS,
    NODES,
    Installation,
    node_facts,
    older_chart,
    written_nodes,
)
from tests.chart.renderings import BUILT_IN, OPERATOR, Rendering, render
from tests.chart.same_objects import comparable
from tests.chart.templates import CHART
from tests.controlplane import binaries, sources
from tests.controlplane import manifests as server_side
from tests.controlplane.api import APPLY_PATCH, MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.present import present
from tests.support.yaml_documents import read_yaml

#: An upgrade restarts the aggregator: an agent is without a stream for no longer than this.
RECONNECT_S = 30.0

pytestmark = [pytest.mark.timeout(600), *NEEDS_CONTAINERS]


@pytest.fixture(scope="module")
def helm() -> Path:
    return binaries.program("helm")


@pytest.fixture(scope="module")
def sickbay(
    plane: ControlPlane, helm: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    installation = Installation(plane, helm, tmp_path_factory.mktemp("install"))
    with installation.kubelets:
        yield installation


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return older_chart(tmp_path_factory.mktemp("charts"))


# -- before anything is installed ------------------------------------------------------------------


def accepted(plane: ControlPlane, helm: Path, rendering: Rendering) -> set[str]:
    """Has the server validate every object, strictly, and keep none. Their kinds."""
    own = f"dry-run-{rendering.name}"
    plane.create_namespace(own)
    kinds = set()
    documents = render(helm, replace(rendering, namespace=own))
    for name in {document["metadata"].get("namespace", own) for document in documents}:
        if plane.request("GET", f"/api/v1/namespaces/{name}").status == 404:  # the tests' Jobs
            plane.create_namespace(name)
    for document in documents:  # the pod of `helm test` is refused where its account is missing
        if document["kind"] == "ServiceAccount":
            server_side.apply(plane.client, yaml.safe_dump(document))
    for document in documents:
        namespace = document["metadata"].get("namespace", "default")
        collection = server_side.resource_path(
            plane.client, document["apiVersion"], document["kind"], namespace
        )
        query = "?dryRun=All&fieldValidation=Strict&fieldManager=somebody&force=true"
        path = f"{collection}/{document['metadata']['name']}{query}"
        answer = plane.request("PATCH", path, json.dumps(document).encode(), APPLY_PATCH)
        assert answer.status in {200, 201}, answer.body
        kinds.add(document["kind"])
    plane.delete_namespace(own)
    return kinds


@pytest.mark.parametrize("rendering", BUILT_IN, ids=lambda r: r.name)
def test_the_server_accepts_every_object_with_no_unknown_field(
    plane: ControlPlane, helm: Path, rendering: Rendering
) -> None:
    assert "StatefulSet" in accepted(plane, helm, rendering)


@pytest.fixture
def operator_definitions(plane: ControlPlane) -> Iterator[None]:
    """The definitions of Prometheus Operator, which the cluster has for one test alone."""
    files = sources.operator_definitions()
    for file in files:
        server_side.apply(plane.client, file)
    yield
    for file in files:
        name = read_yaml(file.read_text("utf-8"))["metadata"]["name"]
        plane.call("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")


@pytest.mark.usefixtures("operator_definitions")
def test_the_server_accepts_the_objects_of_prometheus_operator(
    plane: ControlPlane, helm: Path
) -> None:
    kinds = set[str]().union(*(accepted(plane, helm, rendering) for rendering in OPERATOR))
    assert {"PodMonitor", "ServiceMonitor", "PrometheusRule"} <= kinds


def refused(installation: Installation, *arguments: str) -> str:
    done = installation.helm_do("install", str(CHART), *arguments, check=False)
    assert done.returncode != 0
    return done.stderr


def test_a_namespace_that_forbids_the_agents_is_refused_with_the_command_that_helps(
    plane: ControlPlane, sickbay: Installation
) -> None:
    label = "pod-security.kubernetes.io/enforce"
    strict = {"metadata": {"name": "strict", "labels": {label: "restricted"}}}
    plane.call("POST", "/api/v1/namespaces", strict)
    message = refused(sickbay.beside("sickbay", "strict"))
    command = f"kubectl label --overwrite namespace strict {label}=privileged"
    assert f"`{command}`" in message
    sickbay.run(*command.split())
    done = sickbay.beside("sickbay", "strict").helm_do("install", str(CHART), "--dry-run=server")
    assert "STATUS: pending-install" in done.stdout
    plane.delete_namespace("strict")


def test_a_person_without_the_rights_is_told_which_are_missing(
    plane: ControlPlane, sickbay: Installation
) -> None:
    somebody = plane.kubeconfig_for("somebody")
    for name, role in (("a", "edit"), ("b", "view")):
        binding = {
            "metadata": {"name": f"somebody-{name}"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role,
            },
            "subjects": [{"kind": "User", "name": "somebody"}],
        }
        plane.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    message = refused(sickbay, "--kubeconfig", str(somebody))
    assert 'User "somebody" cannot' in message
    assert "clusterroles" in message or "namespaces" in message
    # Nothing is left that would be in the way of the next attempt.
    sickbay.helm_do("uninstall", "--ignore-not-found")


# -- the life of an install ------------------------------------------------------------------------


def test_one_command_on_a_bare_cluster_leads_to_a_page_with_every_agent(
    plane: ControlPlane, sickbay: Installation, older: Path
) -> None:
    done = sickbay.helm_do("install", str(older), "--create-namespace", "--set", "mode=drain")
    assert "in mode drain" in done.stdout
    fleet = sickbay.until_all_report(NODES)
    assert fleet["mode"] == "drain"
    test = sickbay.helm_do("test", "--timeout", "200s")
    assert "Succeeded" in test.stdout
    assert plane.request("GET", "/api/v1/namespaces/sickbay/pods/sickbay-test").status == 404


def test_the_same_command_again_changes_nothing(sickbay: Installation, older: Path) -> None:
    restarts = len(sickbay.kubelets.past)
    done = sickbay.helm_do("upgrade", str(older), "--install", "--set", "mode=drain")
    assert "has been upgraded" in done.stdout
    assert "still in use" in refused(sickbay)  # Helm's own: the page says what to use instead
    assert len([e for e in sickbay.kubelets.past if e.component != "test"]) <= restarts


def test_a_second_release_is_refused_by_the_name_of_the_first(sickbay: Installation) -> None:
    for more in ((), ("--set", "fullnameOverride=other")):
        message = refused(sickbay.beside("other", "default"), *more)
        assert "already, as the release sickbay/sickbay" in message


@pytest.fixture(scope="module")
def marked(plane: ControlPlane, sickbay: Installation) -> dict[str, Any]:
    """One node is in quarantine by hand; what the nodes look like then."""
    spec = {"action": "cordon", "reason": "fan 3 is dead"}
    quarantine = {
        "apiVersion": "sickbay.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": "gpu-00000"},
        "spec": spec,
    }
    plane.call("POST", "/apis/sickbay.dev/v1alpha1/quarantines", quarantine)
    stop = {"data": {"reason": "a test of the stop switch"}}

    def tainted() -> bool:
        return bool(plane.node("gpu-00000")["spec"].get("unschedulable"))

    wait_until(tainted, what="the node's cordon", timeout_s=90)
    settled = "/apis/sickbay.dev/v1alpha1/quarantines/gpu-00000"
    wait_until(
        lambda: plane.call("GET", settled).get("status", {}).get("cordonedAt"),
        what="the Quarantine's status",
        timeout_s=60,
    )
    # The condition trails: it is the last write to the node.
    wait_until(
        lambda: [
            one
            for one in plane.node("gpu-00000")["status"].get("conditions", [])
            if one["type"] == "SickbayQuarantined" and one["status"] == "True"
        ],
        what="the node's condition",
        timeout_s=60,
    )
    path = "/api/v1/namespaces/sickbay/configmaps/sickbay-stop"
    plane.call("PATCH", path, stop, MERGE_PATCH)
    return node_facts(plane)


def columns(plane: ControlPlane) -> int:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/quarantines.sickbay.dev"
    [version] = plane.call("GET", path)["spec"]["versions"]
    return len(version["additionalPrinterColumns"])


def moved(
    plane: ControlPlane, sickbay: Installation, marked: dict[str, Any], *command: str
) -> float:
    """Runs a command that replaces the pods; the seconds that an agent was without a stream."""
    mark, since, ended = plane.audit_mark(), time.monotonic(), sickbay.restarts()
    agents = {each.container for each in sickbay.kubelets.running("agent")}
    sickbay.helm_do(*command)

    def replaced_all() -> bool:
        now = sickbay.kubelets.running("agent")
        return (
            sickbay.restarts() > ended
            and len(now) == NODES
            and not agents & {each.container for each in now}
        )

    wait_until(replaced_all, what="every pod to be a new one", timeout_s=240)
    sickbay.until_all_report(NODES)
    assert written_nodes(plane, mark, AGGREGATOR) == []
    assert node_facts(plane) == marked
    return sickbay.lost_streams_s(since)


def test_an_upgrade_touches_no_node_and_brings_the_new_definition(
    plane: ControlPlane, sickbay: Installation, marked: dict[str, Any]
) -> None:
    assert columns(plane) == 2
    lost = moved(plane, sickbay, marked, "upgrade", str(CHART), "--reset-then-reuse-values")
    assert lost <= RECONNECT_S
    assert columns(plane) > 2


def test_a_rollback_touches_no_node(
    plane: ControlPlane, sickbay: Installation, marked: dict[str, Any]
) -> None:
    assert moved(plane, sickbay, marked, "rollback", "1") <= RECONNECT_S
    assert columns(plane) == 2


def test_an_upgrade_and_a_rollback_leave_a_persons_stop_in_force(
    plane: ControlPlane, sickbay: Installation, marked: dict[str, Any]
) -> None:
    stop = plane.call("GET", "/api/v1/namespaces/sickbay/configmaps/sickbay-stop")
    assert stop["data"] == {"reason": "a test of the stop switch"}
    fleet = present(sickbay.fleet())
    assert "a test of the stop switch" in fleet["stop"]


def test_another_volume_claim_is_refused_with_the_command_that_helps(
    sickbay: Installation, marked: dict[str, Any]
) -> None:
    done = sickbay.helm_do(
        "upgrade", str(CHART), "--set", "aggregator.persistence.enabled=true", check=False
    )
    assert done.returncode != 0
    assert "kubectl -n sickbay delete statefulset sickbay-aggregator" in done.stderr


#: What an uninstall leaves.
KEPT = {"operations.sickbay.dev", "quarantines.sickbay.dev", "sickbay-stop"}


def test_an_uninstall_touches_no_node_and_keeps_quarantines_and_the_stop(
    plane: ControlPlane, sickbay: Installation, helm: Path, marked: dict[str, Any]
) -> None:
    mark = plane.audit_mark()
    done = sickbay.helm_do("uninstall")
    assert "quarantines.sickbay.dev" in done.stdout
    sickbay.until_none_runs()
    for each in sickbay.kubelets.past:
        assert "Traceback" not in each.container.log.read_text("utf-8"), each.name
    assert written_nodes(plane, mark, AGGREGATOR) == []
    assert node_facts(plane) == marked
    assert plane.call("GET", "/apis/sickbay.dev/v1alpha1/quarantines/gpu-00000")["spec"]["reason"]
    left = comparable(render(helm, BUILT_IN[0])).keys()
    for kind, namespace, name in left:
        groups = [d for d in render(helm, BUILT_IN[0]) if d["kind"] == kind]
        path = server_side.resource_path(
            plane.client, groups[0]["apiVersion"], kind, namespace or "default"
        )
        there = plane.request("GET", f"{path}/{name}").status == 200
        assert there == (name in KEPT), (kind, name)


def test_a_later_install_takes_everything_over(
    plane: ControlPlane, sickbay: Installation, marked: dict[str, Any]
) -> None:
    sickbay.helm_do("install", str(CHART))
    sickbay.until_all_report(NODES)
    fleet = sickbay.until_quarantined(1)
    assert fleet["mode"] == "observe"
    assert "a test of the stop switch" in fleet["stop"]
    assert node_facts(plane) == marked


def test_any_release_name_and_namespace_will_do(
    plane: ControlPlane, sickbay: Installation, tmp_path: Path, marked: dict[str, Any]
) -> None:
    """After the first was uninstalled; its definition, with the Quarantines, is taken over."""
    sickbay.helm_do("uninstall")
    sickbay.until_none_runs()
    other = Installation(plane, sickbay.helm, tmp_path, namespace="gpu-health", release="nodes")
    with other.kubelets:
        message = other.helm_do("install", str(CHART), "--create-namespace", check=False).stderr
        assert "quarantines.sickbay.dev" in message
        assert "cannot be imported into the current release" in message
        other.helm_do("upgrade", str(CHART), "--install", "--create-namespace", "--take-ownership")
        other.until_all_report(NODES)
        other.until_quarantined(1)
        assert "Succeeded" in other.helm_do("test", "--timeout", "200s").stdout
        other.helm_do("uninstall")
    assert node_facts(plane) == marked
