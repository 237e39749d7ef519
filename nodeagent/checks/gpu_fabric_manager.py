"""Whether the fabric manager of a node with NVSwitches runs.

Without it no CUDA program starts, and no log shows it. Reasons: ``dead`` (failed: no such process
runs, and a second witness agrees: the driver has GPUs that are not registered in the fabric or lost
its manager, no NVLink of any GPU is up, or the command port that was open is closed),
``not-running`` (degraded: no process, and no second witness), ``starting`` and ``no-host-pids``
(unknown). The node is the component. An A100 has no fabric state, so NVLinks and the port are its
witnesses. Off where there is no NVSwitch on the bus.
"""

from collections.abc import Sequence

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.configfile.units import counted
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources, nvidia_driver
from nodeagent.sources.fabric_manager import FabricManager, FabricManagerState
from nodeagent.sources.gpu_sample import GpuSample

NAME = "gpu-fabric-manager"

_NOT_STARTED, _IN_PROGRESS = 1, 2
#: Two bits of the fabric's health mask: 2 is "the manager is not connected" (nvml.h).
_MANAGER, _DISCONNECTED = 14, 2


class FabricManagerCheck:
    def __init__(self, sources: Sources, boot_grace: float, *, expected: bool) -> None:
        self._sources = sources
        self._boot_grace = boot_grace
        self._expected = expected
        self._manager = FabricManager(sources.machine)
        self._has_run = False
        self._has_listened = False

    async def run_check(self) -> Report:
        machine = self._sources.machine
        if not self._sources.gpus.switches() and not self._expected:
            return Off("no NVSwitch")
        if not nvidia_driver.is_loaded(machine):
            text = "no NVIDIA driver is loaded"
            return [Observation(NAME, "", Status.UNKNOWN, "driver-not-loaded", text)]
        if self._sources.nvml.quiesced_for:
            text = "a person works on the GPUs"
            return [Observation(NAME, "", Status.UNKNOWN, "quiesced", text)]
        state = self._manager.sample()
        if state is None:
            text = "the agent does not see the host's processes (hostPID)"
            return [Observation(NAME, "", Status.UNKNOWN, "no-host-pids", text)]
        self._has_run |= state.pid is not None
        self._has_listened |= state.is_listening
        sample = await gpu_common.take_sample(self._sources)
        witnesses = [] if isinstance(sample, Off) else driver_witnesses(sample)
        if self._has_listened and not state.is_listening:
            witnesses.append("its command port 6666 was open and is closed")
        return [evaluate(state, witnesses, is_young=self._is_young())]

    def _is_young(self) -> bool:
        """Whether it may not have been started yet, after a boot, a quiesce or a driver's load."""
        now = self._sources.machine.clock.boottime()
        since = min(now - self._sources.driver_log.loaded_at, self._sources.nvml.back_for)
        return since < self._boot_grace or (now < self._boot_grace and not self._has_run)


def evaluate(state: FabricManagerState, witnesses: Sequence[str], *, is_young: bool) -> Observation:
    """Pure. ``witnesses``: what shows, without the process table, that the manager is gone."""
    if state.pid is not None:
        return Observation(NAME, "", Status.OK, "", f"nv-fabricmanager runs (pid {state.pid})")
    if is_young:
        return Observation(
            NAME, "", Status.UNKNOWN, "starting", "nv-fabricmanager does not run yet"
        )
    text = "no process nv-fabricmanager runs: systemctl status nvidia-fabricmanager"
    if witnesses:
        return Observation(NAME, "", Status.FAILED, "dead", "; ".join((text, *witnesses)))
    return Observation(NAME, "", Status.DEGRADED, "not-running", f"{text}; no other witness")


def driver_witnesses(sample: GpuSample) -> list[str]:
    """The driver's signs of a fabric without a manager. Pure. Empty where NVML gives no answer."""
    if sample.trouble is not None:
        return []
    found = []
    fabrics = [gpu.fabric for gpu in sample.gpus if gpu.fabric is not None]
    waiting = sum(fabric.state in (_NOT_STARTED, _IN_PROGRESS) for fabric in fabrics)
    if waiting:
        found.append(f"{counted(waiting, 'GPU is', 'GPUs are')} not registered in the fabric")
    lost = sum(fabric.health >> _MANAGER & 0x3 == _DISCONNECTED for fabric in fabrics)
    if lost:
        found.append(
            f"{counted(lost, 'GPU reports', 'GPUs report')} that the manager is not connected"
        )
    no_mig = (gpu for gpu in sample.gpus if gpu.mig is None or not gpu.mig.enabled)
    links = [gpu.links for gpu in no_mig if gpu.links is not None and gpu.links.states]
    if links and not any(any(each.states) for each in links):
        found.append(f"no NVLink of {counted(len(links), 'GPU')} is up")
    return found


SPEC = CheckSpec(
    name=NAME,
    sees="a fabric manager that does not run on a node with NVSwitches, A100 included",
    source="/proc/PID/stat, /proc/1/net/tcp; NVML: the GPUs' fabric state and NVLinks",
    cost="0.1 ms of CPU every 60 s; while it does not run 12 us for each process",
    blind_to="a manager that runs and does not work (gpu-fabric, on Hopper and later); without "
    "expected: nodes whose NVSwitches are not on their own PCI bus",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, options: FabricManagerCheck(
        sources, options["boot_grace"], expected=options["expected"]
    ),
    options=(
        gpu_common.boot_grace("it may not run yet"),
        Option(
            "expected",
            Kind.FLAG,
            False,
            "Whether it is to run here although no NVSwitch is on the PCI bus.",
        ),
    ),
)
