"""Readers of the machine: files, devices, drivers. Sources give facts, not verdicts."""

from dataclasses import field

from nodeagent.dataclass import dataclass
from nodeagent.sources.disk_probe import DiskProbe
from nodeagent.sources.driver_log import DriverLog
from nodeagent.sources.fabric import FabricMembership
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.measurements import Measurements
from nodeagent.sources.mountinfo import MountTable
from nodeagent.sources.nvidia_driver import DriverVersion
from nodeagent.sources.nvml import Nvml
from nodeagent.sources.peers import Peers

__all__ = ["Sources"]


@dataclass(frozen=True, slots=True)
class Sources:
    """All sources that a check may read. ``expected_gpus`` is None when nothing is expected.

    ``measurements`` takes the numbers that checks read, for comparison with other nodes.
    ``single_run``: each check runs once and a person waits for it (``sickbay-agent check``).
    """

    machine: HostRoots
    nvml: Nvml
    disk: DiskProbe
    mounts: MountTable
    gpus: GpuMap
    driver: DriverVersion
    expected_gpus: int | None = None
    fabric: FabricMembership = field(default_factory=FabricMembership)
    peers: Peers = field(default_factory=Peers)
    driver_log: DriverLog = field(default_factory=DriverLog)
    measurements: Measurements = field(default_factory=Measurements)
    single_run: bool = False
