"""The rights in deploy/kubernetes/aggregator-rbac.yaml suffice, and allow no other request."""

import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from aggregator.cluster.agent_pods import PodsListed
from aggregator.cluster.kind import OpenOptions
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.rbac import needed
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Evicted,
    NodeChange,
    Phase,
    QuarantineSpec,
    QuarantineStatus,
    Refused,
    Taint,
    WatchSynced,
)
from aggregator.leader.lease import Candidate, Draft
from aggregator.quarantine.decide.admission_record import Record, dump_record
from tests.controlplane.api import MERGE_PATCH, ApiClient
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.support.kube_cluster import DEPLOY, following_pods, kube_cluster, listening
from tests.support.present import present
from tests.support.waiting import until
from tests.support.yaml_documents import read_documents

WATCH = ("WATCH", "pods", 200)
VERBS = ("get", "list", "watch", "patch", "delete", "create")
ACCOUNT = ("sickbay", "sickbay-aggregator")
WITH_PODS = OpenOptions(agents="sickbay:sickbay-agent")


@pytest.fixture
def account(control_plane: ControlPlane, quarantine_definition: None) -> Path:
    """A kubeconfig of the aggregator's own service account."""
    control_plane.apply(DEPLOY / "aggregator-rbac.yaml")
    return control_plane.kubeconfig_for_service_account(*ACCOUNT)


@pytest.fixture
async def restricted(account: Path) -> AsyncIterator[KubeCluster]:
    async with kube_cluster(account, options=WITH_PODS) as cluster:
        yield cluster


@pytest.fixture
def raw(control_plane: ControlPlane, account: Path) -> ApiClient:
    """The same identity without our code: only its rights limit it."""
    return control_plane.client_with_token(control_plane.token_for(*ACCOUNT, audience=None))


async def test_a_start_reviews_all_rights_over_few_connections(
    account: Path, control_plane: ControlPlane
) -> None:
    """A connection for each of 30 rights took both sides more time than all reviews."""

    def connections() -> int:
        peers = [one.raddr for one in psutil.Process().net_connections(kind="tcp") if one.raddr]
        return sum(peer.port == control_plane.port for peer in peers)

    before = connections()
    async with kube_cluster(account, options=WITH_PODS):
        assert 0 < connections() - before <= 10


async def test_a_quarantine_runs_from_its_record_to_its_end_with_these_rights(
    restricted: KubeCluster, cluster_space: Space
) -> None:
    [name] = cluster_space.create_nodes(1)
    plane = cluster_space.plane
    plane.create_pod(cluster_space.namespace, "a", node=name)
    plane.wait_pod_running(cluster_space.namespace, "a")
    async with listening(restricted) as listener:
        await listener.wait(WatchSynced)
        record = await restricted.read_record()
        # The tests of other files go on with this record, so it must be one that can be read.
        await restricted.write_record(dump_record(Record()), record.version, guard=UNGUARDED)
        made = await restricted.create_quarantine(
            name, QuarantineSpec(Action.DRAIN, "gpu", "x"), guard=UNGUARDED
        )
        node = present(await restricted.read_node(name))
        taints = (*node.taints, Taint("sickbay.dev/quarantine", "gpu", "NoSchedule"))
        node = await restricted.patch_node(
            node, NodeChange(taints=taints, unschedulable=True), guard=UNGUARDED
        )
        made = await restricted.write_quarantine_status(made, QuarantineStatus(Phase.DRAINING))
        made = await restricted.write_quarantine_spec(made, made.spec)
        [pod] = await restricted.pods_on(name)
        assert (await restricted.evict(pod, guard=UNGUARDED)).outcome in {
            Evicted.ACCEPTED,
            Evicted.GONE,
        }
        await restricted.announce(
            name, node_uid=node.uid, quarantined=True, reason="Xid79", message="x"
        )
        assert not await restricted.definition_is_going()
        assert name in {one.name for one in await restricted.list_nodes()}
        await restricted.drop_quarantine(made, guard=UNGUARDED)
        assert await restricted.read_quarantine(name) is None
    store = restricted.lease(deadline=10.0)
    held = await store.read()
    version = held.version if held is not None else ""
    lease = await store.write(Draft(Candidate("test", "1"), version, 0, acquires=True))
    await store.write(Draft(None, lease.version, 0, acquires=False))
    async with following_pods(restricted) as pods:
        await until(lambda: pods.has(PodsListed) and restricted.counters.answers[WATCH] > 0)
    refused = {key: n for key, n in restricted.counters.answers.items() if key[2] in {401, 403}}
    assert refused == {}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/secrets", None),
        ("GET", "/api/v1/namespaces/sickbay/secrets", None),
        ("GET", "/api/v1/namespaces/sickbay/secrets/other", None),
        ("DELETE", "/api/v1/namespaces/sickbay/secrets/sickbay-ca-keys", None),
        ("POST", "/api/v1/namespaces/kube-system/secrets", {"metadata": {"name": "x"}}),
        ("GET", "/api/v1/namespaces/sickbay/configmaps", None),
        ("GET", "/api/v1/namespaces/sickbay/configmaps/other", None),
        ("GET", "/api/v1/namespaces/kube-system/configmaps", None),
        ("DELETE", "/api/v1/namespaces/sickbay/configmaps/sickbay-record", None),
        ("GET", "/apis/coordination.k8s.io/v1/leases", None),
        ("DELETE", "/apis/coordination.k8s.io/v1/namespaces/sickbay/leases/sickbay-test", None),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", None),
        ("GET", "/api/v1/namespaces/default/pods/x", None),
        ("DELETE", "/api/v1/namespaces/default/pods/x", None),
        ("DELETE", "/api/v1/nodes/x", None),
        ("GET", "/api/v1/events", None),
        ("DELETE", "/apis/sickbay.dev/v1alpha1/quarantines", None),
        ("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", None),
        ("POST", "/api/v1/namespaces/sickbay/pods", {"metadata": {"name": "x"}}),
        ("POST", "/api/v1/namespaces/sickbay/serviceaccounts/default/token", {"spec": {}}),
    ],
)
def test_nothing_else_is_allowed(raw: ApiClient, method: str, path: str, body: Any) -> None:
    answer = raw.request(method, path, body)
    assert answer.status == 403, answer.body


