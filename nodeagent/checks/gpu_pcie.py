"""How each GPU is connected: the width of its PCIe link, and the errors on it.

Reasons: ``narrow`` (below ``width``, if that is set: failed; below the other GPUs: ``siblings``;
below what it was: degraded), ``slow`` (under load, below two thirds of the GPUs: ``siblings``),
``errors`` (degraded: AER counted fatal or non-fatal ones within the hour),
``replays`` (degraded: more than ``replays_per_minute`` over ten minutes), ``unlike-siblings`` (the
width of this GPU alone can't be read twice in a row: ``siblings``), ``no-sysfs`` (unknown).
Off where no source reports any link, as in some virtual machines; in those that show none, NVML's
replays count alone. The speed falls when a GPU is
idle, so only samples of GPUs at work are compared.
"""

from collections import deque
from collections.abc import Mapping

from nodeagent.checks import gpu_common
from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.counter_window import CounterIncrease, CounterIncreases
from nodeagent.checks.error_counters import count
from nodeagent.checks.gpu_common import Verdict
from nodeagent.checks.siblings import SiblingWatch, option, status_of
from nodeagent.model import Status
from nodeagent.sources import Sources
from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.measurements import rounded
from nodeagent.sources.pci_kind import PciKinds
from nodeagent.sources.pcie_link import PcieLink, read_link

_ERROR_WINDOW = 3600.0
_REPLAY_WINDOW = 600.0
_HOUR = 3600.0
#: A speed is compared after this number of samples of a GPU at work, a minute apart.
_SAMPLES_AT_WORK = 10
_IDLE = 0x1  # nvmlClocksEventReasonGpuIdle


class GpuPcie(gpu_common.GpuCheck):
    """Reads sysfs, so that a driver that hangs is no hindrance, and NVML's count of replays."""

    def __init__(
        self, sources: Sources, width: int, replays_per_minute: int, siblings: Status
    ) -> None:
        super().__init__(SPEC.name, sources, brief=True)
        self._wanted = width
        self._replays_per_minute = replays_per_minute
        self._siblings = siblings
        self._kinds = PciKinds(sources.machine)
        self._speeds = SiblingWatch()
        #: By address: the speeds in GT/s of the latest samples in which the GPU was at work.
        self._at_work: dict[str, deque[float]] = {}
        #: By address: the widest link seen, and the rises of its counters.
        self._widest: dict[str, int] = {}
        self._errors: dict[str, CounterIncreases] = {}
        #: By address: the looks in a row in which it was there and its width could not be read.
        self._unread: dict[str, int] = {}
        self._replays: dict[str, CounterIncrease] = {}

    def evaluate(self, sample: GpuSample) -> Report:
        machine, gpus = self._sources.machine, self._sources.gpus
        links = {each: read_link(machine, f"{each}.0") for each in sorted(gpus.present())}
        if not links:
            return self._per_gpu.report({"": (Status.UNKNOWN, "no-sysfs", "no GPU on the PCI bus")})
        replays = {g.pci: g.replays for g in sample.gpus if g.pci and g.replays is not None}
        if not replays and all(
            link == PcieLink(speed=link.speed, is_hidden=link.is_hidden) for link in links.values()
        ):
            return Off("neither sysfs nor NVML reports GPU link faults")
        usual = 0 if self._siblings is Status.OK else _usual(list(links.values()))
        faster = self._faster_siblings(links, _at_work(sample))
        return self._per_gpu.report(
            {
                gpus.component(address): self._verdict(
                    address, link, replays.get(address), usual, faster.get(address, 0.0)
                )
                for address, link in links.items()
            }
        )

    def _faster_siblings(
        self, links: Mapping[str, PcieLink], working: frozenset[str]
    ) -> Mapping[str, float]:
        """The GPUs that are slower at work than most of their kind, each with that kind's speed."""
        for address, link in links.items():
            if address in working and link.gigatransfers is not None:
                seen = self._at_work.setdefault(address, deque(maxlen=_SAMPLES_AT_WORK))
                seen.append(link.gigatransfers)
        speeds = {
            address: (self._kinds.kind(f"{address}.0"), max(seen))
            for address, seen in self._at_work.items()
            if address in links and len(seen) == _SAMPLES_AT_WORK
        }
        if self._siblings is Status.OK:
            return {}
        return self._speeds.lasting(speeds, self._sources.machine.clock.boottime())

    def _verdict(
        self, address: str, link: PcieLink, replays: int | None, usual: int, faster: float
    ) -> Verdict:
        now = self._sources.machine.clock.boottime()
        seen = self._widest[address] = max(self._widest.get(address, 0), link.width or 0)
        # A device that resets, or is being removed, gives no width for a moment.
        folder = self._sources.machine.sys / f"bus/pci/devices/{address}.0"
        is_unread = link.width is None and folder.exists()
        self._unread[address] = self._unread.get(address, 0) + 1 if is_unread else 0
        counts = {"fatal": link.fatal, "non-fatal": link.nonfatal}
        errors = self._errors.setdefault(address, CounterIncreases(_ERROR_WINDOW))
        rises = errors.add(now, {name: n for name, n in counts.items() if n is not None})
        replayed = link.replays if replays is None else replays
        if replayed is not None:
            # Two counters that begin apart: the higher of them must not look like a rise.
            key = f"{address} {'sysfs' if replays is None else 'nvml'}"
            rise = self._replays.setdefault(key, CounterIncrease(_REPLAY_WINDOW))
            rises["replays"] = rise.add(now, replayed)
            self._sources.measurements.put(
                "pcie-replays",
                self._sources.gpus.component(address),
                rounded(rises["replays"] * _HOUR / _REPLAY_WINDOW),
                at=now,
                model=f"x{link.max_width or link.width}",
            )
            count(
                self._sources.measurements,
                "pcie-errors",
                self._sources.gpus.component(address),
                replayed + (link.correctable or 0),
                at=now,
                model=f"x{link.max_width or link.width}",
            )
        status, reason, text = evaluate(
            link,
            rises,
            wanted=self._wanted,
            seen=seen,
            usual=usual if link.max_width is None or link.max_width >= usual else 0,
            usual_speed=faster,
            siblings=self._siblings,
            is_unread=self._unread[address] > 1,
            most_replays=self._replays_per_minute * int(_REPLAY_WINDOW / 60),
        )
        if reason == "no-sysfs" and is_unread and usual and self._sources.single_run:
            text += gpu_common.IF_IT_LASTS
        return status, reason, text


