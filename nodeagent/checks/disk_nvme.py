"""The health of NVMe drives: by the kernel's state of the controller, and by the drive's own log.

Reasons, strongest first: ``dead`` (the kernel gave the controller up: failed), ``missing`` (a drive
that was there, or that ``expected`` counts: failed), ``read-only`` and ``unreliable`` (the drive
reports so: failed), ``stuck`` (resetting or connecting for ``stuck_for``: failed), ``hung`` (it
does not answer; failed after a minute), ``not-live``, ``media-errors`` (the drive's count rose
within a day), ``spare-low``, ``hot``, ``backup-failed``, ``worn`` (100 % of its rated life:
degraded all), ``no-log`` (the drive works and its log can't be read) and ``no-sysfs``: unknown.

The component is the controller ("nvme0"); without one it is this check itself. A drive that is
missing stays so until it is back, another takes its name, or the agent is started anew. A cloud's
volume that is detached is none.
"""

import re
from collections.abc import Mapping

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.counter_window import CounterIncreases
from nodeagent.checks.disk_common import hung
from nodeagent.checks.error_counters import count
from nodeagent.configfile.units import counted
from nodeagent.model import Observation, Status
from nodeagent.sources import nvme
from nodeagent.sources.disk_probe import DiskProbe, Hung, NotProbed, Page, ProbeRefused, Result
from nodeagent.sources.host import HostRoots
from nodeagent.sources.measurements import Measurements
from nodeagent.sources.nvme import Controller, Health, controllers, parse_health

NAME = "disk-nvme"
_DAY = 86400.0
#: Volumes of a cloud, which come and go with the pods that use them (AWS, Alibaba, Google, Azure)
#: and have no health log: only one that the kernel gives up has a verdict.
_VOLUME = re.compile(r"Elastic Block Stor|nvme_card-pd|NVMe Accelerator")


def evaluate_state(drive: Controller, seconds: float, *, stuck_for: float) -> Observation | None:
    """The verdict on the kernel's word for the controller, or None when it is live. Pure.

    ``seconds``: for how long it has not been live.
    """
    if drive.state == "live":
        return None
    if drive.state.startswith("dead"):
        message = _named(drive, "the kernel has given the controller up")
        return Observation(NAME, drive.name, Status.FAILED, "dead", message)
    message = _named(drive, f"{drive.state} for {seconds:.0f} s")
    if seconds >= stuck_for:
        return Observation(NAME, drive.name, Status.FAILED, "stuck", message)
    return Observation(NAME, drive.name, Status.DEGRADED, "not-live", message)


def evaluate_health(drive: Controller, health: Health, new_media_errors: int) -> Observation:
    """The verdict on the drive's own log. Pure. ``new_media_errors``: within the last day."""
    status, reason, words = _worst(health, new_media_errors)
    return Observation(NAME, drive.name, status, reason, _named(drive, words))


def _worst(health: Health, new: int) -> tuple[Status, str, str]:
    if health.warning & nvme.READ_ONLY:
        return Status.FAILED, "read-only", "the drive takes no writes any more"
    if health.warning & nvme.RELIABILITY:
        return Status.FAILED, "unreliable", "the drive calls itself unreliable (internal errors)"
    if new:
        words = f"{new} media errors within a day, {health.media_errors} in all"
        return Status.DEGRADED, "media-errors", words
    if health.warning & nvme.SPARE:
        words = f"{health.spare} % of spare blocks left, below {health.spare_threshold} %"
        return Status.DEGRADED, "spare-low", words
    if health.warning & nvme.TEMPERATURE:
        return Status.DEGRADED, "hot", f"{health.temperature} degrees Celsius"
    if health.warning & nvme.BACKUP:
        return Status.DEGRADED, "backup-failed", "the backup of its volatile memory has failed"
    if health.used >= 100:
        return Status.DEGRADED, "worn", f"{health.used} % of its rated life is used"
    words = f"{health.used} % of its life used, {health.temperature} degrees Celsius"
    return Status.OK, "", words


def _named(drive: Controller, words: str) -> str:
    who = " ".join(filter(None, (drive.model, drive.serial)))
    return f"{who}: {words}" if who else words


