"""Ports and PCIe links beside their siblings, on the adapters of real machines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeagent.checks import infiniband, nic_health, nic_link, pcie_link
from nodeagent.checks.base import CheckSpec, Off
from nodeagent.model import Status
from nodeagent.sources.host import HostRoots
from tests.agent.kernel_log import HandClock
from tests.agent.machines import made_up, observations, options, sources

#: `ibdev2netdev` of a node with eight H100s, eight single-port ConnectX-7 for InfiniBand and two
#: dual-port ConnectX-6 for Ethernet, each with one cable:
#: https://github.com/imbue-ai/cluster-health/issues/4
H100_NODE = """
mlx5_0   port  1  ==>  ibp26s0        (Down)  # CX-7 1/8 infiniband
mlx5_1   port  1  ==>  enp27s0f0np0   (Up)    # CX-6 2/2 *ethernet* port 1/2
mlx5_10  port  1  ==>  ibp204s0       (Down)  # CX-7 7/8 infiniband
mlx5_11  port  1  ==>  ibp220s0       (Down)  # CX-7 8/8 infiniband
mlx5_2   port  1  ==>  enp27s0f1np1   (Down)  # CX-6 2/2 *ethernet* port 2/2
mlx5_3   port  1  ==>  ibp60s0        (Down)  # CX-7 2/8 infiniband
mlx5_4   port  1  ==>  ibp77s0        (Down)  # CX-7 3/8 infiniband
mlx5_5   port  1  ==>  ibp94s0        (Down)  # CX-7 4/8 infiniband
mlx5_6   port  1  ==>  ibp156s0       (Down)  # CX-7 5/8 infiniband
mlx5_7   port  1  ==>  enp157s0f0np0  (Up)    # CX-6 1/2 *ethernet* port 1/2
mlx5_8   port  1  ==>  enp157s0f1np1  (Down)  # CX-6 1/2 *ethernet* port 2/2
mlx5_9   port  1  ==>  ibp188s0       (Down)  # CX-7 6/8 infiniband
"""

#: The physical ports of a node with eight ConnectX-6 for InfiniBand, of which three have a cable:
#: https://github.com/k8snetworkplumbingwg/sriov-network-operator/issues/635
HALF_CABLED_NODE = """
mlx5_0 port 1 ==> ibp12s0 (Up)
mlx5_1 port 1 ==> ibp18s0 (Down)
mlx5_2 port 1 ==> ibp75s0 (Up)
mlx5_3 port 1 ==> ibp84s0 (Down)
mlx5_4 port 1 ==> enp97s0f0 (Up)
mlx5_5 port 1 ==> ibp97s0f1 (Down)
mlx5_6 port 1 ==> ibp141s0 (Up)
mlx5_7 port 1 ==> ibp148s0 (Down)
mlx5_8 port 1 ==> ibp186s0 (Down)
mlx5_9 port 1 ==> ibp204s0 (Down)
"""

#: vendor, device and subsystem of `lspci -n` (sriov-network-operator issue 786, NCCL issue 1505).
CONNECTX_7 = ("0x15b3", "0x1021", "0x15b3", "0x0041")
CONNECTX_6 = ("0x15b3", "0x101b", "0x15b3", "0x0007")
_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of `ibdev2netdev`: the RDMA device, its interface, whether that is up."""

    device: str
    interface: str
    is_up: bool

    @property
    def address(self) -> str:
        """The PCI address by systemd's name of the interface: "enp157s0f1np1" is 9d:00.1."""
        bus, _, rest = self.interface[3:].partition("s")
        _, function, number = rest.partition("f")
        return f"0000:{int(bus):02x}:00.{number[0] if function else 0}"


def listed(text: str) -> list[Listed]:
    rows = [line.split() for line in text.strip().splitlines()]
    return [Listed(row[0], row[4], row[5] == "(Up)") for row in rows]


