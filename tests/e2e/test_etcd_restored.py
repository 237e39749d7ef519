"""etcd is restored from a copy of its data under a running aggregator: versions move backwards.

As the Kubernetes documentation asks, the API server is stopped meanwhile and started anew.
https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import MERGE_PATCH
from tests.controlplane.pytest_plugin import StartControlPlane
from tests.e2e.test_bursts import TRUSTING
from tests.e2e.test_etcd_stopped import api
from tests.support.stack import Stack

pytestmark = pytest.mark.cluster

PATH = "/apis/sickbay.dev/v1alpha1/quarantines"
#: So many writes come between the copy and the restore.
LATER_WRITES = 40


def test_a_persons_delete_after_an_etcd_restore_is_carried_out_without_a_restart(
    start_control_plane: StartControlPlane, tmp_path: Path
) -> None:
    plane = start_control_plane(controller_manager=False, scheduler=False)
    deleted, ended, later = plane.create_nodes(3, "gpu")

    def create(node: str) -> None:
        spec = {"action": "cordon", "reason": "smells of smoke", "requester": "hall-2"}
        body: dict[str, Any] = {
            "apiVersion": "sickbay.dev/v1alpha1",
            "kind": "Quarantine",
            "metadata": {"name": node},
            "spec": spec,
        }
        plane.call("POST", PATH, body)

    with Stack(plane, tmp_path, more=TRUSTING) as stack:
        stack.aggregator.start().ready()
        create(deleted)
        create(ended)
        stack.until_phase(deleted, "Cordoned")
        stack.until_phase(ended, "Cordoned")
        backup = plane.backup_etcd("before")
        stack.until(lambda: api(stack, f"nodes/{deleted}")["quarantine"], "its view", timeout_s=60)
        # Each is known at a version that the restored etcd has not reached; one has ended by then.
        plane.call("DELETE", f"{PATH}/{ended}")
        stack.until(lambda: stack.quarantine(ended) is None, "the release", timeout_s=60)
        for count in range(LATER_WRITES):
            note = {"metadata": {"annotations": {"example.com/count": str(count)}}}
            plane.call("PATCH", f"{PATH}/{deleted}", note, MERGE_PATCH)
            plane.call("PATCH", f"{PATH}/{deleted}", {"spec": {"reason": f"r{count}"}}, MERGE_PATCH)
        known = f"r{LATER_WRITES - 1}"
        stack.until(lambda: known in json.dumps(api(stack, f"nodes/{deleted}")), "the last write")
        create(later)
        stack.until_phase(later, "Cordoned")
        plane.restore_etcd(backup)
        assert stack.quarantine(later) is None
        assert stack.phase(ended) == "Cordoned"
        for node in (deleted, ended):
            plane.call("DELETE", f"{PATH}/{node}")
        for node in (deleted, ended):
            stack.until(
                lambda node=node: stack.quarantine(node) is None,  # type: ignore[misc]
                f"the release of {node} after the restore",
                timeout_s=60,
            )
            assert stack.taint(node) is None
            assert not stack.node(node)["spec"].get("unschedulable")
        # A quarantine that a person creates after the restore is carried out too.
        create(later)
        stack.until_phase(later, "Cordoned", timeout_s=60)
        assert stack.taint(later) == "manual"
