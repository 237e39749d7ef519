"""Settings that differ between the GPUs of a node, and a MIG mode that waits for a reset."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from nodeagent.checks import gpu_settings
from nodeagent.checks.base import Check
from tests.agent.gpu_node import GPUS, Node, failing, said
from tests.agent.machines import options
from tests.nvml import FakeGpu, gpu, uuid_of
from tests.nvml.gpu_bench import Bench, next_run, run_check


def eight(**values: Any) -> list[FakeGpu]:
    return [gpu(index, **(values if index == 5 else {})) for index in range(8)]


#: The values of one GPU of eight, and the verdict on it.
SETTINGS: list[tuple[dict[str, Any], tuple[str, str]]] = [
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
]


async def test_a_gpu_that_differs_from_seven_is_degraded(tmp_path: Path) -> None:
    async with Bench(tmp_path, boottime=90_000.0) as bench:
        for values, status in SETTINGS:
            bench.gpus.write(eight(**values))
            bench.later(301.0)
            check = bench.build(gpu_settings.SPEC)
            seen = await run_check(check)
            if status[1] == "unlike-siblings":
                assert seen.status(uuid_of(5)) == ("OK", ""), "one call may have failed"
                seen = await next_run(bench, check, 301.0)
            assert seen.status(uuid_of(5)) == status, values
            assert all(seen.is_well(uuid_of(index)) for index in range(8) if index != 5), values


async def test_a_gpu_of_another_model_differs_from_none(tmp_path: Path) -> None:
    gpus = eight(power=(100_000, 500_000), name="NVIDIA L40S")
    async with Bench(tmp_path, gpus, boottime=90_000.0) as bench:
        seen = await run_check(bench.build(gpu_settings.SPEC))
    assert seen.is_well(uuid_of(5))


async def test_values_that_no_sibling_has_are_not_missed_nor_any_before_a_reset(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    full = [replace(each, vbios="96.00", power=100) for each in GPUS[1:]]
    for code, is_well in ((16, True), (999, False)):
        check = node.build(gpu_settings.SPEC)
        node.set_gpus(failing(GPUS[0], vbios=code), *full)
        await run_check(check)
        seen = await next_run(node, check, 301.0)
        assert seen.is_well("GPU-0") is is_well
    assert said(seen, "GPU-0")[2].endswith("; the driver does not report its power, vbios")


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
