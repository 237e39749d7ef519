"""Code that the GPU checks share: when there is no GPU to check, which are unknown and why."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from nodeagent.checks.base import Kind, Off, Option, Report
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import CALLS, Code, Gpu, GpuSample, TroubleKind

#: Above the sample's own deadline, because its message describes a hang better than the
#: scheduler's.
DEADLINE = 15.0

COST = "one round trip to the NVML worker, shared by the GPU checks"

#: The same for values that the worker reads seldom.
COST_SELDOM = "no cost next to gpu-inventory; a few calls for each GPU every 5 minutes"

_NO_GPU = Off("no GPU")

#: Answers that a GPU has no such value, and those that are about this process alone: not
#: initialised, a device that its cgroup denies, no memory or other resource for it. Others last
#: only where the GPU has a fault, and a rule acts on no answer of a moment.
ABSENT = frozenset({Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND})
_OF_THE_AGENT = ABSENT | {Code.NO_PERMISSION, Code.MEMORY, 1, 17, 23}

#: Seconds between two samples that surely have another read of a value that is read seldom:
#: nvml_sampler's SLOW_EVERY, whose import costs memory, and the deadline of a sample.
ANOTHER_READ = 300.0

#: What a single run adds to the text about a value that is missing, perhaps for a moment only.
IF_IT_LASTS = "; a running agent reports it as degraded or failed if this lasts"

#: The report if every GPU of the node is too old, too new or not built for the check.
NOT_SUPPORTED = Off("not supported by these GPUs")

_REASONS: dict[int, str] = {
    Code.NOT_SUPPORTED: "unsupported",
    Code.FUNCTION_NOT_FOUND: "unsupported",
    Code.NO_PERMISSION: "no-permission",
    Code.GPU_IS_LOST: "lost",
    Code.RESET_REQUIRED: "reset-required",
}

#: The signs of a driver that is still being built or loaded after a boot.
LIKE_STARTING = frozenset(
    {
        TroubleKind.NO_LIBRARY,
        TroubleKind.DRIVER_NOT_LOADED,
        TroubleKind.LIBRARY_MISMATCH,
        TroubleKind.FAILED,
    }
)


def boot_grace(what: str) -> Option:
    """The setting for how long ``what`` after a boot."""
    text = f"How long {what} after a boot, a quiesce or a driver's load."
    return Option("boot_grace", Kind.DURATION, 1200.0, text)


BOOT_GRACE = boot_grace("an absent driver counts as starting")

#: One GPU's verdict: status, reason, message.
Verdict = tuple[Status, str, str]


async def take_sample(sources: Sources) -> GpuSample | Off:
    """The sample to evaluate, or Off on a machine that has no GPU and is to have none.

    A library without a GPU is common (a container image that brings one): it is no GPU either.
    """
    given = sources.gpus.given_away()
    sources.nvml.stale_before = sources.gpus.joined_at
    if (sources.expected_gpus or 0) > len(given) or sources.gpus.addresses():
        sample = await sources.nvml.sample()
        sources.fabric.learn(sample)
        sources.driver.learn(sample)
        return _without(given, sample)
    off = _NO_GPU
    if given:
        drivers = ", ".join(sorted(set(given.values())))
        off = Off(f"all GPUs are given to virtual machines ({drivers})")
    if not sources.nvml.has_library():
        return off
    sample = _without(given, await sources.nvml.sample())
    absent = (TroubleKind.NO_LIBRARY, TroubleKind.DRIVER_NOT_LOADED)
    if not sample.gpus and (given or sample.trouble is None or sample.trouble.kind in absent):
        return off
    return sample


def _without(given: Mapping[str, str], sample: GpuSample) -> GpuSample:
    """The sample without GPUs that went to a virtual machine after NVML's start: it lists them."""
    if not given:
        return sample
    return replace(sample, gpus=tuple(gpu for gpu in sample.gpus if gpu.pci not in given))


def component_of(gpu: Gpu, sources: Sources) -> str:
    """The GPU's UUID, or another known name; empty when it never identified itself."""
    if gpu.uuid:
        return gpu.uuid
    return sources.gpus.component(gpu.pci) if gpu.pci else ""


def unreadable(gpu: Gpu, call: str) -> Verdict:
    """The verdict where ``call`` gave nothing: unknown, since an unread value is no fault."""
    lost = [name for name, code in gpu.errors.items() if code == Code.GPU_IS_LOST]
    # A call that was not made, since one before it had failed, is explained by that one.
    name = next(iter(lost or ([call] if call in gpu.errors else gpu.errors)), call)
    code = gpu.errors.get(name, int(Code.UNKNOWN))
    return Status.UNKNOWN, reason_of(code), f"{CALLS[name]} gave error {code}"


