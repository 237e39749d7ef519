"""Whether a time daemon disciplines the kernel's clock, and how wrong the clock may be.

Reasons: ``unsynchronised`` (no time daemon has set the clock for hours, or ever: degraded),
``uncertain`` (synchronised, but its error may be above ``max_error``: degraded), ``offset`` (the
daemon is correcting more than ``max_offset``: failed), ``starting`` (not synchronised yet, soon
after a boot: unknown), ``no-adjtimex`` (the kernel refuses the call: unknown).
"""

from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.checks.base import CheckSpec, Kind, Option, Report
from nodeagent.clock import Clock
from nodeagent.model import Observation, Status
from nodeagent.sources.timex import Timex, parse, read_kernel

NAME = "clock"


def evaluate(
    timex: Timex, *, starting: bool, max_error: float, max_offset: float
) -> tuple[Status, str, str]:
    """Pure: status, reason, message. ``starting``: just booted, and never synchronised yet."""
    if abs(timex.offset) > max_offset:
        return Status.FAILED, "offset", f"{timex.offset:+.3g} s off, being corrected"
    if not timex.synchronised:
        if starting:
            return Status.UNKNOWN, "starting", "not synchronised yet"
        return Status.DEGRADED, "unsynchronised", "no time daemon sets the kernel's time"
    if timex.max_error > max_error:
        message = f"may be off by {timex.max_error:.0f} s: no answer of the time daemon lately"
        return Status.DEGRADED, "uncertain", message
    error = f"off by {timex.max_error * 1000:.3g} ms at most"
    return Status.OK, "", f"synchronised, {error}"


class ClockCheck:
    def __init__(
        self, clock: Clock, options: Mapping[str, Any], read: Callable[[], bytes] = read_kernel
    ) -> None:
        self._clock = clock
        self._read = read
        self._boot_grace: float = options["boot_grace"]
        self._max_error: float = options["max_error"]
        self._max_offset: float = options["max_offset"]
        self._was_synchronised = False

    async def run_check(self) -> Report:
        try:
            timex = parse(self._read())
        except OSError as error:
            message = f"adjtimex: {error.strerror}"
            return [Observation(NAME, "", Status.UNKNOWN, "no-adjtimex", message)]
        self._was_synchronised |= timex.synchronised
        young = self._clock.boottime() < self._boot_grace
        verdict = evaluate(
            timex,
            starting=young and not self._was_synchronised,
            max_error=self._max_error,
            max_offset=self._max_offset,
        )
        return [Observation(NAME, "", *verdict)]


SPEC = CheckSpec(
    name=NAME,
    sees="a clock that no time daemon disciplines, or that is being corrected by much",
    source="adjtimex(2), read only; no request is made",
    cost="0.1 ms of CPU every 60 s",
    blind_to="a time server that is wrong; the offset that chronyd slews by frequency; clocks "
    "disciplined by PTP alone (phc2sys), which the kernel calls unsynchronised: turn it off there",
    deadline=5.0,
    build=lambda sources, options: ClockCheck(sources.machine.clock, options),
    options=(
        Option("max_offset", Kind.DURATION, 1.0, "a correction under way of more than this fails"),
        Option(
            "max_error",
            Kind.DURATION,
            5.0,
            "an error that may be larger is degraded; it grows by 1.8 s an hour without a word "
            "from the time daemon",
        ),
        Option(
            "boot_grace",
            Kind.DURATION,
            1200.0,
            "how long after a boot a clock that was never synchronised is starting",
        ),
    ),
)
