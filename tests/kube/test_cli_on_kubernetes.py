"""`sickbay stop`, `resume`, `release` and `quarantine` on a real API server."""

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.cluster.kubernetes.cluster import KubeCluster
from aggregator.cluster.port import (
    UNGUARDED,
    Action,
    Phase,
    QuarantineSpec,
    QuarantineStatus,
    RepairAttempt,
    RepairState,
)
from aggregator.quarantine.decide.operator_requests import OperatorRequests, read_operator_requests
from tests.controlplane.pytest_plugin import Space
from tests.support.bytecode import BYTECODE
from tests.support.present import present
from tests.support.put_attempts import drop_operations, put_attempts
from tests.web.cli import Done, in_process, sickbay

pytestmark = pytest.mark.cluster


@pytest.fixture
def person(cluster_space: Space) -> list[str]:
    """The options of a person with a kubeconfig."""
    kubeconfig = str(cluster_space.plane.kubeconfig)
    return ["--kubeconfig", kubeconfig, "--namespace", cluster_space.namespace]


async def test_stop_is_set_in_its_own_object_and_resume_ends_it(
    kube: KubeCluster, person: list[str]
) -> None:
    done = await sickbay("stop", "--reason", "fabric work", *person)
    assert done.code == 0, done.err
    assert f"To go on: sickbay resume {shlex.join(person)}\n" in done.out
    assert (await kube.read_stop()).reason == "fabric work"
    again = await sickbay("stop", "--reason", "still", *person)
    assert 'stopped already: "fabric work"' in again.out
    assert (await kube.read_stop()).reason == "still"
    done = await sickbay("resume", *person)
    assert 'it was stopped: "still"' in done.out
    assert (await kube.read_stop()).reason == ""
    # The switch may have been deleted since: then this does end a stop that an aggregator keeps.
    unset = (await sickbay("resume", *person)).out
    assert "No stop is written in the cluster" in unset
    assert "not stopped" not in unset


async def test_a_resume_is_always_a_change(kube: KubeCluster, person: list[str]) -> None:
    await in_process("stop", "--reason", "fabric work", *person)
    done = await in_process("resume", *person)
    assert 'it was stopped: "fabric work"' in done.out
    first = await kube.read_stop()
    await asyncio.sleep(1.1)  # the time of a resume is written in seconds
    await in_process("resume", *person)
    second = await kube.read_stop()
    assert (first.reason, second.reason) == ("", "")
    assert first.version != second.version


async def test_a_stop_where_no_sickbay_is_says_that_it_may_stop_nothing(
    cluster_space: Space, person: list[str]
) -> None:
    done = await in_process("stop", "--reason", "fabric work", *person)
    assert done.code == 0, done.err
    assert (
        f"BUT: there was no ConfigMap sickbay-stop in namespace {cluster_space.namespace}"
        in done.out
    )
    again = await in_process("stop", "--reason", "fabric work", *person)
    assert 'stopped already: "fabric work"' in again.out
    assert "BUT" not in again.out


