"""Runs checks at jittered intervals, each under its deadline, at most one look of each at a time.

Checks of one interval run in the same beat: four GPU checks then share one sample, and an idle
agent wakes up rarely. For a look that outlives its deadline the scheduler reports ``unknown``,
``hung`` and leaves the look alone: it may share a worker with others, and a wait in the kernel
cannot be cancelled. It is not started again until it ends, and its result then still counts.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from nodeagent.checks.base import Check, Off, Report
from nodeagent.clock import Clock
from nodeagent.dataclass import dataclass
from nodeagent.model import CheckInfo, Observation, Status

log = logging.getLogger(__name__)

#: Reasons given for a check that gave no result itself: it is late, or it has a defect.
HUNG = "hung"
CHECK_ERROR = "check-error"
#: An interval is drawn anew each time from this share of it, up or down: 10,000 agents that were
#: rolled out together must drift apart.
JITTER = 0.1
#: The first look comes within so many seconds of the start.
FIRST_LOOK = 3.0


@dataclass(slots=True)
class Scheduled:
    """A check that runs, and how its looks went. Durations and times are seconds (boottime)."""

    name: str
    check: Check
    interval: float
    deadline: float
    off_because: str = ""
    looks: int = 0
    errors: int = 0
    hangs: int = 0
    last_duration: float = 0.0
    last_success: float | None = None
    #: Why the latest look failed; empty when it went well.
    error: str = ""
    #: Since when a look is under way that has outlived its deadline.
    hung_since: float | None = None
    running: "asyncio.Task[None] | None" = field(default=None, repr=False)
    #: The result of the latest look that went well, or None before the first.
    report: Report | None = field(default=None, repr=False)


class Deliver(Protocol):
    """Takes a check's report; ``whole`` when it is all that the check has to say."""

    def __call__(self, name: str, report: Report, *, whole: bool) -> None: ...


class Scheduler:
    """Gives the checks' reports to ``deliver``.

    ``known`` names the components that a check has reported, for which a hung look says "unknown".
    ``random`` gives numbers from [0, 1). ``stuck`` lists the agent's tasks that hang in the kernel.
    """

    def __init__(
        self,
        checks: Sequence[Scheduled],
        *,
        clock: Clock,
        random: Callable[[], float],
        deliver: Deliver,
        known: Callable[[str], Sequence[str]],
        stuck: Callable[[], Sequence[object]] = tuple,
    ) -> None:
        self.checks: Mapping[str, Scheduled] = {check.name: check for check in checks}
        self._clock = clock
        self._random = random
        self._deliver = deliver
        self._known = known
        self._stuck = stuck
        self._looks: set[asyncio.Task[None]] = set()
        #: One task for all checks of one interval; under 0 the wait for other checks.
        self._beats: dict[float, asyncio.Task[object]] = {}
        self._changed = asyncio.Event()

    def infos(self) -> list[CheckInfo]:
        """Each check as Hello tells of it."""
        return [CheckInfo(c.name, c.interval, c.off_because) for c in self.checks.values()]

    def durations(self) -> dict[str, float]:
        """Seconds that the latest look of each check took, of those that looked and are not off."""
        return {
            name: each.last_duration
            for name, each in self.checks.items()
            if each.last_success is not None and not each.off_because
        }

    async def run(self) -> None:
        """Run checks until cancelled. Looks under way are then left to the loop's end.

        No TaskGroup: Python 3.11's loses a cancellation that comes just when a task of it fails.
        """
        try:
            while True:
                self._start_beats()
                await asyncio.wait(self._beats.values(), return_when=asyncio.FIRST_COMPLETED)
                self._end_beats()
        finally:
            for task in self._beats.values():
                task.cancel()
            await asyncio.gather(*self._beats.values(), return_exceptions=True)
            self._beats.clear()

    def use(self, checks: Sequence[Scheduled]) -> None:
        """Run these from now on. Those that ran before go on undisturbed; new ones look at once.

        The result of a check that no longer runs is discarded.
        """
        before = self.checks
        self.checks = {check.name: check for check in checks}
        for check in checks:
            if before.get(check.name) is not check:
                self._keep(asyncio.create_task(self._look_once(check)))
        self._changed.set()

    async def run_now(self, names: Collection[str] = ()) -> list[str]:
        """Run these checks (all when empty) out of turn, and wait for them.

        Gives the names of those that had not ended by their deadline. Raises KeyError for a name
        that no running check has.
        """
        chosen = [self.checks[name] for name in names] if names else list(self.checks.values())
        await asyncio.gather(*(self._look_once(check) for check in chosen))
        return [check.name for check in chosen if check.hung_since is not None]

    def cancel(self) -> None:
        """Abandon the looks that are still under way, because the agent ends."""
        for task in self._looks:
            task.cancel()

    def _start_beats(self) -> None:
        if 0.0 not in self._beats:
            self._changed.clear()
            self._beats[0.0] = asyncio.create_task(self._changed.wait())
        for interval in {check.interval for check in self.checks.values()} - self._beats.keys():
            self._beats[interval] = asyncio.create_task(self._beat(interval))

    def _end_beats(self) -> None:
        """Forget those that have ended: no check has their interval any more, or it is a bug."""
        for interval, task in list(self._beats.items()):
            if task.done():
                del self._beats[interval]
                task.result()

    async def _beat(self, interval: float) -> None:
        await asyncio.sleep(self._random() * min(interval, FIRST_LOOK))
        while checks := [each for each in self.checks.values() if each.interval == interval]:
            for check in checks:
                if check.running is None:
                    self._keep(asyncio.create_task(self._look_once(check)))
            await asyncio.sleep(interval * (1 - JITTER + 2 * JITTER * self._random()))

    async def _look_once(self, check: Scheduled) -> None:
        """One look, or the rest of the one under way; returns at its end or its deadline."""
        if check.running is None:
            check.running = asyncio.create_task(self.run_one(check), name=f"check {check.name}")
            self._keep(check.running)
        task = check.running
        await asyncio.wait({task}, timeout=check.deadline)
        if not task.done() and check.hung_since is None:
            check.hung_since = self._clock.boottime()
            check.hangs += 1
            waits = "".join(f"; {each}" for each in self._stuck()[:3])
            message = f"no result in {check.deadline:g} s{waits}"
            log.warning("check %s: %s", check.name, message, extra={"event": "check.hung"})
            self.log_state(check, self._unknown(check, HUNG, message), whole=False)

    async def run_one(self, check: Scheduled) -> None:
        started = self._clock.boottime()
        try:
            report: Report = await check.check.run_check()
        except Exception as error:  # outermost edge of a check: its bug must not end the others
            check.errors += 1
            message = f"{type(error).__name__}: {error}"
            if check.error != message:
                log.exception("check %s failed", check.name, extra={"event": "check.failed"})
            check.error = message
            self.log_state(check, self._unknown(check, CHECK_ERROR, message), whole=False)
        else:
            check.off_because = report.reason if isinstance(report, Off) else ""
            check.error = ""
            check.last_success = self._clock.boottime()
            check.report = report
            self.log_state(check, report, whole=True)
        finally:
            check.looks += 1
            check.last_duration = self._clock.boottime() - started
            check.hung_since = None
            check.running = None

    def log_state(self, check: Scheduled, report: Report, *, whole: bool) -> None:
        if self.checks.get(check.name) is check:
            self._deliver(check.name, report, whole=whole)

    def _unknown(self, check: Scheduled, reason: str, message: str) -> Report:
        components = self._known(check.name) or [""]
        return [
            Observation(check.name, component, Status.UNKNOWN, reason, message)
            for component in components
        ]

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)
