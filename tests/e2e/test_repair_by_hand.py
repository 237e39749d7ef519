"""`sickbay repair` with the real aggregator, API server and a site's command as the repairer."""

import json
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.kubernetes import paths
from tests.controlplane.pytest_plugin import Space
from tests.e2e.conftest import Start
from tests.support.stack import Stack, start_job

pytestmark = pytest.mark.cluster

#: Records the operation that was ordered.
REPAIRER = """
import pathlib, sys
with pathlib.Path(sys.argv[1]).open("a") as file:
    file.write(sys.argv[2] + "\\n")
"""


class Person:
    """A person with a kubeconfig, and the address of the page."""

    def __init__(self, stack: Stack, kubeconfig: Path) -> None:
        aggregator = stack.aggregator
        self._acts = ["--kubeconfig", str(kubeconfig)]
        url = f"https://localhost:{aggregator.web_port}"
        self._reads = ["--url", url, "--ca-file", str(aggregator.authority.certificate)]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).parent / "sickbay"
        reads = self._reads if words[0] == "repair" else []
        return subprocess.run(
            [program, *words, *self._acts, *reads], capture_output=True, text=True, check=False
        )

    def sickbay(self, *words: str, code: int = 0) -> str:
        done = self.run(*words)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + (done.stderr if code else "")

    def repair(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.sickbay("repair", node, "-o", "json"))["repair"]
        return found


def metrics(stack: Stack) -> str:
    context = ssl.create_default_context(cafile=str(stack.aggregator.authority.certificate))
    url = f"https://localhost:{stack.aggregator.web_port}/metrics"
    with urllib.request.urlopen(url, context=context, timeout=300) as answer:
        text: str = answer.read().decode()
        return text


def test_a_person_has_a_drained_node_repaired_once_and_sees_it_everywhere(
    cluster_space: Space, tmp_path: Path, stack_of: Start
) -> None:
    orders = tmp_path / "orders"
    orders.touch()
    command = [sys.executable, "-c", REPAIRER, str(orders), "{operation}"]
    more = {
        "repair": {"mode": "repair", "repairers": [{"kind": "gpu-reset", "command": command}]},
        "limits": {"silent_drain_after": "1s"},  # the node has no agent that could report
    }
    [node] = cluster_space.create_nodes(1)
    start_job(cluster_space.plane, cluster_space.namespace, "train", node)
    stack = stack_of(more)
    person = Person(stack, cluster_space.plane.kubeconfig)
    # Until then a request is refused because there is no controller.
    stack.aggregator.wait_for_log("leader.acquired")
    refused = person.sickbay("repair", node, "gpu-reset", "--yes", code=2)
    assert f"{node}: it is not in quarantine" in refused
    person.sickbay("quarantine", node, "--action", "drain", "--reason", "fan 3", "--yes")
    stack.until_phase(node, "Drained", timeout_s=120)
    waits = person.repair(node)["waits"]
    assert waits == "a quarantine that a person made is repaired by hand alone"
    refused = person.sickbay("repair", node, "reboot", "--yes", code=2)
    assert "has no reboot; expected one of: gpu-reset" in refused
    assert orders.read_text() == ""
    person.sickbay("repair", node, "gpu-reset", "--yes")

    def is_done() -> bool:
        attempts = person.repair(node)["attempts"]
        return [one["state"] for one in attempts] == ["Succeeded"]

    stack.until(lambda: "Succeeded" in recorded(stack, node), "its end", timeout_s=90)
    stack.until(is_done, "the page to show the end of the repair", timeout_s=90)
    [attempt] = person.repair(node)["attempts"]
    assert orders.read_text().split() == [attempt["operation"]]
    status = (stack.quarantine(node) or {})["status"]
    [found] = [one for one in status["conditions"] if one["type"] == "Repaired"]
    assert (found["status"], found["reason"]) == ("True", "Succeeded")
    told = metrics(stack)
    assert 'sickbay_repair_attempts_total{outcome="Succeeded",repair="gpu-reset"} 1.0' in told
    stack.until(lambda: "RepairEnded" in reasons(cluster_space, node), "the Event", timeout_s=60)
    assert "RepairOrdered" in reasons(cluster_space, node)
    stack.aggregator.kill()
    stack.aggregator.start().ready()
    stack.until(
        lambda: person.run("repair", node).returncode == 0, "the page's answer", timeout_s=90
    )
    stack.until(is_done, "the same attempt after a restart", timeout_s=90)
    person.sickbay("release", node)
    stack.until_phase(node, None, timeout_s=90)
    # The object is gone a moment before the aggregator hears of it.
    returned = "sickbay_node_return_duration_seconds_count 1.0"
    stack.until(lambda: returned in metrics(stack), "its return to be counted")
    assert len(orders.read_text().split()) == 1, "a request is followed once"


def recorded(stack: Stack, node: str) -> list[str]:
    """The phases of the node's Operations: each look of a person is a process."""
    found = stack.plane.call("GET", paths.OPERATIONS)["items"]
    return [one.get("status", {}).get("phase") for one in found if one["spec"]["node"] == node]


def reasons(space: Space, node: str) -> set[str]:
    query = f"fieldSelector=regarding.kind%3DNode,regarding.name%3D{node}"
    path = f"/apis/events.k8s.io/v1/namespaces/default/events?{query}"
    return {one["reason"] for one in space.plane.call("GET", path)["items"]}
