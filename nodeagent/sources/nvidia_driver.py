"""The NVIDIA driver's state in sysfs, to compare with NVML's answers."""

from nodeagent.sources.host import HostRoots


def is_loaded(machine: HostRoots) -> bool:
    """Whether the kernel module is loaded."""
    return (machine.sys / "module/nvidia").is_dir()


def bus_is_visible(machine: HostRoots) -> bool:
    """Whether the PCI bus is visible at all: without a visible bus no GPU counts as missing."""
    try:
        return any((machine.sys / "bus/pci/devices").iterdir())
    except OSError:
        return False


def bound_driver(machine: HostRoots, address: str) -> str:
    """The driver that has the GPU at ``address`` ("0000:3b:00"); empty without a driver."""
    try:
        return (machine.sys / "bus/pci/devices" / f"{address}.0" / "driver").readlink().name
    except OSError:
        return ""
