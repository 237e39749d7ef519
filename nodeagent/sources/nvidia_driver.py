"""What sysfs says of the NVIDIA driver, to set beside what NVML says."""

from nodeagent.sources.machine import Machine


def is_loaded(machine: Machine) -> bool:
    """Whether the kernel module is loaded."""
    return (machine.sys / "module/nvidia").is_dir()


def bus_is_visible(machine: Machine) -> bool:
    """Whether the PCI bus can be seen at all: a GPU that is missing from nothing is not missing."""
    try:
        return any((machine.sys / "bus/pci/devices").iterdir())
    except OSError:
        return False


def bound_driver(machine: Machine, address: str) -> str:
    """The driver that has the GPU at ``address`` ("0000:3b:00"); empty when none has."""
    try:
        return (machine.sys / "bus/pci/devices" / f"{address}.0" / "driver").readlink().name
    except OSError:
        return ""
