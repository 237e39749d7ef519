"""Every check of a GPU has a verdict on the real driver."""

import json

import pytest

from nodeagent.checks.registry import SPECS
from tests.gpu.real_agent import RealAgent
from tests.support.present import of_type

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(90)]

_GPU_CHECKS = sorted(spec.name for spec in SPECS if spec.name.startswith("gpu-"))
#: A GPU of a machine that has just booted may still join its fabric.
_ALLOWED_UNKNOWN = {("gpu-fabric", "starting")}


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """One look without an agent."""
    agent = RealAgent(tmp_path_factory.mktemp("look"))
    done = agent.command("check", "-o", "json")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def _results(looked: dict[str, object], check: str) -> list[dict[str, str]]:
    results = of_type(looked["results"], list)
    return [each for each in results if each["check"] == check]


@pytest.mark.parametrize("check", _GPU_CHECKS)
def test_a_check_of_a_well_gpu_is_ok_or_off_with_a_reason(
    check: str, looked: dict[str, object]
) -> None:
    checks = of_type(looked["checks"], list)
    [info] = [each for each in checks if each["name"] == check]
    results = _results(looked, check)
    assert results or info["off_because"]
    bad = [
        each
        for each in results
        if each["status"] != "ok" and (check, each["reason"]) not in _ALLOWED_UNKNOWN
    ]
    assert not bad


def test_no_check_fails_itself_or_hangs(looked: dict[str, object]) -> None:
    results = of_type(looked["results"], list)
    assert not [each for each in results if each["reason"] in ("check-error", "hung")]
