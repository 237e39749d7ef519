"""NVML through a worker process: the agent never calls the driver itself.

No caller waits for a call that hangs, and its answer is taken should it return. Only when it has
hung for long is the worker killed and replaced. One that does not even die (it waits in the kernel)
gets one replacement and no more. The worker keeps NVML initialised from sample to sample, and holds
the driver open for it: ``quiesce`` releases it.
"""

import asyncio
import math
import os
from collections import deque
from collections.abc import Mapping

from nodeagent.backoff import Backoff
from nodeagent.configfile.units import counted
from nodeagent.sources.gpu_sample import (
    CALLS,
    Code,
    Gpu,
    GpuSample,
    NvmlTrouble,
    TroubleKind,
    XidEvent,
)
from nodeagent.sources.host import HostRoots
from nodeagent.sources.nvml_library import SONAME, candidates
from nodeagent.sources.nvml_process import (
    NvmlProcess,
    NvmlStartError,
    WorkerEndedError,
    WorkerReply,
    worker_command,
)

__all__ = ["Gpu", "GpuSample", "Nvml", "NvmlTrouble", "TroubleKind"]

#: Seconds for which one sample serves all callers: four checks at one cadence cause one request.
_SHARED_FOR = 3.0

#: Seconds before the next worker, doubled with each that fails in a row: a crash may be an
#: accident, while a driver that is not there stays away for a while.
_AFTER_CRASH = 1.0
_AFTER_REFUSAL = 10.0
_LONGEST_WAIT = 300.0

#: A worker that cannot be killed, and its replacement that cannot be killed either.
_MAX_STUCK = 2

#: Xid events kept until a check takes them.
_MOST_XIDS = 256

_KIND_BY_CODE: dict[int, TroubleKind] = {
    Code.DRIVER_NOT_LOADED: TroubleKind.DRIVER_NOT_LOADED,
    Code.LIBRARY_NOT_FOUND: TroubleKind.NO_LIBRARY,
    Code.LIBRARY_MISMATCH: TroubleKind.LIBRARY_MISMATCH,
}

_ADVICE = {
    TroubleKind.DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    TroubleKind.NO_LIBRARY: "the NVML library cannot be loaded; set nvml.library to its path",
    TroubleKind.LIBRARY_MISMATCH: (
        "NVML and the loaded driver are of different versions: reload the driver or reboot, "
        "and make sure that the agent sees the host's library"
    ),
    TroubleKind.FAILED: "NVML cannot be initialised",
}


