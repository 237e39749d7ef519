"""The PCIe links of network adapters and NVMe drives, compared with those of the same kind.

Reasons, both with the status that ``siblings`` names: ``narrow`` (fewer lanes than two thirds of
the devices of its kind) and ``slow`` (a lower speed). A device that can do no more than it does is
as it was built. The component is the PCI address; the node (component "") speaks for those that are
well. The GPUs' links are gpu-pcie's. Off where there are no such devices.
"""

from collections.abc import Callable, Mapping

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.siblings import Levels, SiblingWatch, option, status_of
from nodeagent.model import Observation, Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.pci_kind import PciKinds, pci_address
from nodeagent.sources.pcie_link import PcieLink, read_link
from nodeagent.sources.small_file import entries

NAME = "pcie-link"
_CLASSES = ("infiniband", "net", "nvme")


def evaluate(
    address: str, names: str, link: PcieLink, *, width: float, speed: float, status: Status
) -> Observation | None:
    """The verdict on one link, or None for one like its siblings'. Pure.

    ``width`` in lanes and ``speed`` in GT/s are its siblings', 0 where it has the same.
    """
    text = f"{names}: {link.width} lanes at {link.speed}"
    if width and link.width is not None and (link.max_width is None or link.max_width >= width):
        message = f"{text}, and most devices of its kind have {width:g}"
        return Observation(NAME, address, status, "narrow", message)
    if speed and (link.max_gigatransfers is None or link.max_gigatransfers >= speed):
        message = f"{text}, and most devices of its kind have {speed:g} GT/s"
        return Observation(NAME, address, status, "slow", message)
    return None


class PcieLinks:
    def __init__(self, machine: HostRoots, status: Status, exclude: tuple[str, ...]) -> None:
        self._machine = machine
        self._status = status
        self._exclude = frozenset(exclude)
        self._kinds = PciKinds(machine)
        self._widths, self._speeds = SiblingWatch(), SiblingWatch()
        #: Addresses with a row of their own: those that were worse since the agent started.
        self._shown: set[str] = set()

    async def run_check(self) -> Report:
        names = self._devices()
        links = {each: read_link(self._machine, each) for each in sorted(names)}
        links = {each: link for each, link in links.items() if link.width is not None}
        self._shown &= links.keys()
        if not links:
            return Off("no network adapter or NVMe drive on PCIe")
        if self._status is Status.OK:
            return Off("off by configuration (siblings)")
        now = self._machine.clock.boottime()
        widths = self._widths.lasting(self._levels(links, lambda link: link.width), now)
        speeds = self._speeds.lasting(self._levels(links, lambda link: link.gigatransfers), now)
        worse = [
            found
            for each, link in links.items()
            if (
                found := evaluate(
                    each,
                    ", ".join(sorted(names[each])),
                    link,
                    width=widths.get(each, 0.0),
                    speed=speeds.get(each, 0.0),
                    status=self._status,
                )
            )
            is not None
        ]
        bad = {each.component for each in worse}
        well = [
            Observation(NAME, each, Status.OK, "", f"{links[each].width} lanes")
            for each in sorted(self._shown - bad)
        ]
        self._shown |= bad
        text = f"{len(links) - len(bad)} of {len(links)} links are like those of their kind"
        return [Observation(NAME, "", Status.OK, "", text), *worse, *well]

    def _devices(self) -> dict[str, set[str]]:
        """The names of each device's interfaces by its address, without virtual functions."""
        found: dict[str, set[str]] = {}
        for name in _CLASSES:
            for entry in entries(self._machine.sys / "class" / name):
                address = pci_address(entry)
                if not address or (entry / "device/physfn").exists():
                    continue
                if self._exclude.isdisjoint((entry.name, address)):
                    found.setdefault(address, set()).add(entry.name)
        return found

    def _levels(
        self, links: Mapping[str, PcieLink], level: Callable[[PcieLink], float | None]
    ) -> Levels:
        return {
            each: (self._kinds.kind(each), float(value))
            for each, link in links.items()
            if (value := level(link)) is not None
        }


SPEC = CheckSpec(
    name=NAME,
    sees="a network adapter or NVMe drive whose PCIe link is narrower or slower than its siblings'",
    source="/sys/class/infiniband, net and nvme; /sys/bus/pci/devices: current_link_width, "
    "current_link_speed",
    cost="2 ms of CPU every 5 minutes for 20 devices",
    blind_to="devices without two siblings of their kind; kinds of which more than a third are bad",
    interval=300.0,
    build=lambda sources, options: PcieLinks(
        sources.machine, status_of(options["siblings"]), options["exclude"]
    ),
    options=(
        option("a device with a link"),
        Option("exclude", Kind.TEXTS, (), 'devices to leave out, such as "nvme0" or an address'),
    ),
)
