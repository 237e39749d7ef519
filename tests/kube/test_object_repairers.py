"""Repairers that act through Kubernetes objects, on a real API server with the rights of
deploy/ and the aggregator's own account.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.object_client import KubeObjects
from aggregator.cluster.objects import ClusterObject, ObjectKind, ObjectResource
from aggregator.cluster.port import (
    UNGUARDED,
    Conflict,
    NotFound,
    Quarantine,
    Refused,
    Unreachable,
)
from aggregator.config.external import ExternalSection
from aggregator.config.settings import load
from aggregator.quarantine.decide.own_pods import OPERATION
from aggregator.quarantine.repair.protocol import AnswerState, RepairAnswer, RepairOrder
from aggregator.repairers.cluster_api import REMEDIATE, ClusterApiRepairer
from aggregator.repairers.external import ExternalRepairer
from aggregator.repairers.karpenter import NODE_CLAIM, KarpenterRepairer
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_kube_fences import SPEC
from tests.support.faulty_proxy import ApiFaults, FaultyProxy
from tests.support.kube_cluster import DEPLOY, kube_cluster, unreviewed_cluster
from tests.support.present import present
from tests.support.repair_objects import CLAIMS, DEFINITIONS, Objects
from tests.support.waiting import until
from tests.support.yaml_documents import read_documents

PROFILES = DEPLOY.parent / "profiles"
KURED = DEPLOY.parent / "examples" / "repair-kured-rbac.yaml"
EXAMPLE = DEPLOY.parent / "examples" / "repair-medik8s-rbac.yaml"
DOCUMENT = DEPLOY.parents[1] / "docs" / "repair.md"


@pytest.fixture
def given(control_plane: ControlPlane, cluster_space: Space) -> Any:
    """The objects of a test; the definitions are there."""
    control_plane.apply(DEFINITIONS)
    objects = Objects(cluster_space)
    yield objects
    objects.remove_claims()


@pytest.fixture
def rights(control_plane: ControlPlane, aggregator: Path, given: Objects) -> Path:
    """A kubeconfig of the aggregator's account, with the rights that deploy/ grants for repairs."""
    for name in ("repair-karpenter", "repair-cluster-api"):
        control_plane.apply(PROFILES / name / f"{name}.yaml")
    control_plane.apply(
        EXAMPLE.read_text().replace("namespace: medik8s", f"namespace: {given.space.namespace}")
    )
    return aggregator


@pytest.fixture
async def account(rights: Path, cluster_space: Space) -> AsyncIterator[KubeCluster]:
    async with unreviewed_cluster(rights) as cluster:
        yield cluster


def order_for(
    node: dict[str, Any], repair: str, *, number: int = 1, quarantine: str = "q"
) -> RepairOrder:
    return RepairOrder(
        f"{quarantine}-{number}-{repair}",
        repair,
        node["metadata"]["name"],
        node["metadata"]["uid"],
        "boot-1",
        quarantine,
        "xid:79 on GPU-1",
        600.0,
    )


# -- objects of any kind ------------------------------------------------------------


async def test_a_kind_that_the_cluster_does_not_have_is_named(account: KubeCluster) -> None:
    for version in ("absent.example.test/v1", "karpenter.sh/v9", "absent.example.test/"):
        with pytest.raises(NotFound, match=re.escape(f"no kind NodeClaim ({version})")):
            await account.objects().resource(ObjectKind(version, "NodeClaim"))
    with pytest.raises(NotFound, match="no kind Nodeclaim"):
        await account.objects().resource(ObjectKind("karpenter.sh/v1", "Nodeclaim"))


async def test_the_preferred_version_is_the_clusters(account: KubeCluster) -> None:
    found = await account.objects().resource(ObjectKind("cluster.x-k8s.io/", "Machine"))
    assert found == ObjectResource("cluster.x-k8s.io/v1beta2", "Machine", "machines", True)
    core = await account.objects().resource(ObjectKind("v1", "ConfigMap"))
    assert (core.plural, core.namespaced, str(core)) == ("configmaps", True, "configmaps")


@pytest.mark.parametrize("name", ["..", ".", "", "/", "../", "x/status", "x/../y", "x%2Fstatus"])
async def test_a_name_that_is_no_objects_sends_no_request(account: KubeCluster, name: str) -> None:
    objects = account.objects()
    resource = await objects.resource(NODE_CLAIM)
    with pytest.raises(Refused, match="is no object's name"):
        await objects.get(resource, "", name)


# -- Karpenter ----------------------------------------------------------------------