def accuses(code: int) -> bool:
    """Whether an error of the call that gives a GPU's handle is the GPU's, not this process's."""
    return code not in _OF_THE_AGENT


def reason_of(code: int) -> str:
    """An NVML return code in one word."""
    return _REASONS.get(code, f"nvml-error-{code}")


def lacks(sample: GpuSample, gpu: Gpu, call: str) -> int:
    """How many GPUs of this one's model give a value by ``call``, where this one alone does not.

    With MIG on a GPU gives fewer values by design, and gpu-inventory reports one that is lost.
    """
    code = gpu.errors.get(call)
    is_partitioned = gpu.mig is not None and gpu.mig.enabled
    is_its_own = code in ABSENT or (code is not None and accuses(code))
    if is_partitioned or not is_its_own or is_silent(gpu) or code == Code.RESET_REQUIRED:
        return 0
    siblings = [each for each in sample.gpus if each.name == gpu.name and not is_silent(each)]
    having = sum(call not in each.errors for each in siblings)
    least = 1 if call == "ecc" else len(siblings) - having + 1  # ECC is a setting: one is enough
    return having if having >= least else 0


def is_young(sources: Sources, grace: float, *, since: float = 0.0) -> bool:
    """Whether a driver that is not ready may still be starting.

    ``grace`` seconds after a boot, a load of the driver, the end of quiesce, and ``since``.
    """
    now = sources.machine.clock.boottime()
    loaded_at = max(since, sources.driver_log.loaded_at)
    return min(now, now - loaded_at, sources.nvml.back_for) < grace


def nobody_has(sample: GpuSample, call: str) -> bool:
    """Whether no GPU of the node supports ``call``, so that the check has no work."""
    codes = [gpu.errors.get(call) for gpu in sample.gpus if not is_silent(gpu)]
    return sample.trouble is None and bool(codes) and all(code in ABSENT for code in codes)


def is_silent(gpu: Gpu) -> bool:
    """Whether a GPU was lost or gave not even its name, so that it lacks no value."""
    return bool({"handle", "uuid"} & gpu.errors.keys()) or Code.GPU_IS_LOST in gpu.errors.values()


def is_ill(gpu: Gpu) -> bool:
    """Whether the GPU does not answer, or requests another reset."""
    sick = (Code.GPU_IS_LOST, Code.RESET_REQUIRED)
    return (
        "handle" in gpu.errors
        or bool(gpu.recovery_action)
        or any(code in sick for code in gpu.errors.values())
    )


