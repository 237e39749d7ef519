"""Transceivers of network ports with a link: light, bias current of the laser, temperature.

Reasons, all degraded: ``rx-power-low`` and ``tx-power-low`` (a lane below the module's own alarm),
``hot`` (at or above it). A copper cable has no readings and no row. The component is the interface.

The readings are measurements too, which the aggregator compares with those of the same part number
on other ports. Places of the readings: SFF-8472, SFF-8636 and CMIS 5.2.
"""

import contextlib
import math
from collections.abc import Mapping

from nodeagent.checks.base import CheckSpec, Off, Report
from nodeagent.dataclass import dataclass
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.disk_probe import Page, ProbeRefused
from nodeagent.sources.measurements import rounded
from nodeagent.sources.network import ports

NAME = "optics"
# Size, part number and lanes; then temperature, bias, sent and received light: the place of the
# reading and that of its four limits, of which the first is the high alarm, the second the low.
_SFP = (256, 40, 1, (224, 128), (228, 144), (230, 152), (232, 160))
_QSFP = (384, 168, 4, (22, 256), (42, 312), (50, 320), (34, 304))
_CMIS = (512, 148, 8, (14, 256), (426, 312), (410, 304), (442, 320))
#: By the first byte of the memory (SFF-8024); offsets are in the pages that ``disk_child`` reads.
_LAYOUTS = {
    0x03: _SFP,
    **dict.fromkeys((0x0C, 0x0D, 0x11), _QSFP),
    **dict.fromkeys((0x18, 0x19, 0x1B, 0x1E), _CMIS),
}


@dataclass(frozen=True, slots=True)
class Module:
    """Degrees, microamperes, and the light of the worst lane with its low alarm (0.1 microwatt).

    Lanes whose laser is off do not count. An alarm of 0 is none.
    """

    part: str
    temperature: float
    hot_at: float
    bias: int
    light: Mapping[str, tuple[int, int]]


def parse(memory: bytes) -> Module | None:
    """A copper cable, or a module with all lasers off, has no readings and gives None. Pure."""
    layout = _LAYOUTS.get(memory[0]) if memory else None
    if layout is None or len(memory) < layout[0]:
        return None
    _, part, count, degrees, bias, sent, received = layout

    def number(at: int) -> int:
        return int.from_bytes(memory[at : at + 2], "big")

    temperature, hot_at = (((number(at) ^ 0x8000) - 0x8000) / 256 for at in degrees)
    lit = [2 * lane for lane in range(count) if number(bias[0] + 2 * lane)]
    light = {
        name: (min((number(at + lane) for lane in lit), default=0), number(limits + 2))
        for name, (at, limits) in (("rx-power", received), ("tx-power", sent))
    }
    name = memory[part : part + 16].decode("ascii", "replace").strip()
    most = max((2 * number(bias[0] + lane) for lane in lit), default=0)
    return Module(name, temperature, hot_at, most, light) if lit else None


def evaluate(name: str, module: Module) -> Observation:
    """The verdict by the module's own alarms. Pure."""
    for light, (power, alarm) in module.light.items():
        if power < alarm:
            message = f"{_dbm(power)} dBm; the module's alarm is at {_dbm(alarm)}"
            return Observation(NAME, name, Status.DEGRADED, f"{light}-low", message)
    degrees = f"{module.temperature:.0f} degrees"
    if 0 < module.hot_at <= module.temperature:
        message = f"{degrees}; the module's alarm is at {module.hot_at:.0f}"
        return Observation(NAME, name, Status.DEGRADED, "hot", message)
    text = f"{module.part}: receives {_dbm(module.light['rx-power'][0])} dBm, {degrees}"
    return Observation(NAME, name, Status.OK, "", text)


def _dbm(power: int) -> str:
    return f"{10 * math.log10(power) - 40:.1f}" if power else "less than -40"


def measure(module: Module) -> dict[str, int]:
    """The measurements; light in tenths of a dB above -40 dBm, the least that a module reports."""
    lanes = module.light.items()
    light = {name: rounded(100 * math.log10(power or 1)) for name, (power, _) in lanes}
    return {**light, "bias": rounded(module.bias), "temperature": round(module.temperature)}


class Optics:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        #: Ports whose module has no readings, by the count of their carriers.
        self._without: dict[str, int | None] = {}

    async def run_check(self) -> Report:
        machine, put, report = self._sources.machine, self._sources.measurements.put, []
        carriers: dict[str, int | None] = {}
        with contextlib.suppress(OSError):  # nic-link reports it
            carriers = {link.name: link.times_up for link in ports(machine, (), ()) if link.carrier}
        due = [name for name, count in carriers.items() if self._without.get(name, -1) != count]
        for name, answer in (await self._sources.disk.modules(due)).items():
            module = parse(answer.data) if isinstance(answer, Page) else None
            if module is not None:
                report.append(evaluate(name, module))
                at, part = machine.clock.boottime(), module.part
                for what, value in measure(module).items():
                    put(f"optics-{what}", name, value, at=at, model=part)
            elif isinstance(answer, Page | ProbeRefused):
                self._without[name] = carriers[name]
        return report or Off("no transceiver with readings")


SPEC = CheckSpec(
    name=NAME,
    sees="a port whose light or temperature is beyond the alarm of its transceiver",
    source="the transceiver's memory, by ethtool's netlink, in a child process",
    cost="12 ms of CPU every 120 s where a port has an optical transceiver",
    blind_to="transceivers of ports without a network interface; kernels before 5.13; an agent "
    "without CAP_NET_ADMIN",
    interval=120.0,
    build=lambda sources, _: Optics(sources),
)