async def test_karpenters_claim_of_the_node_is_deleted_and_no_other(
    account: KubeCluster, given: Objects
) -> None:
    node = given.node()
    name = node["metadata"]["name"]
    ours, other = given.claim("ours", node=name), given.claim("other", node=f"{name}0")
    repairer = KarpenterRepairer(account.objects())
    answer = await repairer.order(order_for(node, "replace"), UNGUARDED)
    assert answer == RepairAnswer(AnswerState.TAKEN, f"NodeClaim {ours} is deleted")
    assert given.claim_is_deleted(ours)
    assert not given.claim_is_deleted(other)
    again = await repairer.order(
        order_for(node, "replace"), UNGUARDED
    )  # as a process that starts anew does
    assert again == RepairAnswer(AnswerState.TAKEN, f"NodeClaim {ours} is being deleted already")
    assert not await repairer.cancel(order_for(node, "replace"))
    given.terminate(ours, name)
    late = await repairer.order(order_for(node, "replace"), UNGUARDED)
    assert late.state is AnswerState.UNSURE  # the runner finds the proof: the Node is gone
    assert given.space.plane.request("GET", f"{CLAIMS}/{ours}").status == 404


async def test_a_claim_is_known_by_the_providers_id_before_the_name(
    account: KubeCluster, given: Objects
) -> None:
    """A cloud uses a Node's name again; its instance's id it does not."""
    node = given.node(provider_id="aws:///a/i-2")
    name = node["metadata"]["name"]
    former = given.claim("former", node=name, provider_id="aws:///a/i-1")
    now = given.claim("now", provider_id="aws:///a/i-2")
    answer = await KarpenterRepairer(account.objects()).order(order_for(node, "replace"), UNGUARDED)
    assert answer.state is AnswerState.TAKEN
    assert given.claim_is_deleted(now)
    assert not given.claim_is_deleted(former)


async def test_without_one_claim_no_claim_is_deleted(account: KubeCluster, given: Objects) -> None:
    node = given.node()
    name = node["metadata"]["name"]
    repairer = KarpenterRepairer(account.objects())
    none = await repairer.order(order_for(node, "replace"), UNGUARDED)
    assert none.state is AnswerState.FAILED
    assert "no NodeClaim has status.nodeName" in none.text
    made = [given.claim("a", node=name), given.claim("b", node=name)]
    two = await repairer.order(order_for(node, "replace"), UNGUARDED)
    assert two.state is AnswerState.FAILED
    assert f"2 NodeClaims are of node {name}: {made[0]}, {made[1]}" in two.text
    assert not any(given.claim_is_deleted(one) for one in made)


async def test_another_node_of_the_name_is_never_replaced(
    account: KubeCluster, given: Objects
) -> None:
    node = given.node()
    claim = given.claim("ours", node=node["metadata"]["name"])
    former = order_for(node, "replace")
    newer = RepairOrder(*("o", "replace", former.node, "another-uid", "b", "q", "why", 600.0))
    answer = await KarpenterRepairer(account.objects()).order(newer, UNGUARDED)
    assert answer.state is AnswerState.UNSURE
    assert not given.claim_is_deleted(claim)


class ChangingClaims(KubeObjects):
    """Karpenter writes to a NodeClaim after each read, so many times; or ``before`` it."""

    def __init__(
        self,
        inner: KubeObjects,
        change: Callable[[str], None],
        times: int,
        *,
        before: bool = False,
    ) -> None:
        super().__init__(inner._transport)
        self._change, self._left, self._before = change, times, before

    async def get(
        self, resource: ObjectResource, namespace: str, name: str
    ) -> ClusterObject | None:
        changes = resource.plural == "nodeclaims" and self._left > 0
        self._left -= changes
        if changes and self._before:
            self._change(name)
        found = await super().get(resource, namespace, name)
        if changes and not self._before:
            self._change(name)
        return found


async def test_a_claim_that_changes_is_read_again_before_it_is_deleted(
    account: KubeCluster, given: Objects
) -> None:
    node = given.node()
    claim = given.claim("ours", node=node["metadata"]["name"])

    def touch(name: str) -> None:
        labels = {"metadata": {"labels": {"a": str(asyncio.get_running_loop().time())}}}
        given.space.plane.call("PATCH", f"{CLAIMS}/{name}", labels, MERGE_PATCH)

    busy = ChangingClaims(account.objects(), touch, times=100)
    answer = await KarpenterRepairer(busy).order(order_for(node, "replace"), UNGUARDED)
    assert answer.state is AnswerState.NOT_SENT
    assert not given.claim_is_deleted(claim)
    calmer = ChangingClaims(account.objects(), touch, times=2)
    answer = await KarpenterRepairer(calmer).order(order_for(node, "replace"), UNGUARDED)
    assert answer.state is AnswerState.TAKEN
    assert given.claim_is_deleted(claim)


