"""Carries orders out: recorded first, one at a time, each at most once.

The order of steps is what makes it safe (docs/decisions/0027-orders-to-the-agent.md):

1. the order is recorded on the disk, then answered ACCEPTED;
2. the driver is released, and no process has a GPU open;
3. evidence is collected and written to the disk;
4. GPU users are checked once more;
5. the aggregator grants permission to begin, which counts for seconds (permission.py);
6. "begun" is recorded on the disk, then reported with the evidence;
7. GPU users, a cancellation and the permission's age are checked a last time, because 6 may have
   waited for the disk and the network;
8. the act; its end is recorded, then reported.

A kill before 6 leaves an order that was not begun (REFUSED by the next agent). One after 6 leaves
an order whose end is unknown (UNKNOWN, or SUCCEEDED for a reboot once the boot id has changed).
"""

import asyncio
import contextlib
import datetime as dt
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from nodeagent.active_tests.host import HostPrograms
from nodeagent.active_tests.model import Step, TestReport, Verdict
from nodeagent.active_tests.profile import Profile, profile_names, read_profile
from nodeagent.active_tests.runner import Node, is_peer, run_profile, unmet
from nodeagent.clock import Clock
from nodeagent.commands import CommandRefused
from nodeagent.config.settings import Config, ConfigError
from nodeagent.dataclass import dataclass
from nodeagent.repair import acts, evidence
from nodeagent.repair.acts import ActEnd
from nodeagent.repair.gpu_use import GpuUse, allocated_gpus, find_gpu_use
from nodeagent.repair.journal import Journal, NotRecorded
from nodeagent.repair.lock import LOCK, lock_file
from nodeagent.repair.operation import (
    Facts,
    Operation,
    Operations,
    Order,
    RepairState,
    Verb,
    ended,
    new,
    refusal,
)
from nodeagent.repair.permission import BeginPermission, NotPermitted
from nodeagent.sources.gpu_sample import GpuSample
from nodeagent.sources.host import HostRoots
from nodeagent.sources.machine_identity import identify

__all__ = ["Driver", "OperationReport", "RepairExecutor"]

log = logging.getLogger(__name__)

#: Orders that wait to be recorded. The aggregator has one for a node at a time.
_MOST_WAITING = 16
#: Cancelled and refused orders whose ids are kept in memory.
_MOST_REMEMBERED = 1024
#: Seconds for which the driver stays released beyond the act's own limit.
_SPARE = 120.0
#: Seconds that RUNNING gets to reach the aggregator before a reboot takes the network away.
_FAREWELL = 5.0


@dataclass(frozen=True, slots=True)
class Driver:
    """The agent's own use of the GPU driver. ``quiesce`` raises CommandRefused."""

    sample: Callable[[], Awaitable[GpuSample]]
    quiesce: Callable[[float], Awaitable[str]]
    quiesced_for: Callable[[], float]


@dataclass(frozen=True, slots=True)
class OperationReport:
    """An operation's state, for the aggregator."""

    operation: Operation
    boot_id: str
    details: dict[str, Any]