class SysfsTree:
    """``folder`` is the ``/sys``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "class/net").mkdir(parents=True, exist_ok=True)

    def pci(
        self,
        address: str,
        ids: tuple[str, str, str, str] = CONNECTX_7,
        *,
        width: int = 16,
        speed: str = "32.0 GT/s PCIe",
        max_width: int = 16,
        max_speed: str = "32.0 GT/s PCIe",
    ) -> Path:
        """A PCI device with its link, or its link as it is now."""
        folder = self.folder / "bus/pci/devices" / address
        folder.mkdir(parents=True, exist_ok=True)
        values = dict(zip(_IDS, ids, strict=True)) | {
            "current_link_width": str(width),
            "current_link_speed": speed,
            "max_link_width": str(max_width),
            "max_link_speed": max_speed,
        }
        for name, text in values.items():
            (folder / name).write_text(f"{text}\n")
        return folder

    def entry(self, kind: str, name: str, address: str) -> Path:
        """The entry of a device in a class: "infiniband", "net", "nvme"."""
        folder = self.folder / "class" / kind / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "device").is_symlink():
            (folder / "device").symlink_to(self.folder / "bus/pci/devices" / address)
        return folder

    def rdma_port(
        self,
        device: str,
        *,
        state: str = "4: ACTIVE",
        physical: str = "5: LinkUp",
        rate: str = "400 Gb/sec (4X NDR)",
        layer: str = "InfiniBand",
    ) -> None:
        """Port 1 of an RDMA device, or its present state."""
        port = self.folder / "class/infiniband" / device / "ports/1"
        (port / "counters").mkdir(parents=True, exist_ok=True)
        values = {"state": state, "phys_state": physical, "rate": rate, "link_layer": layer}
        for name, text in values.items():
            (port / name).write_text(f"{text}\n")

    def interface(
        self, name: str, *, is_up: bool, enabled: bool = True, speed: int = 100_000
    ) -> None:
        """An Ethernet interface that is up, or that never was; Mbit/s."""
        folder = self.folder / "class/net" / name
        (folder / "statistics").mkdir(parents=True, exist_ok=True)
        values = {
            "flags": "0x1003" if enabled else "0x1002",
            "operstate": "up" if is_up else "down",
            "carrier_up_count": str(int(is_up)),
            "carrier_down_count": "1",
            "type": "1",
            "speed": str(speed if is_up else -1),
        }
        for file, text in values.items():
            (folder / file).write_text(f"{text}\n")
        for file in ("rx_packets", "tx_packets", "rx_errors", "tx_errors"):
            (folder / "statistics" / file).write_text("0\n")

    def machine(self, text: str, other: tuple[str, str, str, str] = CONNECTX_6) -> list[Listed]:
        """All devices of a listing: InfiniBand active, Ethernet as listed (``other``: its ids)."""
        rows = listed(text)
        for row in rows:
            is_ethernet = row.interface.startswith("en")
            self.pci(row.address, other if is_ethernet else CONNECTX_7)
            self.entry("infiniband", row.device, row.address)
            self.entry("net", row.interface, row.address)
            if is_ethernet and row.is_up:
                self.rdma_port(row.device, rate="100 Gb/sec (4X EDR)", layer="Ethernet")
            elif is_ethernet:
                state = {"state": "1: DOWN", "physical": "3: Disabled"}
                self.rdma_port(row.device, rate="40 Gb/sec (4X QDR)", layer="Ethernet", **state)
            else:
                self.rdma_port(row.device)
            if is_ethernet:
                self.interface(row.interface, is_up=row.is_up)
            else:
                (self.folder / "class/net" / row.interface / "type").write_text("32\n")
        return rows


DEGRADED, FAILED = "degraded", "failed"
#: Samsung PM1743, as lspci names it.
NVME = ("0x144d", "0xa826", "0x144d", "0xaa0a")


class Node:
    """A machine, and checks that look at it."""

    def __init__(self, root: Path) -> None:
        self.clock = HandClock(100_000.0)
        self.host: HostRoots = made_up(root, self.clock)
        self.sys = SysfsTree(root / "sys")

    def check(self, spec: CheckSpec, **settings: object) -> "Look":
        return Look(self, spec, settings)


class Look:
    def __init__(self, node: Node, spec: CheckSpec, settings: Mapping[str, object]) -> None:
        self._check = spec.build(sources(node.host), options(spec, **settings))

    async def bad(self) -> dict[str, tuple[str, str]]:
        """The components that are not ok: status and reason."""
        report = await self._check.run_check()  # type: ignore[union-attr]
        return {
            name: (seen.status.name.lower(), seen.reason)
            for name, seen in observations(report).items()
            if seen.status is not Status.OK
        }


@pytest.fixture
def h100(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.sys.machine(H100_NODE)
    return node


# -- InfiniBand and RoCE --------------------------------------------------------------------------


async def test_a_real_node_with_unused_second_ports_is_well(h100: Node) -> None:
    for spec in (infiniband.SPEC, nic_link.SPEC, nic_health.SPEC, pcie_link.SPEC):
        assert await h100.check(spec).bad() == {}, spec.name


async def test_a_real_node_with_few_cables_is_well(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for row in node.sys.machine(HALF_CABLED_NODE):
        if not row.is_up:
            node.sys.rdma_port(row.device, state="1: DOWN", physical="2: Polling")
    assert await node.check(infiniband.SPEC).bad() == {}


@pytest.mark.parametrize(
    ("state", "physical"),
    [("1: DOWN", "2: Polling"), ("2: INIT", "5: LinkUp"), ("3: ARMED", "5: LinkUp")],
)
async def test_a_port_that_never_came_up_beside_seven_is_degraded(
    h100: Node, state: str, physical: str
) -> None:
    h100.sys.rdma_port("mlx5_5", state=state, physical=physical)
    assert await h100.check(infiniband.SPEC).bad() == {"mlx5_5/1": (DEGRADED, "never-up")}
    check = h100.check(infiniband.SPEC, siblings="failed")
    assert await check.bad() == {"mlx5_5/1": (FAILED, "never-up")}
    assert await h100.check(infiniband.SPEC, siblings="ok").bad() == {}


async def test_a_port_at_half_the_rate_of_seven_is_degraded(h100: Node) -> None:
    h100.sys.rdma_port("mlx5_9", rate="200 Gb/sec (4X HDR)")
    assert await h100.check(infiniband.SPEC).bad() == {"mlx5_9/1": (DEGRADED, "slow")}
    check = h100.check(infiniband.SPEC, siblings="failed")
    assert await check.bad() == {"mlx5_9/1": (FAILED, "slow")}


async def test_ports_of_other_adapters_may_be_slower(h100: Node) -> None:
    for device in ("mlx5_1", "mlx5_7"):
        h100.sys.rdma_port(device, rate="25 Gb/sec (1X EDR)", layer="Ethernet")
    assert await h100.check(infiniband.SPEC).bad() == {}


async def test_a_port_that_a_person_has_disabled_is_well(h100: Node) -> None:
    h100.sys.rdma_port("mlx5_5", state="1: DOWN", physical="3: Disabled")
    assert await h100.check(infiniband.SPEC).bad() == {}


async def test_ports_may_come_up_one_after_the_other_after_a_boot(h100: Node) -> None:
    h100.clock.now = 60.0
    h100.sys.rdma_port("mlx5_5", state="2: INIT")
    check = h100.check(infiniband.SPEC)
    assert await check.bad() == {}
    h100.clock.now = 1300.0
    assert await check.bad() == {"mlx5_5/1": (DEGRADED, "never-up")}
    h100.sys.rdma_port("mlx5_5")
    assert await check.bad() == {}
    h100.sys.rdma_port("mlx5_5", state="2: INIT")
    assert await check.bad() == {"mlx5_5/1": (FAILED, "inactive")}, "it was up"


# -- NICs -----------------------------------------------------------------------------------------


def four_nics(node: Node) -> None:
    for bus in range(4):
        address = f"0000:{0x41 + bus:02x}:00.0"
        node.sys.pci(address, CONNECTX_6)
        node.sys.entry("net", f"ens{bus}", address)
        node.sys.interface(f"ens{bus}", is_up=True)


async def test_an_enabled_nic_that_never_came_up_beside_three_is_degraded(tmp_path: Path) -> None:
    node = Node(tmp_path)
    four_nics(node)
    node.sys.interface("ens2", is_up=False)
    assert await node.check(nic_link.SPEC).bad() == {"ens2": (DEGRADED, "never-up")}
    assert await node.check(nic_link.SPEC, siblings="failed").bad() == {
        "ens2": (FAILED, "never-up")
    }
    assert await node.check(nic_link.SPEC, siblings="ok").bad() == {}
    node.sys.interface("ens2", is_up=False, enabled=False)
    assert await node.check(nic_link.SPEC).bad() == {}, "switched off by a person"
    node.sys.interface("ens2", is_up=False)
    node.sys.interface("ens1", is_up=False)
    assert await node.check(nic_link.SPEC).bad() == {}, "half of them have no cable"


async def test_a_nic_slower_than_three_like_it_is_degraded(tmp_path: Path) -> None:
    node = Node(tmp_path)
    four_nics(node)
    node.sys.interface("ens3", is_up=True, speed=25_000)
    assert await node.check(nic_health.SPEC).bad() == {"ens3": (DEGRADED, "slow")}
    assert await node.check(nic_health.SPEC, siblings="failed").bad() == {"ens3": (FAILED, "slow")}
    assert await node.check(nic_health.SPEC, siblings="ok").bad() == {}


# -- PCIe -----------------------------------------------------------------------------------------


def drives(node: Node, count: int = 8) -> list[str]:
    found = [f"0000:{0x61 + number:02x}:00.0" for number in range(count)]
    for number, address in enumerate(found):
        node.sys.pci(address, NVME, width=4, max_width=4)
        node.sys.entry("nvme", f"nvme{number}", address)
    return found


async def test_a_narrow_adapter_and_a_slow_drive_are_degraded(h100: Node) -> None:
    slots = drives(h100)
    check = h100.check(pcie_link.SPEC)
    assert await check.bad() == {}
    h100.sys.pci("0000:4d:00.0", width=8)
    h100.sys.pci(slots[3], NVME, width=4, max_width=4, speed="8.0 GT/s PCIe")
    h100.clock.now += 300
    assert await check.bad() == {}, "for how long is not known yet"
    h100.clock.now += 300
    expected = {"0000:4d:00.0": "narrow", slots[3]: "slow"}
    assert await check.bad() == {name: (DEGRADED, why) for name, why in expected.items()}
    failed = h100.check(pcie_link.SPEC, siblings="failed")
    assert await failed.bad() == {name: (FAILED, why) for name, why in expected.items()}
    h100.sys.pci("0000:4d:00.0")
    h100.clock.now += 300
    report = await check._check.run_check()  # type: ignore[union-attr]
    seen = observations(report)
    assert seen["0000:4d:00.0"].status is Status.OK, "a row of its own from then on"
    assert "19 of 20 links" in seen[""].message
    assert "nvme3" in seen[slots[3]].message


async def test_a_device_that_can_do_no_more_is_well(h100: Node) -> None:
    slots = drives(h100)
    slow = "16.0 GT/s PCIe"
    h100.sys.pci(slots[3], NVME, width=4, max_width=4, speed=slow, max_speed=slow)
    h100.sys.pci(slots[4], NVME, width=2, max_width=2)
    assert await h100.check(pcie_link.SPEC).bad() == {}


async def test_a_device_that_is_gone_takes_its_row_with_it(h100: Node) -> None:
    slots = drives(h100)
    h100.sys.pci(slots[3], NVME, width=2, max_width=4)
    check = h100.check(pcie_link.SPEC)
    assert await check.bad() == {slots[3]: (DEGRADED, "narrow")}
    (h100.sys.folder / "class/nvme/nvme3/device").unlink()
    report = await check._check.run_check()  # type: ignore[union-attr]
    assert slots[3] not in observations(report)


async def test_virtual_functions_and_excluded_devices_are_left_out(h100: Node) -> None:
    slots = drives(h100)
    h100.sys.pci(slots[3], NVME, width=2, max_width=4)
    (h100.sys.folder / "bus/pci/devices" / slots[3] / "physfn").mkdir()
    assert await h100.check(pcie_link.SPEC).bad() == {}
    h100.sys.pci(slots[4], NVME, width=2, max_width=4)
    assert await h100.check(pcie_link.SPEC, exclude=("nvme4",)).bad() == {}


async def test_a_machine_without_such_devices_turns_the_check_off(tmp_path: Path) -> None:
    node = Node(tmp_path)
    check = pcie_link.SPEC.build(sources(node.host), options(pcie_link.SPEC))
    assert isinstance(await check.run_check(), Off)  # type: ignore[union-attr]
