"""Runs checks at jittered intervals, each under its deadline, at most one run of each at a time.

Checks of one interval run in the same beat: four GPU checks then share one sample, and an idle
agent wakes up rarely. A beat also runs those of other intervals that are nearly due, for the same
reason. For a run that outlives its deadline the scheduler reports ``unknown``, ``hung`` and leaves
the run alone: it may share a worker with others, and a wait in the kernel cannot be cancelled. It
is not started again until it ends, and its result then still counts.
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
#: An interval is up to this share of it shorter, with another beat, or longer, by a number drawn
#: anew each time: 10,000 agents that were rolled out together must drift apart, the beats of one
#: agent need not.
JITTER = 0.1
#: The first run comes within this number of seconds of the start.
FIRST_RUN = 3.0


@dataclass(slots=True)
class Scheduled:
    """A check, and the results of its runs. Durations and times are seconds (boottime)."""

    name: str
    check: Check
    interval: float
    deadline: float
    off_because: str = ""
    runs: int = 0
    errors: int = 0
    hangs: int = 0
    last_duration: float = 0.0
    last_success: float | None = None
    #: Why the latest run failed; empty when it went well.
    error: str = ""
    #: Since when a run is under way that has outlived its deadline.
    hung_since: float | None = None
    running: "asyncio.Task[None] | None" = field(default=None, repr=False)
    #: The result of the latest run that went well, or None before the first.
    report: Report | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Beat:
    """A moment for all checks of one interval, in seconds of the event loop.

    It comes when it is ``due``, or with another beat that comes after ``earliest``.
    """

    earliest: float
    due: float

    @classmethod
    def first(cls, interval: float, now: float, share: float) -> "_Beat":
        at = now + share * min(interval, FIRST_RUN)
        return cls(at, at)

    @classmethod
    def after(cls, interval: float, now: float, share: float) -> "_Beat":
        return cls(now + interval * (1 - JITTER), now + interval * (1 + JITTER * share))


class Deliver(Protocol):
    """Takes a check's report; ``whole`` when nothing is left out of it."""

    def __call__(self, name: str, report: Report, *, whole: bool) -> None: ...


class Scheduler:
    """Gives the checks' reports to ``deliver``.

    ``known`` names the components that a check has reported, which are "unknown" while a run hangs.
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
        self._runs: set[asyncio.Task[None]] = set()
        self._beats: dict[float, _Beat] = {}  # by the interval of the checks that run in it
        self._new: list[Scheduled] = []  # that have not looked
        self._early = False
        self._wake = asyncio.Event()

    def infos(self) -> list[CheckInfo]:
        """Each check as Hello lists it."""
        return [CheckInfo(c.name, c.interval, c.off_because) for c in self.checks.values()]

    def durations(self) -> dict[str, float]:
        """Seconds that the latest run of each check took, of those that looked and are not off."""
        return {
            name: each.last_duration
            for name, each in self.checks.items()
            if each.last_success is not None and not each.off_because
        }

    async def run(self) -> None:
        """Run checks until cancelled. Runs under way are then left to the loop's end."""
        loop = asyncio.get_running_loop()
        self._beats.clear()
        self._new = []  # these have their first beat
        while True:
            self._wake.clear()
            following = self._run_what_is_due(loop.time())
            alarm = None if following is None else loop.call_at(following, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                if alarm is not None:
                    alarm.cancel()

    def use(self, checks: Sequence[Scheduled]) -> None:
        """Run these from now on. Those that ran before continue undisturbed; new ones run at once.

        The result of a check that no longer runs is discarded.
        """
        before = self.checks
        self.checks = {check.name: check for check in checks}
        # In `run` and not here, because a new Hello must come before the first report.
        self._new += [check for check in checks if before.get(check.name) is not check]
        self._wake.set()

    def agent_is_awake(self) -> None:
        """Another part has woken the agent up: beats that are nearly due may come now."""
        now = asyncio.get_running_loop().time()
        if any(beat.earliest <= now for beat in self._beats.values()):
            self._early = True
            self._wake.set()

    async def run_now(self, names: Collection[str] = ()) -> list[str]:
        """Run these checks (all when empty) out of turn, and wait for them.

        Gives the names of those that had not ended by their deadline. Raises KeyError for a name
        that no running check has.
        """
        chosen = [self.checks[name] for name in names] if names else list(self.checks.values())
        await asyncio.gather(*(self._run_and_wait(check) for check in chosen))
        return [check.name for check in chosen if check.hung_since is not None]

    def cancel(self) -> None:
        """Abandon the runs that are still under way, because the agent ends."""
        for task in self._runs:
            task.cancel()

    def _run_what_is_due(self, now: float) -> float | None:
        """Start runs of new checks and of the beats that have come; returns when the next one
        comes.
        """
        for check in self._new:
            if self.checks.get(check.name) is check:
                self._start_check(check)
        self._new = []
        intervals = {check.interval for check in self.checks.values()}
        share = self._random()  # one for all: intervals that begin together stay together
        self._beats = {
            interval: self._beats.get(interval) or _Beat.first(interval, now, share)
            for interval in intervals
        }
        early, self._early = self._early, False
        if early or any(beat.due <= now for beat in self._beats.values()):
            ready = {interval for interval, beat in self._beats.items() if beat.earliest <= now}
            for interval in ready:
                self._beats[interval] = _Beat.after(interval, now, self._random())
            for check in self.checks.values():
                if check.interval in ready:
                    self._start_check(check)
        return min((beat.due for beat in self._beats.values()), default=None)

    def _start_check(self, check: Scheduled) -> "asyncio.Task[None]":
        """The run that begins now, or the one under way."""
        if check.running is not None:
            return check.running
        task = asyncio.create_task(self.run_one(check), name=f"check {check.name}")
        late = asyncio.get_running_loop().call_later(check.deadline, self._is_late, check, task)

        def ended(task: "asyncio.Task[None]") -> None:
            late.cancel()
            self._runs.discard(task)

        check.running = task
        self._runs.add(task)
        task.add_done_callback(ended)
        return task

    async def _run_and_wait(self, check: Scheduled) -> None:
        """Returns at the run's end or its deadline; for one that is late, after that time again.

        A run that was under way may be late before.
        """
        await asyncio.wait({self._start_check(check)}, timeout=check.deadline)

    def _is_late(self, check: Scheduled, run: "asyncio.Task[None]") -> None:
        if check.running is not run:
            return  # it ended in the same moment
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
            check.runs += 1
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
