"""Whether every GPU of the node is there: by NVML, by the PCI bus, by memory, by expectation.

Only this check sees a GPU that is gone without a line in any log. The bus is evidence by itself; an
NVML that does not answer is no evidence, and leaves its GPUs unknown.
"""

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Kind, Option, Report
from nodeagent.checks.gpu_common import Verdict
from nodeagent.model import Clearing, Status
from nodeagent.sources import Sources, nvidia_driver
from nodeagent.sources.gpu_sample import CALLS, Code, Gpu, GpuSample, NvmlTrouble, TroubleKind

#: The calls without which a GPU has no name, in their order.
_IDENTITY = ("handle", "uuid", "pci")
#: The drivers of a GPU that NVML may offer: none yet, or NVIDIA's.
_DRIVERS = {"", "nvidia"}


class GpuInventory(gpu_common.GpuCheck):
    """One observation per GPU, and one of the node (component "") about NVML and the number."""

    def __init__(self, sources: Sources, boot_grace: float, quiesce_grace: float) -> None:
        super().__init__(SPEC.name, sources)
        self._boot_grace = boot_grace
        self._quiesce_grace = quiesce_grace
        self._has_been_ok = False
        #: The latest load of the driver that we know of.
        self._load = sources.driver_log.loaded_at

    def evaluate(self, sample: GpuSample) -> Report:
        if self._load != self._sources.driver_log.loaded_at:
            self._load = self._sources.driver_log.loaded_at
            self._has_been_ok = False
        self._has_been_ok |= sample.trouble is None
        if sample.trouble is not None and sample.trouble.kind is TroubleKind.QUIESCED:
            self._has_been_ok = False  # a quiesce may precede a reload of the driver
        replaced = self._learn(sample)
        verdicts = {"": self._node(sample)} | self._gpus(sample)
        verdicts = {name: self._marked(verdict) for name, verdict in verdicts.items()}
        clearings = [Clearing(uuid, how="replaced") for uuid in replaced]
        clearings += [Clearing(name, how="named") for name in self._sources.gpus.take_named()]
        return [*clearings, *self._per_gpu.report(verdicts)]

    def _marked(self, verdict: Verdict) -> Verdict:
        """A fault that is seen while a person works on the GPUs, or has just done so, is unknown.

        A reset takes a GPU off the bus for seconds, and a driver comes back GPU by GPU.
        """
        status, reason, message = verdict
        back_for = self._sources.nvml.back_for
        if status is not Status.FAILED or back_for >= self._quiesce_grace:
            return verdict
        return (
            Status.UNKNOWN,
            "after-quiesce",
            f"{reason}: {message}; the agent had released it until {back_for:.0f} s ago",
        )

    def _learn(self, sample: GpuSample) -> list[str]:
        """Teach the map which GPU sits where. Gives the UUIDs that others have replaced."""
        gpus = self._sources.gpus
        named = [gpu for gpu in sample.gpus if gpu.uuid and gpu.pci]
        alive = [gpu for gpu in named if Code.GPU_IS_LOST not in gpu.errors.values()]
        before = [gpus.learn(gpu.pci, gpu.uuid) for gpu in alive]
        here = {gpu.uuid for gpu in sample.gpus}
        taken = [uuid for uuid in before if uuid is not None and uuid not in here]
        return taken + gpus.take_exchanged()

    # ---- the GPUs -------------------------------------------------------------------------------

    def _gpus(self, sample: GpuSample) -> dict[str, Verdict]:
        gpus = self._sources.gpus
        found = {gpu_common.component_of(gpu, self._sources): gpu for gpu in sample.gpus}
        verdicts = {component: evaluate(gpu) for component, gpu in found.items() if component}
        seen = {gpu.pci for gpu in sample.gpus}
        unlisted = {
            gpus.component(address): verdict
            for address in sorted(gpus.addresses() - seen)
            if (verdict := self._unlisted(address, sample)) is not None
        }
        nameless = [gpu for gpu in sample.gpus if not gpu.uuid and not gpu.pci]
        if not unlisted:  # no address is left over to name them by
            verdicts |= {f"index:{gpu.index}": evaluate(gpu) for gpu in nameless}
        return unlisted | verdicts

    def _unlisted(self, address: str, sample: GpuSample) -> Verdict | None:
        """The verdict on a GPU of the node that NVML did not name, or None when it is not ours."""
        machine, gpus = self._sources.machine, self._sources.gpus
        trouble = sample.trouble
        if address in gpus.present():
            if address not in self._of_nvidia():
                return None  # another driver's, such as a display's: the node's row names it
            if trouble is not None:
                return self._unknown(trouble)
            if address in sample.excluded or self._is_complete(sample):
                return None  # taken out on purpose: the node's row names it
            has_as_many = len(sample.gpus) >= len(self._of_nvidia() - set(sample.excluded))
            return _missing_from_nvml(address, sample, has_as_many=has_as_many)
        if trouble is not None and (
            trouble.kind is TroubleKind.QUIESCED or not nvidia_driver.bus_is_visible(machine)
        ):
            return self._unknown(trouble)
        if trouble is None and self._is_complete(sample):
            return None  # taken out on purpose: the number is as expected
        return Status.FAILED, "missing", f"the GPU at {address} is no longer on the PCI bus"

    def _of_nvidia(self) -> set[str]:
        """The addresses on the bus, without those of another driver that NVML never had."""
        machine, gpus = self._sources.machine, self._sources.gpus
        free = [a for a in gpus.present() if nvidia_driver.bound_driver(machine, a) in _DRIVERS]
        return set(gpus.present()) & {*free, *gpus.remembered()}

    # ---- the node -------------------------------------------------------------------------------

    def _node(self, sample: GpuSample) -> Verdict:
        expected, trouble = self._sources.expected_gpus or 0, sample.trouble
        given = len(self._sources.gpus.given_away())
        if trouble is not None:
            is_visible = nvidia_driver.bus_is_visible(self._sources.machine)
            present = len(self._sources.gpus.present()) + given
            if present < expected and is_visible and trouble.kind is not TroubleKind.QUIESCED:
                text = f"{present} of {expected} expected GPUs are on the PCI bus"
                return Status.FAILED, "missing", f"{text}; {trouble.message}"
            return self._node_in_trouble(trouble)
        usable = _usable(sample)
        if usable + given < expected:
            text = f"NVML has {usable} of {expected} expected GPUs{self._not_offered(sample)}"
            return Status.FAILED, "missing", text
        count = f"{usable} GPU{'' if usable == 1 else 's'}"
        message = f"{count}, driver {sample.driver or 'of unknown version'}"
        message += self._not_offered(sample)
        if sample.stuck:
            return Status.DEGRADED, "stuck-worker", f"{message}; a process is stuck: {sample.stuck}"
        return Status.OK, "", message

    def _not_offered(self, sample: GpuSample) -> str:
        """For people: the GPUs on the bus that NVML does not offer, and who has them."""
        gpus = self._sources.gpus
        drivers = dict(gpus.given_away())
        for address in sorted(gpus.present() - {gpu.pci for gpu in sample.gpus}):
            driver = nvidia_driver.bound_driver(self._sources.machine, address)
            if address in sample.excluded:
                drivers[address] = "excluded by configuration, or drained"
            elif self._is_complete(sample) or driver not in _DRIVERS:
                drivers[address] = driver or "no driver"
        each = (f"{address} ({driver})" for address, driver in drivers.items())
        return f"; not offered: {', '.join(each)}" if drivers else ""

    def _node_in_trouble(self, trouble: NvmlTrouble) -> Verdict:
        status, reason, message = self._unknown(trouble)
        message += self._foreign_drivers()
        if trouble.kind is not TroubleKind.DRIVER_NOT_LOADED or reason == "starting":
            return status, reason, message
        if nvidia_driver.is_loaded(self._sources.machine):
            hint = "sysfs shows it loaded: may the agent open /dev/nvidiactl?"
            return status, "driver-unreachable", f"{message}; {hint}"
        # A node that has GPUs, by configuration or because they have been seen, cannot use them.
        if self._sources.expected_gpus or self._sources.gpus.remembered():
            return Status.FAILED, reason, message
        return status, reason, message

    def _foreign_drivers(self) -> str:
        """For people: the drivers other than NVIDIA's that have GPUs of the node (nouveau)."""
        machine, gpus = self._sources.machine, self._sources.gpus
        drivers = {nvidia_driver.bound_driver(machine, each) for each in gpus.present()}
        foreign = sorted(drivers - _DRIVERS)
        return f"; {', '.join(foreign)} has the GPUs" if foreign else ""

    def _unknown(self, trouble: NvmlTrouble) -> Verdict:
        """A driver container compiles for minutes: after a boot its absence is a start.

        Its absence is a start as well after a quiesce, which is ordered to replace the driver, and
        after a driver was loaded.
        """
        is_young = gpu_common.is_young(self._sources, self._boot_grace)
        is_starting = (
            is_young and not self._has_been_ok and trouble.kind in gpu_common.LIKE_STARTING
        )
        reason = TroubleKind.STARTING if is_starting else trouble.kind
        return Status.UNKNOWN, reason.value, trouble.message

    def _is_complete(self, sample: GpuSample) -> bool:
        expected, given = self._sources.expected_gpus, len(self._sources.gpus.given_away())
        return expected is not None and _usable(sample) + given >= expected