class DiskNvme:
    """Remembers the drives by serial number, and since when one is not live."""

    def __init__(
        self,
        machine: HostRoots,
        probe: DiskProbe,
        measurements: Measurements,
        *,
        expected: int,
        stuck_for: float,
    ) -> None:
        self._machine = machine
        self._measurements = measurements
        self._probe = probe
        self._expected = expected
        self._stuck_for = stuck_for
        self._known: dict[str, Controller] = {}
        self._not_live_since: dict[str, float] = {}
        self._media_errors = CounterIncreases(_DAY)

    async def run_check(self) -> Report:
        try:
            drives = controllers(self._machine)
        except OSError as error:
            return [Observation(NAME, "", Status.UNKNOWN, "no-sysfs", str(error))]
        states = {drive.name: self._state(drive) for drive in drives}
        live = [d for d in drives if states[d.name] is None and not _VOLUME.search(d.model)]
        paths = {drive.name: str(self._machine.host(f"/dev/{drive.name}")) for drive in live}
        pages = await self._probe.nvme_health(list(paths.values()))
        logs = {drive: _health(pages[paths[drive.name]]) for drive in live}
        report = [state for state in states.values() if state is not None]
        report += self._evaluated(logs)
        report += self._missing(drives)
        return report or Off("no NVMe drive on PCI")

    def _state(self, drive: Controller) -> Observation | None:
        now = self._machine.clock.boottime()
        if drive.state == "live":
            self._not_live_since.pop(drive.identity, None)
            return None
        since = self._not_live_since.setdefault(drive.identity, now)
        return evaluate_state(drive, now - since, stuck_for=self._stuck_for)

    def _evaluated(self, logs: Mapping[Controller, Health | Hung | str]) -> list[Observation]:
        counts = {d.identity: h.media_errors for d, h in logs.items() if isinstance(h, Health)}
        at = self._machine.clock.boottime()
        rises = self._media_errors.add(at, counts)
        for drive in logs:
            errors = counts.get(drive.identity)
            to = self._measurements
            count(to, "nvme-media-errors", drive.name, errors, at=at, model=drive.model)
        report = []
        for drive, log in logs.items():
            match log:
                case Health():
                    report.append(evaluate_health(drive, log, rises[drive.identity]))
                case Hung():
                    report.append(hung(NAME, drive.name, log))
                case str():
                    words = _named(drive, f"live; its health log can't be read: {log}")
                    report.append(Observation(NAME, drive.name, Status.UNKNOWN, "no-log", words))
        return report

    def _missing(self, drives: list[Controller]) -> list[Observation]:
        here = {drive.identity for drive in drives}
        names = {drive.name for drive in drives}
        # A drive whose name another drive has was replaced, so it is not lost.
        lost = [d for i, d in self._known.items() if i not in here and d.name not in names]
        self._known = {d.identity: d for d in (*drives, *lost) if not _VOLUME.search(d.model)}
        message = "it was there, and is not on the bus any more"
        report = [
            Observation(NAME, drive.name, Status.FAILED, "missing", _named(drive, message))
            for drive in lost
        ]
        if not lost and len(drives) < self._expected:
            message = (
                f"{counted(len(drives), 'drive')}, and the configuration expects {self._expected}"
            )
            report.append(Observation(NAME, "", Status.FAILED, "missing", message))
        elif self._expected:
            report.append(Observation(NAME, "", Status.OK, "", counted(len(drives), "drive")))
        return report


def _health(result: Result) -> Health | Hung | str:
    """The log, or why there is none."""
    match result:
        case Page():
            try:
                return parse_health(result.data)
            except ValueError as error:
                return str(error)
        case Hung():
            return result
        case ProbeRefused():
            return str(result)
        case NotProbed():
            return result.message
    raise TypeError(f"no answer to a question about a log page: {result!r}")


SPEC = CheckSpec(
    name=NAME,
    sees="an NVMe drive that is gone, given up by the kernel, or sick by its own account",
    source="/sys/class/nvme; the drive's health log, by one admin command in a child process",
    cost="16 ms of CPU every 60 s for 8 drives, most of it a child that disk-space may share",
    blind_to="SATA and SAS drives; drives over a network; a drive that was gone before the agent "
    "first run, without expected",
    build=lambda sources, options: DiskNvme(
        sources.machine, sources.disk, sources.measurements, **options
    ),
    options=(
        Option("expected", Kind.INTEGER, 0, "how many drives the node must have; 0: any number"),
        Option("stuck_for", Kind.DURATION, 300.0, "not live for so long is failed"),
    ),
)
