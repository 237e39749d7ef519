"""One NVML worker process, and the conversation with it. ``nvml_worker`` is the other end."""

import asyncio
import contextlib
import json
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from nodeagent.child_process import signal_name
from nodeagent.clock import Clock
from nodeagent.dataclass import dataclass
from nodeagent.interpreter import light_python
from nodeagent.sources.gpu_sample import Gpu, gpu_from_wire
from nodeagent.sources.process_state import ProcessState, read_state

_WORKER = Path(__file__).with_name("nvml_worker.py")

#: Seconds that a process gets to go after SIGKILL. One that takes longer waits in the kernel.
_DEATH = 2.0


class NvmlStartError(Exception):
    """The worker runs and NVML does not: ``code`` is NVML's return code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class WorkerEndedError(Exception):
    """The worker ended, or sent an invalid line, before it had answered."""


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """A whole sample as the worker gave it. ``error`` is the code of the count itself.

    ``xids``: UUID, PCI address and code of each Xid event since the sample before.
    """

    driver: str
    gpus: tuple[Gpu, ...]
    error: int
    xids: tuple[tuple[str, str, int], ...] = ()
    excluded: tuple[str, ...] = ()
    cc_ready: int | None = None


def worker_command(libraries: Sequence[str]) -> list[str] | None:
    """The command that starts a worker, or None when nvidia-ml-py is not installed.

    Site-packages are left out: the worker gets the path of pynvml, and needs no more.
    """
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        return None
    folder = str(Path(spec.origin).parent)
    return [*light_python(), str(_WORKER), folder, *libraries]


class NvmlProcess:
    """A worker from its start to its end.

    There is one request at a time. ``pending`` is the task that waits for the answer, and it lives
    on when no caller waits for it any more: so the answer of a call that stalls for a minute is
    still read. ``started_at`` and ``requested_at`` (of the request) are in boottime seconds;
    ``answered`` are the GPUs that have answered since.
    """

    def __init__(self, process: Process, clock: Clock) -> None:
        self._process = process
        self._clock = clock
        self.started_at = clock.boottime()
        self.is_ready = False  # NVML has been initialised
        self._driver = ""
        self._seldom: dict[str, Mapping[str, Any]] = {}
        self.requested_at = 0.0
        self.answered: list[Gpu] = []
        self.pending: asyncio.Task[WorkerReply] | None = None

    @classmethod
    async def start(
        cls, command: Sequence[str], clock: Clock, extra_env: Mapping[str, str]
    ) -> "NvmlProcess":
        """Exec a worker. A session of its own keeps a terminal's Ctrl-C from it."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={**os.environ, **extra_env},
            start_new_session=True,
        )
        return cls(process, clock)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def request(self, *, processes: bool = False) -> asyncio.Task[WorkerReply]:
        """The task of the question under way, or of a new one: for ``processes`` too, or without.

        It raises NvmlStartError or WorkerEndedError.
        """
        if self.pending is None or self.pending.done():
            self.requested_at = self._clock.boottime()
            self.answered = []
            self.pending = asyncio.create_task(
                self._converse("processes" if processes else "sample")
            )
            # A caller that still waits sees the exception; without one asyncio shall not log it.
            self.pending.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self.pending

    def state(self) -> ProcessState:
        """Where the process waits. Its name shows which call is under way ("nvml 3 rows")."""
        return read_state(self.pid)

    def end_description(self) -> str:
        """How the process ended, for people."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"was killed by {signal_name(-code)}"
        return f"ended with status {code}"

    async def kill(self) -> bool:
        """End the process. False when it does not go: it waits in the kernel, its end pending."""
        if self.pending is not None:
            self.pending.cancel()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                self._process.kill()
        try:
            async with asyncio.timeout(_DEATH):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    async def _converse(self, what: str) -> WorkerReply:
        if not self.is_ready:
            await self._begin()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{what} {self.requested_at!r}\n".encode())
            await self._process.stdin.drain()
        except ConnectionError:
            await self._ended()
        error = (await self._line())["error"]
        while not (message := await self._line()).get("end"):
            self.answered.append(gpu_from_wire(message, self._seldom))
        xids = tuple((uuid, pci, code) for uuid, pci, code in message.get("xids", ()))
        excluded = tuple(map(str, message.get("excluded", ())))
        answered = tuple(self.answered)
        return WorkerReply(self._driver, answered, error, xids, excluded, message.get("cc_ready"))

    async def _begin(self) -> None:
        first = await self._line()
        if "failed" in first:
            await self._process.wait()
            raise NvmlStartError(first["failed"], first["message"])
        self.is_ready, self._driver = True, first["driver"]

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            await self._ended()
        message: dict[str, Any] = json.loads(line)
        return message

    async def _ended(self) -> NoReturn:
        await self._process.wait()
        raise WorkerEndedError(self.end_description())
