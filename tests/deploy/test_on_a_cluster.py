"""An install on a real control plane that is stricter than most: `admission.yaml` says how."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane import manifests as server_side
from tests.controlplane.api import APPLY_PATCH, STRATEGIC_PATCH, ApiClient
from tests.controlplane.plane import ControlPlane
from tests.controlplane.servers import FRUGAL
from tests.controlplane.waiting import wait_until
from tests.deploy.kustomized import kustomized
from tests.deploy.manifests import (
    KUBERNETES,
    NAMESPACE,
    PROFILES,
    container,
    documents,
    installed,
)
from tests.support.present import present

ADMISSION = Path(__file__).with_name("admission.yaml")
DAEMON_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/sickbay-agent"
STATEFUL_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/sickbay-aggregator"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
STRATEGIC_DRY_RUN = "?dryRun=All&fieldValidation=Strict"

#: Every authenticated user may ask about himself, even one that was granted no right.
SELF = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
#: Certificates without keys, which Kubernetes 1.37 lets every service account read.
PUBLIC = {"clustertrustbundles"}


@pytest.fixture(scope="module")
def plane(control_plane_programs: dict[str, Path]) -> Iterator[ControlPlane]:
    """A plane of this module's own, with sickbay installed on a cluster of four nodes.

    Two have GPUs. One is tainted against everything, as a cloud does with GPU nodes or a person
    with a broken one; one has no GPU and is free.
    """
    strict = [f"--admission-control-config-file={ADMISSION}"]
    with ControlPlane(apiserver_args=strict, go=FRUGAL) as started:
        gpu = {"nvidia.com/gpu.present": "true"}
        started.create_nodes(2, "gpu", labels=gpu)
        started.create_nodes(2, "cpu", gpus=0)
        taints = [
            {"key": "sickbay.dev/quarantine", "value": "gpu", "effect": "NoSchedule"},
            {"key": "example.com/broken", "effect": "NoExecute"},
        ]
        patch = {"spec": {"taints": taints, "unschedulable": True}}
        for name in ("gpu-00000", "cpu-00000"):
            started.call("PATCH", f"/api/v1/nodes/{name}", patch, STRATEGIC_PATCH)
        kustomization = documents(KUBERNETES / "kustomization.yaml")[0]
        for file in kustomization["resources"]:
            started.apply(KUBERNETES / file)
        yield started


def agent_pods(plane: ControlPlane) -> list[dict[str, Any]]:
    query = "?labelSelector=app.kubernetes.io%2Fcomponent%3Dagent"
    pods: list[dict[str, Any]] = plane.call("GET", PODS + query)["items"]
    return pods


def wait_for_agents(plane: ControlPlane) -> list[dict[str, Any]]:
    def all_running() -> list[dict[str, Any]] | None:
        pods = [pod for pod in agent_pods(plane) if pod["status"].get("phase") == "Running"]
        return pods if len(pods) == 4 else None

    return present(wait_until(all_running, what="an agent on each of 4 nodes", timeout_s=60))


def client_with(plane: ControlPlane, token: str) -> ApiClient:
    return ApiClient(plane.port, plane.ca_file, token=token)


# -- the API server takes all of it ----------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [*installed(), *documents(PROFILES / "pod-network" / "pod-prober.yaml")],
    ids=lambda d: f"{d['kind']}/{d['metadata']['name']}",
)
def test_server_side_dry_run_accepts_it_with_no_unknown_field(
    plane: ControlPlane, document: dict[str, Any]
) -> None:
    namespace = document["metadata"].get("namespace", "default")
    collection = server_side.resource_path(
        plane.client, document["apiVersion"], document["kind"], namespace
    )
    path = f"{collection}/{document['metadata']['name']}"
    query = "?dryRun=All&fieldValidation=Strict&fieldManager=somebody&force=true"
    answer = plane.request("PATCH", path + query, json.dumps(document).encode(), APPLY_PATCH)
    assert answer.status in {200, 201}, answer.body  # 201: a profile, not installed here


def test_the_restricted_profile_is_accepted_and_has_no_privileges(plane: ControlPlane) -> None:
    [patch] = documents(PROFILES / "restricted" / "agent-daemonset.yaml")
    # A strategic merge, as kustomize makes it, by the API server itself.
    merged = plane.call("PATCH", DAEMON_SET + STRATEGIC_DRY_RUN, patch, STRATEGIC_PATCH)
    spec = merged["spec"]["template"]["spec"]
    assert container(spec)["securityContext"]["privileged"] is False
    assert "/dev" not in [mount["mountPath"] for mount in container(spec)["volumeMounts"]]
    assert "dev" not in [volume["name"] for volume in spec["volumes"]]
    assert "/host" in [mount["mountPath"] for mount in container(spec)["volumeMounts"]]
    assert not spec.get("hostPID", False)


@pytest.mark.parametrize(
    "profiles", [["large", "persistent", "pod-network"], ["namespace"]], ids=str
)
def test_profiles_combine_and_the_server_accepts_them(
    plane: ControlPlane, tmp_path: Path, profiles: list[str]
) -> None:
    namespace = "gpu-health" if "namespace" in profiles else NAMESPACE
    if namespace != NAMESPACE:
        plane.create_namespace(namespace)
    for document in kustomized(tmp_path, profiles, namespace):
        metadata = document["metadata"]
        if (document["kind"], "namespace" in profiles) == ("StatefulSet", False):
            metadata["name"] = "another"  # claims of a StatefulSet can't be changed in place
        assert metadata.get("namespace", "default") in {"default", namespace}
        collection = server_side.resource_path(
            plane.client,
            document["apiVersion"],
            document["kind"],
            metadata.get("namespace", "default"),
        )
        query = "?dryRun=All&fieldValidation=Strict&fieldManager=somebody&force=true"
        path = f"{collection}/{metadata['name']}{query}"
        answer = plane.request("PATCH", path, json.dumps(document).encode(), APPLY_PATCH)
        assert answer.status in {200, 201}, answer.body


# -- the agents ------------------------------------------------------------------------------------


def test_an_agent_runs_on_every_node_tainted_and_cordoned_ones_too(plane: ControlPlane) -> None:
    pods = wait_for_agents(plane)
    nodes = {pod["spec"]["nodeName"] for pod in pods}
    assert nodes == {"gpu-00000", "gpu-00001", "cpu-00000", "cpu-00001"}
    assert {pod["spec"]["priority"] for pod in pods} == {2000001000}


def test_without_the_quota_this_cluster_would_refuse_a_critical_pod(plane: ControlPlane) -> None:
    """The cluster is as strict as the test before takes it to be."""
    plane.create_namespace("elsewhere")
    refused = plane.request("POST", "/api/v1/namespaces/elsewhere/pods", critical_pod())
    assert refused.status == 500  # so it answers; not 403, as one would expect
    assert "insufficient quota to match these scopes" in refused.body["message"]


def test_without_the_label_this_cluster_would_refuse_a_privileged_pod(plane: ControlPlane) -> None:
    plane.create_namespace("unlabelled")
    pod = critical_pod()
    del pod["spec"]["priorityClassName"]
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    refused = plane.request("POST", "/api/v1/namespaces/unlabelled/pods", pod)
    assert refused.status == 403
    assert "violates PodSecurity" in refused.body["message"]


def critical_pod() -> dict[str, Any]:
    secure = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    only = {"name": "main", "image": "example.test/main:1", "securityContext": secure}
    spec = {"containers": [only], "priorityClassName": "system-node-critical"}
    return {"metadata": {"name": "critical"}, "spec": spec}


def test_an_agents_pod_mounts_no_token_but_that_of_its_audience(plane: ControlPlane) -> None:
    for pod in wait_for_agents(plane):
        tokens = [
            source["serviceAccountToken"]
            for volume in pod["spec"]["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
            if "serviceAccountToken" in source
        ]
        assert [token["audience"] for token in tokens] == ["sickbay"]


def test_the_agents_token_is_no_credential_for_the_api_server(plane: ControlPlane) -> None:
    pod = wait_for_agents(plane)[0]
    token = plane.token_for(NAMESPACE, "sickbay-agent", "sickbay", pod=pod["metadata"]["name"])
    with client_with(plane, token) as agent:
        for path in ("/api", f"/api/v1/nodes/{pod['spec']['nodeName']}", PODS, "/version"):
            assert agent.request("GET", path).status == 401, path


def test_the_agents_account_may_do_nothing_even_with_a_token_that_is_one(
    plane: ControlPlane,
) -> None:
    """The rights of a person who made a token of that account by other means."""
    with client_with(plane, plane.token_for(NAMESPACE, "sickbay-agent", None)) as agent:
        for namespace in (NAMESPACE, "default", "kube-system"):
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectRulesReview",
                "spec": {"namespace": namespace},
            }
            path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
            status = agent.call("POST", path, review)["status"]
            assert not status["incomplete"]
            granted = {r for rule in status["resourceRules"] for r in rule.get("resources", [])}
            assert granted - PUBLIC == SELF, namespace
        for path in (
            PODS,
            "/api/v1/nodes/gpu-00000",
            "/apis/sickbay.dev/v1alpha1/quarantines",
            f"/api/v1/namespaces/{NAMESPACE}/secrets",
            f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-record",
        ):
            assert agent.request("GET", path).status == 403, path
        patch = {"spec": {"unschedulable": False}}
        answer = agent.request("PATCH", "/api/v1/nodes/gpu-00000", patch, STRATEGIC_PATCH)
        assert answer.status == 403


# -- the aggregator --------------------------------------------------------------------------------


def test_the_aggregator_is_put_on_a_node_that_it_will_not_drain(plane: ControlPlane) -> None:
    pod = plane.wait_pod_running(NAMESPACE, "sickbay-aggregator-0", timeout_s=60)
    # Of four nodes one has no GPU and is neither tainted nor cordoned.
    assert pod["spec"]["nodeName"] == "cpu-00001"


def test_the_aggregators_pod_would_pass_where_nothing_is_allowed(plane: ControlPlane) -> None:
    """Pod Security "restricted", although its namespace allows more for the agents' sake."""
    template = plane.call("GET", STATEFUL_SET)["spec"]["template"]
    plane.create_namespace("strict")
    spec = {key: value for key, value in template["spec"].items() if key != "priorityClassName"}
    spec["serviceAccountName"] = spec["serviceAccount"] = "default"
    pod = {"metadata": {"name": "aggregator"}, "spec": spec}
    answer = plane.request("POST", f"/api/v1/namespaces/strict/pods{STRATEGIC_DRY_RUN}", pod)
    assert answer.status == 201, answer.body


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/v1/nodes?limit=1", "sickbay"),
        ("/apis/coordination.k8s.io/v1/namespaces/sickbay/leases", "sickbay-leases"),
    ],
)
def test_the_aggregators_requests_travel_in_their_own_lane(
    plane: ControlPlane, path: str, name: str
) -> None:
    with client_with(plane, plane.token_for(NAMESPACE, "sickbay-aggregator", None)) as aggregator:
        own = plane.call("GET", f"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/{name}")

        def schema_of_a_request() -> bool:
            headers = response_headers(aggregator, path)
            used = headers.get("x-kubernetes-pf-flowschema-uid", "")
            return used == str(own["metadata"]["uid"])

        wait_until(schema_of_a_request, what="the API server to use the FlowSchema", timeout_s=20)


def response_headers(client: ApiClient, path: str) -> dict[str, str]:
    """The headers of an answer, which ApiClient keeps to itself."""
    connection = client._take()
    with closing(connection):
        connection.request("GET", path, headers=client._headers)
        response = connection.getresponse()
        response.read()
        return {name.lower(): value for name, value in response.getheaders()}