def test_the_definition_may_not_be_deleted_by_us(raw: ApiClient) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/quarantines.sickbay.dev"
    assert raw.request("GET", path).status == 200
    assert raw.request("DELETE", path).status == 403


def test_the_file_grants_what_is_asked_for_and_no_more() -> None:
    granted = set()
    for document in read_documents((DEPLOY / "aggregator-rbac.yaml").read_text()):
        if document["kind"] not in {"Role", "ClusterRole"}:
            continue
        namespace = document["metadata"].get("namespace", "")
        for rule in document["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for name in rule.get("resourceNames", [""]):
                        granted |= {
                            (verb, group, resource, namespace, name) for verb in rule["verbs"]
                        }
    assert granted == rights_of(certificates=True, access=True)
    few = rights_of(certificates=True, access=True, evictions=False, events=False, operations=False)
    assert {right[:3] for right in granted - few} == {
        ("create", "", "pods/eviction"),
        ("create", "events.k8s.io", "events"),
        *((verb, "sickbay.dev", "operations") for verb in VERBS),
        ("patch", "sickbay.dev", "operations/status"),
        ("get", "apiextensions.k8s.io", "customresourcedefinitions"),
    }


async def test_without_operations_a_quarantine_needs_no_right_to_them(
    control_plane: ControlPlane, account: Path, cluster_space: Space
) -> None:
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/sickbay-aggregator"
    rules = control_plane.call("GET", role)["rules"]
    few = [
        rule
        for rule in rules
        if not any(
            name.startswith("operations")
            for name in (*rule["resources"], *rule.get("resourceNames", ()))
        )
    ]
    [name] = cluster_space.create_nodes(1)
    control_plane.call("PATCH", role, {"rules": few}, MERGE_PATCH)
    try:
        async with (
            kube_cluster(account, options=OpenOptions(operations=False)) as cluster,
            listening(cluster) as listener,
        ):
            await listener.wait(WatchSynced)
            made = await cluster.create_quarantine(
                name, QuarantineSpec(Action.CORDON, "gpu", "x"), guard=UNGUARDED
            )
            assert await cluster.read_quarantine(name) is not None
            assert await cluster.operations.of(name) == []
            assert await cluster.operations.all() == []
            assert await cluster.operations.read("x") is None
            await cluster.drop_quarantine(made, guard=UNGUARDED)
        refused = {key for key in cluster.counters.answers if key[2] in {401, 403}}
        assert refused == set()
    finally:
        control_plane.apply(DEPLOY / "aggregator-rbac.yaml")


def rights_of(**more: Any) -> set[tuple[str, ...]]:
    return {
        (right.verb, right.group, right.resource, right.namespace, right.name)
        for right in needed("sickbay", OpenOptions(**more))
    }


async def refusal_of(kubeconfig: Path) -> str:
    cluster = KubeCluster(kubeconfig=str(kubeconfig))
    with pytest.raises(Refused) as raised:
        await cluster.start()
    await cluster.close()
    return str(raised.value)


async def test_missing_rights_are_listed_with_the_file_to_apply(
    control_plane: ControlPlane, quarantine_definition: None
) -> None:
    said = await refusal_of(control_plane.kubeconfig_for("nobody"))
    assert "update leases.coordination.k8s.io sickbay-controller in namespace sickbay" in said
    for right in ("patch nodes", "create pods/eviction", "watch quarantines.sickbay.dev"):
        assert right in said
    assert "update configmaps sickbay-record in namespace sickbay" in said
    assert "deploy/kubernetes/aggregator-rbac.yaml" in said


async def test_one_right_that_is_missing_is_the_one_that_is_named(
    control_plane: ControlPlane, account: Path
) -> None:
    role = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
    control_plane.unbind(f"{role}/sickbay-aggregator-events")
    cluster = KubeCluster(kubeconfig=str(account))
    try:
        with pytest.raises(Refused) as raised:
            await cluster.start()
        without = KubeCluster(kubeconfig=str(account), options=OpenOptions(events=False))
        await without.start()  # with reconcilers.publish false
        await without.close()
    finally:
        await cluster.close()
        control_plane.apply(DEPLOY / "aggregator-rbac.yaml")
    assert re.findall(r"\w+ [\w./]+ in namespace default", str(raised.value)) == [
        "create events.events.k8s.io in namespace default"
    ]
    assert "nodes" not in str(raised.value)


# -- the definition -----------------------------------------------------------------


def dry_run(plane: ControlPlane, text: str) -> subprocess.CompletedProcess[str]:
    command = ["kubectl", "--kubeconfig", str(plane.kubeconfig), "apply"]
    command += ["--dry-run=server", "--validate=strict", "-f", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("file", ["crd.yaml", "aggregator-rbac.yaml", "access.yaml"])
def test_the_server_takes_our_files_without_a_warning(
    control_plane: ControlPlane, account: Path, file: str
) -> None:
    done = dry_run(control_plane, (DEPLOY / file).read_text())
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "last-applied" not in line]
    assert [line for line in warnings if "Warning" in line or "nknown" in line] == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{reason: x, action: explode}", "Unsupported value"),
        ("{reason: x, action: observe}", "Unsupported value"),
        ("{reason: x, kind: haunted}", "Unsupported value"),
        ("{reason: ''}", "should be at least 1 chars long"),
        ("{action: drain}", "spec.reason: Required value"),
        ("{reason: x, acton: drain}", "acton"),
        ("{reason: x, evidence: [{}]}", "spec.evidence[0].code: Required value"),
    ],
)
def test_nonsense_is_refused_at_the_door(
    control_plane: ControlPlane, quarantine_definition: None, spec: str, says: str
) -> None:
    head = "apiVersion: sickbay.dev/v1alpha1\nkind: Quarantine\nmetadata: {name: n1}\n"
    done = dry_run(control_plane, f"{head}spec: {spec}\n")
    assert done.returncode != 0
    assert says in done.stderr


