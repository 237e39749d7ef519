"""The shipped admission policies on the real API server: requests that each denies or allows."""

import asyncio
import contextlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.objects import CA_KEYS_NAME
from aggregator.cluster.kubernetes.operation_client import FINALIZER, operation_body
from aggregator.cluster.port import (
    UNGUARDED,
    NodeChange,
    NotFound,
    Operation,
    OperationSpec,
    OperationStatus,
    RepairState,
)
from aggregator.quarantine.decide.gpu_operands import PAUSED, pause_change, resume_change
from aggregator.quarantine.decide.lost_marks import RestoreRules
from aggregator.quarantine.decide.operator_requests import EXEMPT
from aggregator.quarantine.decide.uncordon import OnUncordon, UncordonRules
from tests.controlplane.api import JSON, MERGE_PATCH, STRATEGIC_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import Bench, running_bench
from tests.support.admission_policies import (
    ACCOUNT,
    REGISTRATION,
    kubelet_of,
    patch,
    remove,
)
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.present import present
from tests.support.replica import SETTINGS, fault, snapshot
from tests.support.stack import start_job
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.cluster

AUTOSCALERS = replace(SETTINGS, marks=RestoreRules(keep_from_autoscalers=True))
AUTHORS = DEPLOY.parent / "examples" / "uncordoned-by.yaml"


#: The answer of a policy, or of a lacking right.
REFUSALS = (401, 403, 422)


@pytest.fixture
def two_nodes(cluster_space: Space) -> list[str]:
    """Requested before `bench`, so that the controller's first list of nodes has them."""
    return cluster_space.create_nodes(2)


