"""A ``/sys`` with the adapters and drives of real machines, made up in a folder.

The listings are public ones. They name devices, interfaces and PCI addresses; the files' contents
are those that the kernel's drivers write for such devices.
"""

from dataclasses import dataclass
from pathlib import Path

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