async def test_a_quarantine_by_hand_is_made_and_released(
    kube: KubeCluster, cluster_space: Space, person: list[str]
) -> None:
    (node,) = cluster_space.create_nodes(1)
    ask = [
        "--yes",
        "--action",
        "drain",
        "--reason",
        "fan 3 is dead",
        "--requester",
        "hall-2",
        *person,
    ]
    await in_process("stop", "--reason", "fabric work", *person)
    done = await in_process("quarantine", node, *ask)
    assert done.code == 0, done.err
    assert f"sickbay release {node} {shlex.join(person)}\n" in done.out
    assert (
        "sickbay is stopped: fabric work\nNo quarantine begins until the stop is lifted" in done.out
    )
    assert f"sickbay resume {shlex.join(person)}\n" in done.out
    made = present(await kube.read_quarantine(node))
    assert (made.spec.action, made.spec.kind) == (Action.DRAIN, "manual")
    assert (made.spec.reason, made.spec.requester) == ("fan 3 is dead", "hall-2")
    assert not made.has_finalizer, "the aggregator adds its own"
    again = await in_process("quarantine", node, *ask)
    assert again.code == 1
    assert "in quarantine already (drain, by hall-2: fan 3 is dead)" in again.err
    done = await in_process("release", node, *person, "-o", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["done"]
    assert await kube.read_quarantine(node) is None


async def test_release_leaves_the_undoing_to_the_aggregator(
    kube: KubeCluster, cluster_space: Space, person: list[str]
) -> None:
    (node,) = cluster_space.create_nodes(1)
    ask = ["--action", "cordon", "--reason", "to be looked at", *person]
    assert (await in_process("quarantine", node, *ask)).code == 0
    made = present(await kube.read_quarantine(node))
    made = await kube.add_finalizer(made)
    order = RepairAttempt(f"{made.uid}-1-reboot", "reboot", RepairState.ORDERED, began_at=1.8e9)
    await put_attempts(kube, made, order)
    refused = await in_process("release", node, *person)
    assert refused.code == 2
    assert "a release while an order is open requires a confirmation" in refused.err
    done = await in_process("release", node, "--yes", *person)
    assert done.code == 0
    assert f"{node}: reboot was ordered at 2027-01-15T08:00:00Z and has no end yet" in done.err
    held = present(await kube.read_quarantine(node))
    assert held.deleting
    await drop_operations(kube, node)
    await kube.drop_quarantine(held, guard=UNGUARDED)


async def test_a_node_is_exempted_and_pinned_and_let_go(
    kube: KubeCluster, cluster_space: Space, person: list[str]
) -> None:
    (node,) = cluster_space.create_nodes(1)
    ask = ["exempt", node, "--for", "30m", "--reason", "firmware test", *person]
    done = await in_process(*ask)
    assert done.code == 0, done.err
    assert (await in_process("pin", node, "--reason", "RMA 12345", *person)).code == 0
    read = present(await kube.read_node(node))
    found = read_operator_requests(read.annotations)
    assert (found.exempt_reason, found.pin_reason) == ("firmware test", "RMA 12345")
    undone = [await in_process(word, node, *person) for word in ("unexempt", "unpin")]
    assert [one.code for one in undone] == [0, 0]
    read = present(await kube.read_node(node))
    assert read_operator_requests(read.annotations) == OperatorRequests()
    typo = await refused("pin", "no-such-node", "--reason", "x", *person)
    assert 'there is no node "no-such-node"' in typo.err


async def test_a_dry_run_is_checked_by_the_api_server_and_stores_nothing(
    kube: KubeCluster, cluster_space: Space, person: list[str]
) -> None:
    (node,) = cluster_space.create_nodes(1)
    cluster_space.plane.create_pod(cluster_space.namespace, "rank-0", node=node)
    ask = ["--action", "drain", "--reason", "fan 3 is dead", "--dry-run", *person]
    done = await in_process("quarantine", node, *ask)
    stopped = await in_process("stop", "--reason", "x", "--dry-run", *person)
    typo = await in_process("quarantine", "no-such-node", *ask)
    assert (done.code, stopped.code) == (0, 0), done.err + stopped.err
    assert f"evicts 1 pod, whose work is lost: {cluster_space.namespace}/rank-0" in done.err
    assert done.out.startswith("DRY RUN, nothing is written. Without --dry-run")
    assert f"{node}: drain requested: fan 3 is dead" in done.out
    assert (typo.code, 'there is no node "no-such-node"' in typo.err) == (1, True)
    assert await kube.read_quarantine(node) is None
    assert (await kube.read_stop()).reason in {None, ""}


async def test_a_wait_ends_when_the_quarantine_is_where_it_should_be(
    kube: KubeCluster, cluster_space: Space, person: list[str]
) -> None:
    (node,) = cluster_space.create_nodes(1)
    made = await kube.create_quarantine(
        node, QuarantineSpec(Action.DRAIN, "manual", "fan", "me"), guard=UNGUARDED
    )
    drained = asyncio.create_task(in_process("wait", node, "--for", "drained", *person))
    draining = QuarantineStatus(Phase.DRAINING, admitted_at=1.0, pods_remaining=1)
    made = await kube.write_quarantine_status(made, draining)
    assert not drained.done()
    await kube.write_quarantine_status(made, replace(draining, phase=Phase.DRAINED))
    done = await drained
    assert (done.code, done.out.startswith(f"{node}: drained (Drained")) == (0, True), done
    late = await in_process("wait", node, "--for", "released", "--timeout", "1s", *person)
    assert (late.code, f"{node}: not released within 1 s: Drained" in late.err) == (1, True)
    typo = await in_process("wait", "no-such-node", "--for", "released", *person)
    assert (typo.code, 'there is no node "no-such-node"' in typo.err) == (1, True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the path")
async def test_kubectl_runs_it_as_a_plugin(
    kube: KubeCluster, cluster_space: Space, person: list[str], tmp_path: Path
) -> None:
    (node,) = cluster_space.create_nodes(1, labels={"hall": cluster_space.namespace})
    await kube.create_quarantine(
        node, QuarantineSpec(Action.CORDON, "manual", "fan", "hall-2"), guard=UNGUARDED
    )
    plugin = tmp_path / "kubectl-sickbay"
    plugin.write_text(f"#!{sys.executable}\nfrom aggregator.cli.main import main\n\nmain()\n")
    plugin.chmod(0o755)

    def kubectl(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["kubectl", *arguments],
            env={
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "KUBECONFIG": person[1],
                **BYTECODE,
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert "kubectl-sickbay" in kubectl("plugin", "list").stdout
    selector = f"hall={cluster_space.namespace}"
    listed = kubectl("sickbay", "quarantines", "-o", "name", "-l", selector, *person[2:])
    assert (listed.returncode, listed.stdout) == (0, f"quarantine.sickbay.dev/{node}\n"), listed
    assert kubectl("get", *listed.stdout.split(), "-o", "name").stdout == listed.stdout
    typo = kubectl("sickbay", "stauts")
    assert (typo.returncode, "Did you mean: kubectl sickbay status" in typo.stderr) == (2, True)


async def refused(*arguments: str) -> Done:
    done = await in_process(*arguments)
    assert done.code == 1, done
    assert "Traceback" not in done.err
    return done


async def test_what_is_not_there_is_said(kube: KubeCluster, person: list[str]) -> None:
    ask = ["--yes", "--action", "drain", "--reason", "x", *person]
    typo = await refused("quarantine", "no-such-node", *ask)
    nothing = await refused("release", "no-such-node", *person)
    elsewhere = [*person[:2], "--namespace", "no-such-namespace"]
    nowhere = await refused("stop", "--reason", "x", *elsewhere)
    assert 'there is no node "no-such-node"' in typo.err
    assert "no quarantine to release" in nothing.err
    assert "no-such-namespace" in nowhere.err


async def test_bisect_refuses_nodes_that_have_work(
    cluster_space: Space, person: list[str], tmp_path: Path
) -> None:
    """A typo in the labels must not run a test of bandwidth next to a job."""
    space, hall = cluster_space, cluster_space.namespace
    nodes = space.create_nodes(3, labels={"hall": hall})
    space.plane.create_pod(hall, "train", node=nodes[1])
    space.plane.wait_pod_running(hall, "train")
    command = ("bisect", "-l", f"hall={hall}", "--command", "true {nodes}")
    refused = await sickbay(*command, *person)
    assert refused.code == 2
    assert f"1 node has work: {nodes[1]} ({hall}/train)" in refused.err
    assert "--allow-work" in refused.err
    listed = tmp_path / "nodes"
    listed.write_text(f"{nodes[0]}\n{nodes[2]}\n")
    beside = await sickbay(
        *("bisect", "--nodes", str(listed), "--known-good", nodes[1]),
        *("--command", "true {nodes}", *person),
    )
    assert f"1 node has work: {nodes[1]} ({hall}/train)" in beside.err, "a test runs there too"
    assert (beside.code, "round 1" in beside.out) == (2, False)
    allowed = await sickbay(*command, "--allow-work", *person)
    assert allowed.code == 0, allowed


async def test_bisect_takes_nodes_and_racks_by_label_and_quarantines_the_suspects_with_your_rights(
    cluster_space: Space, kube: KubeCluster, person: list[str], tmp_path: Path
) -> None:
    hall = cluster_space.namespace
    racks = []
    for rack, start in (("a", 0), ("b", 3)):
        labels = {"hall": hall, "topology.kubernetes.io/rack": rack}
        racks.append(set(cluster_space.create_nodes(3, start=start, labels=labels)))
    bad = sorted(racks[1])[1]
    program, tested = tmp_path / "run-test", tmp_path / "tested"
    script = f'echo "$1" >> {tested}\ncase ",$1," in *,{bad},*) exit 1;; esac\n'
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    done = await sickbay(
        *("bisect", "-l", f"hall={hall}", "--command", f"{program} {{nodes}}"),
        *("--quarantine", "--yes", *person),
    )
    assert done.code == 1, done
    groups = [set(line.split(",")) for line in tested.read_text().splitlines()]
    assert groups[0] == racks[0] | racks[1]
    assert any(group in racks for group in groups[1:3]), "the racks are the first halves"
    spec = cluster_space.plane.call("GET", f"/apis/sickbay.dev/v1alpha1/quarantines/{bad}")["spec"]
    assert (spec["action"], spec["kind"]) == ("cordon", "manual")
    assert spec["reason"].startswith("fabric bisection: its test failed next to ")
