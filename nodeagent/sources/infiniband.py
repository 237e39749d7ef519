"""InfiniBand and RoCE ports as ``/sys/class/infiniband`` shows them (the kernel's
Documentation/ABI/stable/sysfs-class-infiniband).

Listing them touches no device. Their files do: many drivers query their firmware, which may hang,
so a child reads those (``DiskProbe.files``). A driver that refuses a file refuses it for ever, some
with a line in the kernel log each time. So such a file is read once.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from nodeagent.dataclass import dataclass
from nodeagent.sources.disk_probe import DiskProbe, Files, Hung, Result
from nodeagent.sources.host import HostRoots
from nodeagent.sources.network import is_function
from nodeagent.sources.pci_kind import pci_address
from nodeagent.sources.small_file import entry_names, small_text

__all__ = ["COUNTERS", "Place", "Port", "PortReader", "list_ports", "parse_port"]

#: Counters of the port (PortCounters of the InfiniBand architecture) and of its hardware.
COUNTERS: Mapping[str, str] = {
    "symbol_error": "counters",
    "link_error_recovery": "counters",
    "link_downed": "counters",
    "port_rcv_errors": "counters",
    "local_link_integrity_errors": "counters",
    "excessive_buffer_overrun_errors": "counters",
    "rnr_nak_retry_err": "hw_counters",
}
_WORDS = ("state", "phys_state", "rate", "link_layer")
_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a port. ``pci`` is its device's address on the bus; empty for SoftRoCE."""

    device: str
    port: str
    pci: str

    def __str__(self) -> str:
        return f"{self.device}/{self.port}"


@dataclass(frozen=True, slots=True)
class Port:
    """A port: its states' words ("ACTIVE", "LinkUp"), its rate in Gbit/s (0: unknown)."""

    state: str
    physical: str
    rate: float
    ethernet: bool
    counters: Mapping[str, int]

    @property
    def active(self) -> bool:
        return self.state.startswith("ACTIVE") and self.physical in ("LinkUp", "")


def list_ports(machine: HostRoots) -> list[Place]:
    """The ports by name, without those of functions, which move into pods. Raises OSError."""
    try:
        devices = sorted((machine.sys / "class/infiniband").iterdir())
    except FileNotFoundError:
        return []
    return [
        Place(device.name, number, pci_address(device))
        for device in devices
        if not is_function(str(device / "device"))
        for number in _ports(device)
    ]


def _ports(device: Path) -> list[str]:
    """The numbers of the ports, without the representors that follow them in switchdev mode.

    There the device has more network interfaces than ports that these number.
    """
    numbers = [name for name in entry_names(device / "ports") if name.isdigit()]
    interfaces = entry_names(device / "device/net") if len(numbers) > 1 else []
    real = {small_text(device / "device/net" / name / "dev_port") for name in interfaces}
    is_switch = len(real) < len(interfaces)
    return [number for number in numbers if not is_switch or int(number) <= len(real)]


def parse_port(values: Mapping[str, str]) -> Port | None:
    """The port, of its files' texts by name, or None when not even its state can be read. Pure."""
    state = _after_number(values.get("state", ""))
    if not state:
        return None
    rate = _RATE.match(values.get("rate", ""))
    return Port(
        state=state,
        physical=_after_number(values.get("phys_state", "")),
        rate=float(rate[1]) if rate else 0.0,
        ethernet=values.get("link_layer") == "Ethernet",
        counters={
            name: int(values[name])
            for name in COUNTERS
            if values.get(name, "").isascii() and values.get(name, "").isdigit()
        },
    )


def _after_number(text: str) -> str:
    """The word of "4: ACTIVE"."""
    number, colon, word = text.partition(":")
    return word.strip() if colon and number.strip().isdigit() else ""


class PortReader:
    """Reads ports, and remembers which files their drivers refuse."""

    def __init__(self, machine: HostRoots, probe: DiskProbe) -> None:
        self._folder = machine.sys / "class/infiniband"
        self._probe = probe
        self._refused: dict[Place, frozenset[str]] = {}

    async def read(self, places: list[Place]) -> dict[Place, Port | Hung | str]:
        """Each port, or how it hangs, or a text with the reason why there is none."""
        self._refused = {place: self._refused.get(place, frozenset()) for place in places}
        names = {place: self._names(place) for place in places}
        groups = [[self._path(place, name) for name in names[place]] for place in places]
        answers = await self._probe.files(groups)
        return {
            place: self._port(place, names[place], answer)
            for place, answer in zip(places, answers, strict=True)
        }

    def _names(self, place: Place) -> list[str]:
        refused = self._refused[place]
        return [*_WORDS, *(name for name in COUNTERS if name not in refused)]

    def _path(self, place: Place, name: str) -> str:
        inside = COUNTERS.get(name, "")
        return str(self._folder / place.device / "ports" / place.port / inside / name)

    def _port(self, place: Place, names: list[str], answer: Result) -> Port | Hung | str:
        if isinstance(answer, Hung):
            return answer
        if not isinstance(answer, Files):
            return str(answer)
        contents = dict(zip(names, answer.contents, strict=True))
        refused = {name for name, content in contents.items() if isinstance(content, int)}
        self._refused[place] |= refused & COUNTERS.keys()
        port = parse_port({n: c for n, c in contents.items() if isinstance(c, str)})
        return "it does not report its state" if port is None else port
