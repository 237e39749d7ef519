"""The rule of docs/coexistence.md for node-readiness-controller, on a real API server.

The controller does not run: the definition of its kind is there, and a test does its part.
"""

import copy
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aggregator.cluster.node_names import TEST_CONDITION
from aggregator.config.settings import load
from aggregator.quarantine.decide.new_nodes import NewNodeRules
from tests.controlplane.api import ApiError
from tests.controlplane.plane import ControlPlane
from tests.controlplane.pytest_plugin import Space
from tests.kube.test_new_nodes_on_kubernetes import (
    last_test,
    poll_often,
    running,
    set_taints,
    status,
    taints,
)
from tests.support.active_test_jobs import Jobs
from tests.support.kube_cluster import DEPLOY, kube_cluster
from tests.support.waiting import until
from tests.support.yaml_documents import read_yaml

pytestmark = pytest.mark.cluster

DOCUMENT = DEPLOY.parents[1] / "docs" / "coexistence.md"
DEFINITION = Path(__file__).parents[1] / "support" / "readiness_definition.yaml"
RULES = "/apis/readiness.node.x-k8s.io/v1alpha1/nodereadinessrules"
HEAD = """\
listen: {grpc: "127.0.0.1:1", web: "127.0.0.1:2", insecure_plaintext: true}
identity: {kind: insecure-trust-hello}
"""


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    poll_often(monkeypatch)


@pytest.fixture
def definition(control_plane: ControlPlane) -> Iterator[None]:
    """The definition stays: one that is being deleted is served for a moment more, to the next
    test.
    """
    control_plane.apply(Path(os.environ.get("SICKBAY_READINESS_CRD") or DEFINITION))
    yield
    for one in control_plane.call("GET", RULES)["items"]:
        control_plane.call("DELETE", f"{RULES}/{one['metadata']['name']}")


def blocks() -> tuple[dict[str, Any], str]:
    """The rule, and the configuration beside it."""
    text = DOCUMENT.read_text().partition("## Node-readiness-controller")[2].partition("\n## ")[0]
    rule, config = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return read_yaml(rule), config


def holds(rule: dict[str, Any], node: dict[str, Any]) -> bool:
    """Whether the controller would take its taint off the node; a missing condition is Unknown."""
    told = {one["type"]: one["status"] for one in node["status"]["conditions"]}
    wanted = rule["spec"]["conditions"]
    return all(told.get(one["type"], "Unknown") == one["requiredStatus"] for one in wanted)


def applies(control_plane: ControlPlane, rule: dict[str, Any]) -> None:
    """By its path: the list of the server's kinds is older than the definition for a moment."""
    control_plane.call("POST", RULES, rule)


@pytest.mark.usefixtures("definition")
def test_the_documented_rule_is_one_for_our_condition_that_the_api_server_takes(
    control_plane: ControlPlane,
) -> None:
    rule, _ = blocks()
    [condition] = rule["spec"]["conditions"]
    assert (condition["type"], condition["requiredStatus"]) == (TEST_CONDITION, "True")
    applies(control_plane, rule)
    for field, value in (("key", "sickbay.dev/untested"), ("effect", "Never")):
        wrong = copy.deepcopy(rule)
        wrong["metadata"]["name"], wrong["spec"]["taint"][field] = "wrong", value
        with pytest.raises(ApiError, match="taint"):
            applies(control_plane, wrong)
    wrong = copy.deepcopy(rule)
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["conditions"][0]["requiredStatus"] = True
    with pytest.raises(ApiError, match="requiredStatus"):
        applies(control_plane, wrong)


@pytest.mark.usefixtures("definition")
async def test_a_node_that_passes_meets_the_rule_and_keeps_its_taint_for_the_controller(
    rights: Path, jobs: Jobs, cluster_space: Space, control_plane: ControlPlane, tmp_path: Path
) -> None:
    rule, config = blocks()
    applies(control_plane, rule)
    path = tmp_path / "aggregator.yaml"
    path.write_text(HEAD + config)
    rules = load(path).repair.new_nodes
    assert rules == NewNodeRules(rule["spec"]["taint"]["key"], "quick", remove_taint=False)
    [node] = cluster_space.create_nodes(1)
    set_taints(cluster_space, node, rule["spec"]["taint"])
    more = {"taint": rules.taint, "profile": rules.profile, "remove_taint": rules.remove_taint}
    async with (
        kube_cluster(rights) as account,
        running(account, cluster_space, node, **more) as site,
    ):
        pod = await jobs.pod_on(node)
        assert not holds(rule, control_plane.node(node))
        jobs.end(pod, 0, "all steps passed")
        await until(lambda: status(cluster_space, node) == "True", within=60)
        assert holds(rule, control_plane.node(node))
        await until(lambda: jobs.all() == [])
        assert taints(cluster_space, node) == [rules.taint]
        await until(lambda: site.controller.parts.worker._inputs.fleet.node_tests[node].passed)
        set_taints(cluster_space, node)  # by the controller
        assert last_test(cluster_space, node)["number"] == 1
