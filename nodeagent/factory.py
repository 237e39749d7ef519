"""The sources by the configuration: the same for the agent and for a single run."""

from collections.abc import Mapping
from pathlib import Path

from nodeagent.clock import Clock
from nodeagent.config.settings import Config
from nodeagent.evidence.latch import Latch
from nodeagent.model import Status
from nodeagent.sources import Sources
from nodeagent.sources.disk_probe import DiskProbe
from nodeagent.sources.driver_log import INIT_FAILED, DriverLog
from nodeagent.sources.fabric import FabricMembership
from nodeagent.sources.gpus import GpuMap
from nodeagent.sources.host import HostRoots
from nodeagent.sources.kmsg import Cursor, KmsgReader
from nodeagent.sources.mountinfo import MountTable
from nodeagent.sources.nvidia_driver import DriverVersion
from nodeagent.sources.nvml import Nvml


def machine(config: Config, clock: Clock) -> HostRoots:
    return HostRoots(
        clock=clock,
        root=config.host_root,
        proc=config.proc or Path("/proc"),
        sys=config.sys or Path("/sys"),
    )


def sources(
    config: Config,
    machine: HostRoots,
    remembered_gpus: Mapping[str, str] | None,
    remembered_cliques: str = "",
    *,
    single_run: bool = False,
) -> Sources:
    """All sources that checks read. Starts no process: children start with the first question."""
    return Sources(
        machine=machine,
        nvml=Nvml(
            machine=machine,
            library=config.nvml.library or None,
            deadline=config.nvml.deadline,
        ),
        disk=DiskProbe(machine=machine),
        mounts=MountTable(machine),
        gpus=GpuMap(machine, remembered_gpus),
        driver=DriverVersion(machine),
        expected_gpus=config.expected_gpus,
        fabric=FabricMembership(remembered_cliques),
        single_run=single_run,
    )


def restore_driver_log(log: DriverLog, latch: Latch) -> None:
    """What an earlier agent of this boot knew: a GPU may recover while no agent runs."""
    for fault in latch.faults.values():
        if fault.code == INIT_FAILED and "pci" in fault.details:
            log.failed_to_start(fault.details["pci"], fault.last)
    for entry in latch.components.values():
        if entry.check == "gpu-recovery" and entry.last_known is Status.FAILED:
            log.wanted.add(entry.component)


def kernel_log(
    config: Config, clock: Clock, *, boot_id: str, after: Cursor | None, started_at: float
) -> KmsgReader:
    """A reader that continues ``after`` a record, not open yet."""
    settings = config.kernel_log
    return KmsgReader(
        settings.path,
        clock=clock,
        boot_id=boot_id,
        cursor=after,
        started_at=started_at,
        boot_grace=settings.boot_grace,
        accept_user_records=settings.insecure_accept_user_records,
    )
