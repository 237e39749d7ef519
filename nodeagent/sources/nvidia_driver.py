"""The NVIDIA driver's state in sysfs, to compare with NVML's answers."""

import os
from collections.abc import Callable

from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import entries, read_small, small_text

#: Drivers that hold a device for a virtual machine and have no "vfio" in their name.
_STUBS = frozenset({"pci-stub", "pciback", "xen-pciback"})


class DriverVersion:
    """The version of the loaded kernel module, which may change under a running agent."""

    def __init__(self, machine: HostRoots) -> None:
        self._file = machine.sys / "module/nvidia/version"
        self._known = self.read()
        self._changed: Callable[[], None] = lambda: None
        self._sample: GpuSample | None = None

    def on_change(self, changed: Callable[[], None]) -> None:
        """``changed`` is called each time that another version is loaded."""
        self._changed = changed

    def read(self) -> str:
        """As it is now; empty while no driver is loaded."""
        return small_text(self._file)

    def learn(self, sample: GpuSample) -> None:
        """Compare once for each sample. A driver that is unloaded for a while changes nothing."""
        if sample is self._sample:
            return
        self._sample = sample
        version = self.read()
        if version and version != self._known:
            self._known = version
            self._changed()


def is_loaded(machine: HostRoots) -> bool:
    """Whether the kernel module is loaded."""
    return (machine.sys / "module/nvidia").is_dir()


def bus_is_visible(machine: HostRoots) -> bool:
    """Whether the PCI bus is visible at all: without a visible bus no GPU counts as missing."""
    return bool(entries(machine.sys / "bus/pci/devices"))


def addresses_by_minor(machine: HostRoots) -> dict[int, str]:
    """The PCI address of each GPU by its minor number (0 of ``/dev/nvidia0``)."""
    found = {}
    try:
        folders = sorted((machine.proc / "driver/nvidia/gpus").iterdir())
    except OSError:
        return {}
    for folder in folders:
        text = read_small(str(folder / "information")) or ""
        for line in text.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Device Minor" and value.strip().isdigit():
                found[int(value)] = folder.name
    return found


def bound_driver(machine: HostRoots, address: str) -> str:
    """The driver that has the GPU at ``address`` ("0000:3b:00"); empty without a driver."""
    try:
        driver = os.readlink(f"{machine.sys}/bus/pci/devices/{address}.0/driver")  # noqa: PTH115
    except OSError:
        return ""
    return driver.rpartition("/")[2]


def passthrough_driver(machine: HostRoots, address: str, driver: str) -> str:
    """The driver that holds the GPU at ``address`` for a virtual machine; empty if there is none.
    ``driver``: its `bound_driver`.

    VFIO's drivers have many names ("nvgrace_gpu_vfio_pci"): the kernel marks their devices with a
    folder (since Linux 6.1). A device without a driver is on its way to its ``driver_override``.
    """
    folder = f"{machine.sys}/bus/pci/devices/{address}.0"  # a Path costs more than the look
    # The kernel writes "(null)" where no driver is named.
    wanted = driver or read_small(f"{folder}/driver_override") or ""
    is_vfio = "vfio" in wanted or (bool(driver) and os.path.lexists(f"{folder}/vfio-dev"))
    return wanted if is_vfio or wanted in _STUBS else ""
