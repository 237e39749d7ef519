"""From a fault to the release: a real fault on a real node, on a real kube-apiserver.

Each test is one sentence of the promises of sickbay. The agents' kernel log is a FIFO of real
records (tests/agent has the real device); all other parts are real. One aggregator serves all
tests of this file; tests/e2e/test_restarts_and_modes.py has those that end it or set it otherwise.
"""

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.agent.agent_process import QUIET
from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.support.stack import (
    NAMESPACE,
    Stack,
    pods_of,
    protect,
    start_job,
)

pytestmark = pytest.mark.cluster


def patch_node(plane: ControlPlane, node: str, body: Mapping[str, Any]) -> None:
    answer = plane.request("PATCH", f"/api/v1/nodes/{node}", json.dumps(body).encode(), MERGE_PATCH)
    assert answer.status == 200, answer.body


def test_xid_79_in_the_kernel_log_cordons_and_drains_all_except_daemonset_and_mirror_pods(
    cluster_space: Space, stack: Stack
) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    [node] = cluster_space.create_nodes(1)
    mirror = {"kubernetes.io/config.mirror": "1", "kubernetes.io/config.source": "file"}
    plane.create_pod(namespace, "static", node=node, annotations=mirror)
    start_job(plane, namespace, "train", node)
    stack.agent(node).xid(79)  # its own pod is a DaemonSet's
    stack.until(lambda: stack.taint(node) == "gpu", "the taint")
    stack.until_phase(node, "Drained")
    seen = stack.node(node)
    assert seen["spec"]["unschedulable"] is True
    assert seen["metadata"]["labels"]["sickbay.dev/quarantined"] == "gpu"
    assert "xid:79" in seen["metadata"]["annotations"]["sickbay.dev/codes"]
    assert [pod["metadata"]["name"] for pod in pods_of(plane, namespace, node)] == ["static"]
    assert len(pods_of(plane, NAMESPACE, node)) == 1
    stack.until(lambda: condition(stack, node) == "True", "the node's condition")


def condition(stack: Stack, node: str) -> str | None:
    conditions = stack.node(node)["status"].get("conditions", [])
    return next((c["status"] for c in conditions if c["type"] == "SickbayQuarantined"), None)