@pytest.mark.parametrize("before", [True, False])
async def test_a_claim_that_became_another_nodes_is_not_deleted(
    account: KubeCluster, given: Objects, *, before: bool
) -> None:
    node = given.node()
    claim = given.claim("ours", node=node["metadata"]["name"])

    def move(name: str) -> None:
        status = {"status": {"nodeName": "elsewhere"}}
        given.space.plane.call("PATCH", f"{CLAIMS}/{name}/status", status, MERGE_PATCH)

    moving = ChangingClaims(account.objects(), move, times=1, before=before)
    answer = await KarpenterRepairer(moving).order(order_for(node, "replace"), UNGUARDED)
    assert answer.state in (AnswerState.FAILED, AnswerState.NOT_SENT)
    assert not given.claim_is_deleted(claim)


# -- Cluster API --------------------------------------------------------------------


def capi_node(given: Objects, machine: str, **more: Any) -> dict[str, Any]:
    return given.node(
        annotations={
            "cluster.x-k8s.io/machine": machine,
            "cluster.x-k8s.io/cluster-name": "c",
            "cluster.x-k8s.io/cluster-namespace": given.space.namespace,
        },
        **more,
    )


class NoWait:
    """Instead of a sleep; counts."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.slept: list[float] = []
        self._meanwhile = meanwhile

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._meanwhile()


def cluster_api(account: KubeCluster, sleep: NoWait | None = None) -> ClusterApiRepairer:
    return ClusterApiRepairer(account.objects(), account.objects(), sleep=sleep or NoWait())


async def test_the_machine_of_the_node_is_marked_once(account: KubeCluster, given: Objects) -> None:
    node = capi_node(given, "m1")
    given.machine("m1", node=node["metadata"]["name"], annotations={"keep": "me"})
    order = order_for(node, "replace")
    answer = await cluster_api(account).order(order, UNGUARDED)
    assert answer.state is AnswerState.TAKEN
    marked = given.machine_annotations("m1")
    assert marked == {"keep": "me", REMEDIATE: "", OPERATION: order.operation}
    version = given.space.plane.call("GET", f"{given.machines}/m1")["metadata"]["resourceVersion"]
    assert (await cluster_api(account).order(order, UNGUARDED)).state is AnswerState.TAKEN
    after = given.space.plane.call("GET", f"{given.machines}/m1")["metadata"]["resourceVersion"]
    assert after == version


async def test_an_annotation_that_names_another_nodes_machine_does_nothing(
    account: KubeCluster, given: Objects
) -> None:
    """A kubelet may write its Node's annotations, and must not have another node replaced."""
    node = capi_node(given, "m1", provider_id="x:///1")
    given.machine("m1", node="another")
    answer = await cluster_api(account).order(order_for(node, "replace"), UNGUARDED)
    assert answer.state is AnswerState.FAILED
    assert "its status.nodeRef names another and not" in answer.text
    given.machine("m2", node=node["metadata"]["name"], provider_id="x:///2")
    there = f"/api/v1/nodes/{node['metadata']['name']}"
    moved = {"metadata": {"annotations": {"cluster.x-k8s.io/machine": "m2"}}}
    given.space.plane.call("PATCH", there, moved, MERGE_PATCH)
    answer = await cluster_api(account).order(order_for(node, "replace"), UNGUARDED)
    assert answer.state is AnswerState.FAILED
    assert "its providerID is x:///2, and the Node's is x:///1" in answer.text
    assert REMEDIATE not in given.machine_annotations("m1") | given.machine_annotations("m2")


@pytest.mark.parametrize(
    ("machine", "text"),
    [
        ({"owned": False}, "no controller owns Machine"),
        ({"annotations": {"cluster.x-k8s.io/skip-remediation": ""}}, "skip-remediation"),
        ({"annotations": {"cluster.x-k8s.io/paused": ""}}, "cluster.x-k8s.io/paused"),
    ],
)
async def test_a_machine_that_would_not_be_remediated_is_not_marked(
    account: KubeCluster, given: Objects, machine: dict[str, Any], text: str
) -> None:
    node = capi_node(given, "m1")
    given.machine("m1", node=node["metadata"]["name"], **machine)
    answer = await cluster_api(account).order(order_for(node, "replace"), UNGUARDED)
    assert answer.state is AnswerState.FAILED
    assert text in answer.text
    assert REMEDIATE not in given.machine_annotations("m1")