def evaluate(gpu: Gpu) -> Verdict:
    """The verdict on one GPU that NVML lists, from any call whose error concerns the whole GPU."""
    codes = set(gpu.errors.values())
    where = f"GPU {gpu.index}" + (f" at {gpu.pci}" if gpu.pci else "")
    if Code.GPU_IS_LOST in codes:
        return Status.FAILED, "lost", f"NVML reports that {where} is lost (error 15)"
    if Code.RESET_REQUIRED in codes:
        return (
            Status.FAILED,
            "reset-required",
            f"NVML reports that {where} needs a reset (error 16)",
        )
    if Code.CORRUPTED_INFOROM in codes:
        return Status.DEGRADED, "corrupted-inforom", f"{where} has a corrupted InfoROM (error 14)"
    for call in (each for each in _IDENTITY if each in gpu.errors):
        code = gpu.errors[call]
        text = f"{CALLS[call]} gave error {code}"
        if call == "handle" and gpu_common.accuses(code):
            return Status.FAILED, "missing", f"NVML does not offer {where}: {text}"
        return Status.UNKNOWN, gpu_common.reason_of(code), text
    return Status.OK, "", f"{where}: {gpu.name or 'without a name'}"


def _missing_from_nvml(address: str, sample: GpuSample, *, has_as_many: bool) -> Verdict:
    """``has_as_many``: NVML has as many GPUs as the bus, so that each may be a nameless one."""
    nameless = [gpu for gpu in sample.gpus if not gpu.pci]
    codes = sorted({gpu.errors[c] for gpu in nameless for c in _IDENTITY if c in gpu.errors})
    text = f"the GPU at {address} is on the PCI bus and NVML does not offer it"
    if codes:
        text += f" (error {', '.join(map(str, codes))} for a GPU without a name)"
        # NVML may offer a GPU and refuse its identity alone.
        if has_as_many and all(evaluate(gpu)[0] is not Status.FAILED for gpu in nameless):
            return Status.UNKNOWN, gpu_common.reason_of(codes[0]), text
    return Status.FAILED, "lost" if Code.GPU_IS_LOST in codes else "missing", text


def _usable(sample: GpuSample) -> int:
    return sum(evaluate(gpu)[1] not in ("lost", "missing") for gpu in sample.gpus)


SPEC = CheckSpec(
    name="gpu-inventory",
    sees="a GPU that is missing, lost or not offered by the driver; an NVML that hangs, crashes, "
    "mismatches or has no driver",
    source="NVML, sysfs (PCI), the GPUs of earlier runs, expect.gpus",
    cost=gpu_common.COST,
    blind_to="without expect.gpus: a GPU that was gone before the agent's first run",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, options: GpuInventory(
        sources, options["boot_grace"], options["quiesce_grace"]
    ),
    options=(
        gpu_common.BOOT_GRACE,
        Option(
            "quiesce_grace",
            Kind.DURATION,
            300.0,
            "How long after quiesce a fault of the inventory is unknown, `after-quiesce`.",
        ),
    ),
)
