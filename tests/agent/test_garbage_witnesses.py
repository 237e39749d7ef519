"""Files that are malformed, refused or gone break none of the readers of witnesses and siblings."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.checks import pcie_link
from nodeagent.checks.base import Off
from nodeagent.model import Observation, Status
from nodeagent.sources.driver_waiters import DriverWaiters
from nodeagent.sources.fabric_manager import FabricManager
from nodeagent.sources.host import HostRoots
from tests.agent.damage import fill
from tests.agent.kernel_log import HandClock
from tests.agent.machines import options, sources
from tests.agent.test_garbage import content
from tests.support.folders import fresh_folder

ADDRESS = "0000:61:00.0"
PROCESSES = (
    *(f"17/task/18/{name}" for name in ("stat", "status", "wchan", "fd")),
    *("2/stat", "17/stat", "1/net/tcp"),
)
DEVICE = (
    *("vendor", "device", "subsystem_vendor", "subsystem_device"),
    *("current_link_width", "current_link_speed", "max_link_width", "max_link_speed"),
)
#: The host's own first process, and a thread that waits in the driver.
KTHREADD = b"2 (kthreadd) S 0 " + b"0 " * 30
WAITING = b"18 (python3) D 1 " + b"0 " * 30


some_process = st.one_of(content, st.sampled_from([KTHREADD, WAITING, b"os_acquire_mutex"]))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(files=st.fixed_dictionaries(dict.fromkeys(PROCESSES, some_process)))
def test_no_file_of_a_process_breaks_the_readers_of_witnesses(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes | str | None]
) -> None:
    proc = fresh_folder(tmp_path_factory, "proc")
    fill(proc, files)
    machine = HostRoots(clock=HandClock(), proc=proc)
    waiters, manager = DriverWaiters(machine), FabricManager(machine)

    async def looks() -> None:
        for _ in range(2):
            for found in await waiters.sample(()):
                assert found.seconds >= 0
            state = manager.sample()
            assert state is None or state.pid in (None, 2, 17)

    asyncio.run(looks())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(files=st.fixed_dictionaries(dict.fromkeys(DEVICE, content)))
def test_no_file_of_a_device_breaks_the_comparison_of_links(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes | str | None]
) -> None:
    root = fresh_folder(tmp_path_factory, "machine")
    fill(root / "sys/bus/pci/devices" / ADDRESS, files)
    (root / "sys/class/nvme/nvme0").mkdir(parents=True)
    (root / "sys/class/nvme/nvme0/device").symlink_to(root / "sys/bus/pci/devices" / ADDRESS)
    machine = HostRoots(clock=HandClock(), root=root, proc=root, sys=root / "sys")
    check = pcie_link.SPEC.build(sources(machine), options(pcie_link.SPEC))
    for _ in range(2):
        report = asyncio.run(check.run_check())  # type: ignore[union-attr]
        if not isinstance(report, Off):
            seen = [each for each in report if isinstance(each, Observation)]
            assert {each.status for each in seen} == {Status.OK}, "a single drive has no sibling"