def test_a_disruption_budget_holds_a_pod_until_it_opens(cluster_space: Space, stack: Stack) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    [node] = cluster_space.create_nodes(1)
    start_job(plane, namespace, "train", node, pods=1)
    protect(plane, namespace, "train", 1)
    stack.agent(node).xid(79)
    stack.until_phase(node, "Draining")

    def blockers() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (stack.quarantine(node) or {})["status"].get("blockers", [])
        return found

    stack.until(blockers, "the blocker to be named", timeout_s=40)
    assert blockers()[0]["pod"].startswith(f"{namespace}/train")
    assert len(pods_of(plane, namespace, node)) == 1
    plane.request("DELETE", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/train")
    stack.until_phase(node, "Drained", timeout_s=60)


def test_somebody_elses_cordon_survives_our_release(cluster_space: Space, stack: Stack) -> None:
    plane, [node] = cluster_space.plane, cluster_space.create_nodes(1)
    theirs = {"key": "example.com/theirs", "value": "1", "effect": "NoSchedule"}
    patch_node(plane, node, {"spec": {"unschedulable": True, "taints": [theirs]}})
    agent = stack.agent(node)
    agent.xid(79)
    stack.until_phase(node, "Drained")
    plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{node}")
    stack.until(lambda: stack.quarantine(node) is None, "the release")
    spec = stack.node(node)["spec"]
    assert spec["unschedulable"] is True
    assert "example.com/theirs" in [taint["key"] for taint in spec["taints"]]
    assert stack.taint(node) is None


def test_a_token_of_another_service_account_that_names_the_node_is_refused(
    cluster_space: Space, stack: Stack
) -> None:
    plane, namespace = cluster_space.plane, cluster_space.namespace
    [node] = cluster_space.create_nodes(1)
    plane.create_service_account(namespace, "tenant")
    plane.create_pod(namespace, "tenant", node=node, service_account="tenant")
    agent = stack.agent(node, start=False)
    (agent.folder / "token").write_text(
        plane.token_for(namespace, "tenant", "sickbay", pod="tenant")
    )
    agent.start()
    agent.xid(79)
    stack.until(
        lambda: (
            "stream to the aggregator opened" not in agent.log()
            and "tenant" in stack.aggregator.log()
        ),
        "the refusal, said by name",
    )
    assert stack.quarantine(node) is None
    assert stack.taint(node) is None


def test_the_stop_switch_holds_within_a_second_and_says_so(
    cluster_space: Space, stack: Stack
) -> None:
    plane, [node] = cluster_space.plane, cluster_space.create_nodes(1)
    agent = stack.agent(node)
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sickbay-stop"
    if plane.request("GET", path).status == 404:
        name = f"{{name: sickbay-stop, namespace: {NAMESPACE}}}"
        plane.apply(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {name}")

    def switch(stop: str, says: str) -> float:
        """How many seconds later the aggregator says so."""
        known, began = stack.aggregator.log().count(says), time.monotonic()
        body = json.dumps({"data": {"reason": stop}}).encode()
        assert plane.request("PATCH", path, body, MERGE_PATCH).status == 200
        stack.until(lambda: stack.aggregator.log().count(says) > known, says)
        return time.monotonic() - began

    took = [switch("drill", "fleet.stopped")]
    while min(took) > 1 and len(took) < 30:  # a busy machine takes longer now and then
        switch("", "fleet.resumed")
        took.append(switch("drill", "fleet.stopped"))
    assert min(took) <= 1
    agent.xid(79)
    stack.aggregator.wait_for_log("quarantine.held")
    assert stack.taint(node) is None
    switch("", "fleet.resumed")
    stack.until_phase(node, "Drained")


def test_a_hand_made_quarantine_drains_like_ours(cluster_space: Space, stack: Stack) -> None:
    plane, [node] = cluster_space.plane, cluster_space.create_nodes(1)
    start_job(plane, cluster_space.namespace, "train", node)
    plane.apply(
        f"""
apiVersion: sickbay.dev/v1alpha1
kind: Quarantine
metadata: {{name: {node}}}
spec: {{action: drain, reason: smells of smoke}}
"""
    )
    stack.until_phase(node, "Drained")
    assert stack.taint(node) == "manual"
    plane.request("DELETE", f"/apis/sickbay.dev/v1alpha1/quarantines/{node}")
    stack.until(lambda: stack.quarantine(node) is None, "the release")
    assert stack.node(node)["spec"].get("unschedulable") is None


@pytest.mark.root
def test_a_full_tmpfs_cordons_and_an_emptied_one_releases(
    cluster_space: Space, stack: Stack, tmp_path: Path
) -> None:
    [node] = cluster_space.create_nodes(1)
    mount = tmp_path / "scratch"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "scratch", str(mount)], check=True)
    try:
        watch = f'[checks.disk-space]\ninterval = "1s"\nmounts = ["{mount}"]\nplenty = "1GiB"\n'
        agent = stack.agent(node, more=QUIET.replace("[checks.disk-space]\non = false\n", watch))
        stack.until(lambda: "scratch" in str(agent.results()), "the first look")
        (mount / "core").write_bytes(b"x" * (4 << 20))
        stack.until(lambda: stack.taint(node) == "disk", "the taint")
        stack.until_phase(node, "Cordoned")
        (mount / "core").unlink()
        stack.until(lambda: stack.quarantine(node) is None, "the release")
        assert stack.taint(node) is None
        assert stack.node(node)["spec"].get("unschedulable") is None
    finally:
        subprocess.run(["umount", str(mount)], check=True)
