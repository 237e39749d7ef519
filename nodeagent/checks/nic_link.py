"""The carrier of every physical network port that is, or was, in use.

Reasons: ``link-down`` (enabled, was up since the boot, has no carrier: failed; degraded while
another port of its bond has one, unless the configuration names it), ``missing`` (an interface that
the configuration names does not exist: failed), ``disabled`` (switched off after it was up:
unknown, but failed for one that the configuration names), ``flapping`` (it lost its link ``flaps``
times within ten minutes and has it now: degraded), ``never-up`` (enabled, no carrier since the
boot, and two thirds of the enabled ports of its kind have one: ``siblings``), ``not-up-yet`` (not
up yet after a boot) and ``no-sysfs`` (this check could not look): unknown. Any other port that
never had a carrier since the boot is ok: most servers have some. The kernel itself counts carriers,
so a restart of the agent forgets nothing. The component is the interface; what is remembered is the
port's, as an interface's name may pass to another port (a rename, a driver that was loaded anew).
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.counter_window import CounterIncrease
from nodeagent.checks.late_parts import LateParts
from nodeagent.checks.siblings import SiblingWatch, option, status_of
from nodeagent.configfile.units import counted
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.network import Link, PhysicalLinks, read_link
from nodeagent.sources.pci_kind import PciKinds
from nodeagent.sources.small_file import small_number

NAME = "nic-link"


_WINDOW = 600.0

#: A port's device, and its number there.
_Port = tuple[str, int | None]


def evaluate(
    link: Link, *, seen_up: bool, named: bool, lost: int = 0, flaps: int = 3, spared: bool = False
) -> Observation:
    """Pure. ``named`` interfaces are in use because the configuration names them, even if never up.

    ``lost``: how often the link went within the window. ``spared``: its bond has another's.
    """
    used = seen_up or named or bool(link.times_up)
    if not link.enabled:
        if not used:
            return Observation(NAME, link.name, Status.OK, "", "switched off, never up")
        status = Status.FAILED if named else Status.UNKNOWN  # a person's decision, or a reset's
        return Observation(NAME, link.name, status, "disabled", "switched off")
    if link.carrier and lost >= flaps:
        message = f"up, and lost its link {counted(lost, 'time')} in {_WINDOW / 60:.0f} minutes"
        return Observation(NAME, link.name, Status.DEGRADED, "flapping", message)
    if link.carrier:
        times = link.times_down
        losses = "" if times is None else f"; losses of the link since the boot: {times}"
        return Observation(NAME, link.name, Status.OK, "", link.state + losses)
    if used:
        message = f"no carrier (state {link.state}): cable, transceiver or switch port"
        if spared and not named:
            message += "; its bond has another link"
            return Observation(NAME, link.name, Status.DEGRADED, "link-down", message)
        return Observation(NAME, link.name, Status.FAILED, "link-down", message)
    return Observation(NAME, link.name, Status.OK, "", "never up since the boot: not in use")


class NicLink:
    def __init__(self, sources: Sources, options: Mapping[str, Any]) -> None:
        self._machine = machine = sources.machine
        self._late = LateParts(sources)
        self._sibling_status = status_of(options["siblings"])
        self._links = PhysicalLinks(machine)
        self._kinds = PciKinds(machine)
        self._carriers = SiblingWatch()
        self._interfaces: Sequence[str] = options["interfaces"]
        self._exclude = frozenset(options["exclude"])
        self._flaps: int = options["flaps"]
        self._losses: dict[tuple[str, _Port], CounterIncrease] = {}
        self._seen_up: set[_Port] = set()

    async def run_check(self) -> Report:
        try:
            report = self._late.excuse(self._named() if self._interfaces else self._physical())
        except OSError as error:
            return [Observation(NAME, "", Status.UNKNOWN, "no-sysfs", str(error))]
        there = {verdict.component for verdict in report}
        self._losses = {key: rise for key, rise in self._losses.items() if key[0] in there}
        return report or Off("no physical network interface")

    def _named(self) -> list[Observation]:
        return [self._observe(name) for name in self._interfaces]

    def _observe(self, name: str) -> Observation:
        link = read_link(self._machine, name)
        if link is None:
            message = "named in the configuration, and no such interface"
            return Observation(NAME, name, Status.FAILED, "missing", message)
        return self._verdict(link, named=True)

    def _physical(self) -> list[Observation]:
        links = [link for link in self._links.read() if link.name not in self._exclude]
        verdicts = [self._verdict(link, named=False) for link in links]
        if self._sibling_status is Status.OK:
            return verdicts
        never_up = self._never_up(links)
        message = "never up since the boot, and most ports of its kind are"
        return [
            Observation(NAME, verdict.component, self._sibling_status, "never-up", message)
            if verdict.component in never_up and verdict.status is Status.OK
            else verdict
            for verdict in verdicts
        ]

    def _never_up(self, links: Sequence[Link]) -> frozenset[str]:
        """The enabled ports without a carrier, where those of their kind have one."""
        folder = self._machine.sys / "class/net"
        enabled = [link for link in links if link.enabled]
        if all(link.carrier for link in enabled):
            enabled = []  # none is worse than its siblings, whatever their kinds
        carriers = {
            link.name: (self._kinds.kind_of(folder / link.name), float(link.carrier))
            for link in enabled
        }
        return frozenset(self._carriers.lasting(carriers, self._machine.clock.boottime()))

    def _verdict(self, link: Link, *, named: bool) -> Observation:
        port = self._port(link.name)
        if link.carrier:
            self._seen_up.add(port)
            self._late.been_up.add(link.name)
        return evaluate(
            link,
            seen_up=port in self._seen_up,
            named=named,
            lost=self._lost(link, port),
            flaps=self._flaps,
            spared=not link.carrier and self._is_spared(link.name),
        )

    def _is_spared(self, interface: str) -> bool:
        """Whether it is of a bond that carries traffic without it."""
        bond = self._machine.sys / "class/net" / interface / "master"
        return (bond / "bonding").is_dir() and small_number(bond / "carrier") == 1

    def _port(self, interface: str) -> _Port:
        folder = f"{self._machine.sys}/class/net/{interface}"
        return os.path.realpath(f"{folder}/device"), small_number(f"{folder}/dev_port")

    def _lost(self, link: Link, port: _Port) -> int:
        """Losses by the kernel's count, so that a loss and return between two runs is seen."""
        if link.times_down is None:
            return 0
        rise = self._losses.setdefault((link.name, port), CounterIncrease(_WINDOW))
        return rise.add(self._machine.clock.boottime(), link.times_down)


SPEC = CheckSpec(
    name=NAME,
    sees="a network port that lost its link, or loses it again and again, or never had it while "
    "its siblings have",
    source="/sys/class/net",
    cost="0.2 ms of CPU every 10 s",
    blind_to="speed and errors (nic-health); functions and their representors; USB; wireless; "
    "physical ports that moved into a pod",
    interval=10.0,
    deadline=5.0,
    build=NicLink,
    options=(
        Option(
            "interfaces",
            Kind.TEXTS,
            (),
            "the interfaces to watch, which must exist and be up; "
            "empty: every physical one that was up",
        ),
        Option("exclude", Kind.TEXTS, (), "physical interfaces to leave out"),
        Option(
            "flaps",
            Kind.INTEGER,
            3,
            "so many losses of the link within ten minutes are flapping",
        ),
        option("an enabled port that was never up since the boot,"),
    ),
)
