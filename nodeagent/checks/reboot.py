"""Whether the machine came up lately, and whether the kernel left a record of a crash before.

Reasons: ``rebooted`` (within ``recent``: ok, with a transition that history shows), ``crashed``
(within ``recent``, and there are a panic's records or a crash dump of that reboot: degraded).
After ``recent`` it is ok without a reason. The node is the component.

Signs of a crash: records of the hour before the boot in the platform's store (pstore), files that
systemd-pstore has moved from there since, and kdump's folders in /var/crash of that hour (its own
kernel writes them before the boot that we see).
"""

import math
from pathlib import Path

import psutil

from nodeagent.checks.base import CheckSpec, Kind, Option, Report
from nodeagent.model import Observation, Status
from nodeagent.sources.host import HostRoots
from nodeagent.sources.small_file import entries

NAME = "reboot"
#: A dump of a large machine's memory takes this long at most; and clocks are set at a boot.
_BEFORE_BOOT = 3600.0
_SLACK = 60.0


def evaluate(up: float, crash: str, *, recent: float) -> Observation:
    """Pure. ``crash`` is the path of the evidence, or empty."""
    if up >= recent:
        return Observation(NAME, "", Status.OK, "", f"up for {up / 86400:.1f} days")
    if crash:
        message = f"the kernel crashed before this boot: {crash}"
        return Observation(NAME, "", Status.DEGRADED, "crashed", message)
    return Observation(NAME, "", Status.OK, "rebooted", f"came up {int(up // 60)} min ago")


def crash_evidence(machine: HostRoots, booted: float) -> str:
    """The path of a file that a crash before this boot left; empty when there is none.

    ``booted`` is the wall time of the boot in seconds, as /proc/stat gives it (``btime``).
    """
    for entry in entries(machine.sys / "fs/pstore"):
        # The file's time is the panic's. Where no service moves the files away they stay for years.
        if entry.name.startswith("dmesg-") and _changed(entry) >= booted - _BEFORE_BOOT:
            return f"/sys/fs/pstore/{entry.name}"
    for entry in entries(machine.host("/var/lib/systemd/pstore")):
        if _changed(entry) >= booted - _SLACK:
            return f"/var/lib/systemd/pstore/{entry.name}"
    for entry in entries(machine.host("/var/crash")):
        if entry.is_dir() and booted - _BEFORE_BOOT <= _changed(entry) <= booted + _SLACK:
            return f"/var/crash/{entry.name}"
    return ""


def boot_time(machine: HostRoots) -> float:
    """Raises OSError, and ValueError when /proc/stat does not have it."""
    try:
        with machine.psutil_here():
            booted = psutil.boot_time()
    except (RuntimeError, ValueError, IndexError):
        booted = 0.0
    if not 0 < booted < math.inf:
        raise ValueError("/proc/stat has no btime")
    return booted


class RebootCheck:
    """The evidence is looked for until ``recent`` is over: kdump's service may come up late."""

    def __init__(self, machine: HostRoots, *, recent: float) -> None:
        self._machine = machine
        self._recent = recent

    async def run_check(self) -> Report:
        up = self._machine.clock.boottime()
        if up >= self._recent:
            return [evaluate(up, "", recent=self._recent)]
        try:
            booted = boot_time(self._machine)
        except (OSError, ValueError) as error:
            return [Observation(NAME, "", Status.UNKNOWN, "no-procfs", str(error))]
        return [evaluate(up, crash_evidence(self._machine, booted), recent=self._recent)]


def _changed(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


SPEC = CheckSpec(
    name=NAME,
    sees="that the machine came up lately, and a kernel panic before it",
    source="CLOCK_BOOTTIME; /sys/fs/pstore, /var/lib/systemd/pstore, /var/crash",
    cost="0.2 ms of CPU every 60 s in the first hour after a boot, no cost later",
    blind_to="a crash that left no record (power, a watchdog, no pstore and no kdump); the "
    "origin of an orderly reboot",
    deadline=10.0,
    build=lambda sources, options: RebootCheck(sources.machine, recent=options["recent"]),
    options=(Option("recent", Kind.DURATION, 3600.0, "how long after a boot it is reported"),),
)