class Nvml:
    """NVML's answers, shared by all GPU checks.

    ``library`` is the path of ``libnvidia-ml.so.1``; without it the loader's own search decides,
    then the usual folders under the machine's root. ``deadline`` is for a whole sample, in
    seconds; ``init_deadline`` for the first, which initialises the driver; ``patience`` is how long
    a hung call may last before its worker is killed. ``worker_env`` is added to the worker's
    environment.
    """

    def __init__(
        self,
        *,
        machine: HostRoots,
        library: str | None = None,
        deadline: float = 10.0,
        init_deadline: float = 60.0,
        patience: float = 60.0,
        worker_env: Mapping[str, str] | None = None,
    ) -> None:
        self._machine = machine
        self._library = library
        self._deadline = deadline
        self._init_deadline = max(init_deadline, deadline)
        self._patience = patience
        self._worker_env = dict(worker_env or {})
        self._worker: NvmlProcess | None = None
        self._stuck: list[NvmlProcess] = []
        self._lifecycle = asyncio.Lock()
        self._refreshing: asyncio.Task[GpuSample] | None = None
        self._last: GpuSample | None = None
        self._failures = 0
        self._not_before = 0.0
        #: The latest Xid events, and how many there were in all: samples are shared, and the check
        #: that takes the events may not have requested the sample that had them.
        self.xids: deque[XidEvent] = deque(maxlen=_MOST_XIDS)
        self.xids_received = 0
        self._answered_at = 0.0
        #: A worker from before that time is replaced: NVML offers no GPU that came after its start.
        self.stale_before = -math.inf
        #: When `quiesce` ends or ended (boottime seconds); minus infinity if there was none.
        self.quiesced_until = -math.inf

    def has_library(self) -> bool:
        """Whether an NVML library is configured or found. Reads file names only."""
        return bool(self._library or self._found())

    def library_version(self) -> str:
        """The version in the name of the library's file ("580.65.06"); empty where it has none."""
        for path in [self._library] if self._library else self._found():
            version = os.path.realpath(path).rpartition(".so.")[2]
            if "." in version:
                return version
        return ""

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Workers alive: the current one, and those that could not be killed."""
        workers = [*self._stuck, *([self._worker] if self._worker else [])]
        return tuple(worker.pid for worker in workers if not worker.has_ended)

    async def sample(self) -> GpuSample:
        """Every GPU as it is now, or the last sample when that is seconds old.

        Comes within the deadline, whatever the driver does. Raises nothing for a sick driver.
        """
        now = self._now()
        if now < self.quiesced_until:
            return GpuSample(now, trouble=self._quiesced())
        if self._last is not None and now - self._last.at < _SHARED_FOR:
            return self._last
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        # Shielded: a check that is cancelled at its deadline must not cancel the others' answer.
        return await asyncio.shield(self._refreshing)

    async def sample_processes(self) -> GpuSample:
        """A new sample, with the processes of each GPU; bounded as `sample` is."""
        if self._refreshing is not None and not self._refreshing.done():
            await asyncio.shield(self._refreshing)
        if self._now() < self.quiesced_until:
            return GpuSample(self._now(), trouble=self._quiesced())
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(processes=True))
        return await asyncio.shield(self._refreshing)

    async def quiesce(self, seconds: float) -> bool:
        """Release the driver for ``seconds``, by ending the worker. Whether no worker holds it now.

        A GPU reset, a MIG change and a driver upgrade fail while a process has NVML open.
        """
        self.pause_until(self._now() + seconds)
        async with self._lifecycle:
            if self._worker is not None:
                await self._end(self._worker)
            self._forget_the_dead()
            return not self._stuck

    def pause_until(self, at: float) -> None:
        """Start no worker before ``at`` (boottime seconds), as an earlier agent was ordered."""
        self.quiesced_until = at
        self._last = None
        self._failures, self._not_before = 0, 0.0

    def resume(self) -> None:
        """End ``quiesce`` early. The next sample starts a worker."""
        self.pause_until(min(self.quiesced_until, self._now()))

    @property
    def quiesced_for(self) -> float:
        """Seconds for which the driver is still let alone; 0 when it is not."""
        return max(0.0, self.quiesced_until - self._now())

    @property
    def back_for(self) -> float:
        """Seconds since ``quiesce`` ended; 0 while it lasts, infinite when there was none."""
        return max(0.0, self._now() - self.quiesced_until)

    async def close(self) -> None:
        """End the worker for good."""
        await self.quiesce(float("inf"))
        if self._refreshing is not None:
            await asyncio.wait({self._refreshing})

    # ---- one sample -----------------------------------------------------------------------------

    async def _refresh(self, *, processes: bool = False) -> GpuSample:
        sample = await self._read(processes=processes)
        if self._now() >= self.quiesced_until:
            self._last = sample
        return sample

    async def _read(self, *, processes: bool) -> GpuSample:
        worker = await self._current_worker()
        if isinstance(worker, NvmlTrouble):
            return GpuSample(self._now(), trouble=worker)
        request = worker.request(processes=processes)
        left = worker.requested_at + self._deadline - self._now()
        await self._wait_for(request, worker.pid, left)
        if request.cancelled():
            return GpuSample(self._now(), trouble=self._quiesced())
        if not request.done():
            return await self._late(worker)
        return self._answered(worker, request)

    async def _wait_for(self, request: asyncio.Task[WorkerReply], _pid: int, left: float) -> None:
        """Wait for ``left`` seconds at most; tests wait until the process hangs."""
        await asyncio.wait({request}, timeout=max(0.0, left))

    def _answered(self, worker: NvmlProcess, request: asyncio.Task[WorkerReply]) -> GpuSample:
        answered = tuple(worker.answered)
        try:
            answer = request.result()
        except NvmlStartError as error:
            kind = _KIND_BY_CODE.get(error.code, TroubleKind.FAILED)
            return self._failed(kind, str(error), answered, _AFTER_REFUSAL, error.code)
        except WorkerEndedError as error:
            text = f"the NVML worker {error} after {counted(len(answered), 'GPU')} had answered"
            return self._failed(TroubleKind.CRASHED, text, answered, _AFTER_CRASH)
        self._failures = 0
        now = self._now()
        since, self._answered_at = self._answered_at, now
        self.xids.extend(XidEvent(*event, since=since, at=now) for event in answer.xids)
        self.xids_received += len(answer.xids)
        trouble = None
        if answer.error:
            text = f"NVML cannot count the GPUs (error {answer.error})"
            trouble = NvmlTrouble(TroubleKind.FAILED, text, call=CALLS["count"], code=answer.error)
        self._forget_the_dead()
        stuck = f"worker {self._stuck[0].pid}: {self._stuck[0].state()}" if self._stuck else ""
        return GpuSample(
            self._now(),
            answer.driver,
            answer.gpus,
            trouble,
            stuck,
            excluded=frozenset(answer.excluded),
            cc_ready=None if answer.cc_ready is None else answer.cc_ready == 1,
        )

    def _failed(
        self, kind: TroubleKind, text: str, answered: tuple[Gpu, ...], wait: float, code: int = 0
    ) -> GpuSample:
        self._put_off(wait)
        advice = _ADVICE.get(kind)
        trouble = NvmlTrouble(kind, f"{advice} ({text})" if advice else text, code=code)
        return GpuSample(self._now(), gpus=answered, trouble=trouble)

    async def _late(self, worker: NvmlProcess) -> GpuSample:
        """The sample of a worker that is past its deadline."""
        elapsed = self._now() - worker.requested_at
        trouble = self._describe_hang(worker)
        limit = self._deadline if worker.is_ready else self._init_deadline
        if elapsed > limit + self._patience:
            async with self._lifecycle:
                await self._end(worker)
            self._put_off(_AFTER_CRASH)
        return GpuSample(self._now(), gpus=tuple(worker.answered), trouble=trouble)

    def _describe_hang(self, worker: NvmlProcess) -> NvmlTrouble:
        state = worker.state()
        elapsed = self._now() - worker.requested_at
        words = state.name.split()
        call = ""
        if words[:1] == ["nvml"]:
            # The kernel keeps 15 characters of a name: "nvml 0 processe".
            starts = (full for key, full in CALLS.items() if key.startswith(words[-1]))
            call = CALLS.get(words[-1]) or next(starts, "")
        what = call or "NVML's start"
        if len(words) == 3:
            what += f" of GPU {words[1]}"
        if not worker.is_ready and elapsed < self._init_deadline:
            text = f"{what} has taken {elapsed:.0f} s so far"
            return NvmlTrouble(TroubleKind.STARTING, text, call, state.wchan)
        text = f"{what} has not returned for {elapsed:.0f} s (process {worker.pid}, {state})"
        return NvmlTrouble(TroubleKind.HUNG, text, call, state.wchan)

    # ---- the worker's life ----------------------------------------------------------------------

    async def _current_worker(self) -> NvmlProcess | NvmlTrouble:
        """The worker to use, a new one if it is time for it, or why there is none."""
        async with self._lifecycle:
            if self._now() < self.quiesced_until:
                return self._quiesced()
            self._forget_the_dead()
            if self._worker is not None and self._worker.started_at < self.stale_before:
                await self._end(self._worker)
            if self._worker is not None:
                return self._worker
            if len(self._stuck) >= _MAX_STUCK:
                return self._describe_hang(self._stuck[0])
            if self._now() < self._not_before and self._last is not None and self._last.trouble:
                return self._last.trouble
            return await self._start()

    async def _start(self) -> NvmlProcess | NvmlTrouble:
        libraries = [self._library] if self._library else [SONAME, *self._found()]
        command = worker_command(libraries)
        if command is None:
            text = "the Python package nvidia-ml-py is not installed next to the agent"
            return NvmlTrouble(TroubleKind.NO_LIBRARY, text)
        try:
            self._worker = await NvmlProcess.start(command, self._machine.clock, self._worker_env)
        except OSError as error:
            self._put_off(_AFTER_CRASH)
            return NvmlTrouble(TroubleKind.FAILED, f"the NVML worker cannot be started: {error}")
        return self._worker

    async def _end(self, worker: NvmlProcess) -> None:
        if not await worker.kill():
            self._stuck.append(worker)
        if self._worker is worker:
            self._worker = None

    def _forget_the_dead(self) -> None:
        self._stuck = [worker for worker in self._stuck if not worker.has_ended]
        if self._worker is not None and self._worker.has_ended:
            self._worker = None

    def _put_off(self, first_wait: float) -> None:
        """No new worker before a while: longer with each failure in a row."""
        self._failures += 1
        backoff = Backoff(first=first_wait, most=_LONGEST_WAIT)
        self._not_before = self._now() + backoff.longest(self._failures)

    # ---- small things ---------------------------------------------------------------------------

    def _found(self) -> list[str]:
        return candidates(self._machine.root, {**os.environ, **self._worker_env})

    def _quiesced(self) -> NvmlTrouble:
        left = self.quiesced_until - self._now()
        text = "the agent has released the driver" + (f" for {left:.0f} s" if left < 1e9 else "")
        return NvmlTrouble(TroubleKind.QUIESCED, text)

    def _now(self) -> float:
        return self._machine.clock.boottime()
