"""The version of the driver that an agent names, also after another one was loaded under it."""

from contextlib import closing
from pathlib import Path

import pytest

from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.nvidia_driver import DriverVersion
from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.machines import made_up
from tests.nvml import FakeGpus, gpu
from tests.support.fake_aggregator import FakeAggregator
from tests.support.waiting import until


def load(sys: Path, version: str) -> None:
    (sys / "module/nvidia").mkdir(parents=True, exist_ok=True)
    (sys / "module/nvidia/version").write_text(f"{version}\n")


def test_another_version_is_told_of_once_and_an_unloaded_driver_is_none(tmp_path: Path) -> None:
    roots = made_up(tmp_path)
    load(roots.sys, "570.86")
    driver, changes = DriverVersion(roots), list[str]()
    driver.on_change(lambda: changes.append(driver.read()))
    for version in ("570.86", "", "580.10", "580.10", "580.10\n580"):
        if version:
            load(roots.sys, version)
        else:
            (roots.sys / "module/nvidia/version").unlink()
        driver.learn(GpuSample(1.0))
    assert changes == ["580.10", "580.10\n580"]


def test_one_sample_that_several_checks_read_is_compared_once(tmp_path: Path) -> None:
    roots = made_up(tmp_path)
    driver, sample = DriverVersion(roots), GpuSample(1.0)
    driver.learn(sample)
    load(roots.sys, "580.10")
    driver.on_change(lambda: pytest.fail("the sample is known"))
    driver.learn(sample)


async def test_an_agent_greets_anew_with_the_driver_that_was_loaded_under_it(
    aggregator: FakeAggregator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = AgentProcess(
        tmp_path,
        aggregator=aggregator.address,
        top="[expect]\ngpus = 1\n",
        more=QUIET + '[checks.gpu-inventory]\ninterval = "1s"\n',
    )
    for name, value in FakeGpus(tmp_path, [gpu(0)]).env.items():
        monkeypatch.setenv(name, value)
    load(node.folder / "sys", "570.86")
    with closing(node):
        await node.start().up()
        await until(lambda: driver_of(aggregator) == "570.86", within=30)
        load(node.folder / "sys", "580.10")
        await until(lambda: driver_of(aggregator) == "580.10", within=90)


def driver_of(aggregator: FakeAggregator) -> str:
    if not aggregator.streams or "hello" not in aggregator.latest.kinds():
        return ""
    return aggregator.latest.hello.traits.get("driver", "")