def test_kubectl_get_quarantines_answers_what_people_ask(
    control_plane: ControlPlane, quarantine_definition: None, cluster_space: Space
) -> None:
    name = f"{cluster_space.node_prefix}-7"
    made = {
        "apiVersion": "sickbay.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": name},
        "spec": {"action": "drain", "kind": "gpu", "reason": "Xid 79"},
    }
    path = "/apis/sickbay.dev/v1alpha1/quarantines"
    control_plane.call("POST", path, made)
    blocker = {"pod": "jobs/a", "reason": "budget llm", "since": "2026-01-01T00:00:00Z"}
    hook = {"state": "Running", "startedAt": "2026-01-01T00:00:00Z"}
    progress = {"podsRemaining": 3, "blockers": [blocker], "preEvict": hook}
    status = {"status": {"phase": "Draining", **progress}}
    control_plane.call("PATCH", f"{path}/{name}/status", status, MERGE_PATCH)
    command = ["kubectl", "--kubeconfig", str(control_plane.kubeconfig), "get", "quar", name]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    head = ["NAME", "ACTION", "KIND", "PHASE", "REASON", "PODS", "BLOCKED", "BY", "AGE"]
    assert shown[0].split() == head
    assert shown[1].split()[:8] == [name, "drain", "gpu", "Draining", "Xid", "79", "3", "jobs/a"]
    wide = subprocess.run([*command, "-o", "wide"], capture_output=True, text=True, check=True)
    assert "budget llm" in wide.stdout
    control_plane.call("DELETE", f"{path}/{name}")
