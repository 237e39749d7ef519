"""The NVLinks of each GPU: which are up, and the errors that they count.

Reasons: ``link-down`` (failed: a link that was up is not), ``fewer-links`` (degraded: others of its
model have more, or in a fabric this one has none), ``recovery`` (degraded: a link had to be
brought up again within the hour), ``errors`` (degraded: more than ``errors_per_hour`` on one link),
``bit-errors`` (degraded: a higher effective bit error rate than 1e-``bit_error_exponent``, which
NVLink 5 reports), ``c2c-down``
(degraded: links to the CPU are not active, and others of it or of its siblings are),
``unlike-siblings`` (degraded: in a fabric the driver gives no links of this GPU, and those of most
of its model). A fault of a link may be the other end's. A GPU with MIG has no NVLinks: the driver
turns them off with it. A GPU without a bridge has none either; a fabric has no such GPU.
"""

from collections.abc import Mapping

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Kind, Option, Report
from nodeagent.checks.counter_window import CounterIncreases
from nodeagent.checks.gpu_common import Verdict
from nodeagent.model import Status
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import Code, Gpu, GpuSample, NvLinks
from nodeagent.sources.measurements import rounded

_WINDOW = 3600.0
#: Seconds after a boot, a quiesce or a load of the driver in which links may still come up.
_GRACE = 1200.0

#: Kinds of which one is too many: the link was lost for a moment, or for good. NVLink 5's
#: "link-recovery" is not among them: it counts recoveries that no program notices.
_RECOVERIES = ("recovery", "recovery-failed")
_MOST_NAMED = 8


class GpuNvlink(gpu_common.GpuCheck):
    """A link that was up when the agent first looked, or since, is to stay so."""

    def __init__(self, sources: Sources, errors_per_hour: int, bit_error_exponent: int) -> None:
        super().__init__(SPEC.name, sources, call="links", brief=True)
        self._bit_errors = 10.0**-bit_error_exponent
        self._errors_per_hour = errors_per_hour
        #: By UUID: the links that have been up, the rises of their counters, and the latest.
        self._been_up: dict[str, set[int]] = {}
        self._rises: dict[str, CounterIncreases] = {}
        self._latest: dict[str, tuple[NvLinks, dict[str, int]]] = {}

    def evaluate(self, sample: GpuSample) -> Report:
        if self._sources.nvml.quiesced_for:
            self._been_up.clear()  # a quiesce may precede a change of the links
        in_fabric = bool(self._sources.gpus.switches()) or any(
            gpu.fabric is not None and gpu.fabric.state for gpu in sample.gpus
        )
        return self._per_gpu.observe(
            sample,
            lambda gpu: self._verdict(gpu, sample, in_fabric=in_fabric),
            "links" if in_fabric else "",
        )

    def _verdict(self, gpu: Gpu, sample: GpuSample, *, in_fabric: bool) -> Verdict:
        if _has_mig(gpu):
            self._been_up.pop(gpu.uuid, None)
            return Status.OK, "", "MIG is enabled, which turns the NVLinks off"
        if gpu.links is None:
            return gpu_common.unreadable(gpu, "links")
        up = {link for link, is_up in enumerate(gpu.links.states) if is_up}
        been_up = self._been_up.setdefault(gpu.uuid, set())
        been_up |= up
        rises = self._rises.setdefault(gpu.uuid, CounterIncreases(_WINDOW))
        links, counted = self._latest.get(gpu.uuid, (None, {}))
        # The same object has the same counters: without a rise in the window there is none now.
        if links is not gpu.links or any(counted.values()):
            flat = _flat(gpu.links)
            counted = {} if gpu.links.errors is None else rises.add(sample.at, flat)
            self._latest[gpu.uuid] = gpu.links, counted
        usual = _usual(sample, gpu.name) if up else _most(sample, gpu.name) * in_fabric
        errors = None if gpu.links.errors is None else rounded(sum(counted.values()))
        put = self._sources.measurements.put
        put("nvlink-errors", gpu.uuid, errors, at=sample.at, model=gpu.name)
        return evaluate(
            gpu,
            up,
            been_up,
            0 if gpu_common.is_young(self._sources, _GRACE) else usual,
            counted,
            self._errors_per_hour,
            self._bit_errors,
            usual_c2c=_usual_c2c(sample, gpu),
        )


