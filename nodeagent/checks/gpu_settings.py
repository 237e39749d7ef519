"""Settings of a GPU that differ from those of the node's other GPUs, or wait for a reset.

Reasons: ``mig-pending`` (degraded: MIG is to be turned on or off and waits for a reset of the GPU),
``power-limit`` (a lower power limit than two thirds of its model: ``siblings``) and
``persistence-off`` (two thirds of its model have persistence mode on: ``siblings``).
"""

from collections.abc import Mapping
from typing import Any

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Off, Report
from nodeagent.checks.gpu_common import PerGpu, Verdict
from nodeagent.checks.siblings import SiblingWatch, option, status_of
from nodeagent.model import Status
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import Gpu, GpuSample


def judge(gpu: Gpu, *, usual_power: float, usual_persistence: float, siblings: Status) -> Verdict:
    """The verdict on one GPU. Pure.

    ``usual_power`` (watts) and ``usual_persistence`` (1: on) are its siblings', 0 where it has the
    same.
    """
    limits, mig = gpu.limits, gpu.mig
    power = "power limit unknown" if limits.power is None else f"power limit {limits.power} W"
    persistence = {None: "unknown", True: "on", False: "off"}[limits.persistence]
    text = f"{power}, persistence mode {persistence}"
    if mig is not None:
        text += f", MIG {'on' if mig.enabled else 'off'}"
    worse = None
    if usual_power:
        worse = "power-limit", f"{text}; most GPUs of its model have {usual_power:g} W"
    elif usual_persistence:
        worse = "persistence-off", f"{text}; most GPUs of its model have that on"
    if worse is not None and siblings is Status.FAILED:
        return siblings, *worse
    if mig is not None and mig.enabled != mig.pending:
        change = "on" if mig.pending else "off"
        return Status.DEGRADED, "mig-pending", f"{text}; a reset of the GPU turns MIG {change}"
    if worse is not None:
        return siblings, *worse
    return Status.OK, "", text


class GpuSettings:
    def __init__(self, sources: Sources, siblings: Status) -> None:
        self._sources = sources
        self._siblings = siblings
        self._per_gpu = PerGpu(SPEC.name, sources, brief=True)
        self._powers, self._persistences = SiblingWatch(), SiblingWatch()

    async def run_check(self) -> Report:
        sample = await gpu_common.take_sample(self._sources)
        if isinstance(sample, Off):
            return sample
        power, persistence = self._differing(sample)
        return self._per_gpu.observe(
            sample,
            lambda gpu: judge(
                gpu,
                usual_power=power.get(gpu.uuid, 0.0),
                usual_persistence=persistence.get(gpu.uuid, 0.0),
                siblings=self._siblings,
            ),
        )

    def _differing(self, sample: GpuSample) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """The GPUs whose power limit, and whose persistence mode, is below their siblings'."""
        if self._siblings is Status.OK:
            return {}, {}
        limits = {gpu.uuid: (gpu.name, gpu.limits) for gpu in sample.gpus if gpu.uuid}
        powers = {
            uuid: (name, float(each.power))
            for uuid, (name, each) in limits.items()
            if each.power is not None
        }
        persistences = {
            uuid: (name, float(each.persistence))
            for uuid, (name, each) in limits.items()
            if each.persistence is not None
        }
        now = self._sources.machine.clock.boottime()
        return self._powers.lasting(powers, now), self._persistences.lasting(persistences, now)


def _build(sources: Sources, options: Mapping[str, Any]) -> GpuSettings:
    return GpuSettings(sources, status_of(options["siblings"]))


SPEC = CheckSpec(
    name="gpu-settings",
    sees="a GPU with a lower power limit than the others, without persistence mode, or whose MIG "
    "mode waits for a reset",
    source="NVML, nvmlDeviceGetEnforcedPowerLimit, nvmlDeviceGetPersistenceMode, "
    "nvmlDeviceGetMigMode",
    cost=gpu_common.COST_SELDOM,
    blind_to="a setting that is wrong on all GPUs of the node",
    interval=gpu_common.INTERVAL,
    deadline=gpu_common.DEADLINE,
    build=_build,
    options=(option("a GPU with a power limit or persistence mode"),),
)
