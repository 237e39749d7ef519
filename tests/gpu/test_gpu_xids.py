"""Real Xids: a program's kernel faults, the driver writes a line, the agent reports it.

All of them are an application's Xids, which no shipped rule acts on.
"""

import itertools
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.gpus import normalise
from tests.gpu import kernel_log
from tests.gpu.conftest import CudaProgram
from tests.gpu.real_agent import RealAgent, sees_host_processes, wait_for
from tests.support.present import present

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(90)]

_FAULTS = ("invalid-address", "misaligned", "trap")
#: Seconds that the driver's line may take: it is written before CUDA returns the error.
_LINE = 5.0

_NUMBERS = itertools.count(1)


class Faulty:
    """A program whose kernel has faulted, and the driver's Xid lines about it.

    An agent reads the lines of earlier tests too: ``seconds`` ago this program had not begun yet.
    """

    def __init__(self, cuda: Callable[..., CudaProgram], kind: str, name: str = "") -> None:
        self.name = name or f"faulty-{next(_NUMBERS)}"
        before = kernel_log.last()
        self._began = time.monotonic()
        program = cuda(kind, self.name)
        self.pid = program.pid
        result = program.end()
        assert result["result"] != 0, "the kernel was to fault"
        print(kind, result, f"pid {self.pid}")
        try:
            wait_for(lambda: kernel_log.xids(before), "an Xid line", within=_LINE)
        except AssertionError:
            pytest.skip(f"the driver writes no Xid for {kind} ({result})")
        self.lines = kernel_log.xids(before)
        print(*(line.text for line in self.lines), sep="\n")
        self.codes = {f"xid:{line.code}" for line in self.lines}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def _reported(agent: RealAgent, faulty: Faulty) -> list[Mapping[str, Any]]:
    """The agent's faults since the program began, once it has every code of the program."""

    def found() -> list[Mapping[str, Any]]:
        recent: list[Mapping[str, Any]] = [
            each
            for each in agent.faults()
            if each["last_age_seconds"] <= faulty.seconds and not each["historical"]
        ]
        return recent if faulty.codes <= {each["code"] for each in recent} else []

    faults = wait_for(found, f"{faulty.codes} from the agent")
    return [each for each in faults if each["check"] == "xid"]


@pytest.mark.parametrize("kind", _FAULTS)
def test_a_kernels_fault_is_reported_with_its_process_and_gpu(
    kind: str, agent: RealAgent, sample: GpuSample, cuda: Callable[..., CudaProgram]
) -> None:
    faulty = Faulty(cuda, kind)
    uuids = {gpu.pci: gpu.uuid for gpu in sample.gpus}
    for fault in _reported(agent, faulty):
        line = next(each for each in faulty.lines if fault["code"] == f"xid:{each.code}")
        assert fault["component"] == uuids[normalise(line.address) or ""]
        assert fault["details"]["name"] == faulty.name, line.text
        if sees_host_processes():
            assert fault["details"]["pid"] == str(faulty.pid), line.text


def test_a_process_name_with_commas_and_quotes_hides_no_xid(
    agent: RealAgent, cuda: Callable[..., CudaProgram]
) -> None:
    faulty = Faulty(cuda, "invalid-address", "a', Xid: 79, b")
    codes = {fault["code"] for fault in _reported(agent, faulty)}
    assert codes == faulty.codes
    assert "xid:79" not in codes


def test_a_programs_fault_is_no_failure_of_the_node(
    agent: RealAgent, cuda: Callable[..., CudaProgram]
) -> None:
    faults = _reported(agent, Faulty(cuda, "invalid-address"))
    assert {fault["cleared_by"] for fault in faults} == {"expiry"}
    assert {fault["status"] for fault in faults} == {"degraded"}
    told = json.loads(agent.command("check", "-o", "json").stdout)
    assert {fault["status"] for fault in told["faults"] if fault["check"] == "xid"} == {"degraded"}
    # Other checks may fail here with reason: a machine without a network has no DNS.
    of_gpus = [each for each in told["results"] if each["check"].startswith("gpu-")]
    assert of_gpus
    assert not [each for each in of_gpus if each["status"] == "failed"]


@pytest.mark.parametrize("kind", _FAULTS)
def test_no_shipped_rule_acts_on_a_programs_fault(
    kind: str, agent: RealAgent, cuda: Callable[..., CudaProgram]
) -> None:
    pytest.importorskip("pydantic", reason="the aggregator reads its policy by it")
    from aggregator.policy.defaults import read_policy
    from aggregator.policy.explain import Question, explain

    policy = read_policy()
    for fault in _reported(agent, Faulty(cuda, kind)):
        asked = Question(code=fault["code"], component=fault["component"], details=fault["details"])
        rule = present(explain(policy, asked).rule)
        assert rule.action == "observe"


def test_nvml_tells_the_same_xids_and_the_agent_reports_each_once(
    agent: RealAgent, cuda: Callable[..., CudaProgram]
) -> None:
    """The check gpu-events reports an event a look later, where the log has no line of it."""
    agent.run_checks("gpu-events")
    _reported(agent, Faulty(cuda, "invalid-address"))
    for _ in range(3):
        agent.run_checks("gpu-events")
    told = [each for each in agent.faults() if each["details"].get("reported_by") == "nvml"]
    assert told == []


def test_without_the_kernel_log_nvml_tells_of_the_xid(
    folder: Any, cuda: Callable[..., CudaProgram]
) -> None:
    agent = RealAgent(folder, more="[kernel_log]\nenabled = false\n").start()
    try:
        agent.up()
        codes = Faulty(cuda, "invalid-address").codes

        def has_codes() -> bool:
            agent.run_checks("gpu-events")
            return codes <= {each["code"] for each in agent.faults()}

        wait_for(has_codes, f"{codes} by NVML's events", within=40.0)
    finally:
        agent.stop()


def test_the_gpu_is_well_after_the_programs_faults(
    agent: RealAgent, cuda: Callable[..., CudaProgram]
) -> None:
    assert cuda("hold").end()["result"] == 0
    agent.run_checks("gpu-inventory", "gpu-recovery")
    found = present(agent.result("gpu-inventory"))
    assert found["status"] == "ok"
