"""The shipped rules on a wedged driver and a dead fabric manager: two witnesses, and a duration."""

import pytest

from aggregator.health.model import Status
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import evaluate
from tests.aggregator.test_disk_network_rules import action
from tests.support.replica import POLICY, component, fault, hello, snapshot


@pytest.mark.parametrize(
    ("check", "reason"), [("gpu-driver", "wedged"), ("gpu-fabric-manager", "dead")]
)
def test_two_witnesses_for_five_minutes_cordon(check: str, reason: str) -> None:
    assert action(check, reason, seconds=299) == ""
    assert action(check, reason, seconds=300) == "cordon"


@pytest.mark.parametrize(
    ("check", "reason"), [("gpu-driver", "hung"), ("gpu-fabric-manager", "not-running")]
)
def test_one_witness_takes_no_action_however_long_it_lasts(check: str, reason: str) -> None:
    for status in (Status.DEGRADED, Status.UNKNOWN):
        assert action(check, reason, status, seconds=86_400) in ("", "observe")


@pytest.mark.parametrize(
    ("missing", "drained"), [("GPU-1", True), ("GPU-2", False), ("", False), ("-", False)]
)
def test_a_line_without_a_code_needs_the_inventory_of_that_gpu(missing: str, drained: bool) -> None:  # noqa: FBT001
    """Another GPU that is away for a moment, or a driver that is exchanged, confirms nothing."""
    health = NodeHealth(hello("n1"))
    inventory = [
        component("gpu-inventory", name, status, since=999.0)
        for name in ("", "GPU-1", "GPU-2")
        for status in [Status.FAILED if name == missing else Status.OK]
    ]
    health.snapshot(snapshot(*inventory, fault("gpu-off-bus", "GPU-1")))
    incidents = evaluate(POLICY, health, {}, 1000.0).incidents.values()
    assert ("drain" in {one.action for one in incidents}) is drained


def test_a_gpu_that_the_inventory_does_not_know_is_confirmed_by_any_that_is_missing() -> None:
    health = NodeHealth(hello("n1"))
    missing = component("gpu-inventory", "", Status.FAILED, "missing", since=999.0)
    health.snapshot(snapshot(missing, fault("gpu-off-bus", "pci:0000:3b:00")))
    incidents = evaluate(POLICY, health, {}, 1000.0).incidents.values()
    assert "drain" in {one.action for one in incidents}