def evaluate(
    link: PcieLink,
    rises: Mapping[str, int],
    *,
    wanted: int,
    seen: int,
    most_replays: int,
    usual: int = 0,
    usual_speed: float = 0.0,
    siblings: Status = Status.DEGRADED,
    is_unread: bool = False,
) -> Verdict:
    """The verdict on one GPU's link. Pure. ``seen``: the width that it had.

    ``usual``: the width of the other GPUs; ``usual_speed``: their speed at work, 0 where this GPU
    has it too; ``siblings``: the status of a GPU below these; ``is_unread``: the width can't be
    read for longer than a moment.
    """
    text = "no link is shown" if link.is_hidden else "the width of the link can't be read"
    if link.width is not None:
        text = f"{link.width} lanes" + (f" at {link.speed}" if link.speed else "")
    if link.width is not None and link.width < wanted:
        return Status.FAILED, "narrow", f"{text}, expected {wanted}"
    if link.width is not None and link.width < max(seen, usual):
        status = siblings if link.width < usual else Status.DEGRADED
        return status, "narrow", f"{text}, and it had, or other GPUs have, {max(seen, usual)}"
    if usual_speed and siblings is Status.FAILED:
        return siblings, "slow", f"{text}, and most GPUs of this node work at {usual_speed:g} GT/s"
    worst = [name for name in ("fatal", "non-fatal") if rises.get(name)]
    if worst:
        counted = ", ".join(f"{rises[name]} {name}" for name in worst)
        return Status.DEGRADED, "errors", f"{text}; PCIe errors within an hour: {counted}"
    if rises.get("replays", 0) > most_replays:
        minutes = int(_REPLAY_WINDOW / 60)
        return (
            Status.DEGRADED,
            "replays",
            f"{text}; {rises['replays']} replays in {minutes} minutes",
        )
    if usual_speed:
        return siblings, "slow", f"{text}, and most GPUs of this node work at {usual_speed:g} GT/s"
    if is_unread and usual:
        return siblings, "unlike-siblings", f"{text}, and that of the other GPUs can"
    if link.width is None and not link.is_hidden:
        return Status.UNKNOWN, "no-sysfs", text
    return Status.OK, "", text


def _usual(links: list[PcieLink]) -> int:
    """The width that more than half of the GPUs have at least; 0 when there is no such number."""
    widths = sorted(link.width or 0 for link in links)
    return widths[(len(widths) - 1) // 2] if len(widths) > 2 else 0


def _at_work(sample: GpuSample) -> frozenset[str]:
    """The addresses of the GPUs that are not idle, by NVML's reasons for their clocks."""
    working = (gpu for gpu in sample.gpus if gpu.clocks is not None and not gpu.clocks & _IDLE)
    return frozenset(gpu.pci for gpu in working if gpu.pci)


SPEC = CheckSpec(
    name="gpu-pcie",
    sees="a GPU whose PCIe link lost lanes, is slower at work than its siblings', damages what it "
    "carries or repeats it",
    source="/sys/bus/pci/devices: current_link_width, aer_dev_*; NVML field 94 (PCIe replays)",
    cost="0.1 ms of CPU every 60 s for a GPU",
    blind_to="without width: a link that was narrow before the agent started, where the other "
    "GPUs' are too; the speed of GPUs that are never at work",
    deadline=gpu_common.DEADLINE,
    build=lambda sources, options: GpuPcie(
        sources, options["width"], options["replays_per_minute"], status_of(options["siblings"])
    ),
    options=(
        Option(
            "width",
            Kind.INTEGER,
            0,
            "Lanes that every GPU is to have; 0: as many as it had before.",
        ),
        Option(
            "replays_per_minute",
            Kind.INTEGER,
            8,
            "Replays on one link that are still well, on average over ten minutes.",
        ),
        option("a GPU of a width, or of a speed at work,"),
    ),
)
