"""A person's edits of a Quarantine's spec on the real API server, and what others read in it.

Each edit holds, or is rejected; the conditions are always about the present spec.
"""

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_release_scenarios import Bench, running_bench
from tests.support.present import present
from tests.support.replica import fault, snapshot
from tests.support.stack import start_job
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

PATH = os.environ["PATH"]


@pytest.fixture
async def bench(kube: KubeCluster, cluster_space: Space) -> AsyncIterator[Bench]:
    async with running_bench(kube, cluster_space) as made:
        yield made


def edit(bench: Bench, node: str, **spec: Any) -> tuple[int, str]:
    path = f"/apis/sickbay.dev/v1alpha1/quarantines/{node}"
    answer = bench.plane.request("PATCH", path, {"spec": spec}, MERGE_PATCH)
    return answer.status, str(answer.body.get("message", ""))


async def test_an_edit_that_could_not_hold_is_rejected_and_words_and_actions_are_taken(
    bench: Bench, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
    await bench.phase(node, "Drained")
    fields = ("kind", "incident", "bootID", "nodeUID", "policyHash")
    for field, value in itertools.product(fields, ("disk", None)):
        status, message = edit(bench, node, **{field: value})
        assert status == 422, (field, value, message)
        assert f"{field} can't be changed; " in message
    assert edit(bench, node, reason="other words, RMA 7")[0] == 200
    await bench.settles()
    found = present(bench.quarantine(node))
    assert found["spec"]["reason"] == "other words, RMA 7"
    assert edit(bench, node, action="cordon")[0] == 200
    await until(lambda: "a person set cordon" in bench.status(node, "override"))
    assert edit(bench, node, action="drain")[0] == 200
    await until(lambda: bench.status(node, "override") == "")


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        (
            {"name": "all"},
            "this name means every node to Slurm; expected metadata.name of one node",
        ),
        ({"name": "default"}, "this name means every node to Slurm"),
        ({"generateName": "gpu-"}, "a Quarantine is named after its node; expected metadata.name"),
        ({"name": "GPU_1"}, "a lowercase RFC 1123 subdomain must consist of"),
        ({"name": "gpu-[1-3]"}, "a lowercase RFC 1123 subdomain must consist of"),
    ],
    ids=str,
)
async def test_a_name_that_no_node_has_is_refused_at_creation(
    cluster_space: Space, quarantine_definition: None, metadata: dict[str, str], says: str
) -> None:
    made = {
        "apiVersion": "sickbay.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": metadata,
        "spec": {"action": "cordon", "reason": "a fan is dead"},
    }
    path = "/apis/sickbay.dev/v1alpha1/quarantines?dryRun=All"
    answer = cluster_space.plane.request("POST", path, made)
    assert answer.status == 422, answer.body
    assert says in answer.body["message"]
    named = {**made, "metadata": {"name": "gpu-1.example.test"}}
    assert cluster_space.plane.request("POST", path, named).status == 201


# -- conditions ----------------------------------------------------------------------------------


async def kubectl(bench: Bench, home: Path, *arguments: str) -> str:
    running = await asyncio.create_subprocess_exec(
        *("kubectl", *arguments),
        env={"KUBECONFIG": str(bench.plane.kubeconfig), "HOME": str(home), "PATH": PATH},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await running.communicate()
    assert running.returncode == 0, output.decode()
    return output.decode()


def shown(bench: Bench, node: str) -> dict[str, str]:
    """The conditions that are about the present spec, as `kubectl wait` counts them."""
    found = bench.quarantine(node) or {}
    return {
        one["type"]: one["status"]
        for one in found.get("status", {}).get("conditions", [])
        if one["observedGeneration"] == found["metadata"]["generation"]
    }


def events_about(bench: Bench, node: str) -> set[tuple[str, str]]:
    """The kind and the reason of each Event about the node or its quarantine."""
    found = bench.plane.call("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    about = [one for one in found if one["regarding"]["name"] == node]
    return {(one["regarding"]["kind"], one["reason"]) for one in about}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the path")
async def test_kubectl_waits_for_a_drain_also_after_an_edit_and_finds_the_drained(
    bench: Bench, cluster_space: Space, tmp_path: Path
) -> None:
    cluster_space.create_nodes(1)
    await bench.list_nodes_anew()
    [node] = cluster_space.create_nodes(1, start=1)  # it is drained before the next list of nodes
    start_job(bench.plane, cluster_space.namespace, "train", node)
    bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
    await until(lambda: bench.quarantine(node) is not None)
    wait = ("wait", "--for=condition=Drained", f"quarantine/{node}", "--timeout=300s")
    assert "condition met" in await kubectl(bench, tmp_path, *wait)
    assert bench.status(node, "phase") == "Drained"
    assert shown(bench, node).items() >= {"Tainted": "True", "Drained": "True"}.items()
    assert shown(bench, node)["Ready"] == "True"
    told = {(k, r) for k in ("Node", "Quarantine") for r in ("Draining", "Drained")}
    await until(lambda: told <= events_about(bench, node), lambda: str(events_about(bench, node)))
    assert edit(bench, node, reason="other words, RMA 7")[0] == 200
    assert "condition met" in await kubectl(bench, tmp_path, *wait)
    assert bench.status(node, "observedGeneration") == "2"
    assert node in await kubectl(bench, tmp_path, "get", "sickbay", "-o", "name")


async def test_a_quarantine_of_an_older_version_gets_its_conditions(
    kube: KubeCluster, cluster_space: Space
) -> None:
    [node] = cluster_space.create_nodes(1)
    async with running_bench(kube, cluster_space, keep=True) as first:
        first.attach(node, snapshot(fault(boot_id=first.boot(node))))
        await first.phase(node, "Drained")
    path = f"/apis/sickbay.dev/v1alpha1/quarantines/{node}/status"
    older = {"status": {"conditions": None, "observedGeneration": None}}
    cluster_space.plane.call("PATCH", path, older, MERGE_PATCH)
    async with running_bench(kube, cluster_space) as second:
        assert shown(second, node) == {} or shown(second, node)["Drained"] == "True"
        await until(
            lambda: shown(second, node).items() >= {"Tainted": "True", "Ready": "True"}.items()
        )
        await second.settles()
        before = second.quarantine(node)
        await second.settles()
        assert second.quarantine(node) == before, "it is written once"


@pytest.mark.kubernetes_from(31)
async def test_quarantines_are_selected_by_their_phase(bench: Bench, cluster_space: Space) -> None:
    [node] = cluster_space.create_nodes(1)
    bench.attach(node, snapshot(fault(boot_id=bench.boot(node))))
    await bench.phase(node, "Drained")
    path = "/apis/sickbay.dev/v1alpha1/quarantines?fieldSelector="
    for phase, count in (("Drained", 1), ("Draining", 0)):
        found = bench.plane.call("GET", f"{path}status.phase%3D{phase},metadata.name%3D{node}")
        assert len(found["items"]) == count