class RepairExecutor:
    """Takes orders, records them and carries them out.

    ``gpus`` are the UUIDs that the node has; ``was_reset`` is called with GPUs whose reset is
    proved; ``latched`` gives the node's faults, for the evidence. ``wake``: there is something to
    send; ``wall`` gives seconds since 1970.
    """

    def __init__(
        self,
        config: Config,
        *,
        machine: HostRoots,
        boot_id: str,
        driver: Driver,
        gpus: Callable[[], Sequence[str]],
        was_reset: Callable[[Sequence[str]], None],
        latched: Callable[[], Sequence[dict[str, object]]],
        clock: Clock,
        wall: Callable[[], float],
        wake: Callable[[], object],
        journal: Journal | None = None,
    ) -> None:
        self.problem = ""
        self.permission = BeginPermission(clock, wake)
        self._config = config
        self._repair = config.repair
        self._machine = machine
        self._boot_id = boot_id
        self._driver = driver
        self._gpus = gpus
        self._was_reset = was_reset
        self._latched = latched
        self._clock = clock
        self._wall = wall
        self._wake = wake
        self._journal = journal or Journal(
            config.state_dir / "repair", identity=identify(machine, config.node)
        )
        self._programs = HostPrograms(config.host_root, self._repair.tool_path)
        self._operations: Operations | None = None
        self._orders: asyncio.Queue[Order] = asyncio.Queue(_MOST_WAITING)
        self._saving = asyncio.Lock()
        self._current: str = ""
        self._running: asyncio.Task[None] | None = None
        self._testing: asyncio.Task[TestReport] | None = None
        #: Orders that were cancelled or refused: a copy that comes later is not begun either.
        self._cancelled: dict[str, None] = {}
        self._refused: dict[str, Operation] = {}
        #: Ids to report, oldest first, each once; refusals that are not recorded.
        self._due: dict[str, None] = {}
        self._passing: deque[Operation] = deque(maxlen=_MOST_WAITING)
        self._sent: dict[str, asyncio.Event] = {}

    @property
    def allowed(self) -> tuple[str, ...]:
        return self._repair.allow

    @property
    def profiles(self) -> list[str]:
        """The test profiles that an order may name; none where tests are not allowed."""
        return profile_names(self._repair.profiles) if Verb.TEST in self.allowed else []

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read the record, conclude from it, then take orders until cancelled."""
        await self._load()
        try:
            while True:
                order = await self._orders.get()
                await self._take(order)
        finally:
            # A test's programs end with it; a reboot's order to the machine stays in force.
            if self._running is not None:
                self._running.cancel()
                await asyncio.gather(self._running, return_exceptions=True)

    async def _load(self) -> None:
        try:
            operations = await self._journal.load()
            changed = operations.recover(self._boot_id)
            if changed:
                await self._journal.save(operations)
        except NotRecorded as error:
            self.problem = str(error)
            log.error(  # noqa: TRY400 # no defect: a traceback would help a person less
                "no order is obeyed: %s", error, extra={"event": "repair.record_unusable"}
            )
            return
        operations.window = self._repair.window
        self._operations = operations
        for operation in changed:
            self._log(operation)
        if any(each.reason in ("interrupted", "agent-restarted") for each in changed):
            # The agent before this one released the driver for an order that is over.
            await self._take_up_driver()
        self._report_all()

    # -- the stream ----------------------------------------------------------------------------

    def new_stream(self) -> None:
        """A stream begins: every result that no aggregator has acknowledged is due again."""
        self._report_all()

    def order(self, order: Order) -> None:
        """An order has come. More than a few at once are dropped: the aggregator sends again."""
        try:
            self._orders.put_nowait(order)
        except asyncio.QueueFull:
            log.warning("an order was dropped: too many wait", extra={"event": "repair.dropped"})

    def refuse_form(self, operation_id: str, verb: str, uid: str, why: str) -> None:
        """Answer an order whose form is wrong. It is not recorded: its id may be empty."""
        operation = Operation(
            operation_id, verb, uid, self._boot_id, self._wall(), self._clock.boottime(),
            state=RepairState.REFUSED, reason="invalid", message=why,
        )  # fmt: skip
        self._pass(operation)

    def cancel(self, operation_id: str) -> None:
        """End a test that is under way, or an order that has not begun, in whatever state it is:
        waiting, being recorded, or not here yet.
        """
        _remember(self._cancelled, operation_id, None)
        if operation_id == self._current and self._testing is not None:
            self._testing.cancel()

    async def acknowledged(self, operation_id: str) -> None:
        """The aggregator keeps the result: it is not sent again."""
        if self._operations is None:
            return
        operation = self._operations.get(operation_id)
        if operation is not None and operation.is_final and not operation.acknowledged:
            with contextlib.suppress(NotRecorded):  # it is sent again, which does no harm
                await self._put(replace(operation, acknowledged=True), report=False)

    async def due(self) -> list[OperationReport]:
        """What is to be sent now; a second call does not return it again."""
        reports = []
        while self._passing:
            reports.append(OperationReport(self._passing.popleft(), self._boot_id, {}))
        due, self._due = self._due, {}
        for operation_id in due:
            operation = self._operations.get(operation_id) if self._operations else None
            if operation is not None:
                details = await self._journal.details(operation_id)
                reports.append(OperationReport(operation, self._boot_id, details))
        return reports

    def sent(self, operation_id: str) -> None:
        """The latest report of this operation has been written to the stream."""
        if operation_id in self._sent:
            self._sent[operation_id].set()

    @property
    def has_due(self) -> bool:
        return bool(self._due or self._passing)

    # -- taking an order -----------------------------------------------------------------------

    async def _take(self, order: Order) -> None:
        operations = self._operations
        if operations is None:
            await self._load()  # the disk may have come back
            operations = self._operations
        operation = new(order, wall=self._wall(), boottime=self._clock.boottime())
        if operations is None:
            self._pass(_refused(operation, "no-record", self.problem))
            return
        if operations.get(order.operation_id) is not None:
            self._report(order.operation_id)
            return
        if order.operation_id in self._refused:
            self._pass(self._refused[order.operation_id])
            return
        if operations.is_full():
            text = "no aggregator has acknowledged the results of a thousand orders"
            self._pass(_refused(operation, "no-record", text))
            return
        why = refusal(order, operations, self._facts())
        if why is None and order.operation_id in self._cancelled:
            why = _CANCELLED
        if why is not None:
            # Not recorded: many wrong orders must displace no operation that a cap counts.
            refused = _refused(operation, *why)
            _remember(self._refused, order.operation_id, refused)
            self._pass(refused)
            return
        try:
            await self._put(operation)
        except NotRecorded as error:
            # The record's file has, at worst, an order that was not begun.
            operations.known.pop(order.operation_id, None)
            self._pass(_refused(operation, "no-record", str(error)))
            return
        self._current = operation.operation_id
        self._running = asyncio.create_task(self._carry_out(operation, order.deadline))

    def _facts(self) -> Facts:
        busy = ""
        if self._running is not None and not self._running.done():
            busy = f"the operation {self._current} is under way"
        elif self._driver.quiesced_for() > 0:
            seconds = self._driver.quiesced_for()
            busy = f"the driver was let go of by hand, for {seconds:.0f} s more"
        return Facts(
            boot_id=self._boot_id,
            boottime=self._clock.boottime(),
            wall=self._wall(),
            allow=self.allowed,
            window=self._repair.window,
            caps=acts.caps(self._repair),
            gpus=self._gpus(),
            profiles=self.profiles,
            busy_with=busy,
        )

    # -- carrying out ---------------------------------------------------------------------------

    async def _carry_out(self, operation: Operation, deadline: float) -> None:
        began = self._clock.boottime()
        try:
            with lock_file(self._config.run_dir) as free:
                if not free:
                    text = f"{self._config.run_dir / LOCK} is held: a test by hand runs"
                    await self._put(_refused(operation, "busy", text))
                    return
                await self._carry_out_alone(operation, deadline, began)
        except _Refused as error:
            # It may have been recorded as begun: that stays, and counts against the cap.
            await self._record_end(_refused(self._known(operation), error.reason, error.message))
        except NotPermitted as error:
            text = f"it was not permitted to begin: {error}"
            await self._record_end(_refused(self._known(operation), "not-permitted", text))
        except NotRecorded as error:
            await self._not_recorded(operation, error)
        except Exception as error:
            # A defect of ours: what was begun is unknown, what was not is not begun.
            log.exception("an order failed", extra={"event": "repair.defect"})
            text = f"a defect of the agent: {type(error).__name__}: {error}"
            current = self._known(operation)
            if current.began and not current.is_final:
                await self._record_end(
                    ended(current, RepairState.UNKNOWN, "defect", text, seconds=0.0)
                )
            elif not current.is_final:
                await self._record_end(_refused(current, "defect", text))

    async def _carry_out_alone(self, operation: Operation, deadline: float, began: float) -> None:
        profile, limit = self._plan(operation)
        alone = profile is None or profile.needs_idle
        if alone:
            self._no_gpu_users(ours_too=False)
        sample = await self._driver.sample()
        found = await self._evidence(sample)
        quiesces = profile is None or profile.uses_gpus
        try:
            if quiesces:
                await self._let_go(limit + _SPARE)
            if alone:
                self._no_gpu_users(ours_too=True)
            elif quiesces:
                self._no_allocated_gpus()
            await self._save_details(operation, {"evidence": found})
            self._raise_if_cancelled(operation)
            await self.permission.request(operation)
            self._raise_if_cancelled(operation)
            late = self._clock.boottime() - deadline
            if late > 0:
                raise _Refused("deadline", f"it could not begin in time: {late:.1f} s too late")
            operation = replace(operation, state=RepairState.RUNNING, began=True)
            await self._put(operation)
            if operation.verb == Verb.GPU_RESET:
                end = await acts.reset_gpus(
                    operation.gpus,
                    programs=self._programs,
                    config=self._repair,
                    check=lambda: self._check_idle(operation),
                )
            elif operation.verb == Verb.REBOOT:
                end = await self._reboot(operation)
            else:
                assert profile is not None
                self._check_wanted(operation)
                if quiesces:
                    self._no_allocated_gpus()
                end = await self._test(operation, profile, sample, found)
            if operation.verb == Verb.GPU_RESET and end.state == RepairState.SUCCEEDED:
                # Before its end is recorded: a kill between the two must not lose the sign.
                self._was_reset(operation.gpus)
            seconds = round(self._clock.boottime() - began, 3)
            await self._record_end(
                ended(operation, end.state, end.reason, end.message, seconds=seconds)
            )
        finally:
            if quiesces:
                await self._take_up_driver()

    def _plan(self, operation: Operation) -> tuple[Profile | None, float]:
        """The profile, and the seconds that the act may take. Raises _Refused."""
        if operation.verb == Verb.GPU_RESET:
            if self._programs.find(str(self._repair.nvidia_smi), self._repair.driver_root) is None:
                raise _Refused(
                    "missing-tool",
                    f"there is no {self._repair.nvidia_smi} below {self._repair.driver_root} of "
                    "the host: set repair.nvidia_smi or repair.driver_root",
                )
            return None, self._repair.reset_limit
        if operation.verb == Verb.REBOOT:
            if self._programs.find(self._repair.reboot_command[0]) is None:
                raise _Refused(
                    "missing-tool",
                    f"there is no {self._repair.reboot_command[0]} on the host: set "
                    "repair.reboot_command",
                )
            return None, self._repair.reboot_limit
        try:
            profile = read_profile(operation.profile, self._repair.profiles)
        except ConfigError as error:
            raise _Refused("unknown-profile", "; ".join(map(str, error.problems))) from error
        lacking = unmet(profile.requires, self._node(None, operation.peer))
        if lacking:
            raise _Refused("unmet", lacking)
        return profile, profile.limit

    def _raise_if_cancelled(self, operation: Operation) -> None:
        if operation.operation_id in self._cancelled:
            raise _Refused(*_CANCELLED)

    def _check_wanted(self, operation: Operation) -> None:
        """Raises _Refused for one that was cancelled, NotPermitted where the permission is old."""
        self._raise_if_cancelled(operation)
        self.permission.check()

    def _check_idle(self, operation: Operation) -> None:
        """The last step before the act: the disk and the network were waited for since the first
        check. Raises _Refused and NotPermitted.
        """
        self._check_wanted(operation)
        self._no_gpu_users(ours_too=True)

    def _no_allocated_gpus(self) -> None:
        """Raises _Refused while the kubelet has given a GPU to a pod."""
        _raise_if_used(allocated_gpus(self._machine))

    def _no_gpu_users(self, *, ours_too: bool) -> None:
        """Raises _Refused while a pod or a process has a GPU, or it cannot be seen."""
        children_of = 0 if ours_too else os.getpid()
        _raise_if_used(find_gpu_use(self._machine, self._repair, children_of=children_of))

    async def _let_go(self, seconds: float) -> None:
        try:
            await self._driver.quiesce(min(seconds, 86400.0))
        except CommandRefused as error:
            raise _Refused("driver-held", str(error)) from error

    async def _take_up_driver(self) -> None:
        with contextlib.suppress(CommandRefused):
            await self._driver.quiesce(0.0)

    async def _evidence(self, sample: GpuSample) -> str:
        at = dt.datetime.fromtimestamp(self._wall(), dt.UTC)
        log_path = self._config.kernel_log.path if self._config.kernel_log.enabled else None
        return await evidence.collect(
            machine=self._machine,
            programs=self._programs,
            config=self._repair,
            sample=sample,
            node=self._config.node,
            boot_id=self._boot_id,
            wall=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            kernel_log=log_path,
            latched=self._latched(),
        )

    async def _save_details(self, operation: Operation, details: dict[str, Any]) -> None:
        try:
            await self._journal.save_details(operation.operation_id, details)
        except NotRecorded as error:
            raise _Refused("no-evidence", f"evidence could not be kept: {error}") from error

    async def _reboot(self, operation: Operation) -> ActEnd:
        """Report first, so that the evidence is sent before the network is gone. Then wait to be
        ended.
        """
        event = self._sent[operation.operation_id] = asyncio.Event()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await event.wait()
        finally:
            self._sent.pop(operation.operation_id, None)
        self._check_idle(operation)
        command = self._repair.reboot_command
        ends_at = self._clock.boottime() + self._repair.reboot_limit
        outcome = await self._programs.run(command, limit=self._repair.reboot_limit)
        refused = acts.reboot_ended(outcome, command)
        if refused is not None:
            return refused
        await asyncio.sleep(max(0.0, ends_at - self._clock.boottime()))
        text = f"the node is still up {self._repair.reboot_limit:g} s after {command[0]}"
        return ActEnd(RepairState.UNKNOWN, "same-boot", text)

    async def _test(
        self, operation: Operation, profile: Profile, sample: GpuSample, found: str
    ) -> ActEnd:
        self._testing = asyncio.create_task(
            run_profile(
                profile,
                node=self._node(sample, operation.peer),
                programs=self._programs,
                clock=self._clock,
            )
        )
        try:
            report = await self._testing
        except asyncio.CancelledError:
            if operation.operation_id not in self._cancelled:
                raise
            return ActEnd(RepairState.INCONCLUSIVE, "cancelled", "the test was cancelled")
        finally:
            self._testing.cancel()
            self._testing = None
        details = {"evidence": found, "steps": [_step_json(step) for step in report.steps]}
        try:
            await self._journal.save_details(operation.operation_id, details)
        except NotRecorded as error:
            return ActEnd(
                RepairState.INCONCLUSIVE, "no-record", f"the results could not be kept: {error}"
            )
        state = {
            Verdict.PASSED: RepairState.SUCCEEDED,
            Verdict.FAILED: RepairState.FAILED,
        }.get(report.outcome, RepairState.INCONCLUSIVE)
        return ActEnd(state, report.reason, report.message[:1000])

    def _node(self, sample: GpuSample | None, peer: str) -> Node:
        models = [] if sample is None else [gpu.name for gpu in sample.gpus if gpu.name]
        scratch = self._config.state_dir / "scratch"
        return Node(len(self._gpus()), models, scratch, peer if is_peer(peer) else "")

    # -- the record ----------------------------------------------------------------------------

    async def _put(self, operation: Operation, *, report: bool = True) -> None:
        """Record on the disk, then report. Raises NotRecorded, with the record as it was."""
        assert self._operations is not None
        async with self._saving:
            before = self._operations.get(operation.operation_id)
            self._operations.put(operation)
            try:
                await self._journal.save(self._operations)
            except NotRecorded:
                if before is not None:
                    self._operations.known[operation.operation_id] = before
                raise
        if report:
            self._log(operation)
            self._report(operation.operation_id)

    async def _record_end(self, operation: Operation) -> None:
        """The end counts even where it cannot be recorded: the next agent then reports UNKNOWN."""
        try:
            await self._put(operation)
        except NotRecorded as error:
            await self._not_recorded(operation, error)

    async def _not_recorded(self, operation: Operation, error: NotRecorded) -> None:
        log.error(
            "an order's state is not recorded: %s", error, extra={"event": "repair.not_recorded"}
        )
        assert self._operations is not None
        current = self._known(operation)
        if not operation.is_final:  # "begun" could not be recorded, so it was not begun
            operation = _refused(current, "no-record", str(error))
        # In memory alone: the next save that works has it.
        self._operations.known[operation.operation_id] = operation
        self._log(operation)
        self._report(operation.operation_id)

    def _known(self, operation: Operation) -> Operation:
        assert self._operations is not None
        return self._operations.get(operation.operation_id) or operation

    def _pass(self, operation: Operation) -> None:
        """Report once what is not recorded."""
        self._log(operation)
        self._passing.append(operation)
        self._wake()

    def _report(self, operation_id: str) -> None:
        self._due[operation_id] = None
        self._wake()

    def _report_all(self) -> None:
        if self._operations is not None:
            for operation in self._operations.to_report():
                self._report(operation.operation_id)

    @staticmethod
    def _log(operation: Operation) -> None:
        log.info(
            "an order is %s",
            operation.state,
            extra={
                "event": "repair.state_changed",
                "state": operation.state,
                "operation": operation.operation_id,
                "verb": operation.verb,
                "quarantine_uid": operation.quarantine_uid,
                "reason": operation.reason,
                "detail": operation.message,
            },
        )


_CANCELLED = ("cancelled", "it was cancelled before it began")
_V = TypeVar("_V")


def _remember(known: dict[str, _V], key: str, value: _V) -> None:
    """Keep the newest few: an order waits for minutes at most, by its deadline."""
    known[key] = value
    while len(known) > _MOST_REMEMBERED:
        del known[next(iter(known))]


class _Refused(Exception):
    """The order is not begun."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def _raise_if_used(found: GpuUse) -> None:
    if found.unknown:
        raise _Refused("in-use", f"it cannot be seen whether a GPU is in use: {found.unknown}")
    if found.users:
        raise _Refused("in-use", "; ".join(found.users))


def _refused(operation: Operation, reason: str, message: str) -> Operation:
    return replace(operation, state=RepairState.REFUSED, reason=reason, message=message)


def _step_json(step: Step) -> dict[str, Any]:
    found = asdict(step)
    found["outcome"] = step.outcome.value
    return found
