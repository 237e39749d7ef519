"""InfiniBand and RoCE ports: their link, its rate, and their error counters.

Reasons, strongest first: ``missing`` (the adapter has left the PCI bus, or a device that the
configuration names does not exist: failed), ``link-down`` (was up and has no link: failed),
``inactive`` (has a link and is not active, for example without a subnet manager: failed),
``never-up`` (not active since the boot while two thirds of its kind are: ``siblings``), ``slow``
(below ``rate``: failed; below its siblings: ``siblings``; below what it was: degraded), ``errors``
(of the last hour, symbol errors above the limit, integrity errors or buffer overruns: failed),
``flapping`` (its link went within the hour: degraded), ``receive-errors`` and ``retries``
(degraded: the other end may be the cause), ``hung`` (the driver does not answer; failed after a
minute), ``disabled``, ``not-up-yet`` (not up yet after a boot), ``not-reported`` (the port's state
cannot be read) and ``no-sysfs``: unknown. The component is device and port ("mlx5_0/1").

A port that never had a link is ok: many adapters have one. Its own count of lost links shows it. It
is not ok where two thirds of the ports of its kind are active; the kind is the adapter's product,
the port's place on it and its link layer. Thresholds: those of a fleet's published check (any
integrity error or overrun; 120 symbol errors an hour, the InfiniBand specification's bit error rate
of 1e-12 at 2.5 Gbit/s in round numbers).
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.counter_window import CounterIncreases
from nodeagent.checks.disk_common import hung
from nodeagent.checks.error_counters import count
from nodeagent.checks.late_parts import LateParts
from nodeagent.checks.siblings import SiblingWatch, option, status_of
from nodeagent.configfile.units import counted
from nodeagent.model import Observation, Status
from nodeagent.sources import Sources
from nodeagent.sources.disk_probe import Hung
from nodeagent.sources.infiniband import Place, Port, PortReader, list_ports
from nodeagent.sources.measurements import rounded
from nodeagent.sources.pci_kind import PciKinds

NAME = "infiniband"
_HOUR = 3600.0
#: The counters of the measurement that is compared with those of other nodes.
_ERRORS = ("symbol_error", "port_rcv_errors", "local_link_integrity_errors", "rnr_nak_retry_err")
#: Counters that are compared with other nodes', by their measure.
_COUNTED = {"ib-symbol-errors": "symbol_error", "ib-recoveries": "link_error_recovery"}


def evaluate_link(name: str, port: Port, *, used: bool, named: bool) -> Observation | None:
    """The verdict on the link, or None when the port is active. Pure.

    ``used``: it was active before.
    """
    if port.active:
        return None
    words = f"state {port.state}, physical state {port.physical or 'not reported'}"
    if port.physical == "Disabled" and not named:  # a person's decision, or a reset's
        status = Status.UNKNOWN if used else Status.OK
        return Observation(NAME, name, status, "disabled" if used else "", words)
    if not (used or named):
        return Observation(NAME, name, Status.OK, "", f"{words}: never up, not in use")
    if port.physical == "LinkUp" and not port.ethernet:
        message = f"{words}: is a subnet manager running?"
        return Observation(NAME, name, Status.FAILED, "inactive", message)
    message = f"{words}: cable, transceiver or switch port"
    return Observation(NAME, name, Status.FAILED, "link-down", message)


def evaluate_quality(
    name: str, port: Port, rose: Mapping[str, int], *, wanted: float, seen: float, symbols: int
) -> Observation:
    """The verdict on an active port. Pure. ``rose``: within the hour.

    Rates are Gbit/s, 0 where unknown.

    ``symbols``: up to this number of symbol errors in an hour the port is well.
    """
    if 0 < port.rate < wanted:
        message = f"{port.rate:g} Gbit/s, expected {wanted:g}"
        return Observation(NAME, name, Status.FAILED, "slow", message)
    bad = {
        "symbol_error": symbols,
        "local_link_integrity_errors": 0,
        "excessive_buffer_overrun_errors": 0,
    }
    failing = [f"{rose[c]} {c}" for c, limit in bad.items() if rose.get(c, 0) > limit]
    if failing:
        message = f"{', '.join(failing)} within an hour"
        return Observation(NAME, name, Status.FAILED, "errors", message)
    if rose.get("link_downed", 0) or rose.get("link_error_recovery", 0):
        lost, mended = rose.get("link_downed", 0), rose.get("link_error_recovery", 0)
        lost_times, mended_times = counted(lost, "time"), counted(mended, "time")
        message = f"within an hour the link was lost {lost_times} and recovered {mended_times}"
        return Observation(NAME, name, Status.DEGRADED, "flapping", message)
    if 0 < port.rate < seen:
        message = f"{port.rate:g} Gbit/s, and it was {seen:g} before"
        return Observation(NAME, name, Status.DEGRADED, "slow", message)
    for counter, limit, reason in (
        ("port_rcv_errors", symbols, "receive-errors"),
        ("rnr_nak_retry_err", 0, "retries"),
    ):
        if rose.get(counter, 0) > limit:
            message = f"{rose[counter]} {counter} within an hour"
            return Observation(NAME, name, Status.DEGRADED, reason, message)
    kind = "RoCE" if port.ethernet else "InfiniBand"
    return Observation(NAME, name, Status.OK, "", f"{kind}, {port.rate:g} Gbit/s")


def evaluate_siblings(
    name: str, port: Port, *, never_up: bool, usual_rate: float, status: Status
) -> Observation | None:
    """The verdict by the ports of the same kind, or None for one that is like them. Pure.

    ``never_up``: they are active and it never was. ``usual_rate`` is theirs, 0 if it has that too.
    """
    words = f"state {port.state}, physical state {port.physical or 'not reported'}"
    if never_up and not port.active:
        message = f"{words}: never active since the boot, and most ports of its kind are"
        return Observation(NAME, name, status, "never-up", message)
    if port.active and 0 < port.rate < usual_rate:
        message = f"{port.rate:g} Gbit/s, and most ports of its kind have {usual_rate:g}"
        return Observation(NAME, name, status, "slow", message)
    return None


class Infiniband:
    def __init__(self, sources: Sources, options: Mapping[str, Any]) -> None:
        self._machine = machine = sources.machine
        self._measurements = sources.measurements
        self._reader = PortReader(machine, sources.disk)
        self._late = LateParts(sources)
        self._devices: Sequence[str] = options["devices"]
        self._exclude: Sequence[str] = options["exclude"]
        self._wanted: int = options["rate"]
        self._symbols: int = options["symbol_errors"]
        self._sibling_status = status_of(options["siblings"])
        self._kinds = PciKinds(machine)
        self._activity, self._rates_of_kind = SiblingWatch(), SiblingWatch()
        self._known: dict[str, Place] = {}
        self._active: set[str] = set()
        self._rates: dict[str, float] = {}
        self._counters: dict[str, CounterIncreases] = {}

    async def run_check(self) -> Report:
        try:
            places = [place for place in list_ports(self._machine) if self._watches(place)]
        except OSError as error:
            return [Observation(NAME, "", Status.UNKNOWN, "no-sysfs", str(error))]
        ports = await self._reader.read(places)
        report = self._with_siblings(
            ports, [self._verdict(place, port) for place, port in ports.items()]
        )
        report += self._missing(places)
        for name in {*self._known, *self._counters} - {each.component for each in report}:
            self._forget(name)
        return self._late.excuse(report) or Off("no InfiniBand or RoCE device")

    def _watches(self, place: Place) -> bool:
        if self._devices:
            return self._is_named(place)
        return not any(
            fnmatch.fnmatchcase(name, pattern)
            for name in (place.device, str(place))
            for pattern in self._exclude
        )

    def _is_named(self, place: Place) -> bool:
        return place.device in self._devices or str(place) in self._devices

    def _verdict(self, place: Place, port: Port | Hung | str) -> Observation:
        name = str(place)
        if self._known.get(name, place) != place:
            self._forget(name)  # another adapter has its name
        # Hyper-V takes such an adapter away for minutes; a synthetic one has its traffic meanwhile.
        may_leave = (self._machine.sys / "bus/vmbus/drivers/hv_netvsc").is_dir()
        if not may_leave or (isinstance(port, Port) and not port.ethernet):
            self._known[name] = place
        if isinstance(port, Hung):
            return hung(NAME, name, port)
        if isinstance(port, str):
            return Observation(NAME, name, Status.UNKNOWN, "not-reported", port)
        rises = self._counters.setdefault(name, CounterIncreases(_HOUR))
        at = self._machine.clock.boottime()
        rose = rises.add(at, dict(port.counters))
        kind = f"{'RoCE' if port.ethernet else 'InfiniBand'} {port.rate:g} Gbit/s"
        errors = rounded(sum(rose.get(name, 0) for name in _ERRORS)) if port.active else None
        self._measurements.put("ib-errors", name, errors, at=at, model=kind)
        for measure, counter in _COUNTED.items():
            count(self._measurements, measure, name, port.counters.get(counter), at=at, model=kind)
        if port.active:
            self._active.add(name)
            self._late.been_up.add(name)
        used = name in self._active or port.counters.get("link_downed", 0) > 0
        down = evaluate_link(name, port, used=used, named=self._is_named(place))
        if down is not None:
            return down
        seen = self._rates[name] = max(self._rates.get(name, 0.0), port.rate)
        return evaluate_quality(
            name, port, rose, wanted=self._wanted, seen=seen, symbols=self._symbols
        )

    def _with_siblings(
        self, ports: Mapping[Place, Port | Hung | str], verdicts: Sequence[Observation]
    ) -> list[Observation]:
        """The verdicts, with that by the siblings in the place of a milder one."""
        known = {str(each): (each, port) for each, port in ports.items() if isinstance(port, Port)}
        kinds = {name: self._kind(each, port) for name, (each, port) in known.items()}
        now = self._machine.clock.boottime()
        active = {
            name: (kinds[name], float(port.active))
            for name, (_, port) in known.items()
            # An Ethernet port without a link is "Disabled"; InfiniBand's is so by a person.
            if port.ethernet or port.physical != "Disabled"
        }
        rates = {
            name: (kinds[name], port.rate)
            for name, (_, port) in known.items()
            if port.active and port.rate
        }
        never_up = self._activity.lasting(active, now)
        slow = self._rates_of_kind.lasting(rates, now)
        found = []
        for verdict in verdicts:
            other = None
            if verdict.component in known and self._sibling_status is not Status.OK:
                other = evaluate_siblings(
                    verdict.component,
                    known[verdict.component][1],
                    never_up=verdict.component in never_up and verdict.status is Status.OK,
                    usual_rate=slow.get(verdict.component, 0.0),
                    status=self._sibling_status,
                )
            is_worse = other is not None and (
                verdict.status is Status.OK
                or (verdict.status is Status.DEGRADED and other.status is Status.FAILED)
            )
            found.append(other if other is not None and is_worse else verdict)
        return found

    def _kind(self, place: Place, port: Port) -> tuple[object, ...]:
        kind = self._kinds.kind(place.pci)
        return (*kind, place.port, port.ethernet) if kind else ()

    def _missing(self, places: Sequence[Place]) -> list[Observation]:
        """Named devices that don't exist, and adapters that fell off the bus.

        An adapter that is still on the bus was moved into a pod's network, or its driver was
        unloaded: that is a person's doing.
        """
        here = {str(place) for place in places}
        lost = []
        bus = self._machine.sys / "bus/pci/devices"
        for name, place in self._known.items():
            if name not in here and place.pci and not (bus / place.pci).exists():
                message = f"its adapter has left the PCI bus ({place.pci})"
                lost.append(Observation(NAME, name, Status.FAILED, "missing", message))
        reported = {o.component for o in lost} | here
        devices = {name.partition("/")[0] for name in reported}
        lost += [
            Observation(NAME, name, Status.FAILED, "missing", "named, and no such device")
            for name in self._devices
            if name not in reported and name not in devices
        ]
        return lost

    def _forget(self, name: str) -> None:
        for memory in (self._known, self._rates, self._counters):
            memory.pop(name, None)
        self._active.discard(name)


SPEC = CheckSpec(
    name=NAME,
    sees="an InfiniBand or RoCE port without a link, inactive, slow or with errors, or worse than "
    "its siblings since the boot; an adapter that left the bus",
    source="/sys/class/infiniband: state, phys_state, rate and counters, read in a child process",
    cost="3 ms of CPU every 30 s for 9 ports; no cost without such a device",
    blind_to="the fabric beyond the port; functions and their representors; counters at their end, "
    "as those of old adapters do at 65,535",
    interval=30.0,
    build=Infiniband,
    options=(
        Option(
            "devices",
            Kind.TEXTS,
            (),
            'devices or ports ("mlx5_0", "mlx5_0/1") that must exist and be up; empty: all '
            "that were up",
        ),
        Option("exclude", Kind.TEXTS, (), "devices or ports to leave out, as shell patterns"),
        Option("rate", Kind.INTEGER, 0, "Gbit/s that every port must have; 0: its earlier rate"),
        Option("symbol_errors", Kind.INTEGER, 120, "more of them in an hour are failed"),
        option("a port never active since the boot, or of a rate,"),
    ),
)