class PerGpu:
    """Turns a sample into one observation per GPU of the node, those without a result included.

    With ``brief`` the healthy GPUs share one observation of the node (component ""). So a machine
    that is well costs the fleet a row and not eight. A GPU has a row of its own in its first run,
    even if an earlier agent has reported it, and always after it was not well. In a single run that
    is every GPU, so the run leaves out the shared row.
    """

    def __init__(self, check: str, sources: Sources, *, brief: bool = False) -> None:
        self._check = check
        self._sources = sources
        self._brief = brief
        self._shown: set[str] = set()
        self._was_ill: set[str] = set()
        #: When each GPU that gives no value, unlike its siblings, was first seen so.
        self._lacking: dict[str, float] = {}

    def observe(
        self, sample: GpuSample, verdict: Callable[[Gpu], Verdict], call: str = ""
    ) -> list[Observation]:
        """``verdict`` of each GPU that answered; unknown for every other.

        A GPU that does not support ``call`` while its siblings do is degraded, and one that refuses
        it for ``ANOTHER_READ``. A verdict on values that it did give comes first.
        """
        known: dict[str, Verdict] = {}
        before, self._lacking = self._lacking, {}
        for gpu in sample.gpus:
            component = component_of(gpu, self._sources)
            if not component:
                continue
            known[component] = verdict(gpu)
            having = lacks(sample, gpu, call) if call else 0
            if not having:
                continue
            first = self._lacking[component] = before.get(component, sample.at)
            status, reason, text = known[component]
            if gpu.errors[call] in ABSENT:
                # ecc-off describes such a GPU better, and names the reset too.
                is_unlike = status is Status.UNKNOWN or reason == "ecc-pending"
            else:
                is_unlike = status is Status.UNKNOWN and sample.at - first >= ANOTHER_READ
            if is_unlike:
                known[component] = _unlike(gpu, call, having)
            elif status is Status.UNKNOWN and self._sources.single_run:
                known[component] = status, reason, text + IF_IT_LASTS
        if self._brief and sample.trouble is not None:
            silent = ["", *sorted(self._was_ill)]
        else:
            silent = list(self._sources.gpus.remembered().values())
        for component in silent:
            known.setdefault(component, _silent(sample))
        return self.report(self._of_models_that_have_it(sample, known))

    def _of_models_that_have_it(
        self, sample: GpuSample, known: dict[str, Verdict]
    ) -> dict[str, Verdict]:
        """``known`` without GPUs that have no such value by their model or by MIG, if others do.

        They would leave the node unknown for ever.
        """
        lacking = {name for name, (_, reason, _) in known.items() if reason == "unsupported"}
        models: dict[tuple[str, bool], set[str]] = {}
        for gpu in sample.gpus:
            is_partitioned = gpu.mig is not None and gpu.mig.enabled
            of_model = models.setdefault((gpu.name, is_partitioned), set())
            of_model.add(component_of(gpu, self._sources))
        without = {name for each in models.values() if each <= lacking for name in each}
        if lacking == known.keys():
            return known
        return {name: verdict for name, verdict in known.items() if name not in without}

    def report(self, verdicts: dict[str, Verdict]) -> list[Observation]:
        """``verdicts`` by component."""
        if self._brief:
            verdicts = self._shorten(verdicts)
        return [
            Observation(self._check, component, status, reason, message)
            for component, (status, reason, message) in verdicts.items()
        ]

    def _shorten(self, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
        gpus = {name: verdict for name, verdict in verdicts.items() if name}
        well = {name: text for name, (status, _, text) in gpus.items() if status is Status.OK}
        self._was_ill = self._was_ill & gpus.keys() | gpus.keys() - well.keys()
        found = {
            name: verdict
            for name, verdict in verdicts.items()
            if not name or name in self._was_ill or name not in self._shown
        }
        self._shown |= gpus.keys()
        if well and not self._sources.single_run:
            found.setdefault("", (Status.OK, "", _shared_text(list(well.values()), len(gpus))))
        return found


class GpuCheck:
    """A check of each sample. Where no GPU of the node supports ``call``, it is off.

    ``brief`` is as in PerGpu.
    """

    def __init__(
        self, check: str, sources: Sources, *, call: str = "", brief: bool = False
    ) -> None:
        self._sources = sources
        self._call = call
        self._per_gpu = PerGpu(check, sources, brief=brief)

    async def run_check(self) -> Report:
        sample = await take_sample(self._sources)
        if isinstance(sample, Off):
            return sample
        if self._call and nobody_has(sample, self._call):
            return NOT_SUPPORTED
        return self.evaluate(sample)

    def evaluate(self, sample: GpuSample) -> Report:
        """The report of one sample."""
        raise NotImplementedError


class EachGpu(GpuCheck):
    """A check that evaluates each GPU by this look alone, by what ``call`` gave."""

    def __init__(
        self,
        check: str,
        sources: Sources,
        call: str,
        evaluate: Callable[[Gpu], Verdict],
        *,
        brief: bool = True,
    ) -> None:
        super().__init__(check, sources, call=call, brief=brief)
        self._evaluate = evaluate

    def evaluate(self, sample: GpuSample) -> Report:
        return self._per_gpu.observe(sample, self._evaluate, self._call)


def _unlike(gpu: Gpu, call: str, having: int) -> Verdict:
    """The verdict on a GPU that lacks what ``having`` others of its model have."""
    who = f"{having} other GPU{'s' * (having > 1)} of its model"
    code = gpu.errors[call]
    if code not in ABSENT:
        text = f"{CALLS[call]} gave error {code}, and none of {who}"
        return Status.DEGRADED, "unlike-siblings", text
    if call == "ecc":
        pending = gpu.ecc_mode is not None and gpu.ecc_mode.pending
        more = "; a reset of the GPU turns it on" * pending
        return Status.DEGRADED, "ecc-off", f"ECC is off on this GPU, and on for {who}{more}"
    text = f"{CALLS[call]} is not supported by this GPU, and is by {who}"
    return Status.DEGRADED, "unlike-siblings", text


def _shared_text(texts: list[str], gpus: int) -> str:
    """The text of healthy GPUs, one for all or each its own, of ``gpus`` on the node."""
    if gpus == 1:
        return texts[0]
    count = f"{len(texts)} of {gpus} GPUs {'is' if len(texts) == 1 else 'are'} healthy"
    return f"{count}: {texts[0]}" if len(set(texts)) == 1 else count


def _silent(sample: GpuSample) -> Verdict:
    if sample.trouble is not None:
        return Status.UNKNOWN, sample.trouble.kind.value, sample.trouble.message
    return Status.UNKNOWN, "missing", "NVML does not list this GPU"
