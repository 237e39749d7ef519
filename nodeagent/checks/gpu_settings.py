"""Settings of a GPU that differ from those of the node's other GPUs, or wait for a reset.

Reasons: ``mig-pending`` (degraded: MIG is to be turned on or off and waits for a reset of the GPU),
``compute-prohibited`` (degraded: its compute mode allows no program), ``unlicensed`` (degraded: a
vGPU without its licence, which slows down or refuses work), ``compute-mode`` (another one than more
than half of its model: ``siblings``), ``power-limit`` (a lower power limit than two thirds of its
model: ``siblings``), ``persistence-off`` (two thirds of its model have persistence mode on:
``siblings``) and ``unlike-siblings`` (the driver gives fewer values of it than of two thirds of its
model: ``siblings``).
"""

from collections.abc import Collection, Mapping
from operator import attrgetter

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Report
from nodeagent.checks.gpu_common import Verdict
from nodeagent.checks.siblings import SiblingWatch, option, outliers, status_of
from nodeagent.model import Status
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import Code, Gpu, GpuSample

#: nvmlComputeMode_t.
_COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
_PROHIBITED = 2
#: Values that no check is off without, and that a GPU has or lacks by its model.
_VALUES = (
    *("memory_temperature", "margin", "power", "limits.slowdown", "limits.memory", "limits.power"),
    *("limits.persistence", "ecc_mode", "mig", "compute_mode", "reserve", "vbios"),
    "sram_threshold_exceeded",
)


def evaluate(
    gpu: Gpu,
    *,
    usual_power: float,
    usual_persistence: float,
    siblings: Status,
    usual_mode: int | None = None,
    missed: Collection[str] = (),
    lasts: bool = True,
) -> Verdict:
    """The verdict on one GPU. Pure. ``usual_mode``: its siblings' compute mode, if they have one.

    ``usual_power`` (watts) and ``usual_persistence`` (1: on) are its siblings', 0 where it has the
    same; ``missed``: the values that they have and it lacks, ``lasts``: for long enough.
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
    elif None not in (usual_mode, gpu.compute_mode) and usual_mode != gpu.compute_mode:
        modes = [
            _COMPUTE_MODES.get(each or 0, str(each)) for each in (gpu.compute_mode, usual_mode)
        ]
        worse = "compute-mode", f"{text}; compute mode {modes[0]}, and most of its model {modes[1]}"
    elif missed and lasts:
        worse = "unlike-siblings", f"{text}; {_unreported(missed)}"
    if worse is not None and siblings is Status.FAILED:
        return siblings, *worse
    if mig is not None and mig.enabled != mig.pending:
        change = "on" if mig.pending else "off"
        return Status.DEGRADED, "mig-pending", f"{text}; a reset of the GPU turns MIG {change}"
    if gpu.compute_mode == _PROHIBITED:
        return Status.DEGRADED, "compute-prohibited", f"{text}; its compute mode allows no program"
    if gpu.licensed is False:
        return Status.DEGRADED, "unlicensed", f"{text}; this vGPU has no licence"
    if worse is not None:
        return siblings, *worse
    if missed and not lasts:
        text = f"{text}; {_unreported(missed)}{gpu_common.IF_IT_LASTS}"
    return Status.OK, "", text


def _unreported(missed: Collection[str]) -> str:
    return f"the driver does not report its {', '.join(missed)}"


class GpuSettings(gpu_common.GpuCheck):
    def __init__(self, sources: Sources, siblings: Status) -> None:
        super().__init__(SPEC.name, sources, brief=True)
        self._siblings = siblings
        self._watches = SiblingWatch(), SiblingWatch(), SiblingWatch(has_read=True)

    def evaluate(self, sample: GpuSample) -> Report:
        powers, persistences, values, fewer = self._differing(sample)
        reported = fewer if self._sources.single_run else values
        return self._per_gpu.observe(
            sample,
            lambda gpu: evaluate(
                gpu,
                usual_power=powers.get(gpu.uuid, 0.0),
                usual_persistence=persistences.get(gpu.uuid, 0.0),
                siblings=self._siblings,
                usual_mode=None if self._siblings is Status.OK else _usual_mode(sample, gpu.name),
                missed=_missed(sample, gpu) if gpu.uuid in reported else (),
                lasts=gpu.uuid in values,
            ),
        )

    def _differing(self, sample: GpuSample) -> list[Mapping[str, float]]:
        """The GPUs below their siblings: by power limit, persistence mode and number of values for
        long enough, and by number of values now.

        A GPU that is lost, needs a reset or has MIG on has fewer values by design.
        """
        if self._siblings is Status.OK:
            return [{}, {}, {}, {}]
        now = self._sources.machine.clock.boottime()
        levels = {gpu.uuid: (gpu.name, _levels(gpu)) for gpu in sample.gpus if gpu.uuid}
        parts = [
            {
                uuid: (name, float(level))
                for uuid, (name, each) in levels.items()
                if (level := each[at]) is not None
            }
            for at in range(len(self._watches))
        ]
        pairs = zip(self._watches, parts, strict=True)
        return [*(watch.lasting(each, now) for watch, each in pairs), outliers(parts[-1])]


def _levels(gpu: Gpu) -> tuple[int | None, bool | None, int | None]:
    lacks = sum(value in (None, "") for value in _values(gpu).values())
    is_whole = gpu.mig is None or not gpu.mig.enabled
    is_usable = Code.RESET_REQUIRED not in gpu.errors.values()
    is_here = is_whole and is_usable and not gpu_common.is_silent(gpu)
    return gpu.limits.power, gpu.limits.persistence, len(_VALUES) - lacks if is_here else None


def _values(gpu: Gpu) -> dict[str, object]:
    return dict(zip(_VALUES, attrgetter(*_VALUES)(gpu), strict=True))


def _missed(sample: GpuSample, gpu: Gpu) -> list[str]:
    """The values that this GPU lacks, and another of its model has."""
    siblings = [_values(each) for each in sample.gpus if each.name == gpu.name]
    return [
        name
        for name, value in _values(gpu).items()
        if value in (None, "") and any(each[name] not in (None, "") for each in siblings)
    ]


def _usual_mode(sample: GpuSample, model: str) -> int | None:
    """The compute mode of more than half of the GPUs of a model, if there is one."""
    modes = [gpu.compute_mode for gpu in sample.gpus if gpu.name == model]
    usual = max(set(modes), key=modes.count)
    return usual if 2 * modes.count(usual) > len(modes) else None


SPEC = CheckSpec(
    name="gpu-settings",
    sees="a GPU with a lower power limit than the others, without persistence mode, in another "
    "compute mode or in one that allows no program, whose MIG mode waits for a reset, or that has "
    "fewer values than they; a vGPU without its licence",
    source="NVML, nvmlDeviceGetEnforcedPowerLimit, nvmlDeviceGetPersistenceMode, "
    "nvmlDeviceGetMigMode, nvmlDeviceGetComputeMode, nvmlDeviceGetGridLicensableFeatures",
    cost=gpu_common.COST_SELDOM,
    blind_to="a setting that is wrong on all GPUs of the node",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, options: GpuSettings(sources, status_of(options["siblings"])),
    options=(option("a GPU with a power limit or persistence mode"),),
)
