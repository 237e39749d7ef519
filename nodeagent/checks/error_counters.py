"""Error counters that the aggregator compares with those of the same parts elsewhere.

They are no verdict of the node: a counter that rises on one part of the fleet alone may foretell a
failure (docs/precursors.md).
"""

from nodeagent.sources.gpu_sample import Gpu, GpuSample
from nodeagent.sources.host import HostRoots
from nodeagent.sources.measurements import Measurements
from nodeagent.sources.small_file import small_text

#: Boottime seconds before which no counter is sent: links train and drivers load (NVSentinel#1701).
SETTLED = 1200.0
#: Counters are sent modulo this number; the aggregator takes a fall for a reset.
_MODULUS = 2**31
_MOST_DIMMS = 64


def count(
    to: Measurements, measure: str, component: str, value: int | None, *, at: float, model: str = ""
) -> None:
    """Put one counter. ``at`` is boottime seconds; None: there is no such counter now."""
    known = None if value is None or at < SETTLED else value % _MODULUS
    to.put(measure, component, known, at=at, model=model)


def count_gpu_errors(sample: GpuSample, to: Measurements) -> None:
    """The counters of each GPU in the sample. A kind that the GPU does not count is left out."""
    for gpu in sample.gpus:
        for measure, value in _counters(gpu).items():
            if value is not None:
                count(to, measure, gpu.uuid, value, at=sample.at, model=gpu.name)


def _counters(gpu: Gpu) -> dict[str, int | None]:
    links = gpu.links.errors if gpu.links is not None else None
    found: dict[str, int | None] = {
        "ecc-corrected": gpu.ecc.corrected if gpu.ecc is not None else None,
        "row-remaps": gpu.rows.corrected + gpu.rows.uncorrected if gpu.rows is not None else None,
    }
    kinds = {
        "nvlink-recoveries": ("recovery", "recovery-failed", "link-recovery"),
        "nvlink-replays": ("replay",),
    }
    for measure, names in kinds.items():
        counted = [sum(links[name].values()) for name in names if links and name in links]
        found[measure] = sum(counted) if counted else None
    return found


def count_dimm_errors(machine: HostRoots, to: Measurements, *, at: float) -> None:
    """Corrected errors of each DIMM, as the kernel's EDAC driver counts them; AMD's has its ranks.

    https://www.kernel.org/doc/html/latest/admin-guide/RAS/main.html
    """
    controllers = machine.sys / "devices" / "system" / "edac" / "mc"
    paths = [each for kind in ("dimm", "rank") for each in controllers.glob(f"mc*/{kind}[0-9]*")]
    for path in sorted(paths)[:_MOST_DIMMS]:
        text = small_text(path / "dimm_ce_count").strip()
        label = small_text(path / "dimm_label").strip()[:64] or f"{path.parent.name} {path.name}"
        if text.isascii() and text.isdigit() and len(text) <= 20:
            count(to, "dimm-corrected", label, int(text), at=at)
