"""The shipped rules on a wedged driver and a dead fabric manager: two witnesses, and a duration."""

import pytest

from aggregator.health.model import Status
from tests.aggregator.test_disk_network_rules import action


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