def evaluate(
    gpu: Gpu,
    up: set[int],
    been_up: set[int],
    usual: int,
    rises: Mapping[str, int],
    errors_per_hour: int,
    bit_errors: float = 1e-12,
    usual_c2c: int = 0,
) -> Verdict:
    """The verdict on one GPU with links. Pure.

    ``usual`` is how many most GPUs of its model have up, ``usual_c2c`` how many links to the CPU
    they have active; ``rises`` the errors counted within the hour, by "KIND LINK"; ``bit_errors``
    the highest effective bit error rate that is well.
    """
    text = f"{len(up)} NVLinks are up"
    if been_up - up:
        return Status.FAILED, "link-down", f"NVLink {_names(been_up - up)} was up and is not"
    recovered = {name: n for name, n in rises.items() if n and name.split()[0] in _RECOVERIES}
    if recovered:
        return Status.DEGRADED, "recovery", f"{text}; within an hour: {_counts(recovered)}"
    many = {name: n for name, n in rises.items() if n > errors_per_hour}
    if many:
        return Status.DEGRADED, "errors", f"{text}; within an hour: {_counts(many)}"
    rates = gpu.links.bit_error_rates if gpu.links is not None else {}
    noisy = {link: rate for link, rate in rates.items() if rate > bit_errors}
    if noisy:
        worst = max(noisy, key=lambda link: noisy[link])
        text += f"; the bit error rate of {len(noisy)} is too high, {noisy[worst]:.0e} on {worst}"
        return Status.DEGRADED, "bit-errors", text
    active = sum(gpu.c2c)
    if active < max(usual_c2c, len(gpu.c2c) if active else 0):
        down = {link for link, is_active in enumerate(gpu.c2c) if not is_active}
        what = f"C2C link {_names(down)} is not active" if down else f"it has {active} C2C links"
        more = f", and most GPUs of its model have {usual_c2c}" if usual_c2c > active else ""
        return Status.DEGRADED, "c2c-down", f"{text}; {what}{more}"
    if len(up) < usual:
        return Status.DEGRADED, "fewer-links", f"{text}, and {usual} of most GPUs of its model"
    if gpu.links is not None and gpu.links.errors is None:
        code = gpu.errors.get("linkerr", 0)
        text += f"; their errors can't be read (error {code})"
    return Status.OK, "", text


def _usual(sample: GpuSample, model: str) -> int:
    """How many links more than half of a model have up at least; 0 if there is no such number."""
    counts = _counts_up(sample, model)
    return counts[(len(counts) - 1) // 2] if len(counts) > 2 else 0


def _most(sample: GpuSample, model: str) -> int:
    return max(_counts_up(sample, model), default=0)


def _counts_up(sample: GpuSample, model: str) -> list[int]:
    whole = [gpu for gpu in sample.gpus if gpu.name == model and not _has_mig(gpu)]
    return sorted(sum(gpu.links.states) for gpu in whole if gpu.links is not None)


def _usual_c2c(sample: GpuSample, gpu: Gpu) -> int:
    """How many links to the CPU half of the GPUs of its model have active; 0 where the GPU's own
    could not be read.
    """
    if gpu.errors.get("c2c", Code.NOT_SUPPORTED) not in gpu_common.ABSENT:
        return 0
    if {Code.GPU_IS_LOST, Code.RESET_REQUIRED}.intersection(gpu.errors.values()):
        return 0  # the call was not made, or the reset explains its answer
    counts = sorted(sum(each.c2c) for each in sample.gpus if each.name == gpu.name)
    return counts[len(counts) // 2]


def _has_mig(gpu: Gpu) -> bool:
    return gpu.mig is not None and gpu.mig.enabled


def _flat(links: NvLinks) -> dict[str, int]:
    return {
        f"{kind} {link}": count
        for kind, counts in (links.errors or {}).items()
        for link, count in counts.items()
    }


def _counts(rises: Mapping[str, int]) -> str:
    """A text such as "12 crc on link 3", the most first."""
    worst = sorted(rises, key=lambda name: -rises[name])[:_MOST_NAMED]
    return ", ".join(f"{rises[name]} {' on link '.join(name.split())}" for name in worst)


def _names(links: set[int]) -> str:
    return ", ".join(map(str, sorted(links)))


SPEC = CheckSpec(
    name="gpu-nvlink",
    sees="an NVLink that went down, had to be recovered or counts many errors; a GPU with fewer "
    "links than the others, or without links to the CPU that they have",
    source="NVML, nvmlDeviceGetNvLinkState; error counters by field values, or by "
    "nvmlDeviceGetNvLinkErrorCounter",
    cost="no cost next to gpu-inventory; some 20 calls for each GPU every 5 minutes",
    blind_to="which end of a link is sick; a link that was down before the agent started, where "
    "the other GPUs have no more; the last minutes",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, options: GpuNvlink(
        sources, options["errors_per_hour"], options["bit_error_exponent"]
    ),
    options=(
        Option(
            "errors_per_hour",
            Kind.INTEGER,
            100,
            "Replays, CRC and other errors of one link within an hour that are still well.",
        ),
        Option(
            "bit_error_exponent",
            Kind.INTEGER,
            12,
            "An effective bit error rate of one link above 1e-12 (for 12) is degraded.",
        ),
    ),
)
