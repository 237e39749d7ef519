"""Cases that other agents get wrong, on one node: two GPUs, an NVSwitch, and an NVML that hangs.

The results of gpud and node-problem-detector in the same cases were measured on this kind of
machine. Cases that are tested elsewhere: a MIG instance's Xid, Xid 154's verdict, forged lines,
restarts and ring overruns (test_xid, test_kmsg_device, test_uplink), disks that are full, remounted
or damaged (test_disk_real, test_disk_io), PCIe AER, machine checks and lockups (test_pcie_aer,
test_kernel_context), the callers that the agent answers (test_agent).
"""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nodeagent.clock import SystemClock
from tests.agent.agent_process import QUIET, AgentProcess
from tests.agent.kernel_log import GPU, OTHER_GPU, pci_device
from tests.bench.processes import cost
from tests.controlplane.waiting import wait_until
from tests.nvml import FakeGpus, gpu

SWITCH = "0000:c1:00"
HANGS = """
[nvml]
deadline = "0.3s"
[checks.gpu-inventory]
interval = "0.5s"
[checks.gpu-recovery]
interval = "0.5s"
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> FakeGpus:
    gpus = [gpu(0, pci=GPU, uuid="GPU-a"), gpu(1, pci=OTHER_GPU, uuid="GPU-b")]
    return FakeGpus(tmp_path_factory.mktemp("nvml"), gpus)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, nvml: FakeGpus) -> Iterator[AgentProcess]:
    """A node whose NVML hangs from the start."""
    nvml.fail("nvmlInitWithFlags", hang=True)
    agent = AgentProcess(tmp_path_factory.mktemp("node"), more=QUIET + HANGS)
    pci_device(agent.folder / "sys", f"{OTHER_GPU}.0", "0x030200")
    pci_device(agent.folder / "sys", f"{SWITCH}.0", "0x068000")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in nvml.env.items():
            patch.setenv(name, value)
        agent.start()
    try:
        wait_until(agent.answers, what=agent.log, timeout_s=30.0)
        yield agent
    finally:
        nvml.heal()
        agent.close()


def results_of(node: AgentProcess) -> dict[str, Any]:
    status, body = node._ask("/v1/results", "GET", "")
    assert status == 200
    answer: dict[str, Any] = json.loads(body)
    return answer


def fault(node: AgentProcess, code: str, component: str = f"pci:{GPU}") -> dict[str, Any]:
    """The latched fault, once it is there."""

    def find_fault() -> dict[str, Any] | None:
        for each in results_of(node)["faults"]:
            if (each["code"], each["component"]) == (code, component):
                return dict(each)
        return None

    found: dict[str, Any] = wait_until(
        find_fault, what=lambda: results_of(node)["faults"], timeout_s=30.0
    )
    return found


def inventory(node: AgentProcess) -> dict[str, tuple[str, str, str]]:
    return {
        each["component"]: (each["status"], each["reason"], each["message"])
        for each in results_of(node)["results"]
        if each["check"] == "gpu-inventory"
    }


def test_nvml_that_hangs_at_the_start_is_said_and_the_agent_answers(node: AgentProcess) -> None:
    seen = wait_until(lambda: inventory(node).get(""), what=node.log, timeout_s=30.0)
    assert seen[0] == "unknown"
    assert seen[1] in ("starting", "hung")
    assert "nvmlInit" in seen[2]


def test_gpu_lines_count_on_a_node_whose_nvml_is_broken(node: AgentProcess) -> None:
    node.line(f"NVRM: Xid (PCI:{GPU}): 79, pid=1, name=x, GPU has fallen off the bus.")
    assert "fallen off the bus" in fault(node, "xid:79")["message"]


def test_two_gpus_that_fail_at_once_are_two_faults_each_with_its_own_words(
    node: AgentProcess,
) -> None:
    node.line(f"NVRM: Xid (PCI:{GPU}): 95, pid=1, name=x, the first")
    node.line(f"NVRM: Xid (PCI:{OTHER_GPU}): 95, pid=2, name=y, the second")
    first, second = fault(node, "xid:95"), fault(node, "xid:95", f"pci:{OTHER_GPU}")
    assert first["message"].endswith("the first")
    assert second["message"].endswith("the second")
    assert (first["count"], second["count"]) == (1, 1)


def test_an_xid_and_an_sxid_that_nobody_has_named_are_told(node: AgentProcess) -> None:
    node.line(f"NVRM: Xid (PCI:{GPU}): 987, pid=1, name=x, new")
    node.line(f"nvidia-nvswitch0: SXid (PCI:{SWITCH}.0): 98765, Non-fatal, Link 1 new")
    assert fault(node, "xid:987")
    assert fault(node, "sxid:98765:non-fatal", "")


def test_an_event_s_time_is_right_to_the_millisecond(node: AgentProcess) -> None:
    """The kernel's stamp is whole; a peer takes the uptime in whole seconds and is early by one."""
    before = SystemClock().boottime()
    node.line(f"NVRM: Xid (PCI:{GPU}): 31, pid=1, name=x, MMU Fault")
    after = SystemClock().boottime()
    fault(node, "xid:31")
    asked = SystemClock().boottime()
    age = fault(node, "xid:31")["last_age_seconds"]
    answered = SystemClock().boottime()
    # Between the two the agent took its "now"; rounding costs half a millisecond.
    assert before - 0.001 <= answered - age
    assert asked - age <= after + 0.001


