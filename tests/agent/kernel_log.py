"""Helpers of the kernel log's tests: a clock set by hand, raw records, a PCI bus of files."""

import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from nodeagent.model import Loss
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import Cursor, KmsgReader, Record

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kmsg"
BOOT = "3f2a8c1e-0f6d-4b1e-9a77-5a2f4a1c8c1e"

GPU = "0000:3b:00"
OTHER_GPU = "0000:af:00"
UUID = "GPU-5a2f4a1c-8c1e-2f0b-9a77-0f6d1e5b3c21"


class HandClock:
    """Stands still until a test moves it."""

    def __init__(self, now: float = 5000.0) -> None:
        self.now = now

    def boottime(self) -> float:
        return self.now


def raw(
    seq: int, text: str, *, at: float = 4000.0, facility: int = 0, level: int = 4, more: str = ""
) -> bytes:
    """A record as ``/dev/kmsg`` gives it."""
    return f"{facility << 3 | level},{seq},{int(at * 1e6)},-{more};{text}\n".encode()


def record(text: bytes, *, seq: int = 1, at: float = 4000.0, historical: bool = False) -> Record:
    """A record as the reader gives it."""
    return Record(facility=0, level=4, seq=seq, at=at, text=text, historical=historical)


def pci_device(sys: Path, address: str, pci_class: str, vendor: str = "0x10de") -> Path:
    """Put a device on the bus; ``address`` with its function."""
    device = sys / "bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{pci_class}\n")
    return device


def gpu_machine(sys: Path, clock: HandClock | None = None) -> HostRoots:
    """Two GPUs, two NVSwitches, and devices that are neither."""
    pci_device(sys, f"{GPU}.0", "0x030200")
    pci_device(sys, f"{OTHER_GPU}.0", "0x030200")
    pci_device(sys, "0000:c1:00.0", "0x068000")
    pci_device(sys, "0000:c2:00.0", "0x068000")
    pci_device(sys, "0000:3b:00.1", "0x040300")  # the GPU's own audio function
    pci_device(sys, "0000:99:00.0", "0x030000", vendor="0x1a03")  # a BMC's display
    return HostRoots(clock=clock or HandClock(), sys=sys)


def gpu_map(sys: Path) -> GpuMap:
    return GpuMap(gpu_machine(sys))


def open_log(
    path: Path,
    *,
    clock: HandClock | None = None,
    cursor: Cursor | None = None,
    started_at: float = 4990.0,
    boot_grace: float = 1200.0,
    accept_user_records: bool = False,
) -> KmsgReader:
    """A reader on a file or FIFO, open; by default on a node that has long been up."""
    reader = KmsgReader(
        path,
        clock=clock or HandClock(),
        boot_id=BOOT,
        cursor=cursor,
        started_at=started_at,
        boot_grace=boot_grace,
        accept_user_records=accept_user_records,
    )
    reader.open()
    return reader


def fixture_records(name: str) -> list[Record]:
    """The records of a fixture as the checks get them."""
    reader = open_log(FIXTURES / name)
    with closing(reader):
        return only_records(reader.read_batch(limit=10_000))


def only_records(batch: Iterable[Record | Loss]) -> list[Record]:
    return [item for item in batch if isinstance(item, Record)]


def only_losses(batch: Iterable[Record | Loss]) -> list[Loss]:
    return [item for item in batch if isinstance(item, Loss)]


def log_line(text: str) -> None:
    """Write one line to the real kernel log.

    The line ends with a newline, because it is otherwise readable only when the next record begins;
    it has a descriptor of its own, because ``printk_devkmsg=ratelimit`` lets 10 lines of one
    through and drops the others.
    """
    fd = os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode() + b"\n")
    finally:
        os.close(fd)