async def test_a_node_that_cluster_api_did_not_make_fails_with_the_reason(
    account: KubeCluster, given: Objects
) -> None:
    answer = await cluster_api(account).order(order_for(given.node(), "replace"), UNGUARDED)
    assert answer.state is AnswerState.FAILED
    assert "lacks the annotations cluster.x-k8s.io/machine" in answer.text
    answer = await cluster_api(account).order(
        order_for(capi_node(given, "none"), "replace"), UNGUARDED
    )
    assert answer.state is AnswerState.FAILED
    assert "is not there (if the Machines are in another cluster, set management" in answer.text


async def test_a_mark_is_taken_back_until_it_is_passed_on(
    account: KubeCluster, given: Objects
) -> None:
    node = capi_node(given, "m1")
    given.machine("m1", node=node["metadata"]["name"], annotations={"keep": "me"})
    order = order_for(node, "replace")
    assert not await cluster_api(account).cancel(order)  # no mark of this order
    await cluster_api(account).order(order, UNGUARDED)
    wait = NoWait()
    assert await cluster_api(account, wait).cancel(order)
    assert wait.slept == [5.0]
    assert given.machine_annotations("m1") == {"keep": "me"}
    await cluster_api(account).order(order, UNGUARDED)
    late = NoWait(lambda: given.pass_on("m1"))  # it had read the mark
    assert not await cluster_api(account, late).cancel(order)
    await cluster_api(account).order(order, UNGUARDED)
    assert not await cluster_api(account).cancel(order)
    assert REMEDIATE in given.machine_annotations("m1")


async def test_the_end_of_an_attempt_removes_our_mark_and_no_others(
    account: KubeCluster, given: Objects
) -> None:
    """A mark that stayed would have the node replaced after its release."""
    node = capi_node(given, "m1")
    given.machine("m1", node=node["metadata"]["name"])
    order = order_for(node, "replace")
    await cluster_api(account).order(order, UNGUARDED)
    other = order_for(node, "replace", number=2)
    assert (await cluster_api(account).clean_up(other)).state is AnswerState.DONE
    assert REMEDIATE in given.machine_annotations("m1")
    assert (await cluster_api(account).clean_up(order)).state is AnswerState.DONE
    assert given.machine_annotations("m1") == {}
    given.space.plane.call(
        "PATCH", f"{given.machines}/m1", {"metadata": {"annotations": {REMEDIATE: ""}}}, MERGE_PATCH
    )
    assert (await cluster_api(account).order(order, UNGUARDED)).text.endswith(
        "was marked by another party"
    )
    assert (await cluster_api(account).clean_up(order)).state is AnswerState.DONE
    assert REMEDIATE in given.machine_annotations("m1")


async def test_machines_may_be_in_another_cluster(
    account: KubeCluster, given: Objects, control_plane: ControlPlane
) -> None:
    node = capi_node(given, "m1")
    given.machine("m1", node=node["metadata"]["name"])
    management = account.objects(str(control_plane.kubeconfig))
    answer = await ClusterApiRepairer(account.objects(), management).order(
        order_for(node, "replace"), UNGUARDED
    )
    assert answer.state is AnswerState.TAKEN
    assert REMEDIATE in given.machine_annotations("m1")


# -- objects of a site's template: the example of docs/repair.md ------------------------


def documented(folder: Path, given: Objects, word: str, kind: str) -> ExternalSection:
    """The example of the document with this word, as the aggregator loads it; in the test's
    namespace.
    """
    blocks = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    [text] = [block for block in blocks if word in block and "repairers:" in block]
    head = 'listen: {grpc: "127.0.0.1:1", web: "127.0.0.1:2", insecure_plaintext: true}\n'
    head += "identity: {kind: insecure-trust-hello}\n"
    path = folder / "aggregator.yaml"
    place = f"namespace: {given.space.namespace}"
    path.write_text(head + re.sub(r"namespace: (medik8s|gpu-repair|kured-sentinel)", place, text))
    [repairer] = load(path).repair.repairers
    assert repairer.kind == kind
    assert repairer.external is not None
    return repairer.external


@pytest.fixture
def example(tmp_path: Path, given: Objects) -> ExternalSection:
    """A SelfNodeRemediation of medik8s, named like the Node."""
    return documented(tmp_path, given, "SelfNodeRemediation", "reboot")


async def quarantined(
    given: Objects, kube: KubeCluster
) -> tuple[dict[str, Any], RepairOrder, Quarantine]:
    """A Node, the order of its reboot, and its Quarantine, which owns what is created."""
    node = given.node()
    made = await kube.create_quarantine(node["metadata"]["name"], SPEC, guard=UNGUARDED)
    return node, order_for(node, "reboot", quarantine=made.uid), made


