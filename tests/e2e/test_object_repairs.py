"""Repairs through Kubernetes objects by the real aggregator: a fault, a drain, an order, a proof.

The API server, its garbage collector and kwok's kubelets are real; Karpenter and medik8s are played
(tests/support/repair_objects.py).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.pytest_plugin import Space
from tests.e2e.test_bursts import TRUSTING
from tests.support.kube_cluster import DEPLOY
from tests.support.repair_objects import CLAIMS, DEFINITIONS, Objects
from tests.support.simulator import Simulator
from tests.support.stack import Stack, remove_quarantines

pytestmark = pytest.mark.cluster

KARPENTER = DEPLOY.parent / "profiles" / "repair-karpenter" / "repair-karpenter.yaml"
MEDIK8S = DEPLOY.parent / "examples" / "repair-medik8s-rbac.yaml"
RULES = """
rules:
  - {name: gpu-gone, healthyFor: 1s, repair: [reboot, replace, ticket]}
"""
Begin = Callable[[str, dict[str, Any]], Stack]


@pytest.fixture
def given(cluster_space: Space) -> Iterator[Objects]:
    cluster_space.plane.apply(DEFINITIONS)
    objects = Objects(cluster_space)
    yield objects
    objects.remove_claims()


@pytest.fixture
def begin(given: Objects, tmp_path: Path) -> Iterator[Begin]:
    """Starts an aggregator with this repairer, and an agent of this node, which has a fault."""
    plane = given.space.plane
    ends: list[Callable[[], object]] = [lambda: remove_quarantines(plane, given.space.node_prefix)]

    def start(name: str, repairer: dict[str, Any]) -> Stack:
        repair = {
            "mode": "repair",
            "concurrent_percent": "100%",
            "concurrent": 100,
            "repairers": [repairer],
        }
        stack = Stack(plane, tmp_path, more=TRUSTING | {"repair": repair}, policy=RULES)
        ends.append(lambda: stack.__exit__(None, None, None))
        stack.aggregator.start().ready()
        (tmp_path / "names").write_text(name)
        simulator = Simulator(
            ["--names", tmp_path / "names", "--aggregator", stack.aggregator.address],
            log=tmp_path / "simulator.log",
        )
        simulator.__enter__()
        ends.append(lambda: simulator.__exit__(None, None, None))
        simulator.until_streaming(1)
        simulator.inject(nodes="all", fault="xid:79")
        return stack

    yield start
    for end in reversed(ends):
        end()


def attempts(stack: Stack, name: str) -> list[tuple[str, str]]:
    return [(one["repair"], one["state"]) for one in stack.attempts(name)]


def test_karpenter_replaces_a_drained_node_once_though_the_aggregator_is_killed(
    given: Objects, begin: Begin
) -> None:
    plane = given.space.plane
    plane.apply(KARPENTER)
    name = given.node()["metadata"]["name"]
    claim, other = given.claim("ours", node=name), given.claim("other", node="another")
    mark = plane.audit_mark()
    stack = begin(name, {"kind": "replace", "karpenter": True})
    stack.until(lambda: given.claim_is_deleted(claim), "the order", timeout_s=90)
    stack.aggregator.kill()
    stack.aggregator.start().ready()
    stack.until(
        lambda: attempts(stack, name) == [("replace", "Ordered")], "the attempt", timeout_s=90
    )
    given.terminate(claim, name)
    stack.until(
        lambda: "repair.ended" in stack.aggregator.log(), "the end of the attempt", timeout_s=90
    )
    assert "replace succeeded: another machine, or none" in stack.aggregator.log()
    assert not given.claim_is_deleted(other)
    deleted = [
        entry
        for entry in plane.audit_entries(mark)
        if entry["verb"] == "delete"
        and entry["requestURI"].startswith(CLAIMS)
        and entry["user"]["username"].endswith(":sickbay-aggregator")
    ]
    assert len(deleted) == 1


def remediation(namespace: str) -> dict[str, Any]:
    """The example of docs/repair.md; tests/kube reads it there."""
    return {
        "kind": "reboot",
        "external": {
            "template": {
                "apiVersion": "self-node-remediation.medik8s.io/v1alpha1",
                "kind": "SelfNodeRemediation",
                "metadata": {"namespace": namespace, "name": "{node}"},
                "spec": {"remediationStrategy": "Automatic"},
            },
            "succeeded": {"condition": "Succeeded", "status": "True"},
            "failed": {"condition": "Succeeded", "status": "False"},
        },
    }


def test_a_remediation_of_medik8s_reboots_a_drained_node_and_is_deleted(
    given: Objects, begin: Begin
) -> None:
    plane, namespace = given.space.plane, given.space.namespace
    plane.apply(MEDIK8S.read_text().replace("namespace: medik8s", f"namespace: {namespace}"))
    name = given.node()["metadata"]["name"]
    stack = begin(name, remediation(namespace))
    stack.until(lambda: given.remediation(name), "the object", timeout_s=90)
    plane.reboot_node(name)
    stack.until(lambda: attempts(stack, name) == [("reboot", "Ordered")], "the attempt")
    given.end_remediation(name, "True")
    stack.until(
        lambda: attempts(stack, name)[:1] == [("reboot", "Succeeded")], "its end", timeout_s=90
    )
    assert given.remediation(name) is None
    assert "repair.rights_missing" not in stack.aggregator.log()


def test_without_its_rights_a_repairer_is_named_at_the_start_and_fails_with_the_reason(
    given: Objects, begin: Begin
) -> None:
    name = given.node()["metadata"]["name"]
    stack = begin(name, remediation(given.space.namespace))
    stack.until(lambda: "repair.rights_missing" in stack.aggregator.log(), "the missing rights")
    where = f"in namespace {given.space.namespace}"
    plural = "selfnoderemediations.self-node-remediation.medik8s.io"
    for verb in ("get", "create", "delete"):
        assert f"{verb} {plural} {where}" in stack.aggregator.log()
    stack.until(
        lambda: attempts(stack, name)[:1] == [("reboot", "Failed")], "the refusal", timeout_s=90
    )
    [failed, *_] = stack.attempts(name)
    assert 'cannot create resource "selfnoderemediations"' in failed["message"]
    stack.until(lambda: (stack.quarantine(name) or {})["status"]["repair"].get("exhausted"), "end")
