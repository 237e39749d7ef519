"""How well the network ports work that have a link: their speed, errors and drops.

Reasons: ``slow`` (below the speed that the configuration sets: failed; below what two thirds of the
ports of its kind have: ``siblings``; below what this agent saw before: degraded), ``errors`` (of
the frames of ten minutes more than ``errors_fail_above`` were damaged: failed;
``errors_degrade_above``: degraded), ``drops`` (no room for more than ``drops_degrade_above``:
degraded), ``hung`` (the driver does not answer; failed after a minute), ``no-sysfs``: unknown. The
component is the interface.

Drops are mostly load and not damage, so they never fail. A few errors among few frames are no
evidence: below ``least_errors`` they don't count.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.counter_window import CounterIncreases
from nodeagent.checks.disk_common import hung
from nodeagent.checks.siblings import SiblingWatch, option, status_of
from nodeagent.dataclass import dataclass
from nodeagent.model import Observation, Status
from nodeagent.sources.disk_probe import DiskProbe, Files, Hung
from nodeagent.sources.host import HostRoots
from nodeagent.sources.network import Link, Traffic, ports, read_traffic
from nodeagent.sources.pci_kind import PciKinds

NAME = "nic-health"
_WINDOW = 600.0
_SPEED_EVERY = 600.0
_SCALE = {"M": 1, "G": 1000, "T": 1_000_000}


@dataclass(frozen=True, slots=True)
class NicLimits:
    """Per cent of all frames; fewer than ``least_errors`` damaged frames are no evidence."""

    errors_degrade_above: float
    errors_fail_above: float
    drops_degrade_above: float
    least_errors: int


def parse_speeds(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Parses texts such as "eth*=200G": shell patterns, each with Mbit/s. Raises ValueError."""
    found = []
    for text in texts:
        pattern, _, speed = text.rpartition("=")
        number, unit = speed[:-1], speed[-1:]
        known = number.isascii() and number.isdigit() and int(number) and unit in _SCALE
        if not pattern or not known:
            raise ValueError(f'"{text}" is no interface and speed such as "eth0=100G"')
        found.append((pattern, int(number) * _SCALE[unit]))
    return tuple(found)


def evaluate_speed(name: str, speed: int, *, wanted: int, seen: int) -> Observation | None:
    """The verdict, or None for the right speed. Pure. All in Mbit/s; 0 is unknown, or no demand."""
    if 0 < speed < wanted:
        message = f"{_speed(speed)}, expected {_speed(wanted)}"
        return Observation(NAME, name, Status.FAILED, "slow", message)
    if 0 < speed < seen:
        message = f"{_speed(speed)}, and it was {_speed(seen)} before"
        return Observation(NAME, name, Status.DEGRADED, "slow", message)
    return None


def evaluate_siblings(name: str, speed: int, *, usual: float, status: Status) -> Observation | None:
    """The verdict by the ports of the same kind, or None. Pure. Mbit/s; 0: it has their speed."""
    if not 0 < speed < usual:
        return None
    message = f"{_speed(speed)}, and most ports of its kind have {_speed(int(usual))}"
    return Observation(NAME, name, status, "slow", message)


def evaluate_traffic(name: str, rose: Traffic, limits: NicLimits) -> Observation | None:
    """The verdict, or None when all is well. Pure. ``rose``: the counts within the window."""
    errors, drops = _share(rose.errors, rose), _share(rose.drops, rose)
    window = f"in {_WINDOW / 60:.0f} minutes"
    if rose.errors >= limits.least_errors and errors > limits.errors_degrade_above:
        failed = errors > limits.errors_fail_above
        message = f"{rose.errors} damaged frames {window}, {errors:.2g} %"
        status = Status.FAILED if failed else Status.DEGRADED
        return Observation(NAME, name, status, "errors", message)
    if rose.drops >= limits.least_errors and drops > limits.drops_degrade_above:
        message = f"{rose.drops} frames dropped {window}, {drops:.2g} %"
        return Observation(NAME, name, Status.DEGRADED, "drops", message)
    return None


def _share(part: int, rose: Traffic) -> float:
    """Per cent of all frames. Drivers differ in whether "packets" has those that were lost."""
    whole = rose.packets + rose.errors + rose.drops
    return 100.0 * part / whole if whole else 0.0


def _speed(megabits: int) -> str:
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits} Mbit/s"


@dataclass(slots=True)
class _Port:
    """A port's last known speed. ``link`` is the kernel's count of carriers then."""

    link: int | None
    read_at: float
    speed: int = 0
    seen: int = 0
    hung: Hung | None = None