async def test_the_documents_example_creates_one_remediation_named_like_the_node(
    account: KubeCluster, kube: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    _, order, made = await quarantined(given, kube)
    repairer = ExternalRepairer(account.objects(), example)
    answer = await repairer.order(order, UNGUARDED)
    assert answer.state is AnswerState.TAKEN, answer
    found = present(given.remediation(order.node))
    assert found["metadata"]["annotations"][OPERATION] == order.operation
    [owner] = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Quarantine", made.uid)
    again = await ExternalRepairer(account.objects(), example).order(order, UNGUARDED)
    assert again.state is AnswerState.TAKEN
    assert "was created before" in again.text
    assert [one["metadata"]["uid"] for one in given.all_remediations()] == [
        found["metadata"]["uid"]
    ]
    assert (await repairer.read_outcome(order)).state is AnswerState.TAKEN
    given.end_remediation(order.node, "True")
    done = await repairer.read_outcome(order)
    assert done.state is AnswerState.DONE
    assert done.text.endswith("Succeeded is True: Done: as it went")
    given.end_remediation(order.node, "False")
    assert (await repairer.read_outcome(order)).state is AnswerState.FAILED
    assert (await repairer.clean_up(order)).state is AnswerState.DONE
    assert given.remediation(order.node) is None
    assert (await repairer.clean_up(order)).state is AnswerState.DONE
    assert (await repairer.read_outcome(order)).state is AnswerState.UNSURE


async def test_a_strangers_object_of_the_name_is_never_touched(
    account: KubeCluster, kube: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    _, order, _ = await quarantined(given, kube)
    metadata = {"name": order.node}
    body = {
        "apiVersion": "self-node-remediation.medik8s.io/v1alpha1",
        "kind": "SelfNodeRemediation",
        "metadata": metadata,
    }
    given.space.plane.call("POST", given.remediations, body)
    given.end_remediation(order.node, "True")
    repairer = ExternalRepairer(account.objects(), example)
    answer = await repairer.order(order, UNGUARDED)
    assert answer.state is AnswerState.FAILED
    assert "is there already, and is of another party" in answer.text
    assert (await repairer.read_outcome(order)).state is AnswerState.UNSURE
    assert not await repairer.cancel(order)
    assert (await repairer.clean_up(order)).state is AnswerState.DONE
    assert given.remediation(order.node) is not None


async def test_an_object_of_an_earlier_attempt_is_another_ones(
    account: KubeCluster, kube: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    node, order, made = await quarantined(given, kube)
    repairer = ExternalRepairer(account.objects(), example)
    await repairer.order(order, UNGUARDED)
    second = order_for(node, "reboot", number=2, quarantine=made.uid)
    answer = await repairer.order(second, UNGUARDED)
    assert answer.state is AnswerState.FAILED
    assert f"is of {order.operation}" in answer.text
    assert (await repairer.clean_up(second)).state is AnswerState.DONE
    assert given.remediation(order.node) is not None


async def test_a_create_without_an_answer_makes_one_object(
    control_plane: ControlPlane,
    kube: KubeCluster,
    rights: Path,
    given: Objects,
    example: ExternalSection,
    tmp_path: Path,
) -> None:
    """The answer is lost on the way: the order is UNSURE, and is known when it is repeated."""
    _, order, _ = await quarantined(given, kube)
    with FaultyProxy(control_plane, tmp_path / "proxy", ApiFaults()) as proxy:
        async with kube_cluster(proxy.kubeconfig(rights)) as cluster:
            repairer = ExternalRepairer(cluster.objects(), example)
            assert list(await repairer.missing_rights()) == []
            proxy.faults.loses_answers = 1.0
            answer = await repairer.order(order, UNGUARDED)
            assert answer.state is AnswerState.UNSURE
            assert (await repairer.read_outcome(order)).state is AnswerState.UNSURE
            assert (await repairer.clean_up(order)).state is AnswerState.NOT_SENT
            with pytest.raises(Unreachable):
                await repairer.cancel(order)
            proxy.faults.loses_answers = 0.0
            proxy.busy_once = "/selfnoderemediations"
            turned_away = await repairer.order(order, UNGUARDED)
            assert turned_away.state is AnswerState.NOT_SENT
            again = await repairer.order(order, UNGUARDED)
    assert (again.state, len(given.all_remediations())) == (AnswerState.TAKEN, 1)


async def test_a_delete_without_an_answer_is_found_again(
    control_plane: ControlPlane, rights: Path, given: Objects, tmp_path: Path
) -> None:
    node = given.node()
    claim = given.claim("ours", node=node["metadata"]["name"])

    class LosesDelete(KubeObjects):
        async def delete(self, *arguments: Any, **more: Any) -> None:
            proxy.faults.loses_answers = 1.0
            try:
                await super().delete(*arguments, **more)
            finally:
                proxy.faults.loses_answers = 0.0

    with FaultyProxy(control_plane, tmp_path / "proxy", ApiFaults()) as proxy:
        async with kube_cluster(proxy.kubeconfig(rights)) as cluster:
            repairer = KarpenterRepairer(LosesDelete(cluster.objects()._transport))
            answer = await repairer.order(order_for(node, "replace"), UNGUARDED)
            assert answer.state is AnswerState.UNSURE
            assert given.claim_is_deleted(claim)
            again = await repairer.order(order_for(node, "replace"), UNGUARDED)
            assert again.state is AnswerState.TAKEN
            assert "is being deleted already" in again.text


async def test_an_object_is_taken_back_until_its_controller_has_written_to_it(
    account: KubeCluster, kube: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    _, order, _ = await quarantined(given, kube)
    repairer = ExternalRepairer(account.objects(), example)
    assert not await repairer.cancel(order)  # none is there
    await repairer.order(order, UNGUARDED)
    assert await repairer.cancel(order)
    assert given.remediation(order.node) is None
    await repairer.order(order, UNGUARDED)
    given.end_remediation(order.node, "Unknown")
    assert not await repairer.cancel(order)
    assert given.remediation(order.node) is not None


async def test_the_object_goes_with_its_quarantine(
    account: KubeCluster, kube: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    """By the cluster's garbage collector: a process that died would not remember it."""
    _, order, made = await quarantined(given, kube)
    await ExternalRepairer(account.objects(), example).order(order, UNGUARDED)
    await kube.drop_quarantine(made, guard=UNGUARDED)
    await until(lambda: given.remediation(order.node) is None, "the garbage collector")


async def test_a_reboot_is_over_when_the_object_says_so_or_is_gone(
    account: KubeCluster, kube: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    _, order, _ = await quarantined(given, kube)
    repairer = ExternalRepairer(account.objects(), example)
    await repairer.order(order, UNGUARDED)
    assert not await repairer.is_over(order)
    without = example.model_copy(update={"succeeded": None})
    assert await ExternalRepairer(account.objects(), without).is_over(order)
    given.end_remediation(order.node, "True")
    assert await repairer.is_over(order)
    given.end_remediation(order.node, "Unknown")
    assert not await repairer.is_over(order)
    await repairer.clean_up(order)
    assert await repairer.is_over(order)


async def test_the_end_waits_for_the_finalizer_of_the_controller(
    account: KubeCluster, kube: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    _, order, _ = await quarantined(given, kube)
    repairer = ExternalRepairer(account.objects(), example)
    await repairer.order(order, UNGUARDED)
    path = f"{given.remediations}/{order.node}"
    held: dict[str, Any] = {"metadata": {"finalizers": ["example.test/at-work"]}}
    given.space.plane.call("PATCH", path, held, MERGE_PATCH)
    for _ in range(2):
        answer = await repairer.clean_up(order)
        assert answer.state is AnswerState.NOT_SENT
        assert "is deleted, and a finalizer keeps it" in answer.text
    held["metadata"]["finalizers"] = []
    given.space.plane.call("PATCH", path, held, MERGE_PATCH)
    assert (await repairer.clean_up(order)).state is AnswerState.DONE


async def test_an_object_that_became_a_strangers_is_not_deleted(
    account: KubeCluster, kube: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    """Another party deletes ours and makes its own, between our read and our deletion."""
    _, order, _ = await quarantined(given, kube)
    plane, path = given.space.plane, f"{given.remediations}/{order.node}"

    class Raced(KubeObjects):
        async def get(self, *where: Any) -> ClusterObject | None:
            found = await super().get(*where)
            ours = given.remediation(order.node)
            if ours is not None and OPERATION in ours["metadata"].get("annotations", {}):
                plane.call("DELETE", path)
                kept = {key: ours[key] for key in ("apiVersion", "kind")}
                body = {**kept, "metadata": {"name": order.node}}
                plane.call("POST", given.remediations, body)
            return found

    repairer = ExternalRepairer(Raced(account.objects()._transport), example)
    for act in (repairer.clean_up, repairer.cancel):
        await ExternalRepairer(account.objects(), example).order(order, UNGUARDED)
        with contextlib.suppress(Conflict):  # a later try to cancel finds a stranger's
            assert await act(order) in (False, RepairAnswer(AnswerState.DONE))
        left = present(given.remediation(order.node))
        assert OPERATION not in left["metadata"].get("annotations", {})
        plane.call("DELETE", path)


async def test_a_name_that_follows_from_the_operation(
    account: KubeCluster, kube: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    _, order, _ = await quarantined(given, kube)
    template = dict(example.template)
    template["metadata"] = {"namespace": given.space.namespace, "labels": {"node": "{node}"}}
    section = ExternalSection(template=template, succeeded=example.succeeded)
    answer = await ExternalRepairer(account.objects(), section).order(order, UNGUARDED)
    assert answer.state is AnswerState.TAKEN, answer
    [found] = given.all_remediations()
    assert found["metadata"]["name"] == f"sickbay-{order.operation}"
    assert found["metadata"]["labels"] == {"node": order.node}


async def test_a_template_at_odds_with_the_cluster_fails_with_the_reason(
    account: KubeCluster, kube: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    _, order, _ = await quarantined(given, kube)

    async def answer(**change: Any) -> RepairAnswer:
        section = ExternalSection(template={**example.template, **change})
        return await ExternalRepairer(account.objects(), section).order(order, UNGUARDED)

    for change, text in (
        ({"metadata": {}}, "is in namespaces; expected metadata.namespace"),
        ({"kind": "SelfNodeRemediations"}, "the cluster has no kind SelfNodeRemediations"),
        ({"apiVersion": "example.test/v1"}, "(example.test/v1)"),
        ({"spec": {"remediationStrategy": 5}}, "spec.remediationStrategy"),
    ):
        found = await answer(**change)
        assert found.state is AnswerState.FAILED, (change, found)
        assert text in found.text
    assert given.all_remediations() == []


async def test_the_documents_job_is_run_and_evaluated_by_the_job_controller(
    kube: KubeCluster, given: Objects, tmp_path: Path
) -> None:
    """Its deadline is set to a second, as the played kubelet's pods do not end by themselves."""
    section = documented(tmp_path, given, "registry.example/gpu-reset", "gpu-reset")
    template = dict(section.template)
    template["spec"] = {**template["spec"], "activeDeadlineSeconds": 1}
    short = section.model_copy(update={"template": template})
    node, _, made = await quarantined(given, kube)
    order = replace(order_for(node, "gpu-reset", quarantine=made.uid), gpus=("GPU-1", "GPU-2"))
    repairer = ExternalRepairer(kube.objects(), short)
    answer = await repairer.order(order, UNGUARDED)
    assert answer.state is AnswerState.TAKEN, answer
    jobs = f"/apis/batch/v1/namespaces/{given.space.namespace}/jobs"
    [job] = given.space.plane.call("GET", jobs)["items"]
    pod = job["spec"]["template"]["spec"]
    assert (pod["nodeName"], pod["containers"][0]["args"]) == (order.node, ["GPU-1,GPU-2"])
    path = f"{jobs}/{job['metadata']['name']}"

    def has_failed() -> bool:
        conditions = given.space.plane.call("GET", path)["status"].get("conditions", [])
        return any((one["type"], one["status"]) == ("Failed", "True") for one in conditions)

    await until(has_failed, "the Job controller")
    outcome = await repairer.read_outcome(order)
    assert outcome.state is AnswerState.FAILED
    assert "Failed is True: DeadlineExceeded" in outcome.text
    await repairer.clean_up(order)
    await until(lambda: given.space.plane.request("GET", path).status == 404, "its deletion")
    assert (await repairer.clean_up(order)).state is AnswerState.DONE
    pods = given.space.path("pods")
    await until(lambda: given.space.plane.call("GET", pods)["items"] == [], "its pods go with it")


@pytest.mark.parametrize(
    ("phase", "reply"), [("Succeeded", AnswerState.DONE), ("Failed", AnswerState.FAILED)]
)
async def test_kureds_sentinel_is_a_file_on_the_node_that_the_kubelet_makes_for_a_job(
    control_plane: ControlPlane,
    account: KubeCluster,
    kube: KubeCluster,
    given: Objects,
    tmp_path: Path,
    phase: str,
    reply: AnswerState,
) -> None:
    """With the rights and the namespace's label of the example, and no others."""
    namespace = given.space.namespace
    documents = read_documents(KURED.read_text().replace("kured-sentinel", namespace))
    labels, *rights = documents
    path = f"/api/v1/namespaces/{namespace}"
    control_plane.client.call("PATCH", path, {"metadata": labels["metadata"]}, MERGE_PATCH)
    control_plane.apply(yaml.safe_dump_all(rights))
    section = documented(tmp_path, given, "reboot-required", "reboot")
    _, order, made = await quarantined(given, kube)
    repairer = ExternalRepairer(account.objects(), section)
    assert list(await repairer.missing_rights()) == []
    answer = await repairer.order(order, UNGUARDED)
    assert answer.state is AnswerState.TAKEN, answer
    pods = given.space.path("pods")

    def runs() -> bool:
        found = given.space.plane.call("GET", pods)["items"]
        return any(one["status"].get("phase") == "Running" for one in found)

    await until(runs, "the Job's pod, which kwok would make Running after its end else")
    [pod] = given.space.plane.call("GET", pods)["items"]
    assert pod["spec"]["nodeName"] == order.node
    [volume] = pod["spec"]["volumes"]
    assert volume["hostPath"] == {"path": "/run/reboot-required", "type": "FileOrCreate"}
    assert not any(
        one.get("securityContext", {}).get("privileged") for one in pod["spec"]["containers"]
    )
    assert not await repairer.is_over(order)
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def has_ended() -> bool:
        [job] = given.space.plane.call("GET", jobs)["items"]
        conditions = job["status"].get("conditions", [])
        return any(one["type"] in ("Complete", "Failed") for one in conditions)

    ended = {"status": {"phase": phase}}
    pod_path = f"{pods}/{pod['metadata']['name']}/status"
    given.space.plane.call("PATCH", pod_path, ended, MERGE_PATCH)  # as the kubelet tells it
    await until(has_ended, "the Job controller")
    assert (await repairer.read_outcome(order)).state is reply
    assert not await repairer.cancel(order)  # the file may be there
    assert await repairer.is_over(order) is (reply is AnswerState.DONE)
    await repairer.clean_up(order)
    await until(lambda: given.space.plane.call("GET", jobs)["items"] == [], "its deletion")
    assert (await repairer.clean_up(order)).state is AnswerState.DONE
    await kube.drop_quarantine(made, guard=UNGUARDED)


# -- rights -------------------------------------------------------------------------


async def test_a_missing_right_is_named_at_the_start_and_by_the_order(
    control_plane: ControlPlane,
    kube: KubeCluster,
    given: Objects,
    example: ExternalSection,
) -> None:
    control_plane.create_service_account(given.space.namespace, "bare")
    bare = control_plane.kubeconfig_for_service_account(given.space.namespace, "bare")
    _, order, _ = await quarantined(given, kube)
    cluster = KubeCluster(kubeconfig=str(bare))
    try:
        objects = cluster.objects()
        where = given.space.namespace
        plural = "selfnoderemediations.self-node-remediation.medik8s.io"
        external = ExternalRepairer(objects, example)
        assert list(await external.missing_rights()) == [
            f"{verb} {plural} in namespace {where}" for verb in ("get", "create", "delete")
        ]
        answer = await external.order(order, UNGUARDED)
        assert answer.state is AnswerState.FAILED
        assert f'cannot create resource "{plural.partition(".")[0]}"' in answer.text
        assert "docs/repair.md" in answer.text
        assert given.all_remediations() == []
        assert (await external.clean_up(order)).state is AnswerState.FAILED
        assert list(await KarpenterRepairer(objects).missing_rights()) == [
            f"{verb} nodeclaims.karpenter.sh" for verb in ("get", "list", "delete")
        ]
        machines = ClusterApiRepairer(objects, objects)
        assert list(await machines.missing_rights()) == [
            f"{verb} machines.cluster.x-k8s.io" for verb in ("get", "patch")
        ]
        refused = await KarpenterRepairer(objects).order(order, UNGUARDED)
        assert refused.state is AnswerState.FAILED
        assert 'cannot get resource "nodes"' in refused.text
    finally:
        await cluster.close()


async def test_the_rights_of_deploy_suffice(
    account: KubeCluster, given: Objects, example: ExternalSection
) -> None:
    objects = account.objects()
    for repairer in (
        KarpenterRepairer(objects),
        ClusterApiRepairer(objects, objects),
        ExternalRepairer(objects, example),
    ):
        assert list(await repairer.missing_rights()) == []


async def test_an_api_server_that_is_down_leaves_an_order_unsent(given: Objects) -> None:
    """Before the write there are reads, and where those fail nothing was ordered."""
    gone = KubeCluster(kubeconfig=str(given.space.plane.kubeconfig), deadline=0.001)
    try:
        answer = await KarpenterRepairer(gone.objects()).order(
            order_for(given.node(), "replace"), UNGUARDED
        )
        assert answer.state is AnswerState.NOT_SENT
        with pytest.raises(Unreachable):
            await KarpenterRepairer(gone.objects()).missing_rights()
    finally:
        await gone.close()