def test_nvml_that_hangs_later_leaves_no_gpu_healthy(node: AgentProcess, nvml: FakeGpus) -> None:
    nvml.heal()
    wait_until(
        lambda: inventory(node).get("GPU-b", ("",))[0] == "ok",
        what=lambda: inventory(node),
        timeout_s=30.0,
    )
    nvml.fail("nvmlDeviceGetUUID", hang=True)

    def nobody_is_well() -> bool:
        seen = inventory(node)
        return {"", "GPU-a", "GPU-b"} <= seen.keys() and not any(
            s == "ok" for s, *_ in seen.values()
        )

    wait_until(nobody_is_well, what=lambda: inventory(node), timeout_s=30.0)
    assert all(reason == "hung" for _, reason, _ in inventory(node).values())


def test_a_driver_loaded_anew_ends_what_a_reset_ends_and_nothing_else(
    node: AgentProcess, nvml: FakeGpus
) -> None:
    """Otherwise an Xid 119 would wait for a person, though the driver was reloaded for it."""
    nvml.heal()
    wait_until(
        lambda: inventory(node).get("GPU-b", ("",))[0] == "ok",
        what=lambda: inventory(node),
        timeout_s=30.0,
    )
    for code in (119, 54):
        node.line(f"NVRM: Xid (PCI:{OTHER_GPU}): {code}, pid=1, name=x, text")
        fault(node, f"xid:{code}", "GPU-b")
    node.line("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06  Thu Jul 17 16:25:03 2026")

    def of_b() -> set[str]:
        return {each["code"] for each in results_of(node)["faults"] if each["component"] == "GPU-b"}

    wait_until(lambda: "xid:119" not in of_b(), what=of_b, timeout_s=30.0)
    assert "xid:54" in of_b(), "that one wants a person"


def test_the_fault_after_20_000_distinct_xids_is_seen_at_once(
    tmp_path: Path,
) -> None:
    """A peer took a core for 94 s and saw it 94 s late; the other was blind for the overrun."""
    node = AgentProcess(tmp_path)
    pci_device(node.folder / "sys", f"{OTHER_GPU}.0", "0x030200")
    with closing(node):
        node.start()
        wait_until(node.answers, what=node.log, timeout_s=30.0)
        wait_until(lambda: results_of(node)["results"], what=node.log, timeout_s=30.0)
        assert node.process is not None
        spent = cost(node.process.pid).cpu_s
        for code in range(20_000):
            node.line(f"NVRM: Xid (PCI:{GPU}): {70_000 + code}, pid={code}, name=x, text")
        node.line(f"NVRM: Xid (PCI:{OTHER_GPU}): 79, pid=1, name=x, GPU has fallen off the bus.")
        began = time.monotonic()
        fault(node, "xid:79", f"pci:{OTHER_GPU}")
        assert time.monotonic() - began < 60.0
        assert cost(node.process.pid).cpu_s - spent < 15.0
        answer = results_of(node)
        assert len(answer["faults"]) <= 1024
        assert any("evidence lost" in note for note in answer["notes"])
