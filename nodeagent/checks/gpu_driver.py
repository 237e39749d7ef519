"""A driver that serves nobody: NVML does not return or refuses, and a witness next to it agrees.

Reasons: ``wedged`` (failed: NVML has hung for ``hung_for``, and other programs wait in the driver
for as long as two samples, or the kubelet has no healthy GPU left to give to a pod), ``hung``
(degraded: NVML alone). After ``refused_for``: ``library-mismatch``, ``library-broken``,
``nvml-failed`` and ``crashed`` (degraded; failed with a witness: the kubelet, or the versions of
the module and the library), ``driver-unreachable`` (failed: the module is loaded, NVML denies that,
and the kubelet has no GPU). ``cc-not-ready`` (degraded): GPUs of a confidential virtual machine
accept no work. Other trouble of NVML is unknown, as in gpu-inventory. The node is the component.
Trouble lasts until NVML answers, also through restarts of the agent's worker.
"""

from collections.abc import Mapping, Sequence

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.configfile.units import counted
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources, nvidia_driver
from nodeagent.sources.driver_waiters import DriverWaiter, DriverWaiters
from nodeagent.sources.gpu_sample import GpuSample, NvmlTrouble, TroubleKind
from nodeagent.sources.kubelet_devices import healthy_devices

NAME = "gpu-driver"
_NAMED = 5  # programs in a message for people

#: The reason for each way to refuse for good. A library of which there is a file cannot be loaded.
_REFUSALS = {
    TroubleKind.LIBRARY_MISMATCH: "library-mismatch",
    TroubleKind.NO_LIBRARY: "library-broken",
    TroubleKind.FAILED: "nvml-failed",
    TroubleKind.CRASHED: "crashed",
    TroubleKind.DRIVER_NOT_LOADED: "driver-unreachable",
}


class GpuDriver:
    """Looks for witnesses only while NVML hangs: they cost a sweep of all threads."""

    def __init__(
        self, sources: Sources, hung_for: float, refused_for: float, boot_grace: float
    ) -> None:
        self._sources = sources
        self._hung_for = hung_for
        self._refused_for = refused_for
        self._boot_grace = boot_grace
        self._refused_since: float | None = None
        self._waiters = DriverWaiters(sources.machine)
        self._hung_since: float | None = None

    async def run_check(self) -> Report:
        sample = await gpu_common.take_sample(self._sources)
        if isinstance(sample, Off):
            return sample
        trouble = sample.trouble
        if trouble is None or not self._goes_on(trouble):
            self._hung_since = None
            self._waiters.forget()
            return [self._without_hang(sample)]
        if self._hung_since is None:
            self._hung_since = sample.at
        machine, workers = self._sources.machine, self._sources.nvml.worker_pids
        waiting = await self._waiters.sample(workers)
        devices = healthy_devices(machine, "nvidia.com")
        seconds = machine.clock.boottime() - self._hung_since
        return [evaluate(trouble, seconds, waiting, devices, hung_for=self._hung_for)]

    def _goes_on(self, trouble: NvmlTrouble) -> bool:
        """Whether NVML hangs, or a new worker has not got further than the one that hung."""
        if trouble.kind is TroubleKind.STARTING:
            return self._hung_since is not None
        return trouble.kind is TroubleKind.HUNG

    def _without_hang(self, sample: GpuSample) -> Observation:
        trouble, young = sample.trouble, gpu_common.is_young(self._sources, self._boot_grace)
        if trouble is None:
            self._refused_since = None
            if sample.cc_ready is not False or young:
                return Observation(NAME, "", Status.OK, "", "NVML answers")
            text = "the GPUs of this confidential machine are not ready: they accept no program"
            return Observation(NAME, "", Status.DEGRADED, "cc-not-ready", text)
        unknown = Observation(NAME, "", Status.UNKNOWN, trouble.kind.value, trouble.message)
        if trouble.kind is TroubleKind.STARTING:
            return unknown
        if not self._refuses(trouble) or (young and trouble.kind in gpu_common.LIKE_STARTING):
            self._refused_since = None
            return unknown
        if self._refused_since is None:
            self._refused_since = sample.at
        seconds = self._sources.machine.clock.boottime() - self._refused_since
        if seconds < self._refused_for and not self._sources.single_run:
            return unknown
        return evaluate_refusal(
            trouble,
            module=self._sources.driver.read(),
            library=self._sources.nvml.library_version(),
            devices=healthy_devices(self._sources.machine, "nvidia.com"),
        )

    def _refuses(self, trouble: NvmlTrouble) -> bool:
        """Whether the driver or its library refuses, and not this agent's own installation."""
        match trouble.kind:
            case TroubleKind.DRIVER_NOT_LOADED:
                return nvidia_driver.is_loaded(self._sources.machine)
            case TroubleKind.NO_LIBRARY:
                return bool(trouble.code) and self._sources.nvml.has_library()
            case TroubleKind.CRASHED:
                return True
            case _:
                return trouble.code != 0 and gpu_common.accuses(trouble.code)


