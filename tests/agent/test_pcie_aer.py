"""PCIe errors by device, and which GPUs and NICs a port leads to."""

from pathlib import Path

import pytest

from nodeagent.checks.kernel_lines import KernelLines
from nodeagent.model import FaultSighting
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from tests.agent.kernel_log import GPU, UUID, HandClock, fixture_records, record
from tests.agent.line_checks import node_check

PORT = "0000:3a:00.0"
NIC = "0000:5e:00.0"


def a_bus(sys: Path) -> Path:
    """A port with a GPU behind it, and a NIC on another; as sysfs has them, in a tree of links."""
    tree = sys / "devices"
    gpu = tree / f"pci0000:3a/{PORT}/{GPU}.0"
    nic = tree / f"pci0000:5d/0000:5d:00.0/{NIC}"
    (nic / "net/eth0").mkdir(parents=True)
    (nic / "infiniband/mlx5_0").mkdir(parents=True)
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    links = sys / "bus/pci/devices"
    links.mkdir(parents=True)
    for device in (gpu, gpu.parent, nic, nic.parent):
        (links / device.name).symlink_to(device)
    return sys


def a_check(sys: Path, clock: HandClock | None = None) -> KernelLines:
    machine = HostRoots(clock=clock or HandClock(), sys=sys)
    return node_check("pcie-aer", machine, GpuMap(machine, {GPU: UUID}))


@pytest.fixture
def check(tmp_path: Path) -> KernelLines:
    return a_check(a_bus(tmp_path))


def seen(check: KernelLines) -> dict[int, FaultSighting]:
    found = [fault for each in fixture_records("pcie-aer.log") for fault in check.read(each)]
    return {fault.source_seq - 1000: fault for fault in found}


def test_every_severity_is_seen_once_with_the_device_that_reported(check: KernelLines) -> None:
    assert {at: (f.code, f.component) for at, f in seen(check).items()} == {
        1: ("pcie-aer:corrected", UUID),
        4: ("pcie-aer:corrected", f"pci:{PORT}"),
        5: ("pcie-aer:non-fatal", f"pci:{PORT}"),
        6: ("pcie-aer:fatal", UUID),
        7: ("pcie-aer:corrected", f"pci:{NIC}"),
        9: ("pcie-aer:contained", f"pci:{PORT}"),
        10: ("pcie-aer:not-recovered", f"pci:{PORT}"),
    }


def test_a_port_is_told_by_what_it_leads_to(check: KernelLines) -> None:
    found = seen(check)
    assert found[4].details["behind"] == UUID
    assert UUID in found[4].message
    assert found[7].details["behind"] == "eth0 mlx5_0"


def test_a_device_of_another_machine_is_ignored_and_counted(check: KernelLines) -> None:
    assert 12 not in seen(check)
    assert check.foreign == 1


def test_a_device_that_has_left_the_bus_is_still_the_nodes(tmp_path: Path) -> None:
    clock = HandClock()
    check = a_check(a_bus(tmp_path), clock)
    seen(check)
    (tmp_path / "bus/pci/devices" / NIC).unlink()
    clock.now += 3600
    line = f"mlx5_core {NIC}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
    assert [fault.code for fault in check.read(record(line.encode()))] == ["pcie-aer:fatal"]


def test_a_storm_looks_at_the_bus_once(tmp_path: Path) -> None:
    check = a_check(a_bus(tmp_path))
    line = f"pcieport {PORT}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (a)".encode()
    [first] = check.read(record(line, seq=1))
    (tmp_path / "bus/pci/devices" / PORT).unlink()
    for seq in range(2, 1000):
        [fault] = check.read(record(line, seq=seq))
        assert fault.details["behind"] == first.details["behind"], "not looked at again"


def test_a_machine_without_a_pci_bus_is_no_error(tmp_path: Path) -> None:
    check = a_check(tmp_path)
    assert seen(check) == {}


def test_text_that_a_user_made_the_kernel_print_is_not_believed(check: KernelLines) -> None:
    found = [f for each in fixture_records("forged-machine.log") for f in check.read(each)]
    assert found == []