@pytest.fixture
async def bench(
    aggregator: Path,
    cluster_space: Space,
    policies: None,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[Bench]:
    """The aggregator, as its own account, under its own policy, which it must not notice."""
    caplog.set_level(logging.INFO, "sickbay.quarantine")
    async with kube_cluster(aggregator, namespace="sickbay") as kube:
        async with running_bench(kube, cluster_space) as made:
            yield made
        answers = Counter({k: n for k, n in kube.counters.answers.items() if k[2] in REFUSALS})
        # A quarantine that begins expects a node without taints or cordon; the server tests that.
        unexpected = [
            error
            for record in caplog.get_records("call")
            if getattr(record, "event", "") == "step.node_differs"
            and "denied" not in (error := str(getattr(record, "error", "")))
        ]
        assert answers == Counter({("PATCH", "nodes", 422): len(unexpected)})


# -- the aggregator ------------------------------------------------------------------------------


async def test_the_aggregator_does_all_that_it_has_to_under_its_policy(
    two_nodes: list[str], bench: Bench, cluster_space: Space
) -> None:
    """Cordon, drain, condition, a change of intent, a release; and marks set earlier by others."""
    plane, space = cluster_space.plane, cluster_space.namespace
    plain, marked = two_nodes
    start_job(plane, space, "train", plain)
    theirs = {"key": "sickbay.dev/quarantine", "value": "mine", "effect": "NoSchedule"}
    other = {"key": "example.test/x", "value": "y", "effect": "NoExecute"}
    before = {
        "metadata": {"labels": {"sickbay.dev/quarantined": "mine"}},
        "spec": {"taints": [theirs, other], "unschedulable": True},
    }
    plane.call("PATCH", f"/api/v1/nodes/{marked}", before, MERGE_PATCH)
    for node in (plain, marked):
        bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
        await bench.phase(node, "Drained")
    assert (
        plane.node(plain)["metadata"]["labels"][
            "node.kubernetes.io/exclude-from-external-load-balancers"
        ]
        == ""
    )

    def condition(node: str) -> str:
        found = plane.node(node)["status"]["conditions"]
        return next((one["status"] for one in found if one["type"] == "SickbayQuarantined"), "")

    await until(lambda: condition(plain) == "True")
    bench.says(plain, faults=(fault("xid:48", "GPU-2", boot_id=bench.boot(plain)),))
    await until(lambda: "xid:48" in str((bench.quarantine(plain) or {}).get("spec")))
    for node in (plain, marked):
        bench.delete(node)
        await until(lambda: bench.quarantine(node) is None)  # noqa: B023
    await until(lambda: condition(plain) == "False")
    after = plane.node(marked)
    assert [
        (one["key"], one["value"], one["effect"])
        for one in after["spec"]["taints"]
        if one["key"] in (theirs["key"], other["key"])
    ] == [tuple(one[key] for key in ("key", "value", "effect")) for one in (other, theirs)]
    assert after["metadata"]["labels"]["sickbay.dev/quarantined"] == "mine"
    assert not bench.unschedulable(plain)
    assert bench.unschedulable(marked)


async def test_the_aggregator_cordons_again_under_its_policy(
    aggregator: Path, cluster_space: Space, policies: None
) -> None:
    [node] = cluster_space.create_nodes(1)
    settings = replace(SETTINGS, uncordon=UncordonRules(OnUncordon.CONFIRM))
    async with (
        kube_cluster(aggregator, namespace="sickbay") as kube,
        running_bench(kube, cluster_space, settings=settings) as bench,
    ):
        bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
        await bench.phase(node, "Drained")
        bench.patch(node, {"spec": {"unschedulable": None}})
        await until(lambda: bench.unschedulable(node) and bench.status(node, "uncordoned"))


async def test_under_an_older_policy_nodes_are_cordoned_and_released_without_others_annotations(
    control_plane: ControlPlane, aggregator: Path, cluster_space: Space, policies: None
) -> None:
    """The policy of before refuses the annotations of autoscalers, and their removal."""
    earlier, later = cluster_space.create_nodes(2)
    autoscalers = "karpenter.sh/do-not-disrupt"

    def notes(node: str) -> Any:
        return control_plane.node(node)["metadata"].get("annotations", {})

    async with (
        kube_cluster(aggregator, namespace="sickbay") as kube,
        running_bench(kube, cluster_space, settings=AUTOSCALERS) as bench,
    ):
        bench.attach(earlier, snapshot(fault(boot_id=bench.boot(earlier))))
        await bench.phase(earlier, "Drained")
        assert notes(earlier)[autoscalers] == "true"

        path = f"{REGISTRATION}/validatingadmissionpolicies/sickbay-aggregator"
        policy = control_plane.call("GET", path)
        [own] = (one for one in policy["spec"]["variables"] if one["name"] == "ownNotices")
        own["expression"] = "['example.test/none']"
        control_plane.call("PUT", path, policy)
        account = control_plane.client_with_token(control_plane.token_for(*ACCOUNT, audience=None))
        probe = {"metadata": {"annotations": {autoscalers: "probe"}}}
        dry = f"/api/v1/nodes/{later}?dryRun=All"
        await until(lambda: patch(account, dry, probe)[0] == 422, within=20)

        bench.attach(later, snapshot(fault(boot_id=bench.boot(later))))
        await bench.phase(later, "Drained")
        assert autoscalers not in notes(later)
        for node in (later, earlier):
            bench.delete(node)
            await bench.free(node)
            assert not bench.unschedulable(node)
        assert notes(earlier)[autoscalers] == "true", "it stays where it may not be removed"
        assert "sickbay.dev/kept" in notes(earlier)


TAINT = {"key": "sickbay.dev/quarantine", "value": "gpu", "effect": "NoSchedule"}
FORBIDDEN: dict[str, Any] = {
    "a NoExecute taint of its key": {"spec": {"taints": [{**TAINT, "effect": "NoExecute"}]}},
    "a taint of another key": {"spec": {"taints": [{**TAINT, "key": "example.test/x"}]}},
    "the end of another's taint": {"spec": {"taints": []}},
    "another's label": {"metadata": {"labels": {"example.test/pool": "b"}}},
    "the end of another's label": {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
    "another's annotation": {"metadata": {"annotations": {"example.test/x": "y"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.test/x"]}},
    "an owner": {
        "metadata": {
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}]
        }
    },
    "a provider": {"spec": {"providerID": "x://y"}},
}
FORBIDDEN_STATUS: dict[str, Any] = {
    "an address": {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}},
    "capacity": {"status": {"capacity": {"nvidia.com/gpu": "80"}}},
    "allocatable": {"status": {"allocatable": {"nvidia.com/gpu": "0"}}},
    "the kubelet's port": {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}},
    "another's condition": {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    "another's label by the status": {"metadata": {"labels": {"example.test/pool": "b"}}},
    "an annotation by the status": {"metadata": {"annotations": {"example.test/x": "y"}}},
}


async def test_the_aggregator_may_stop_and_start_the_operands_that_hold_gpus_and_no_others(
    control_plane: ControlPlane, cluster_space: Space, policies: None
) -> None:
    [node] = cluster_space.create_nodes(1)
    path = f"/api/v1/nodes/{node}"
    plugin, driver = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.driver"
    dcgm, none = "nvidia.com/gpu.deploy.dcgm", "nvidia.com/gpu.deploy.dcgm-exporter"
    labels = {plugin: "true", driver: "true", dcgm: "paused-for-driver-upgrade"}
    control_plane.call("PATCH", path, {"metadata": {"labels": labels}}, MERGE_PATCH)
    token = control_plane.token_for(*ACCOUNT, audience=None)
    account = control_plane.client_with_token(token)

    def answer(**wanted: str | None) -> int:
        return patch(account, path, {"metadata": {"labels": wanted}}, MERGE_PATCH)[0]

    assert answer(**{driver: PAUSED}) == 422
    assert answer(**{plugin: "false"}) == 422
    assert answer(**{plugin: None}) == 422
    assert answer(**{dcgm: "true"}) == 422, "another party has stopped it"
    assert answer(**{none: PAUSED}) == 422, "it did not run here"
    async with kube_cluster(
        control_plane.kubeconfig_for_service_account(*ACCOUNT), namespace="sickbay"
    ) as kube:
        found = present(await kube.read_node(node))
        stopped = await kube.patch_node(
            found, NodeChange(labels=pause_change(found)), guard=UNGUARDED
        )
        assert (stopped.labels[plugin], stopped.labels[driver]) == (PAUSED, "true")
        assert stopped.labels[dcgm] == "paused-for-driver-upgrade"
        started = await kube.patch_node(
            stopped, NodeChange(labels=resume_change(stopped)), guard=UNGUARDED
        )
        assert {key: started.labels[key] for key in labels} == labels


async def test_every_other_write_of_the_aggregator_is_denied(
    control_plane: ControlPlane, cluster_space: Space, policies: None
) -> None:
    """RBAC alone allows each of them: the second half is the positive control."""
    [node] = cluster_space.create_nodes(1)
    path = f"/api/v1/nodes/{node}"
    taint = {"spec": {"taints": [{"key": "example.test/t", "effect": "NoSchedule"}]}}
    control_plane.call("PATCH", path, taint, MERGE_PATCH)
    account = control_plane.client_with_token(control_plane.token_for(*ACCOUNT, audience=None))
    tried = [(what, path, body) for what, body in FORBIDDEN.items()]
    tried += [(what, f"{path}/status", body) for what, body in FORBIDDEN_STATUS.items()]
    for what, where, body in tried:
        status, message = patch(
            account, where, body, STRATEGIC_PATCH if "status" in body else MERGE_PATCH
        )
        assert status == 422, (what, status, message)
        assert "sickbay-aggregator" in message, (what, message)
        assert "the aggregator may" in message, (what, message)


async def test_without_its_policy_rbac_allows_what_the_policy_denies(
    control_plane: ControlPlane, cluster_space: Space, aggregator: Path
) -> None:
    """The blast radius that docs/security.md describes, tried."""
    account = control_plane.client_with_token(control_plane.token_for(*ACCOUNT, audience=None))
    nodes = iter(cluster_space.create_nodes(len(FORBIDDEN) + len(FORBIDDEN_STATUS)))
    for what, body in FORBIDDEN.items():
        assert patch(account, f"/api/v1/nodes/{next(nodes)}", body)[0] == 200, what
    for what, body in FORBIDDEN_STATUS.items():
        where = f"/api/v1/nodes/{next(nodes)}/status"
        assert patch(account, where, body, STRATEGIC_PATCH)[0] == 200, what


SECRETS = "/api/v1/namespaces/sickbay/secrets"


def secret(name: str, kind: str = "Opaque") -> dict[str, Any]:
    """With the annotation by which a service account's token is asked for."""
    account = {"kubernetes.io/service-account.name": "sickbay-aggregator"}
    return {"metadata": {"name": name, "annotations": account}, "type": kind}


TOKEN = "kubernetes.io/service-account-token"


async def test_the_aggregator_may_write_the_secret_of_its_authorities_alone(
    control_plane: ControlPlane, policies: None
) -> None:
    account = control_plane.client_with_token(control_plane.token_for(*ACCOUNT, audience=None))
    control_plane.request("DELETE", f"{SECRETS}/{CA_KEYS_NAME}")

    def refused(body: dict[str, Any]) -> str:
        answer = account.request("POST", SECRETS, body)
        if answer.status == 201:
            control_plane.call("DELETE", f"{SECRETS}/{body['metadata']['name']}")
            return ""
        return str(answer.body["message"])

    policy = "the Secret sickbay-ca-keys of type Opaque alone"
    await until(lambda: policy in refused(secret("other")), within=20)
    assert policy in refused(secret(CA_KEYS_NAME, TOKEN))
    assert refused(secret(CA_KEYS_NAME)) == ""


async def test_without_its_policy_the_aggregator_could_make_itself_a_token(
    control_plane: ControlPlane, aggregator: Path
) -> None:
    """The right that docs/security.md describes, tried."""
    account = control_plane.client_with_token(control_plane.token_for(*ACCOUNT, audience=None))
    where = f"{SECRETS}/{CA_KEYS_NAME}"
    control_plane.request("DELETE", where)
    try:
        assert account.request("POST", SECRETS, secret(CA_KEYS_NAME, TOKEN)).status == 201
        assert account.request("GET", where).status == 200
    finally:
        control_plane.request("DELETE", where)


# -- kubelets ------------------------------------------------------------------------------------


@pytest.mark.kubernetes_from(36)  # MutatingAdmissionPolicy v1
async def test_a_kubelet_can_neither_lift_its_quarantine_nor_exempt_itself(
    bench: Bench, cluster_space: Space, authors: None
) -> None:
    [node] = cluster_space.create_nodes(1)
    bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
    await bench.phase(node, "Drained")
    kubelet, path = kubelet_of(bench.plane, node), f"/api/v1/nodes/{node}"
    exemption = {EXEMPT: "until 2099-01-01T00:00:00Z mine"}
    for where in (path, f"{path}/status"):
        for body in (
            {"metadata": {"annotations": exemption}},
            {"metadata": {"annotations": {"sickbay.dev/applied": None}}},
            {"metadata": {"annotations": {"sickbay.dev/applied": None}}},
            {"metadata": {"annotations": {"sickbay.dev/codes": "none"}}},
            {"metadata": {"labels": {"sickbay.dev/quarantined": None}}},
            {"metadata": {"labels": {"sickbay.dev/new": "x"}}},
        ):
            status, message = patch(kubelet, where, body, STRATEGIC_PATCH)
            assert status == 422, (where, body, message)
            assert "a kubelet may not" in message
    for uncordon in (False, None):
        status, message = patch(kubelet, path, {"spec": {"unschedulable": uncordon}})
        assert status == 422, message
        assert "a kubelet may not uncordon a node in quarantine" in message
    assert bench.unschedulable(node)
    # The routine requests of kubelets pass.
    heartbeat = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "K"}]}}
    assert patch(kubelet, f"{path}/status", heartbeat, STRATEGIC_PATCH)[0] == 200
    labels = {"metadata": {"labels": {"example.test/x": "y"}}}
    assert patch(kubelet, path, labels)[0] == 200


