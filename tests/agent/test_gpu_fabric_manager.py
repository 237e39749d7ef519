"""A dead fabric manager takes two witnesses: no process, and a sign beside the process table."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.checks import gpu_fabric_manager
from nodeagent.checks.base import Check, Off
from nodeagent.model import Status
from nodeagent.sources.fabric_manager import FabricManager, FabricManagerState
from nodeagent.sources.host import HostRoots
from tests.agent.kernel_log import HandClock
from tests.nvml import FakeGpu, gpu
from tests.nvml.gpu_bench import Bench, run_check
from tests.support.proc_tree import ProcTree

PID = 2101
COMMAND_PORT = "0100007F:1A0A"
#: An A100: NVLinks and no fabric state.
A100 = gpu(0, fabric=None)


class Node:
    """A node with an NVSwitch (lspci -n of an HGX A100: 10de:1af1, class 0680)."""

    def __init__(
        self, tmp_path: Path, gpus: Sequence[FakeGpu] = (A100,), *, boottime: float = 90_000.0
    ) -> None:
        self.tree = ProcTree(tmp_path / "proc")
        self.tree.listen()
        self.bench = Bench(
            tmp_path / "gpus", gpus, proc=self.tree.folder, boottime=boottime, deadline=5
        )
        self._switch = self.bench.gpus.sys / "bus/pci/devices/0000:c4:00.0"
        self._switch.mkdir()
        (self._switch / "vendor").write_text("0x10de\n")
        (self._switch / "device").write_text("0x1af1\n")
        (self._switch / "class").write_text("0x068000\n")
        self.check: Check = self.bench.build(gpu_fabric_manager.SPEC)

    def start_manager(self) -> None:
        self.tree.add(PID, "nv-fabricmanage")
        self.tree.listen("00000000:0016", COMMAND_PORT)

    def end_manager(self) -> None:
        self.tree.end(PID)
        self.tree.listen("00000000:0016")

    async def status(self) -> tuple[str, str]:
        return (await run_check(self.check)).status("")


async def test_a_manager_that_dies_on_an_a100_is_seen_by_process_and_port(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.bench:
        node.start_manager()
        assert await node.status() == ("OK", "")
        node.end_manager()
        node.bench.later()
        assert await node.status() == ("FAILED", "dead")
        node.start_manager()
        node.bench.later()
        assert await node.status() == ("OK", "")


async def test_a_missing_process_alone_is_degraded(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.bench:
        assert await node.status() == ("DEGRADED", "not-running")


async def test_a_manager_that_never_started_leaves_an_a100_without_nvlinks(tmp_path: Path) -> None:
    node = Node(tmp_path, [gpu(0, fabric=None, links=(0,) * 12)])
    async with node.bench:
        seen = await run_check(node.check)
        assert seen.status("") == ("FAILED", "dead")
        assert "no NVLink of 1 GPU is up" in seen.by_component[""].message


async def test_gpus_with_mig_have_no_nvlinks_to_lose(tmp_path: Path) -> None:
    node = Node(tmp_path, [gpu(0, fabric=None, mig=(1, 1), links=(0,) * 12)])
    async with node.bench:
        assert await node.status() == ("DEGRADED", "not-running")


async def test_the_fabric_of_later_gpus_is_a_witness(tmp_path: Path) -> None:
    for fabric in ((2, 0, 0, 0, 0, 3), (1, 0, 0, 0, 0, 3), (3, 0, 0x2 << 14, 1, 7, 3)):
        node = Node(tmp_path / str(fabric), [gpu(0), gpu(1, fabric=fabric)])
        async with node.bench:
            assert await node.status() == ("FAILED", "dead")
            node.start_manager()
            node.bench.later()
            assert await node.status() == ("OK", ""), "gpu-fabric reports such a GPU itself"


async def test_a_zombie_is_no_manager(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.bench:
        node.start_manager()
        assert await node.status() == ("OK", "")
        node.tree.add(PID, "nv-fabricmanage", state="Z")
        node.bench.later()
        assert await node.status() == ("DEGRADED", "not-running"), "its port is still open"


async def test_a_manager_may_start_late_after_a_boot(tmp_path: Path) -> None:
    node = Node(tmp_path, [gpu(0, fabric=(2, 0, 0, 0, 0, 3))], boottime=60.0)
    async with node.bench:
        assert await node.status() == ("UNKNOWN", "starting")
        node.start_manager()
        node.bench.later()
        assert await node.status() == ("OK", "")
        node.end_manager()
        node.bench.later()
        assert await node.status() == ("FAILED", "dead"), "it had started"


async def test_a_quiesce_or_a_driver_that_is_not_loaded_proves_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.bench:
        node.start_manager()
        assert await node.status() == ("OK", "")
        node.end_manager()
        await node.bench.nvml.quiesce(60)
        assert await node.status() == ("UNKNOWN", "quiesced")
        node.bench.later(61)
        assert await node.status() == ("UNKNOWN", "starting")
        node.bench.later(1200)
        assert await node.status() == ("FAILED", "dead")
        (node.bench.gpus.sys / "module/nvidia").rmdir()
        assert await node.status() == ("UNKNOWN", "driver-not-loaded")


async def test_an_agent_without_the_hosts_processes_says_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, [gpu(0, fabric=(2, 0, 0, 0, 0, 3))])
    async with node.bench:
        node.tree.end(2)
        assert await node.status() == ("UNKNOWN", "no-host-pids")


def test_the_sockets_after_those_that_listen_are_not_read(tmp_path: Path) -> None:
    """The kernel prints no listener after a connection, so one there shows how far is read."""
    tree = ProcTree(tmp_path)
    manager = FabricManager(HostRoots(HandClock(), proc=tmp_path))
    tree.listen("00000000:0016", COMMAND_PORT)
    table = tmp_path / "1/net/tcp"
    head, ssh, command = table.read_text().splitlines(keepends=True)
    for state, is_listening in (("01", False), ("06", False), ("03", True)):
        connection = ssh.replace(" 0A ", f" {state} ")
        table.write_text(head + ssh + connection + command)
        assert manager.sample() == FabricManagerState(None, is_listening=is_listening), state
    table.write_text(head + ssh + command.replace(" 0A ", " 03 "))
    assert manager.sample() == FabricManagerState(None, is_listening=False)


async def test_a_node_without_a_switch_needs_no_manager(tmp_path: Path) -> None:
    async with Bench(tmp_path, [gpu(0)]) as bench:
        assert await bench.build(gpu_fabric_manager.SPEC).run_check() == Off("no NVSwitch")


@given(
    witnesses=st.lists(st.text(max_size=3), max_size=3),
    pid=st.none() | st.integers(1, 9),
    is_young=st.booleans(),
)
def test_a_manager_is_dead_only_without_process_and_by_a_witness(
    witnesses: list[str],
    pid: int | None,
    is_young: bool,  # noqa: FBT001  # hypothesis gives it by name
) -> None:
    state = FabricManagerState(pid, is_listening=False)
    status = gpu_fabric_manager.evaluate(state, witnesses, is_young=is_young).status
    assert (status is Status.FAILED) == (pid is None and not is_young and bool(witnesses))
