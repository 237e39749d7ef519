"""Settings that differ between the GPUs of a node, and a MIG mode that waits for a reset."""

from pathlib import Path
from typing import Any, cast

import pytest

from nodeagent.checks import gpu_settings
from nodeagent.checks.base import Check
from tests.agent.machines import options
from tests.nvml import FakeGpu, gpu, uuid_of
from tests.nvml.gpu_bench import Bench, run_check


def eight(**values: Any) -> list[FakeGpu]:
    return [gpu(index, **(values if index == 5 else {})) for index in range(8)]


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({}, ("OK", "")),
        ({"mig": (1, 1)}, ("OK", "")),
        ({"mig": (0, 1)}, ("DEGRADED", "mig-pending")),
        ({"mig": (1, 0)}, ("DEGRADED", "mig-pending")),
        ({"mig": None}, ("DEGRADED", "unlike-siblings")),
        ({"memory": None}, ("DEGRADED", "unlike-siblings")),
        ({"mig": (1, 1), "memory": None}, ("OK", "")),
        ({"power": (100_000, 500_000)}, ("DEGRADED", "power-limit")),
        ({"persistence": 0}, ("DEGRADED", "persistence-off")),
        ({"persistence": None}, ("DEGRADED", "unlike-siblings")),
        ({"power": (100_000, 500_000), "name": "NVIDIA L40S"}, ("OK", "")),
    ],
)
async def test_a_gpu_that_differs_from_seven_is_degraded(
    tmp_path: Path, values: dict[str, Any], status: tuple[str, str]
) -> None:
    async with Bench(tmp_path, eight(**values), boottime=90_000.0) as bench:
        seen = await run_check(bench.build(gpu_settings.SPEC))
    assert seen.status(uuid_of(5)) == status
    assert all(seen.is_well(uuid_of(index)) for index in range(8) if index != 5)


@pytest.mark.parametrize(("setting", "status"), [("failed", "FAILED"), ("ok", "OK")])
async def test_the_configuration_says_how_bad_a_difference_is(
    tmp_path: Path, setting: str, status: str
) -> None:
    gpus = eight(power=(100_000, 500_000), persistence=0)
    async with Bench(tmp_path, gpus, boottime=90_000.0) as bench:
        built = gpu_settings.SPEC.build(bench.sources, options(gpu_settings.SPEC, siblings=setting))
        seen = await run_check(cast("Check", built))
    assert seen.status(uuid_of(5))[0] == status


async def test_settings_of_all_gpus_are_the_sites_own(tmp_path: Path) -> None:
    gpus = [gpu(index, power=(90_000, 350_000), persistence=0) for index in range(8)]
    async with Bench(tmp_path, gpus, boottime=90_000.0) as bench:
        seen = await run_check(bench.build(gpu_settings.SPEC))
    assert seen.status("") == ("OK", "")
    assert seen.by_component[""].message.endswith(
        "power limit 350 W, persistence mode off, MIG off"
    )
