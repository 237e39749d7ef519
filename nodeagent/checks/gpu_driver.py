"""A driver that is wedged: NVML does not return, and a witness beside NVML says the same.

Reasons: ``wedged`` (failed: NVML has hung for ``hung_for``, and other programs wait in the driver
for as long as two looks, or the kubelet has no healthy GPU left to give to a pod), ``hung``
(degraded: NVML alone); other trouble of NVML is unknown, as in gpu-inventory. The node is the
component. A hang lasts until NVML answers, also through restarts of the agent's worker.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.driver_waiters import DriverWaiter, DriverWaiters
from nodeagent.sources.gpu_sample import NvmlTrouble, TroubleKind
from nodeagent.sources.kubelet_devices import healthy_devices

NAME = "gpu-driver"
_NAMED = 5  # programs in a message for people


class GpuDriver:
    """Looks for witnesses only while NVML hangs: they cost a sweep of all threads."""

    def __init__(self, sources: Sources, hung_for: float) -> None:
        self._sources = sources
        self._hung_for = hung_for
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
            return [_without_hang(trouble)]
        if self._hung_since is None:
            self._hung_since = sample.at
        machine, workers = self._sources.machine, self._sources.nvml.worker_pids
        waiting = await self._waiters.sample(workers)
        devices = healthy_devices(machine, "nvidia.com")
        seconds = machine.clock.boottime() - self._hung_since
        return [judge(trouble, seconds, waiting, devices, hung_for=self._hung_for)]

    def _goes_on(self, trouble: NvmlTrouble) -> bool:
        """Whether NVML hangs, or a new worker has not got further than the one that hung."""
        if trouble.kind is TroubleKind.STARTING:
            return self._hung_since is not None
        return trouble.kind is TroubleKind.HUNG


def judge(
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
        witnesses.append(f"{len(waiting)} other programs wait in the driver: {who}")
    if devices and not any(devices.values()):
        witnesses.append(f"the kubelet has no healthy device of {', '.join(sorted(devices))}")
    if witnesses:
        return Observation(NAME, "", Status.FAILED, "wedged", "; ".join((text, *witnesses)))
    return Observation(NAME, "", Status.DEGRADED, "hung", f"{text}; no other witness")


def _without_hang(trouble: NvmlTrouble | None) -> Observation:
    if trouble is None:
        return Observation(NAME, "", Status.OK, "", "NVML answers")
    return Observation(NAME, "", Status.UNKNOWN, trouble.kind.value, trouble.message)


def _build(sources: Sources, options: Mapping[str, Any]) -> GpuDriver:
    return GpuDriver(sources, options["hung_for"])


SPEC = CheckSpec(
    name=NAME,
    sees="a driver that is wedged: NVML hangs, and other programs wait in the driver, or the "
    "kubelet has no healthy GPU left",
    source="NVML; while it hangs /proc/PID/task/*/wchan, and the kubelet's record of devices "
    "(device-plugins/kubelet_internal_checkpoint)",
    cost="no cost beside gpu-inventory; while NVML hangs 12 us for each thread of the machine",
    blind_to="a driver that hangs for one GPU alone, where NVML still answers; programs in another "
    "PID namespace, without hostPID; where a thread waits, without root",
    interval=gpu_common.INTERVAL,
    deadline=gpu_common.DEADLINE,
    build=_build,
    options=(
        Option(
            name="hung_for",
            kind=Kind.DURATION,
            default=180.0,
            help="How long NVML must have hung before the check is degraded or failed.",
        ),
    ),
)