async def test_a_kubelet_may_cordon_and_uncordon_a_node_that_is_not_in_quarantine(
    control_plane: ControlPlane, cluster_space: Space, policies: None
) -> None:
    [node] = cluster_space.create_nodes(1)
    kubelet, path = kubelet_of(control_plane, node), f"/api/v1/nodes/{node}"
    for cordoned in (True, False):
        assert patch(kubelet, path, {"spec": {"unschedulable": cordoned}})[0] == 200


async def test_a_kubelet_may_not_register_its_node_with_our_words_on_it(
    control_plane: ControlPlane, cluster_space: Space, policies: None
) -> None:
    name = f"{cluster_space.node_prefix}-new"
    kubelet = kubelet_of(control_plane, name)
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    notes = {"metadata": {"name": name, "annotations": {EXEMPT: "until 2099-01-01T00:00:00Z x"}}}
    answer = kubelet.request("POST", "/api/v1/nodes", {**body, **notes}, JSON)
    assert answer.status == 422, answer.body
    assert kubelet.request("POST", "/api/v1/nodes", body, JSON).status == 201
    control_plane.request("DELETE", f"/api/v1/nodes/{name}")


async def test_without_the_policy_a_kubelets_uncordon_releases_nothing_and_its_exemption_shows(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """A cluster older than 1.30, or one where they were not applied."""
    [node] = cluster_space.create_nodes(1)
    settings = replace(SETTINGS, uncordon=UncordonRules())
    async with running_bench(kube, cluster_space, settings=settings) as bench:
        bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
        await bench.phase(node, "Drained")
        kubelet, path = kubelet_of(bench.plane, node), f"/api/v1/nodes/{node}"
        assert patch(kubelet, path, {"spec": {"unschedulable": False}})[0] == 200
        await until(lambda: bench.unschedulable(node) and bench.status(node, "uncordoned"))
        exemption = {EXEMPT: "until 2099-01-01T00:00:00Z mine"}
        assert patch(kubelet, path, {"metadata": {"annotations": exemption}})[0] == 200
        async with asyncio.timeout(PATIENCE):  # the API server's cache, which the list reads, lags
            while "mine" not in str(bench.fleet.node_summaries[node].decision.requests):
                await bench.list_nodes_anew()
                await asyncio.sleep(0.1)
        assert "node.requested" in bench.notes.kinds(node)
        # Exempting it does not lift its quarantine.
        assert bench.quarantine(node) is not None


# -- Quarantines ---------------------------------------------------------------------------------


async def test_a_person_may_not_edit_what_the_aggregator_would_write_again(
    bench: Bench, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
    await bench.phase(node, "Drained")
    path = f"/apis/sickbay.dev/v1alpha1/quarantines/{node}"
    found = present(bench.quarantine(node))
    [item] = found["spec"]["evidence"]
    client = bench.plane.client
    edits: list[tuple[Any, str]] = [
        ({"spec": {"evidence": [{**item, "cleared": "operator"}]}}, "sickbay release NODE"),
        ({"spec": {"evidence": None}}, "sickbay-agent cleared"),
        ({"spec": {"intentAction": "cordon"}}, "set spec.action instead"),
    ]
    for body, says in edits:
        status, message = patch(client, path, body)
        assert status == 422, (body, message)
        assert says in message
    status, message = patch(client, f"{path}/status", {"status": {"phase": "Releasing"}})
    assert status == 422, message
    assert "aggregator's alone" in message
    for body in (
        {"spec": {"action": "cordon", "reason": "other words"}},
        {"metadata": {"labels": {"a": "b"}, "annotations": {"ticket": "7"}}},
    ):
        assert patch(client, path, body)[0] == 200, body
    await until(lambda: "a person set cordon" in bench.status(node, "override"))


# -- Operations ----------------------------------------------------------------------------------


@pytest.fixture
async def operation(
    control_plane: ControlPlane, policies: None, aggregator: Path
) -> AsyncIterator[Operation]:
    """One that has begun, while the policy of Operations is in force."""
    spec = OperationSpec("node-a", "reboot", quarantine="q", requester="sickbay")
    client = control_plane.client
    forged = operation_body("forged", spec)
    answers = f"{paths.OPERATIONS}?dryRun=All"
    await until(lambda: client.request("POST", answers, forged).status == 422, within=20)
    async with kube_cluster(aggregator, namespace="sickbay") as kube:
        made = await kube.operations.create("q-1-reboot", spec)
        status = OperationStatus(RepairState.ORDERED, quarantine="q", number=1, began_at=1.0)
        begun = await kube.operations.write_status(made, status)
        yield begun
        with contextlib.suppress(NotFound):  # a test may have deleted it
            await kube.operations.drop(begun)


async def test_a_person_may_not_have_an_operation_forgotten_nor_make_one_that_counts_as_begun(
    control_plane: ControlPlane, operation: Operation
) -> None:
    client, path = control_plane.client, f"{paths.OPERATIONS}/{operation.name}"
    edits: list[tuple[str, Any, str]] = [
        (path, {"metadata": {"finalizers": None}}, "delete this policy's binding first"),
        (path, {"metadata": {"labels": {"sickbay.dev/node": None}}}, "label sickbay.dev/node"),
        (path, {"metadata": {"labels": {"sickbay.dev/node": "node-b"}}}, "label sickbay.dev/node"),
        (f"{path}/status", {"status": {"phase": "Failed"}}, "status of an Operation"),
    ]
    for where, body, says in edits:
        status, message = patch(client, where, body)
        assert (status, says in message) == (422, True), (body, message)
    spec = replace(operation.spec, requester="ann")
    held = operation_body("mine", spec, finalizers=[FINALIZER])
    answer = client.request("POST", paths.OPERATIONS, held)
    assert (answer.status, "finalizer" in answer.body["message"]) == (422, True)
    control_plane.call("POST", paths.OPERATIONS, operation_body("mine", spec))
    mine = f"{paths.OPERATIONS}/mine"
    assert patch(client, mine, {"metadata": {"finalizers": [FINALIZER]}})[0] == 422
    assert patch(client, mine, {"metadata": {"finalizers": ["example.com/x"]}})[0] == 200
    assert patch(client, mine, {"metadata": {"finalizers": None}})[0] == 200
    control_plane.call("DELETE", mine)


async def test_without_the_binding_an_uninstall_removes_the_finalizers(
    control_plane: ControlPlane, operation: Operation, tmp_path: Path
) -> None:
    """With the commands of docs/install.md, in their order. The removal of the finalizers is still
    refused for a moment after the deletion of the binding.
    """
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on the path")
    text = (DEPLOY.parents[1] / "docs" / "install.md").read_text()
    lines = [line.partition("  #")[0] for line in text.splitlines()]
    binding = next(line for line in lines if line.startswith("kubectl delete validatingadmission"))
    [kind, name] = binding.removeprefix("kubectl delete ").split()
    place = next(at for at, line in enumerate(lines) if line.startswith("until kubectl get oper"))
    assert lines.index(binding) < place
    process = await asyncio.create_subprocess_exec(
        *("sh", "-euc", "\n".join(lines[place : place + 2])),
        cwd=tmp_path,
        env={
            "KUBECONFIG": str(control_plane.kubeconfig),
            "HOME": str(tmp_path),  # kubectl keeps a cache there
            "PATH": os.environ["PATH"],
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    refusal = await asyncio.wait_for(process.stderr.readline(), PATIENCE)
    assert b"the finalizer of an Operation" in refusal
    control_plane.call("DELETE", f"{REGISTRATION}/{kind}s/{name}")
    await asyncio.wait_for(process.communicate(), 2 * PATIENCE)
    assert process.returncode == 0
    path = f"{paths.OPERATIONS}/{operation.name}"
    assert "finalizers" not in control_plane.call("GET", path)["metadata"]
    control_plane.call("DELETE", path)


# -- who uncordoned -------------------------------------------------------------------------------


@pytest.fixture
def authors(control_plane: ControlPlane) -> Iterator[None]:
    control_plane.apply(AUTHORS)
    yield
    remove(control_plane, AUTHORS)


@pytest.mark.kubernetes_from(36)  # MutatingAdmissionPolicy v1
async def test_with_the_policy_that_names_authors_a_persons_uncordon_releases_and_a_tools_does_not(
    kube: KubeCluster, cluster_space: Space, authors: None
) -> None:
    plane, [node] = cluster_space.plane, cluster_space.create_nodes(1)
    settings = replace(
        SETTINGS, uncordon=UncordonRules(OnUncordon.CONFIRM, trust_uncordoned_by=True)
    )
    space = cluster_space.namespace
    plane.create_service_account(space, "kured")
    account = {"kind": "ServiceAccount", "name": "kured", "namespace": space}
    plane.bind(f"kured-{space}", "cluster-admin", account)
    tool = plane.client_with_token(plane.token_for(space, "kured", audience=None))
    path, uncordon = f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}}
    async with running_bench(kube, cluster_space, settings=settings) as bench:
        bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
        await bench.phase(node, "Drained")

        forged = {"metadata": {"annotations": {"sickbay.dev/uncordoned-by": "mary"}}}

        def are_in_force() -> bool:
            """The policies are in force a moment after they were applied. Each uncordon without a
            name would make the wait until the node is cordoned again longer.
            """
            dry = f"{path}?dryRun=All"
            named = tool.request("PATCH", dry, uncordon, MERGE_PATCH).body["metadata"][
                "annotations"
            ]
            is_refused = tool.request("PATCH", dry, forged, MERGE_PATCH).status == 422
            return is_refused and "kured" in named.get("sickbay.dev/uncordoned-by", "")

        await until(are_in_force)
        assert patch(tool, path, uncordon)[0] == 200
        await until(lambda: "kured" in bench.status(node, "uncordoned"))
        assert bench.quarantine(node) is not None
        status, message = patch(tool, path, forged)
        assert status == 422, message
        await until(lambda: bench.unschedulable(node), within=120)
        mary = plane.client_for("mary", ["system:masters"])
        assert patch(mary, path, uncordon)[0] == 200
        await bench.free(node)
        assert not bench.unschedulable(node)
    plane.request("DELETE", f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/kured-{space}")