def evaluate_refusal(
    trouble: NvmlTrouble, *, module: str, library: str, devices: Mapping[str, int]
) -> Observation:
    """The verdict on an NVML that refuses for good. Pure.

    ``module`` and ``library``: the versions of the driver's halves, as far as they are known.
    """
    reason = _REFUSALS[trouble.kind]
    witnesses = [f"the kubelet has no healthy device of {', '.join(sorted(devices))}"]
    if not devices or any(devices.values()):
        witnesses = []
    is_mismatch = trouble.kind is TroubleKind.LIBRARY_MISMATCH
    if is_mismatch and module and library and module != library:
        witnesses.append(f"the loaded module is {module} and the library {library}")
    text = "; ".join((f"no new CUDA program can start: {trouble.message}", *witnesses))
    if witnesses:
        return Observation(NAME, "", Status.FAILED, reason, text)
    if trouble.kind is TroubleKind.DRIVER_NOT_LOADED:
        return Observation(NAME, "", Status.UNKNOWN, trouble.kind.value, trouble.message)
    return Observation(NAME, "", Status.DEGRADED, reason, f"{text}; no other witness")


def evaluate(
    trouble: NvmlTrouble,
    seconds: float,
    waiting: Sequence[DriverWaiter],
    devices: Mapping[str, int],
    *,
    hung_for: float,
) -> Observation:
    """The verdict on a driver in which NVML has hung for ``seconds``. Pure.

    ``devices``: the healthy ones of each resource that NVIDIA's device plugin has offered.
    """
    text = f"NVML has given no answer for {seconds:.0f} s: {trouble.message}"
    if seconds < hung_for:
        return Observation(NAME, "", Status.UNKNOWN, "hung", text)
    witnesses = []
    if waiting:
        who = ", ".join(
            f"{each.name} (pid {each.pid}) in {each.where}" for each in waiting[:_NAMED]
        )
        programs = counted(len(waiting), "other program waits", "other programs wait")
        witnesses.append(f"{programs} in the driver: {who}")
    if devices and not any(devices.values()):
        witnesses.append(f"the kubelet has no healthy device of {', '.join(sorted(devices))}")
    if witnesses:
        return Observation(NAME, "", Status.FAILED, "wedged", "; ".join((text, *witnesses)))
    return Observation(NAME, "", Status.DEGRADED, "hung", f"{text}; no other witness")


SPEC = CheckSpec(
    name=NAME,
    sees="a driver that is wedged: NVML hangs, and other programs wait in the driver, or the "
    "kubelet has no healthy GPU left; a driver or library that refuses for long; confidential GPUs "
    "that are not ready",
    source="NVML, nvmlSystemGetConfComputeGpusReadyState; while it hangs /proc/PID/task/*/wchan, "
    "and the kubelet's record of devices (device-plugins/kubelet_internal_checkpoint)",
    cost="no cost next to gpu-inventory; while NVML hangs 12 us for each thread of the machine",
    blind_to="a driver that hangs for one GPU alone, where NVML still answers; programs in another "
    "PID namespace, without hostPID; where a thread waits, without root",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, options: GpuDriver(sources, **options),
    options=(
        Option(
            "hung_for",
            Kind.DURATION,
            180.0,
            "How long NVML must have hung before the check is degraded or failed.",
        ),
        Option(
            "refused_for",
            Kind.DURATION,
            600.0,
            "How long NVML must have refused before the check is degraded or failed.",
        ),
        gpu_common.BOOT_GRACE,
    ),
)
