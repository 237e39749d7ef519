"""A PCIe device's link and error counters as sysfs has them. No driver is called."""

import functools
import re
from collections.abc import Mapping

from nodeagent.dataclass import dataclass
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import small_text

_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")
#: The most lanes of PCIe: a device that does not answer reads as more.
_MOST_LANES = 32
#: PCIE_LNK_WIDTH_UNKNOWN of the kernel: its register of the link's limits is 0.
_NO_LINK = "255"


@dataclass(frozen=True, slots=True)
class PcieLink:
    """``width`` and ``max_width`` in lanes, ``speed`` as the kernel writes it ("16.0 GT/s PCIe").

    ``replays``: acknowledgements that did not come in time. Errors (fatal, non-fatal, correctable)
    are those of AER since the device was found. ``max_width`` and ``max_speed`` are the device's
    own limits. A value is None when the kernel does not report it, or the device does not answer.
    """

    width: int | None = None
    max_width: int | None = None
    speed: str = ""
    replays: int | None = None
    nonfatal: int | None = None
    fatal: int | None = None
    max_speed: str = ""
    correctable: int | None = None
    is_hidden: bool = False
    """The device has no link of its own, as on the root bus of a virtual machine."""

    @property
    def gigatransfers(self) -> float | None:
        """The speed in GT/s, None where the kernel does not know it ("Unknown")."""
        return _gigatransfers(self.speed)

    @property
    def max_gigatransfers(self) -> float | None:
        """The highest speed that the device can have, in GT/s."""
        return _gigatransfers(self.max_speed)


def read_link(machine: HostRoots, address: str) -> PcieLink:
    """The link of the device at ``address`` ("0000:3b:00.0"). An unreadable value is None."""
    folder = f"{machine.sys}/bus/pci/devices/{address}"
    correctable = _counters(small_text(f"{folder}/aer_dev_correctable"))
    widest = small_text(f"{folder}/max_link_width")
    return PcieLink(
        width=_lanes(small_text(f"{folder}/current_link_width")),
        max_width=_lanes(widest),
        is_hidden=widest == _NO_LINK,
        speed=small_text(f"{folder}/current_link_speed")[:32],
        max_speed=small_text(f"{folder}/max_link_speed")[:32],
        correctable=_total(correctable, "TOTAL_ERR_COR"),
        replays=_total(correctable, "Timeout", "Rollover"),
        nonfatal=_total(_counters(small_text(f"{folder}/aer_dev_nonfatal")), "TOTAL_ERR_NONFATAL"),
        fatal=_total(_counters(small_text(f"{folder}/aer_dev_fatal")), "TOTAL_ERR_FATAL"),
    )


def _gigatransfers(text: str) -> float | None:
    """Of "16.0 GT/s PCIe", or "8 GT/s" before kernel 5.7."""
    found = _SPEED.match(text)
    return float(found[1]) if found is not None else None


def _lanes(text: str) -> int | None:
    lanes = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
    return lanes if 0 < lanes <= _MOST_LANES else None


@functools.lru_cache(maxsize=64)  # they seldom change, and those of most devices are equal
def _counters(text: str) -> Mapping[str, int]:
    """Counters by name, of lines such as "RxErr 0"."""
    found = {}
    for line in text.splitlines()[:64]:
        name, _, count = line.partition(" ")
        if count.isascii() and count.isdigit() and len(count) <= 20:
            found[name] = int(count)
    return found


def _total(counters: Mapping[str, int], *names: str) -> int | None:
    present = [counters[name] for name in names if name in counters]
    return sum(present) if present else None