class NicHealth:
    """The speed is read in a child: the kernel reads it under a lock that a driver may hold."""

    def __init__(
        self,
        machine: HostRoots,
        probe: DiskProbe,
        options: Mapping[str, Any],
    ) -> None:
        self._machine = machine
        self._probe = probe
        self._interfaces: Sequence[str] = options["interfaces"]
        self._exclude: Sequence[str] = options["exclude"]
        self._speeds: Sequence[tuple[str, int]] = options["speeds"]
        self._limits = NicLimits(**{name: options[name] for name in NicLimits.__slots__})
        self._ports: dict[str, _Port] = {}
        self._counters: dict[str, CounterIncreases] = {}
        self._sibling_status = status_of(options["siblings"])
        self._kinds = PciKinds(machine)
        self._siblings = SiblingWatch()

    async def run_check(self) -> Report:
        try:
            links = ports(self._machine, self._interfaces, self._exclude)
        except OSError as error:
            return [Observation(NAME, "", Status.UNKNOWN, "no-sysfs", str(error))]
        await self._read_speeds([link for link in links if link.carrier])
        slower = self._slower(links)
        report = [self._verdict(link, slower.get(link.name, 0.0)) for link in links]
        there = {link.name for link in links}
        self._ports = {name: port for name, port in self._ports.items() if name in there}
        self._counters = {name: each for name, each in self._counters.items() if name in there}
        return report or Off("no physical network interface")

    async def _read_speeds(self, links: Sequence[Link]) -> None:
        """Read the speeds of those that have a new link, once in a while, and while one hangs."""
        now = self._machine.clock.boottime()
        due = [link for link in links if self._is_due(link, now)]
        folder = self._machine.sys / "class/net"
        answers = await self._probe.files([[str(folder / link.name / "speed")] for link in due])
        for link, answer in zip(due, answers, strict=True):
            port = self._ports.setdefault(link.name, _Port(link.times_up, now))
            port.link, port.read_at = link.times_up, now
            port.hung = answer if isinstance(answer, Hung) else None
            port.speed = _megabits(answer.contents[0]) if isinstance(answer, Files) else 0
            port.seen = max(port.seen, port.speed)

    def _is_due(self, link: Link, now: float) -> bool:
        port = self._ports.get(link.name)
        if port is None or port.hung is not None or port.link != link.times_up:
            return True
        return now - port.read_at >= _SPEED_EVERY

    def _slower(self, links: Sequence[Link]) -> dict[str, float]:
        """The ports that are slower than those of their kind, each with their speed."""
        if self._sibling_status is Status.OK:
            return {}
        folder = self._machine.sys / "class/net"
        speeds = {
            link.name: (self._kinds.kind_of(folder / link.name), float(port.speed))
            for link in links
            if link.carrier and (port := self._ports.get(link.name)) is not None and port.speed
        }
        return self._siblings.lasting(speeds, self._machine.clock.boottime())

    def _verdict(self, link: Link, usual: float) -> Observation:
        name, port = link.name, self._ports.get(link.name)
        rose = self._rose(name)
        if not link.carrier:
            return Observation(NAME, name, Status.OK, "", "no link")
        if port is not None and port.hung is not None:
            return hung(NAME, name, port.hung)
        speed, seen = (port.speed, port.seen) if port is not None else (0, 0)
        found = [
            evaluate_speed(name, speed, wanted=self._wanted(name), seen=seen),
            evaluate_siblings(name, speed, usual=usual, status=self._sibling_status),
            evaluate_traffic(name, rose, self._limits) if rose is not None else None,
        ]
        words = _speed(speed) if speed else "up"
        well = Observation(NAME, name, Status.OK, "", words)
        return max((o for o in found if o is not None), key=lambda o: o.status, default=well)

    def _rose(self, name: str) -> Traffic | None:
        traffic = read_traffic(self._machine, name)
        if traffic is None:
            return None
        counters = {field: getattr(traffic, field) for field in Traffic.__slots__}
        rises = self._counters.setdefault(name, CounterIncreases(_WINDOW))
        return Traffic(**rises.add(self._machine.clock.boottime(), counters))

    def _wanted(self, name: str) -> int:
        return next((s for pattern, s in self._speeds if fnmatch.fnmatchcase(name, pattern)), 0)


def _megabits(content: str | int) -> int:
    """The Mbit/s of sysfs's "speed": -1 if the driver does not know, an errno if it has none."""
    known = isinstance(content, str) and content.isascii() and content.isdigit()
    # SPEED_UNKNOWN as an unsigned number: drivers of old print that.
    return int(content) if known and int(content) < 2**31 else 0


SPEC = CheckSpec(
    name=NAME,
    sees="a network port that is slower than it was, than its siblings or than it should be, or "
    "damages frames",
    source="/sys/class/net/*/statistics; speed, in a child process",
    cost="0.2 ms of CPU every 60 s for a port; 12 ms every 10 minutes, and after a new link",
    blind_to="packets that a switch drops; errors that the driver does not count; without speeds: "
    "a port that was slow before the agent started and has no two siblings",
    build=lambda sources, options: NicHealth(sources.machine, sources.disk, options),
    options=(
        Option("interfaces", Kind.TEXTS, (), "the interfaces to watch; empty: every physical one"),
        Option("exclude", Kind.TEXTS, (), "physical interfaces to leave out"),
        Option(
            "speeds",
            Kind.TEXTS,
            (),
            'speeds that ports must have, such as "eth*=200G"; the first that fits counts',
            parse_speeds,
        ),
        Option("errors_degrade_above", Kind.PERCENT, 0.01, "frames damaged: degraded above this"),
        Option("errors_fail_above", Kind.PERCENT, 1.0, "frames damaged: failed above this"),
        Option("drops_degrade_above", Kind.PERCENT, 5.0, "frames dropped: degraded above this"),
        Option("least_errors", Kind.INTEGER, 100, "fewer in ten minutes don't count"),
        option("a port of a speed"),
    ),
)
