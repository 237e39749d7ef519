"""From a fault to the release: a real fault on a real node, on a real kube-apiserver.

Each test is one sentence of the promises of sickbay. The agents' kernel log is a FIFO of real
records (tests/agent has the real device); all other parts are real. One aggregator serves all
tests of this file; tests/e2e/test_restarts_and_modes.py has those that end it or set it otherwise.
"""

import subprocess
from pathlib import Path

import pytest

from tests.agent.agent_process import QUIET
from tests.controlplane.pytest_plugin import Space
from tests.support.stack import (
    NAMESPACE,
    Stack,
    pods_of,
    start_job,
)

pytestmark = pytest.mark.cluster


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
