"""The shipped rules act little on the disk and network checks, except for a node's own loss."""

import pytest

from aggregator.health.model import Status
from aggregator.health.node import NodeHealth
from aggregator.policy.evaluate import evaluate
from nodeagent.checks import registry
from nodeagent.scheduler import JITTER
from tests.aggregator.test_policy_check import CHECKS
from tests.support.replica import POLICY, component, hello, snapshot


def action(check: str, reason: str, status: Status = Status.FAILED, seconds: float = 900) -> str:
    """The action for a node's evidence of so many seconds; empty: no incident."""
    health = NodeHealth(hello("n1"))
    health.snapshot(snapshot(component(check, "thing", status, reason, since=1000.0 - seconds)))
    incidents = evaluate(POLICY, health, {}, 1000.0).incidents.values()
    return ",".join(sorted(incident.action for incident in incidents))


@pytest.mark.parametrize(
    ("check", "reason", "expected"),
    [
        ("disk-mounts", "not-mounted", "cordon"),
        ("disk-mounts", "hung", "observe"),
        ("disk-mounts", "stale", "observe"),
        ("disk-write", "corrupt", "cordon"),
        ("disk-write", "hung", "observe"),
        ("disk-nvme", "dead", "cordon"),
        ("disk-nvme", "read-only", "cordon"),
        ("disk-nvme", "missing", "observe"),
        ("disk-nvme", "unreliable", "observe"),
        ("disk-ext4", "errors", "observe"),
        ("disk-md", "broken", "observe"),
        ("disk-md", "inactive", "observe"),
        ("infiniband", "link-down", "cordon"),
        ("infiniband", "missing", "cordon"),
        (
            "infiniband",
            "inactive",
            "observe",
        ),  # a subnet manager that is away, for the whole fabric
        ("infiniband", "errors", "observe"),
        ("nic-health", "slow", "observe"),
        ("nic-health", "errors", "observe"),
        ("dns", "timeout", "observe"),
        ("dns", "unresolved", "observe"),
        ("net-tables", "full", "observe"),
    ],
)
def test_what_acts_and_what_is_only_seen(check: str, reason: str, expected: str) -> None:
    assert action(check, reason) == expected
    for status in (Status.DEGRADED, Status.UNKNOWN, Status.OK):
        assert action(check, reason, status) == ""


def test_low_light_is_only_seen_and_after_ten_minutes() -> None:
    for reason in ("rx-power-low", "tx-power-low", "hot"):
        assert action("optics", reason, Status.DEGRADED, seconds=599) == ""
        assert action("optics", reason, Status.DEGRADED, seconds=600) == "observe"


#: Their result is the word of a driver or drive, the superblock's flag, or a write that was lost.
KEPT = {"gpu-recovery", "gpu-rows", "disk-readonly", "disk-write", "disk-nvme"}


def test_no_rule_acts_on_the_result_of_a_single_run() -> None:
    """An answer of a moment, or a file that a job has for a moment, is there until the next run."""
    specs = {name: spec for name, spec in registry.by_name().items() if name not in KEPT}
    rules = [rule for rule in POLICY.rules if rule.acts and rule.check in specs]
    assert {rule.check for rule in rules} >= {"gpu-inventory", "disk-space", "nic-link"}
    for rule in rules:
        spec = specs[rule.check]
        assert rule.hold >= spec.interval * (1 + JITTER) + spec.deadline, rule.name


def test_every_failure_that_a_check_can_report_has_a_rule() -> None:
    """Else a failed node has no incident, no alert and no history."""
    assert "offset" in (CHECKS["clock"].failed or ())
    failures = [(name, each) for name, of in CHECKS.items() for each in of.failed or ()]
    assert [one for one in failures if not action(*one, seconds=86_400)] == []


def test_a_mount_may_be_late_at_a_boot() -> None:
    assert action("disk-mounts", "not-mounted", seconds=299) == "observe"
    assert action("disk-mounts", "not-mounted", seconds=300) == "cordon"


def test_a_link_that_is_away_for_a_moment_is_only_seen() -> None:
    assert action("infiniband", "link-down", seconds=59) == "observe"
