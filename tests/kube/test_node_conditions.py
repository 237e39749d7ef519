"""Conditions for other tools on a real API server: the controller, its client, and the tool's."""

import asyncio
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml

from aggregator.cluster.condition_record import CONDITIONS
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import Action, GuardRefused, NodeCondition, Refused
from aggregator.health.model import Status
from aggregator.quarantine.decide.node_conditions import NodeConditionRule
from aggregator.quarantine.decide.operator_requests import EXEMPT
from aggregator.quarantine.reconcile import rounds
from aggregator.quarantine.settings import Settings
from tests.controlplane.api import STRATEGIC_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import LONG, Bench, running_bench
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.present import present
from tests.support.replica import SETTINGS, component, fault, snapshot
from tests.support.waiting import until
from tests.support.yaml_documents import read_documents, read_yaml

pytestmark = pytest.mark.cluster

TYPE = "AcceleratedHardwareReady"
READY = NodeConditionRule(TYPE, ("gpu-*",), "False")
#: Node-problem-detector's polarity, and a type with a domain.
DISK = NodeConditionRule("example.com/DiskProblem", ("disk-*",), "True", "evidence", "BadDisk")
CORDONS = replace(SETTINGS, mode=Action.CORDON, conditions=(READY, DISK))
FULL = component("disk-space", "/", Status.FAILED, "full")


async def allowed(_annotations: object) -> None:
    """No reason against a condition."""


def condition(space: Space, node: str, kind: str = TYPE) -> dict[str, Any] | None:
    found = [one for one in space.plane.node(node)["status"]["conditions"] if one["type"] == kind]
    return found[0] if found else None


def status(space: Space, node: str, kind: str = TYPE) -> str | None:
    return (condition(space, node, kind) or {}).get("status")


def record(space: Space, node: str) -> Any:
    found = space.plane.node(node)["metadata"].get("annotations", {}).get(CONDITIONS)
    return json.loads(found) if found is not None else None


def write_as_another(space: Space, node: str, kind: str, text: str, reason: str) -> None:
    body = {"status": {"conditions": [{"type": kind, "status": text, "reason": reason}]}}
    space.plane.call("PATCH", f"/api/v1/nodes/{node}/status", body, STRATEGIC_PATCH)


async def swept(bench: Bench) -> None:
    """Every condition that is due was written: those of the list of nodes as it is now, too."""
    await bench.list_nodes_anew()
    await bench.controller.parts.conditions.sweep()


async def test_a_quarantine_and_its_release_are_two_transitions_and_no_write_between(
    kube: KubeCluster, cluster_space: Space
) -> None:
    sick, well = cluster_space.create_nodes(2)
    async with running_bench(kube, cluster_space, settings=CORDONS) as bench:
        gone = fault("xid:79", boot_id=bench.boot(sick))
        bench.attach(sick, snapshot(gone))
        bench.attach(well, snapshot())
        await bench.phase(sick, "Cordoned")
        await until(lambda: status(cluster_space, sick) == "False")
        first = present(condition(cluster_space, sick))
        assert first["reason"] == "Xid79"
        assert record(cluster_space, sick) == {TYPE: ["False", "Xid79", kube.installation]}

        mark = cluster_space.plane.audit_mark()
        for _ in range(3):
            await swept(bench)
        assert not [
            entry
            for entry in cluster_space.plane.audit_entries(mark)
            if entry["verb"] == "patch"
            and "/nodes/" in entry["requestURI"]
            and entry.get("userAgent") == "sickbay-aggregator"  # controllers annotate nodes
        ], "the same state is written once"

        bench.delete(sick)  # a person's release
        await bench.free(sick)
        await until(lambda: status(cluster_space, sick) == "True")
        again = present(condition(cluster_space, sick))
        assert again["reason"] == "Recovered"
        assert condition(cluster_space, well) is None, "a healthy node gets no condition"


async def test_an_exemption_that_no_list_has_shown_yet_keeps_the_condition_away(
    kube: KubeCluster,
    cluster_space: Space,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "ROUNDS", 60.0)  # a round reads the annotation, too
    monkeypatch.setattr(rounds, "REFRESH", math.inf)  # and a list has it
    observes = replace(CORDONS, mode=Action.OBSERVE)
    [node] = cluster_space.create_nodes(1)
    caplog.set_level("INFO", "sickbay.quarantine")
    async with running_bench(kube, cluster_space, settings=observes) as bench:
        await bench.list_nodes_anew()
        bench.patch(node, {"metadata": {"annotations": {EXEMPT: "until 2999-01-01T00:00:00Z x"}}})
        bench.attach(node, snapshot(replace(FULL, since=bench.clock())))
        bench.later(LONG, node)
        await until(lambda: "conditions not written" in caplog.text)
        assert condition(cluster_space, node, DISK.type) is None


