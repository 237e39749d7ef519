"""`sickbay repair` and the condition of a repair on a real API server."""

import asyncio
import json
import shlex
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Operation,
    Phase,
    Quarantine,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
    RepairStatus,
)
from tests.controlplane.pytest_plugin import Space
from tests.support.present import present
from tests.support.put_attempts import drop_operations, put_attempts
from tests.web.cli import in_process, sickbay

pytestmark = pytest.mark.cluster

#: How kubectl asks for the printed columns.
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
SPEC = QuarantineSpec(Action.DRAIN, "gpu", "xid:79", "me")
ORDERED = RepairAttempt(
    "q-1-reboot", "reboot", RepairState.ORDERED, began_at=1.0, deadline_at=9.0, message="asked"
)
DRAINED = QuarantineStatus(Phase.DRAINED)


async def ordered(kube: KubeCluster, made: Quarantine, **changes: Any) -> Quarantine:
    """The quarantine of a drained node, with an attempt."""
    made = await kube.write_quarantine_status(made, DRAINED)
    attempt = replace(ORDERED, operation=f"{made.uid}-1-reboot", **changes)
    return await put_attempts(kube, made, attempt)


@pytest.fixture
def person(cluster_space: Space) -> list[str]:
    """The options of a person with a kubeconfig."""
    kubeconfig = str(cluster_space.plane.kubeconfig)
    return ["--kubeconfig", kubeconfig, "--namespace", cluster_space.namespace]


async def requests_on(kube: KubeCluster, node: str) -> list[Operation]:
    """The node's own operations that have not ended, except its reboot under way."""
    found = [one for one in await kube.operations.all() if one.spec.node == node]
    return [one for one in found if one.is_open and not one.name.endswith("-1-reboot")]


async def test_a_request_is_made_with_the_persons_own_rights_while_no_aggregator_answers(
    kube: KubeCluster, cluster_space: Space, person: list[str]
) -> None:
    node, well = cluster_space.create_nodes(2)
    made = await kube.create_quarantine(node, SPEC, guard=UNGUARDED)
    made = await ordered(kube, made)
    shown = await in_process("repair", node, *person)
    assert shown.code == 0, shown.err
    assert f"{node}: Drained: xid:79" in shown.out
    assert "reboot  Ordered" in shown.out
    assert "Shown are the Quarantines of the cluster" in shown.err
    dry = await in_process("repair", node, "reboot", "--dry-run", *person)
    assert (dry.code, dry.out.startswith("DRY RUN, nothing is written.")) == (0, True), dry.err
    assert await requests_on(kube, node) == []
    done = await sickbay("repair", node, "reboot", "--yes", *person)
    assert done.code == 0, done.err
    assert f"To cancel it: sickbay repair {node} --cancel {shlex.join(person)}\n" in done.out
    [asked] = await requests_on(kube, node)
    assert (asked.spec.kind, asked.spec.quarantine, asked.held) == ("reboot", made.uid, False)
    assert asked.name in done.out
    cancel = await in_process("repair", node, "--cancel", "--yes", *person)
    assert "reboot is cancelled if its repairer still can" in cancel.err
    assert cancel.code == 0, cancel.err
    assert await requests_on(kube, node) == []
    under_way = present(await kube.operations.read(f"{made.uid}-1-reboot"))
    assert under_way.deleting, "the finalizer keeps it, and the aggregator cancels it"
    refused = await in_process("repair", well, "reboot", "--yes", *person)
    assert (refused.code, f"{well}: it is not in quarantine" in refused.err) == (2, True)
    assert await requests_on(kube, well) == []
    typo = await in_process("repair", "no-such-node", "reboot", "--yes", *person)
    assert (typo.code, 'there is no node "no-such-node"' in typo.err) == (1, True)
    await drop_operations(kube, node)
    await kube.drop_quarantine(made, guard=UNGUARDED)


async def test_the_condition_and_its_column_follow_the_attempts(
    kube: KubeCluster, cluster_space: Space
) -> None:
    name = f"{cluster_space.node_prefix}-a"
    made = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    made = await kube.write_quarantine_status(made, DRAINED)
    seen = [await column(kube, name)]
    held = replace(DRAINED, repair=RepairStatus(held="the rack is full"))
    made = await kube.write_quarantine_status(made, held)
    seen.append(await column(kube, name))
    for changes in ({}, {"state": RepairState.SUCCEEDED, "ended_at": 5.0}):
        made = await ordered(kube, made, **changes)
        made = await kube.write_quarantine_status(made, made.status)
        seen.append(await column(kube, name))
    repair = replace(made.status.repair, exhausted="no further repair is on its ladder")
    made = await kube.write_quarantine_status(made, replace(made.status, repair=repair))
    seen.append(await column(kube, name))
    assert seen == [None, "Held", "Ordered", "Succeeded", "Exhausted"]
    read = present(await kube.read_quarantine(name))
    [found] = [one for one in read.status.conditions if one.type == "Repaired"]
    assert (found.status, found.message) == ("False", "no further repair is on its ladder")
    await drop_operations(kube, name)
    await kube.drop_quarantine(made, guard=UNGUARDED)


async def column(kube: KubeCluster, name: str) -> str | None:
    """The column REPAIRED of `kubectl get quarantine -o wide`."""
    body = await kube._transport.get(paths.quarantine(name), Priority.READ, accept=TABLE)
    told = json.loads(body)
    names = [one["name"] for one in told["columnDefinitions"]]
    found: str | None = told["rows"][0]["cells"][names.index("Repaired")]
    return found


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the path")
async def test_kubectl_waits_for_a_repair(kube: KubeCluster, cluster_space: Space) -> None:
    name = f"{cluster_space.node_prefix}-b"
    made = await kube.create_quarantine(name, SPEC, guard=UNGUARDED)
    made = await ordered(kube, made, state=RepairState.SUCCEEDED, ended_at=5.0)
    made = await kube.write_quarantine_status(made, made.status)
    command = ["kubectl", "--kubeconfig", str(cluster_space.plane.kubeconfig), "wait"]
    ended = await asyncio.to_thread(
        subprocess.run,
        [*command, "--for=condition=Repaired", f"quarantine/{name}", "--timeout=300s"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    await drop_operations(kube, name)
    await kube.drop_quarantine(made, guard=UNGUARDED)