async def test_the_condition_of_another_writer_is_neither_changed_nor_removed(
    kube: KubeCluster, cluster_space: Space, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, taken = cluster_space.create_nodes(2)
    write_as_another(cluster_space, theirs, TYPE, "True", "MonitorReady")
    async with running_bench(kube, cluster_space, settings=CORDONS) as bench:
        for node in (theirs, taken):
            bench.attach(node, snapshot(fault("xid:79", boot_id=bench.boot(node))))
        await until(lambda: status(cluster_space, taken) == "False")
        await until(lambda: "another writer's" in caplog.text)
        assert (condition(cluster_space, theirs) or {})["reason"] == "MonitorReady"
        # From now on the other tool writes this one, too.
        write_as_another(cluster_space, taken, TYPE, "False", "MonitorSawIt")
        bench.delete(taken)
        await bench.free(taken)
        await until(lambda: caplog.text.count("another writer's") == 2)
        assert (condition(cluster_space, taken) or {})["reason"] == "MonitorSawIt"
    assert record(cluster_space, taken) is None


@pytest.mark.parametrize("later", [(), (DISK,)])
async def test_a_condition_that_is_no_longer_configured_is_removed_by_the_next_start(
    kube: KubeCluster, cluster_space: Space, later: tuple[NodeConditionRule, ...]
) -> None:
    [node] = cluster_space.create_nodes(1)
    async with running_bench(kube, cluster_space, settings=CORDONS, keep=True) as bench:
        bench.attach(node, snapshot(fault("xid:79", boot_id=bench.boot(node))))
        await until(lambda: status(cluster_space, node) == "False")
    changed: Settings = replace(CORDONS, conditions=later)
    async with running_bench(kube, cluster_space, settings=changed) as bench:
        await until(lambda: condition(cluster_space, node) is None)
        assert record(cluster_space, node) is None
        assert cluster_space.plane.node(node)["spec"]["unschedulable"]


@pytest.fixture
def policy_with_the_type(control_plane: ControlPlane) -> Iterator[None]:
    """The aggregator's policy, changed as docs/coexistence.md has it."""
    documents = read_documents((DEPLOY / "admission-policies.yaml").read_text())
    own = [one for one in documents if one["metadata"]["name"] == "sickbay-aggregator"]
    page = (DEPLOY.parents[1] / "docs" / "coexistence.md").read_text()
    [patch] = re.findall(r"    patch: \|\n((?:      .*\n)+)", page)
    for step in read_yaml(patch):
        where = own[0]["spec"]["variables"][0]
        assert step["path"].rpartition("/")[0] == "/spec/variables/0"
        field = step["path"].rpartition("/")[2]
        assert step["op"] == "replace" or where[field] == step["value"]
        where[field] = step["value"]
    control_plane.apply(yaml.safe_dump_all(own))
    yield
    for one, kind in zip(own, ("policies", "policybindings"), strict=True):
        name = one["metadata"]["name"]
        path = f"/apis/admissionregistration.k8s.io/v1/validatingadmission{kind}/{name}"
        control_plane.call("DELETE", path)


async def test_the_admission_policy_allows_the_types_that_it_names(
    cluster_space: Space, quarantine_definition: None, policy_with_the_type: None
) -> None:
    plane = cluster_space.plane
    [node] = cluster_space.create_nodes(1)
    uid = plane.node(node)["metadata"]["uid"]
    plane.apply(DEPLOY / "aggregator-rbac.yaml")
    account = plane.kubeconfig_for_service_account("sickbay", "sickbay-aggregator")
    sick = NodeCondition("False", "Xid79", "lost", unhealthy=True)
    async with kube_cluster(account) as cluster:

        async def refused(kind: str) -> bool:
            try:
                await cluster.write_conditions(
                    node, node_uid=uid, wanted={kind: sick}, guard=allowed
                )
            except Refused as error:
                return "ownConditions" in str(error)
            return False

        # A policy is in force a moment after it was made; a type written before is written no more.
        for number in range(300):
            if await refused(f"Other{number}"):
                break
            await asyncio.sleep(0.1)
        assert await refused("Other")
        done = await cluster.write_conditions(
            node, node_uid=uid, wanted={TYPE: sick}, guard=allowed
        )
    assert status(cluster_space, node) == "False"
    assert TYPE in done.written


async def test_several_replicas_and_installations_write_it_once(
    kube: KubeCluster, cluster_space: Space
) -> None:
    """The same request of two at once, and of an installation of another namespace."""
    [node] = cluster_space.create_nodes(1)
    uid = cluster_space.plane.node(node)["metadata"]["uid"]
    sick = NodeCondition("False", "Xid79", "lost", unhealthy=True)
    both = await asyncio.gather(
        *(
            kube.write_conditions(node, node_uid=uid, wanted={TYPE: sick}, guard=allowed)
            for _ in range(4)
        )
    )
    assert {tuple(done.written) for done in both} == {(TYPE,)}
    assert not any(done.foreign for done in both)
    assert status(cluster_space, node) == "False"

    plane = cluster_space.plane
    async with kube_cluster(plane.kubeconfig, namespace="staging") as other:
        for wanted in (None, replace(sick, status="True", unhealthy=False)):
            done = await other.write_conditions(
                node, node_uid=uid, wanted={TYPE: wanted}, guard=allowed
            )
            assert done.foreign == {TYPE}
    assert status(cluster_space, node) == "False"

    async def refuses(annotations: Mapping[str, str] | None) -> None:
        if annotations is not None:
            raise GuardRefused("not now")

    well = replace(sick, status="True", unhealthy=False)
    await kube.write_conditions(node, node_uid=uid, wanted={TYPE: well}, guard=refuses)
    assert status(cluster_space, node) == "True", "the stop switch holds no recovery"
    with pytest.raises(GuardRefused):
        await kube.write_conditions(node, node_uid=uid, wanted={TYPE: sick}, guard=refuses)
    assert status(cluster_space, node) == "True"

    async def has_lost_its_place(_: Mapping[str, str] | None) -> None:
        raise GuardRefused("this replica may not be the controller any more")

    with pytest.raises(GuardRefused):
        await kube.write_conditions(
            node, node_uid=uid, wanted={TYPE: None}, guard=has_lost_its_place
        )
    await kube.write_conditions(node, node_uid=uid, wanted={TYPE: None}, guard=allowed)
    assert (condition(cluster_space, node), record(cluster_space, node)) == (None, None)
